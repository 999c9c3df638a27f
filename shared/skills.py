"""The catalogue of SKILL.md folders below a Hermes home. Untrusted text: read with limits, never followed out (S32)."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.text import storable

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_SKILLS = 1_000
MAX_DEPTH = 3  # skills/<category>/<folder>/SKILL.md
HEAD_BYTES = 16_384
MAX_BYTES = 256 * 1024  # of one that is used
MAX_DESCRIPTION = 500

_FIELD = re.compile(r"^(name|description):[ \t]*(\S[^\n]{0,2000})$", re.MULTILINE)


@dataclass(frozen=True)
class Skill:
    folder_name: str
    name: str
    description: str


def in_home(home: Path) -> list[Skill]:
    """The skills of a Hermes home, by folder name; none when there is no such folder."""
    found: dict[str, Skill] = {}
    for path in _files(home):
        skill = _read(path)
        if skill is not None:
            found.setdefault(skill.folder_name, skill)
        if len(found) >= MAX_SKILLS:
            break
    return sorted(found.values(), key=lambda skill: skill.folder_name)


def text_of(home: Path, folder_name: str) -> str | None:
    """The whole SKILL.md of a skill, up to MAX_BYTES; None when there is none of that name that can be read."""
    path = next((path for path in _files(home) if path.parent.name == folder_name), None)
    try:
        if path is None or path.stat().st_size > MAX_BYTES:
            return None
        return storable(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


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


def _read(path: Path) -> Skill | None:
    """Name and description from the head of the file; plain lines only, whatever else YAML may say there."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    matter = head.removeprefix("\ufeff").split("\n---", 1)[0] if head.removeprefix("\ufeff").startswith("---") else ""
    fields = {
        name: storable(value.strip().strip("'\"")) for name, value in _FIELD.findall(matter.replace("\r\n", "\n"))
    }
    folder_name = path.parent.name
    return Skill(folder_name, fields.get("name", folder_name)[:100], fields.get("description", "")[:MAX_DESCRIPTION])
