"""Passwords: which are good enough (S3), how they are hashed and compared (S2, S4)."""

import string
import threading
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from shared import errors

MIN_CHARACTERS, MAX_CHARACTERS = 12, 128
HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
"""19 MiB, two passes: the OWASP password storage cheat sheet's first choice for argon2id."""

T = TypeVar("T")
AT_ONCE = 4
WAIT_S = 10
_turns = threading.BoundedSemaphore(AT_ONCE)  # 19 MiB each: a thousand sign-ins at once must not fill the memory
_DRESS = string.digits + string.punctuation + " "
_LOOKALIKES = str.maketrans("0134578@$!", "oleastbasi")


def check_new(password: str, *, login: str = "", name: str = "") -> str:
    """The password as it will be hashed (NFKC). Raises InvalidCommand, code `weak_password`, with what is wrong."""
    password = normalised(password)
    if len(password) < MIN_CHARACTERS:
        raise _weak(f"Use at least {MIN_CHARACTERS} characters; a few words together are easy to remember.")
    if len(password) > MAX_CHARACTERS:
        raise _weak(f"Use at most {MAX_CHARACTERS} characters.")
    if is_common(password):
        raise _weak("This password is among the first that a stranger would try. Use a few unrelated words.")
    plain = password.casefold()
    if any(len(own) >= 4 and own.casefold() in plain for own in (login, *name.split())):
        raise _weak("Leave your own name out of the password.")
    return password


def is_common(password: str) -> bool:
    """True for a listed password, one dressed up with digits, signs or look-alikes, and for one piece repeated."""
    plain = password.casefold()
    common = _common()
    for form in {plain, plain.translate(_LOOKALIKES)}:
        core = form.strip(_DRESS)
        if form in common or core in common or (len(core) < 4 and len(form) < 20):
            return True
        if any(_is_repeated(text, common) for text in (form, core)):
            return True
    return len(set(plain)) < 5 or _is_sequence(plain)


def hash_password(password: str) -> str:
    """An argon2id hash of a password that `check_new` passed. Raises Unavailable when too many wait for one."""
    return _in_turn(lambda: HASHER.hash(password))


def verify(password_hash: str | None, password: str) -> bool:
    """Compare. Takes the same time when there is no hash, so that nobody learns which names exist."""

    def compare() -> bool:
        try:
            return HASHER.verify(password_hash or _dummy_hash(), normalised(password)) and password_hash is not None
        except (VerificationError, InvalidHashError):
            return False

    if len(password) > 4 * MAX_CHARACTERS:
        password = ""
    return _in_turn(compare)


def needs_rehash(password_hash: str) -> bool:
    """True when the hash was made with parameters other than today's."""
    return HASHER.check_needs_rehash(password_hash)


def normalised(password: str) -> str:
    """One form for what keyboards of different systems send for the same characters."""
    return unicodedata.normalize("NFKC", password)


def _in_turn(work: Callable[[], T]) -> T:
    if not _turns.acquire(timeout=WAIT_S):
        raise errors.Unavailable("Too many people sign in at this moment. Try again.", retry_after_s=5)
    try:
        return work()
    finally:
        _turns.release()


def _weak(message: str) -> errors.InvalidCommand:
    return errors.InvalidCommand(message, code="weak_password")


def _is_repeated(text: str, common: frozenset[str]) -> bool:
    """`abcdabcdabcd`, and a listed word twice or more: the shortest period of the text."""
    doubled = (text + text).find(text, 1)
    return 0 < doubled < len(text) and (doubled <= 4 or text[:doubled].strip(_DRESS) in common)


def _is_sequence(text: str) -> bool:
    """`abcdefghijkl`, `123456789012`, `lkjihgfedcba`: at most two steps that are not +1 or -1."""
    steps = [ord(b) - ord(a) for a, b in pairwise(text)]
    return max(steps.count(1), steps.count(-1)) >= len(steps) - 2


@lru_cache(maxsize=1)
def _common() -> frozenset[str]:
    path = Path(__file__).with_name("common_passwords.txt")
    return frozenset(line for line in path.read_text(encoding="utf-8").split("\n") if line and line[0] != "#")


@lru_cache(maxsize=1)
def _dummy_hash() -> str:
    return HASHER.hash("no account has this password")
