"""Approvals and questions: whom they ask, what exactly they show, how they were decided (LOOK; RELIABILITY S18)."""

import time
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from shared.transcript import Approval, Clarification, Pause, Transcript
from webapp.render import _
from webapp.view_process import one_line
from webapp.views import Ask, Decision, LateAnswer, Mark, Option

_ODD = frozenset("\u00ad\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")


@dataclass(frozen=True)
class Viewer:
    """Whose page it is. `skew_s` is what the database's clock is ahead of ours: deadlines are its own (C15)."""

    user_id: str
    owner_id: str
    may_send: bool = True
    skew_s: float = 0.0

    def may_answer(self, pause: Pause) -> bool:
        if not self.may_send:
            return False
        if isinstance(pause, Clarification):
            return True
        return self.user_id == self.owner_id or self.user_id in (pause.may_answer or ())


def asks(t: Transcript, viewer: Viewer) -> tuple[Ask, ...]:
    waiting = t.open_pauses
    return tuple(_ask(pause, n, len(waiting), viewer) for n, pause in enumerate(waiting, 1))


def _ask(pause: Pause, n: int, of: int, viewer: Viewer) -> Ask:
    left_s = None
    if pause.deadline is not None:
        left_s = max(0.0, pause.deadline.timestamp() - time.time() - viewer.skew_s)
    whole_s = (pause.deadline - pause.asked_at).total_seconds() if pause.deadline is not None else 0.0
    place = _("%(n)s of %(of)s", n=n, of=of) if of > 1 else ""
    may = viewer.may_answer(pause)
    common = {"place": place, "left_s": left_s, "total_s": max(whole_s, left_s or 0.0, 1.0), "may_answer": may}
    if isinstance(pause, Clarification):
        return Ask(
            id=f"clarification-{pause.clarify_id}",
            pause_id=pause.clarify_id,
            is_approval=False,
            title=_("Needs your answer"),
            text=visible(pause.question),
            note="" if may else _("You may read this session, not answer in it."),
            choices=tuple(Option(choice, choice) for choice in pause.choices),
            **common,  # type: ignore[arg-type]
        )
    labels = {"once": _("Allow once"), "session": _("Allow for this session"), "always": _("Always allow")}
    choices = tuple(Option(choice, labels[choice]) for choice in labels if choice in pause.choices)
    return Ask(
        id=f"approval-{pause.approval_id}",
        pause_id=pause.approval_id,
        is_approval=True,
        title=_("Run this command?"),
        text=visible(pause.command),
        note=_approval_note(pause, may),
        choices=choices,
        **common,  # type: ignore[arg-type]
    )


def _approval_note(pause: Approval, may: bool) -> str:
    what = pause.description.strip() or pause.kind
    what = what[:1].upper() + what[1:]
    who = _("You may decide.") if may else _("Only the owner of the session may decide.")
    return f"{what}{'' if what.endswith(('.', '。', '!', '?')) else '.'} {who}" if what else who


def visible(text: str) -> Markup:
    """Exact text as HTML in which what has no shape of its own shows as its code point (S18): control, bidirectional,
    zero-width, private-use and filler characters, and spaces other than the common one."""
    return Markup("").join(_shown(character) for character in text)


def _shown(character: str) -> Markup:
    if character in "\n\t" or (character.isascii() and character.isprintable()):
        return escape(character)
    kind = unicodedata.category(character)
    is_odd = kind[0] == "C" or kind in ("Zl", "Zp") or (kind == "Zs" and character != "\u3000") or character in _ODD
    if is_odd or "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef":
        return Markup('<span class="odd">U+{:04X}</span>').format(ord(character))
    return escape(character)


def decisions(t: Transcript, late: Sequence[LateAnswer] = ()) -> tuple[Decision, ...]:
    """Of all that is decided, but for what `late` shows as a card."""
    shown = {card.pause_id for card in late}
    return tuple(_decision(pause) for pause in t.pauses if not pause.is_open and _id_of(pause) not in shown)


def _id_of(pause: Pause) -> str:
    return pause.clarify_id if isinstance(pause, Clarification) else pause.approval_id


def late_queue_id(clarify_id: str) -> str:
    """Of the turn in which a late answer is sent: it is sent once, however often the button is pressed."""
    return f"late-{clarify_id}"


def late_answers(
    t: Transcript, viewer: Viewer, kept: Mapping[str, str], sent: Collection[str]
) -> tuple[LateAnswer, ...]:
    """The questions whose answer may still be sent, as a turn: those that nobody answered in time, and those with an
    answer that came too late and is `kept`. `sent`: queue ids of the turns there are."""
    if not viewer.may_send:
        return ()
    return tuple(
        _late_answer(pause, kept.get(pause.clarify_id, ""))
        for pause in t.pauses
        if isinstance(pause, Clarification)
        and not pause.is_open
        and (pause.reason == "expired" or pause.clarify_id in kept)
        and late_queue_id(pause.clarify_id) not in sent
    )


def _late_answer(pause: Clarification, text: str) -> LateAnswer:
    is_choice = text in pause.choices
    done = _decision(pause)
    return LateAnswer(
        id=done.id,
        pause_id=pause.clarify_id,
        queue_id=late_queue_id(pause.clarify_id),
        mark=Mark(done.mark.state, done.text),
        question=visible(pause.question),
        choices=tuple(Option(choice, choice, is_choice and choice == text) for choice in pause.choices),
        text="" if is_choice else text,
    )


def _decision(pause: Pause) -> Decision:
    by = pause.by or ""
    if isinstance(pause, Clarification):
        text, state = {
            "answered": (_("Answered by %(name)s", name=by) if by else _("Answered"), "done"),
            "expired": (_("Expired without an answer"), "stopped"),
        }.get(pause.reason or "", (_("Withdrawn: the turn went on without an answer"), "stopped"))
        detail = one_line(pause.answer or pause.question)
        return Decision(f"clarification-{pause.clarify_id}", Mark(state, ""), text, detail, pause.resolved_at)
    text, state = _approval_words(pause, by)
    return Decision(f"approval-{pause.approval_id}", Mark(state, ""), text, one_line(pause.command), pause.resolved_at)


def _approval_words(pause: Approval, by: str) -> tuple[str, str]:
    if pause.reason == "expired":
        return _("Expired, so denied: nobody decided in time"), "stopped"
    if pause.reason == "withdrawn":
        return _("Withdrawn: the agent no longer waits for it"), "stopped"
    words = {
        "once": _("Allowed once"),
        "session": _("Allowed for this session"),
        "always": _("Always allowed"),
        "deny": _("Denied") if by else _("Denied by rule"),
    }
    word = words.get(pause.choice or "", _("Decided"))
    return (_("%(what)s by %(name)s", what=word, name=by) if by else word), (
        "failed" if pause.choice == "deny" else "done"
    )
