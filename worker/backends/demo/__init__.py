"""The built-in demo gateway: a small HTTP server that speaks the gateway's own protocol over loopback.

`python -m worker.backends.demo` starts it; `portal up` does so while no real agent is configured. Its agent answers
from what the user asks and plays, on request, each thing the page can show.
"""
