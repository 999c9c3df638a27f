"""The doors: turns requests into actions and events into pages."""
