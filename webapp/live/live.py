"""The live side of one web process: hub, watch and open connections, made with the app and ended with the process."""

from dataclasses import dataclass
from typing import cast

from flask import current_app

from webapp.context import WebContext
from webapp.live.connections import Connections
from webapp.live.follower import Sources
from webapp.live.watch import Watch

EXTENSION = "portal_live"


@dataclass(frozen=True)
class Live:
    sources: Sources
    connections: Connections
    watch: Watch

    def close_all(self) -> None:
        """The process is to stop: every socket and stream ends so that its client comes back to the next process.

        Takes no lock that a signal handler's frame could hold, if it is called in a thread of its own."""
        self.connections.close_all()

    def close(self) -> None:
        """End the threads too."""
        self.close_all()
        self.watch.close()
        self.sources.hub.close()


def make(web: WebContext) -> Live:
    settings = web.settings
    connections = Connections(limit=settings.max_sockets, limit_per_user=settings.max_sockets_per_user)
    sources = Sources(web.factory, web.log, web.hub)
    return Live(sources, connections, Watch(web.factory, web.log, web.hub, connections))


def live() -> Live:
    """The live side of the app that serves this request."""
    return cast(Live, current_app.extensions[EXTENSION])
