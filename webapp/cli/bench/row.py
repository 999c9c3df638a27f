"""One row of the table, and what every row needs: turns that are read to their end, and how late their deltas came.

A delta of a measured turn is its number and the time at which it was said, in nanoseconds: `412:1767225600000000000 `.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from webapp.cli.bench.client import JsonSocket
from webapp.cli.bench.stage import BenchError


@dataclass(frozen=True)
class Row:
    """`figures` by name with the unit in the name; `reach` the same names with what is to be reached."""

    name: str
    figures: dict[str, float]
    reach: dict[str, float]
    floor: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def missed(self) -> list[str]:
        return [name for name, most in self.reach.items() if self.figures[name] > most]


def one_turn(socket: JsonSocket, session: str, text: str) -> list[float]:
    """Play a turn; the milliseconds from each stamp to its frame."""
    socket.run(session, text)
    late, _ = collect(socket, {session}, limit_s=120)
    return late


def collect(socket: JsonSocket, sessions: set[str], *, limit_s: float) -> tuple[list[float], dict[str, str]]:
    """Read until the turn of each session has ended: milliseconds from each stamp to its frame, and the texts."""
    late: list[float] = []
    texts = dict.fromkeys(sessions, "")
    last_seq: dict[str, int] = {}
    open_sessions = set(sessions)
    deadline = time.monotonic() + limit_s
    while open_sessions and time.monotonic() < deadline:
        came, frame = socket.receive()
        session = frame.get("session_id", "")
        if "seq" in frame:
            if frame["seq"] != last_seq.get(session, frame["seq"] - 1) + 1:
                raise BenchError(f"a gap: seq {frame['seq']} after {last_seq[session]}")
            last_seq[session] = frame["seq"]
        if frame["event"] == "message.delta":
            texts[session] += frame["data"]["text"]
            late += [(came - int(stamp.split(":")[1])) / 1e6 for stamp in frame["data"]["text"].split()]
        elif frame["event"] == "run.completed":
            open_sessions.discard(session)
        elif frame["event"] in ("run.failed", "run.interrupted", "error"):
            raise BenchError(f"a turn ended badly: {frame}")
    if open_sessions:
        raise BenchError(f"{len(open_sessions)} turns did not end within {limit_s:.0f} s")
    return late, texts


def check_whole(texts: dict[str, str], deltas: int) -> None:
    """Raises BenchError when a stream lost, repeated or misplaced a delta."""
    wrong = [text for text in texts.values() if [int(p.split(":")[0]) for p in text.split()] != list(range(deltas))]
    if wrong:
        raise BenchError(f"{len(wrong)} of {len(texts)} streams lost, repeated or misplaced a delta")


def spread(values: Sequence[float], *percents: int) -> dict[str, float]:
    """`p50_ms` and so on; without `percents` 50 and 99. Between what was measured, never beyond its longest, as the
    other way of reckoning has it where there are fewer than a hundred."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {f"p{percent}_ms": cuts[percent - 1] for percent in percents or (50, 99)}
