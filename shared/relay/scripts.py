"""The Lua scripts of the event log, by the name under which Redis knows each once it has been loaded."""

import hashlib
from importlib import resources


class Script:
    """A Lua script of this package and its SHA-1."""

    def __init__(self, name: str) -> None:
        self.text = resources.files(__package__).joinpath(name).read_bytes()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest()


APPEND, READ, HEAD = Script("append.lua"), Script("read.lua"), Script("head.lua")
