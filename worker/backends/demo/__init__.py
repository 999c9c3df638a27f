"""The built-in demo gateway: a small HTTP server that plays what the page can show."""
