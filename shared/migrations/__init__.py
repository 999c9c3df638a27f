"""Alembic environment and versions."""

HEAD = "0003"
"""The newest version. Raise it with each new one: it says without Alembic whether a database is up to date."""
