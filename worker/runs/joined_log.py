"""The events of one run as they will be kept in `run_log`: neighbouring deltas joined, compressed as they come.

Each line is the event's envelope with its cursor. A joined delta carries the `seq` of its last piece and, as
`first_seq`, that of its first. What the relay did not take has the cursor of the event before it.
"""

import json
import zlib
from dataclasses import dataclass

from sqlalchemy.orm import Session, sessionmaker

from shared import logs
from shared.database import transaction
from shared.errors import Unavailable
from shared.protocol.events import AnyEvent, MessageDelta, ReasoningDelta, ThinkingDelta
from shared.store import run_logs

LONGEST_PIECE_CHARS = 32 * 1024  # so that a line stays far below the size of a frame

log = logs.get(__name__)


@dataclass
class _Piece:
    event: str
    part: int
    offset: int
    head: str  # the envelope's fields before `data`
    texts: list[str]
    chars: int
    first_seq: int
    seq: int
    epoch: str


class JoinedLog:
    """Fed by the recorder only; memory holds the compressed lines and one open piece of text."""

    def __init__(self) -> None:
        self.epoch = ""
        self.first_seq = 0
        self.last_seq = 0
        self._compressor = zlib.compressobj(6)
        self._chunks: list[bytes] = []
        self._piece: _Piece | None = None

    def text(self, event: str, part: int, offset: int, text: str, head: str, epoch: str, seq: int) -> None:
        """A delta; `head` is its envelope up to `data`, an open JSON object."""
        piece = self._piece
        self._seen(epoch, seq)
        if (
            piece is not None
            and piece.part == part
            and piece.event == event
            and piece.epoch == epoch
            and piece.chars < LONGEST_PIECE_CHARS
        ):
            piece.texts.append(text)
            piece.chars += len(text)
            piece.seq = seq
            return
        self._close_piece()
        self._piece = _Piece(event, part, offset, head, [text], len(text), seq, seq, epoch)

    def event(self, payload: str, epoch: str, seq: int) -> None:
        """Any other event, as it went into the relay."""
        self._close_piece()
        self._seen(epoch, seq)
        self._write(f'{{"seq":{seq},"epoch":{json.dumps(epoch)},{payload[1:]}\n')

    def add(self, event: AnyEvent, payload: str, epoch: str, seq: int) -> None:
        """An event as it stands in the relay, of whatever kind."""
        if isinstance(event, MessageDelta | ReasoningDelta | ThinkingDelta):
            piece = event.data
            head = payload[: payload.index('"data":')]
            self.text(event.event, piece.part, piece.offset, piece.text, head, epoch, seq)
        else:
            self.event(payload, epoch, seq)

    def keep(self, factory: sessionmaker[Session], run_id: str, session_id: str) -> None:
        """Store the log. A database that is away is no fault: the message holds everything, only playing the run back
        event by event is lost."""
        try:
            with transaction(factory) as db:
                run_logs.put(
                    db,
                    run_id=run_id,
                    session_id=session_id,
                    epoch=self.epoch,
                    first_seq=self.first_seq,
                    last_seq=self.last_seq,
                    lines=self.lines(),
                )
        except Unavailable as error:
            log.warning("run.log_not_kept", run_id=run_id, code=error.code)

    def lines(self) -> list[str]:
        """The whole log, one JSON object each. Nothing can be added afterwards."""
        self._close_piece()
        self._chunks.append(self._compressor.flush())
        return zlib.decompress(b"".join(self._chunks)).decode().split("\n")[:-1]

    def _seen(self, epoch: str, seq: int) -> None:
        if self.epoch != epoch or self.first_seq == 0:
            self.epoch, self.first_seq = epoch, seq
        self.last_seq = seq

    def _close_piece(self) -> None:
        piece, self._piece = self._piece, None
        if piece is None:
            return
        data = json.dumps(
            {"part": piece.part, "offset": piece.offset, "text": "".join(piece.texts)}, ensure_ascii=False
        )
        cursor = f'"seq":{piece.seq},"first_seq":{piece.first_seq},"epoch":{json.dumps(piece.epoch)}'
        self._write(f'{{{cursor},{piece.head[1:]}"data":{data}}}\n')

    def _write(self, line: str) -> None:
        chunk = self._compressor.compress(line.encode())
        if chunk:
            self._chunks.append(chunk)
