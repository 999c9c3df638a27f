"""The sockets and event streams."""
