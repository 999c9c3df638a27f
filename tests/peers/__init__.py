"""Peers that tests talk to: real processes and servers that follow a script."""
