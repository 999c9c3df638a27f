"""A Hermes gateway as a backend."""
