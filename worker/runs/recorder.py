"""Writes down what a run brings: into the relay as it comes, into the transcript, and behind it into the database.

Text goes out first and is saved after it, at least every second; what tells a state or a decision is recorded by its
caller only after its commit (RELIABILITY 3). The relay may be away: the run goes on, is saved, and the next append
asks for a new epoch so that every page takes a snapshot. The database may be away: the stream goes on.

This is the hot path (DESIGN 11): the payload of a delta is built by hand, and a gathered piece is sent without waiting
for the relay's answer, which is read when something follows: it is there by then, and wakes nobody.
"""

import json
import math
import time
from concurrent.futures import Future
from datetime import datetime
from json.encoder import encode_basestring
from typing import Literal, NamedTuple

from shared import clock, logs
from shared.database import transaction
from shared.errors import StorageFull, Unavailable
from shared.protocol.events import (
    AnyEvent,
    StatusUpdated,
    StatusUpdatedData,
    to_payload,
)
from shared.redaction import StreamRedactor
from shared.relay.connection import RelayDown
from shared.relay.event_log import Appended
from shared.store import runs as run_store
from shared.text import storable
from shared.transcript import answer_text, fold, fold_text
from shared.transcript_items import TextKind, Transcript
from shared.transcript_json import to_json
from worker.context import WorkerContext
from worker.runs.joined_log import JoinedLog
from worker.runs.live_run import LiveRun

Kind = Literal["message.delta", "reasoning.delta"]
TEXT_KINDS: dict[Kind, TextKind] = {"message.delta": "message", "reasoning.delta": "reasoning"}

GATHER_S = 0.015
GATHER_BEHIND_S = 0.050
BEHIND_S, IN_TIME_S = 0.005, 0.002  # mean wait for the relay's answer at which it counts as behind, and as in time
BEHIND_WAITING = 16  # so many items in the inbox count as behind too
GATHER_CHARS = 2_048
LONGEST_PIECE_CHARS = 16_384  # of one event, when a backend sends more at once
TICK_S = 0.5  # how often `tick` is called, about
SAVE_EVERY_S = 1.0
SAVE_EVERY_CHARS = 4_096
SAVE_SHARE = 20  # a save for size alone waits this many times what the last one took: long texts stay linear
RELAY_RETRY_S = 1.0
LOOK_S = 5.0  # so often a run with nothing to tell looks whether its log is still there
SAVE_RETRY_S = 1.0
LAST_PAUSES_S = (0.0, 0.2, 1.0)  # before each try to append how the run ended

log = logs.get(__name__)


class _Piece(NamedTuple):
    """One delta. `head`: its envelope up to `data`, an open JSON object."""

    kind: Kind
    part: int
    offset: int
    text: str
    at: datetime
    head: str
    payload: str


