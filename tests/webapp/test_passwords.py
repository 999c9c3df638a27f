"""Which passwords are taken (S3), and how they are kept (S2)."""

import threading

import pytest

from shared import errors
from webapp import passwords


@pytest.mark.parametrize(
    "password",
    [
        "violet tractor humming",
        "Tr0ub4dor&3-xylophone",
        "wandering-otter-41",
        "四月的雨打在铁皮屋顶上很响亮",
        "8f3b0c77e1d94a52b6f0",
        "x" * 3 + "Kq7!" * 3 + "v" * 113,
    ],
)
def test_a_password_that_takes_long_to_guess_is_taken(password: str) -> None:
    assert passwords.check_new(password, login="mara", name="Mara Lind") == password


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("", "12 characters"),
        ("short-one-1", "12 characters"),
        ("v" * 129, "at most 128"),
        ("password1234", "stranger"),
        ("Passw0rd2026!", "stranger"),
        ("P@ssw0rd!!!!!", "stranger"),
        ("qwertyuiop12", "stranger"),
        ("1qaz2wsx3edc", "stranger"),
        ("correcthorsebatterystaple", "stranger"),
        ("aaaaaaaaaaaaaaa", "stranger"),
        ("abababababab", "stranger"),
        ("123456789012", "stranger"),
        ("abcdefghijkl", "stranger"),
        ("hunter2hunter2", "stranger"),
        ("2026-11-30-12", "stranger"),
        ("summer2026!!", "stranger"),
        ("HermesPortal1", "stranger"),
        ("i-am-mara-lind", "your own name"),
        ("the mara.lind@example one", "your own name"),
    ],
)
def test_a_password_that_would_be_tried_first_is_refused(password: str, why: str) -> None:
    with pytest.raises(errors.InvalidCommand, match=why) as refused:
        passwords.check_new(password, login="mara", name="Mara Lind")
    assert refused.value.code == "weak_password"


def test_hashes_are_argon2id_of_at_least_19_mib_and_two_passes() -> None:
    hashed = passwords.hash_password("violet tractor humming")
    assert hashed.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    assert passwords.verify(hashed, "violet tractor humming")
    assert not passwords.verify(hashed, "violet tractor hummin")
    assert not passwords.verify(None, "no account has this password")
    assert not passwords.verify("not a hash", "x")


def test_one_password_typed_on_two_systems_is_the_same() -> None:
    """An accent may come as one character or as two."""
    composed, decomposed = "caf\u00e9 tractor humming", "cafe\u0301 tractor humming"
    hashed = passwords.hash_password(passwords.check_new(composed))
    assert passwords.verify(hashed, decomposed)


def test_many_at_once_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, lock = 0, 0, threading.Lock()
    entered = threading.Event()

    def slow() -> bool:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        entered.wait(0.05)
        with lock:
            running -= 1
        return True

    threads = [threading.Thread(target=passwords._in_turn, args=(slow,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most <= passwords.AT_ONCE
