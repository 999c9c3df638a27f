"""The catalogue of SKILL.md folders, below a profile's Hermes home and in the portal's own folder.

Untrusted text: read with limits, never followed out, and what is no plain file is left alone (S32, S34).
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.text import storable

NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_SKILLS = 1_000
MAX_DEPTH = 3  # skills/<category>/<folder>/SKILL.md
HEAD_BYTES = 16_384
MAX_BYTES = 256 * 1024  # of one that is used
MAX_NAME = 100
MAX_DESCRIPTION = 500

_FIELD = re.compile(r"(name|description):[ \t]*(.{0,2000})", re.DOTALL)
_BLOCK = re.compile(r"[|>][+-]?[1-9]?[+-]?(?:[ \t]+#.*)?")  # the value stands in the lines below it

Source = Literal["profile", "portal"]


@dataclass(frozen=True)
class Skill:
    """`source`: whose folder it is in, the profile's home or the portal's own."""

    folder_name: str
    name: str
    description: str
    source: Source = "profile"


@dataclass(frozen=True)
class Content:
    """The text of a skill; `sha256` is of the bytes of its file."""

    text: str
    sha256: str
    source: Source


def listed(home: Path, data_dir: Path) -> list[Skill]:
    """What a session of the profile with that home may choose from, by folder name: the skills of the home, and those
    of the portal's own folder (`<data dir>/skills`). Of two with one name the profile's own counts."""
    found = {skill.folder_name: skill for skill in _in(data_dir, "portal")}
    found |= {skill.folder_name: skill for skill in _in(home, "profile")}
    return sorted(found.values(), key=lambda skill: skill.folder_name)[:MAX_SKILLS]


def any_listed(home: Path, data_dir: Path) -> bool:
    """Whether there is anything to choose from; reads no file."""
    return any(True for root in (home, data_dir) for _ in _files(root))


def read(home: Path, data_dir: Path, folder_name: str) -> Content | None:
    """The whole SKILL.md of a skill, up to MAX_BYTES; None when there is none of that name that can be read."""
    roots: tuple[tuple[Path, Source], ...] = ((home, "profile"), (data_dir, "portal"))
    for root, source in roots:
        for path in _files(root):
            if path.parent.name == folder_name:
                content = _content(path, MAX_BYTES + 1)
                if content is None or len(content) > MAX_BYTES:
                    return None
                text = storable(content.decode("utf-8", "replace"))
                return Content(text, hashlib.sha256(content).hexdigest(), source)
    return None


def _in(root: Path, source: Source) -> list[Skill]:
    found: dict[str, Skill] = {}
    for path in _files(root):
        head = _content(path, HEAD_BYTES)
        if head is not None:
            skill = _read(path.parent.name, head.decode("utf-8", "replace"), source)
            found.setdefault(skill.folder_name, skill)
        if len(found) >= MAX_SKILLS:
            break
    return list(found.values())


def _files(home: Path) -> Iterator[Path]:
    """Every SKILL.md; no link is followed."""
    root = home / "skills"
    for folder, names, files in os.walk(root, followlinks=False):
        here = Path(folder)
        depth = len(here.relative_to(root).parts)
        names[:] = (
            sorted(n for n in names if NAME.fullmatch(n) and not (here / n).is_symlink()) if depth < MAX_DEPTH else []
        )
        if depth and "SKILL.md" in files and not (here / "SKILL.md").is_symlink():
            names[:] = []
            yield here / "SKILL.md"


def _content(path: Path, limit: int) -> bytes | None:
    """The beginning of a plain file; None for what cannot be read, or is none: a pipe would never end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            return file.read(limit) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except OSError:
        return None


def _read(folder_name: str, head: str, source: Source) -> Skill:
    """Name and description from the head of the file; plain lines only, whatever else YAML may say there."""
    head = head.removeprefix("\ufeff").replace("\r\n", "\n")
    matter = head.split("\n---", 1)[0] if head.startswith("---") else ""
    fields: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", matter):  # a field, with the lines below it that are indented
        field = _FIELD.match(entry)
        if field is not None:
            fields.setdefault(field[1], _plain(field[2]))
    return Skill(
        folder_name,
        (fields.get("name") or folder_name)[:MAX_NAME],
        fields.get("description", "")[:MAX_DESCRIPTION],
        source,
    )


def _plain(value: str) -> str:
    """A value on one line, without its quotes."""
    first, _, rest = value.partition("\n")
    words = " ".join((rest if _BLOCK.fullmatch(first.strip()) else value).split())
    if len(words) > 1 and words[0] == words[-1] and words[0] in "\"'":
        words = words[1:-1]
    return storable(words)