class Recorder:
    """Used by who has the turn of its run. `flush_at` (monotonic) is when `flush_text` wants to be called."""

    def __init__(self, context: WorkerContext, live: LiveRun) -> None:
        self.transcript = Transcript(run_id=live.run_id)
        self.joined = JoinedLog()
        self.flush_at = math.inf
        self.full_since: float | None = None  # monotonic, while saves fail because the disk is full
        self._context = context
        self._live = live
        self._epoch, self._seq = "", 0
        # the open part of text
        self._part, self._offset = -1, 0
        self._kind: Kind | None = None
        self._redactor = StreamRedactor()
        self._pieces: list[str] = []
        self._gathered = 0
        self._sent_at = 0.0
        self._gather_s = GATHER_S
        self._append_s = 0.0  # moving mean
        # the relay's holes
        self._hole = context.holes.take(live.session_id)
        self._relay_retry_at = 0.0
        self._look_at = 0.0
        self._status = ""
        self._closing = False
        self._line = context.log.line(live.session_id, run_id=live.run_id, fence=live.fence)
        self._under_way: list[_Piece] | None = None  # sent, its answer not read yet
        # saves
        self._saving: Future[None] | None = None
        self._save_took_s = 0.0
        self._save_at = math.inf
        self._saved_at = time.monotonic()
        self._unsaved_chars = 0
        self._unsaved = False
        identity = f'"session_id":{json.dumps(live.session_id)},"run_id":{json.dumps(live.run_id)},"fence":{live.fence}'
        self._heads = {kind: f'{{"event":"{kind}",{identity},"at":"' for kind in TEXT_KINDS}

    # ---- what comes in

    def text(self, kind: Kind, text: str, now: float) -> None:
        """A piece of text; gathered with its neighbours for a moment unless it follows a pause."""
        if kind != self._kind:
            self._end_part()
            self._part, self._offset, self._kind = self._part + 1, 0, kind
        text = self._redactor.feed(storable(text))
        if not text:
            return
        self._pieces.append(text)
        self._gathered += len(text)
        if self._gathered >= GATHER_CHARS or now - self._sent_at >= self._gather_s:
            self._flush()
        elif self.flush_at == math.inf:
            self.flush_at = self._sent_at + self._gather_s

    def flush_text(self) -> None:
        """Send the gathered text; `flush_at` says when."""
        self._flush()

    def emit(self, *events: AnyEvent, new_part: bool = False) -> None:
        """Other events, in one append with the text before them. `new_part`: later text begins a new part."""
        if new_part:
            self._let_go()
        self._flush(*events)
        if new_part:
            self._kind = None

    def note(self, event: AnyEvent) -> None:
        """Fold an event that somebody else has appended: an answer, as the web process tells it."""
        self._hear()
        fold(self.transcript, event)
        self.joined.event(to_payload(event), self._epoch, self._seq)
        self._plan_save(at_once=True)

    def end_text(self) -> None:
        """Send what is gathered and wait for the save under way: the end of the run writes all of it."""
        self._end_part()
        self._hear()
        self.settle()

    def close(self) -> None:
        """Nothing more comes; called once, whatever happened."""
        self._line.close()

    def last(self, *events: AnyEvent) -> None:
        """The events that follow the end of the run, which the database already holds. A hole that stays is left to
        the janitor of this process."""
        self._closing = True
        self._hear()
        others = [(event, to_payload(event)) for event in events]
        appended = None
        for pause_s in LAST_PAUSES_S:
            time.sleep(pause_s)
            self._relay_retry_at = 0.0
            appended = self._append([payload for _, payload in others])
            if appended is not None:
                break
        self._record([], others, appended)
        if self._hole:
            self._context.holes.add(self._live.session_id)

    def tick(self, now: float) -> None:
        """What is due: a save, the end of a hole in the relay. Called every TICK_S. Raises LeaseLost."""
        self._hear()
        self._look_for_log(now)
        if self._hole and now >= self._relay_retry_at:
            live = self._live
            again = StatusUpdatedData(text=self._status)
            self._flush(StatusUpdated(session_id=live.session_id, run_id=live.run_id, fence=live.fence, data=again))
        self._look_at_save()
        if self._unsaved and self._saving is None and now >= self._save_at - TICK_S:
            self._start_save()

    def _look_for_log(self, now: float) -> None:
        """Redis may have come back empty while there was nothing to append: a page that was opened before the last save
        would stay with what was saved by then. With the log goes the cursor of every page, so all take it anew."""
        if self._hole or not self._epoch or now < max(self._look_at, self._sent_at + LOOK_S):
            return
        self._look_at = now + LOOK_S
        try:
            head = self._context.log.head(self._live.session_id)
        except RelayDown:
            return
        self._hole = head is None or head.epoch != self._epoch

    def _end_part(self) -> None:
        self._let_go()
        self._flush()

    def _let_go(self) -> None:
        """The end of the open part: what was held back as the possible beginning of a secret is none."""
        rest = self._redactor.flush()
        if rest:
            self._pieces.append(rest)

    # ---- what goes out

    def _flush(self, *events: AnyEvent) -> None:
        self._hear()
        pieces = self._take_pieces()
        if not pieces and not events:
            return
        is_known = self._epoch and not self._hole  # the relay has the script, and a log
        if not events and is_known and self._send([piece.payload for piece in pieces]):
            self._under_way = pieces
            return
        others = [(event, to_payload(event)) for event in events]
        payloads = [piece.payload for piece in pieces]
        payloads.extend(payload for _, payload in others)
        self._record(pieces, others, self._append(payloads))

    def _hear(self) -> None:
        """Read the answer to the text under way, and keep the text. Raises LeaseLost."""
        if self._under_way is not None:
            pieces, self._under_way = self._under_way, None
            self._record(pieces, [], self._answer())

    def _record(self, pieces: list[_Piece], others: list[tuple[AnyEvent, str]], appended: Appended | None) -> None:
        """Fold and keep what has gone out; without `appended` it did not, and has the cursor of what came before."""
        seq = self._seq
        in_new_epoch = appended is not None and appended.epoch != self._epoch  # whoever it was that began it
        if appended is not None:
            self._epoch, seq = appended.epoch, appended.first_seq - 1
        step = 0 if appended is None else 1
        for piece in pieces:
            seq += step
            fold_text(self.transcript, TEXT_KINDS[piece.kind], piece.part, piece.offset, piece.text, piece.at)
            self.joined.text(piece.kind, piece.part, piece.offset, piece.text, piece.head, self._epoch, seq)
            self._unsaved_chars += len(piece.text)
        for event, payload in others:
            seq += step
            fold(self.transcript, event)
            self.joined.event(payload, self._epoch, seq)
            if type(event) is StatusUpdated:
                self._status = event.data.text
        self._seq = seq
        self._plan_save(at_once=bool(others) or in_new_epoch)

    def _take_pieces(self) -> list[_Piece]:
        """The gathered text as events, made by hand: no model is built for a delta."""
        self.flush_at = math.inf
        if not self._pieces:
            return []
        text = self._pieces[0] if len(self._pieces) == 1 else "".join(self._pieces)
        self._pieces = []
        self._gathered = 0
        kind = self._kind
        assert kind is not None
        at = clock.now()
        head = f'{self._heads[kind]}{clock.iso_ms(at)}",'
        pieces = []
        for start in range(0, len(text), LONGEST_PIECE_CHARS):
            cut = text[start : start + LONGEST_PIECE_CHARS]
            data = f'"data":{{"part":{self._part},"offset":{self._offset},"text":{encode_basestring(cut)}}}}}'
            pieces.append(_Piece(kind, self._part, self._offset, cut, at, head, head + data))
            self._offset += len(cut)
        return pieces

    def _append(self, payloads: list[str]) -> Appended | None:
        """Append, or leave a hole. Before a new epoch begins, all that came before it is saved."""
        if time.monotonic() < self._relay_retry_at:
            return None
        if self._hole and not self._closing and not self.save_now():
            self._relay_retry_at = time.monotonic() + RELAY_RETRY_S
            return None
        if not self._send(payloads):
            return None
        appended = self._answer()
        self._sent_at = time.monotonic()
        return appended

    def _send(self, payloads: list[str]) -> bool:
        """Send an append; False when the relay does not take it, which leaves a hole."""
        try:
            self._line.send(payloads, new_epoch=self._hole)
        except RelayDown as error:
            self._leave_hole(error)
            return False
        self._sent_at = time.monotonic()
        return True

    def _answer(self) -> Appended | None:
        """What the relay says to the append sent last; None leaves a hole. Raises LeaseLost."""
        started = time.monotonic()
        try:
            appended = self._line.answer()
        except RelayDown as error:
            self._leave_hole(error)
            return None
        self._hole = False
        self._append_s += 0.2 * (time.monotonic() - started - self._append_s)
        if self._append_s > BEHIND_S or self._live.inbox.waiting > BEHIND_WAITING:
            self._gather_s = GATHER_BEHIND_S
        elif self._append_s < IN_TIME_S:
            self._gather_s = GATHER_S
        return appended

    def _leave_hole(self, error: RelayDown) -> None:
        if not self._hole:
            log.warning("relay.append_failed", run_id=self._live.run_id, error=type(error).__name__)
        self._hole = True
        self._relay_retry_at = time.monotonic() + RELAY_RETRY_S

    # ---- saving

    def _plan_save(self, *, at_once: bool) -> None:
        if self._closing:
            return
        self._unsaved = True
        if at_once:
            self._save_at = 0.0
        elif self._unsaved_chars >= SAVE_EVERY_CHARS:
            self._save_at = min(self._save_at, self._saved_at + SAVE_SHARE * self._save_took_s)
        self._save_at = min(self._save_at, self._saved_at + SAVE_EVERY_S)
        self._look_at_save()
        if self._saving is None and time.monotonic() >= self._save_at:
            self._start_save()

    def _start_save(self) -> None:
        self._saving = self._context.saver.submit(self._write, *self._snapshot())
        self._saved_at = time.monotonic()
        self._save_at = math.inf
        self._unsaved = False
        self._unsaved_chars = 0

    def _snapshot(self) -> tuple[str, dict[str, object], str, int]:
        return answer_text(self.transcript), to_json(self.transcript), self._epoch, self._seq

    def _write(self, content: str, transcript: dict[str, object], epoch: str, seq: int) -> None:
        started = time.monotonic()
        with transaction(self._context.factory) as db:
            run_store.save_progress(
                db,
                self._live.run_id,
                fence=self._live.fence,
                content=content,
                transcript=transcript,
                epoch=epoch,
                seq=seq,
            )
        self._save_took_s = time.monotonic() - started

    def _look_at_save(self) -> None:
        """Learn how the save in the background went. Raises LeaseLost."""
        if self._saving is not None and self._saving.done():
            saving, self._saving = self._saving, None
            self._learn(saving)

    def _learn(self, saving: Future[None]) -> bool:
        try:
            saving.result()
        except Unavailable as error:
            if isinstance(error, StorageFull):
                self.full_since = self.full_since or time.monotonic()
            self._unsaved = True
            self._save_at = time.monotonic() + SAVE_RETRY_S
            log.warning("run.save_failed", run_id=self._live.run_id, code=error.code)
            return False
        self.full_since = None
        return True

    @property
    def cursor(self) -> tuple[str, int]:
        """Epoch and seq up to which the transcript reaches."""
        return self._epoch, self._seq

    def save_now(self) -> bool:
        """Save all there is and wait for it; False when the database does not take it. Raises LeaseLost."""
        self.settle()
        self._start_save()
        return self.settle()

    def settle(self) -> bool:
        """Wait for the save that is under way; False when it failed."""
        if self._saving is None:
            return True
        saving, self._saving = self._saving, None
        return self._learn(saving)
