"""One table from our exceptions to what clients are told, by every door and in the reader's language."""

import http.client
import re
import socket
import ssl

import pytest
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po

from shared import errors
from shared.relay.connection import AppendUnknown, RelayDown
from tests.rig.web import Web
from webapp.errors import problem_of, told
from webapp.render import HERE, Reader, reading_as
from worker.backends.gateway import faults as gateway_faults

OTHERS = ("webapp.cli", "worker", "tests")
"""Packages whose errors no request of the web process meets, though this process of all tests may have loaded them."""


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.InvalidCommand("x"), 400, "invalid_command"),
        (errors.InvalidCommand("x", code="bad_name"), 400, "bad_name"),
        (errors.NotAuthenticated("x"), 401, "not_authenticated"),
        (errors.Forbidden("x"), 403, "forbidden"),
        (errors.NotFound("x"), 404, "not_found"),
        (errors.Conflict("x"), 409, "conflict"),
        (errors.IllegalMove("x"), 409, "illegal_move"),
        (errors.LeaseLost("x"), 409, "lease_lost"),
        (errors.AlreadyDecided("x"), 409, "already_decided"),
        (errors.Expired("x"), 409, "expired"),
        (errors.TooLarge("x"), 413, "too_large"),
        (errors.QueueFull("x"), 429, "queue_full"),
        (errors.TooManyRequests("x", retry_after_s=7), 429, "too_many_requests"),
        (errors.Unavailable("x"), 503, "unavailable"),
        (errors.StorageFull("x"), 507, "storage_full"),
        (errors.BackendUnavailable("x"), 502, "backend_unavailable"),
        (errors.BackendTimeout("x"), 504, "backend_timeout"),
        (RelayDown("Error 111 connecting to 10.0.0.5:6379"), 503, "relay_down"),
        (AppendUnknown("unix:///run/portal/redis.sock"), 503, "append_unknown"),
        (errors.PlatformError("x"), 500, "internal_error"),
        (KeyError("secret"), 500, "internal_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_has_its_status_and_code(error: Exception, status: int, code: str) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.code) == (status, code)
    for inner in ("10.0.0.5", "redis.sock", "secret"):
        assert inner not in str(problem.as_dict())


def test_every_error_of_ours_is_in_the_table() -> None:
    """A new kind inherits the status of its parent; none falls through to 500 by being forgotten."""

    def kinds(kind: type[errors.PlatformError]) -> list[type[errors.PlatformError]]:
        return [kind, *(each for sub in kind.__subclasses__() for each in kinds(sub))]

    served = [kind for kind in kinds(errors.PlatformError) if not kind.__module__.startswith(OTHERS)]
    unknown = {kind for kind in served if problem_of(kind("x")).status == 500}
    assert {kind.__name__ for kind in unknown} <= {"PlatformError", "SettingsError", "Gap"}


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("There is no such session.", "没有这个对话。"),
        ("Too many tries. Wait 16 s.", "尝试次数过多。请等待 16 秒。"),
        (
            "Use at least 12 characters; a few words together are easy to remember.",
            "至少使用 12 个字符；几个词连在一起就很好记。",
        ),
        (
            "The process that ran this turn is gone. What it had brought is kept; nothing was sent a second time.",
            "运行这一轮的进程已不在。已得到的内容都保留，没有任何内容被发送第二次。",
        ),
        ("Something {} that 3 translators {0} forgot", "Something {} that 3 translators {0} forgot"),
    ],
)
def test_people_hear_of_errors_in_their_language(english: str, chinese: str) -> None:
    with reading_as(Reader("zh_Hans")):
        assert told(english) == chinese
    with reading_as(Reader("en")):
        assert told(english) == english


REFUSALS = [
    gateway_faults.connect_fault(ConnectionRefusedError(), "http://10.0.0.5:8642"),
    gateway_faults.connect_fault(TimeoutError(), "http://10.0.0.5:8642"),
    gateway_faults.connect_fault(OSError(), "http://10.0.0.5:8642"),
    gateway_faults.connect_fault(socket.gaierror(), "http://hermes.local"),
    gateway_faults.connect_fault(ssl.SSLError(), "https://10.0.0.5"),
    gateway_faults.connect_fault(ValueError(), "http://"),
    gateway_faults.exchange_fault(TimeoutError(), "http://10.0.0.5"),
    gateway_faults.exchange_fault(http.client.BadStatusLine("x"), "http://10.0.0.5"),
    gateway_faults.exchange_fault(ValueError(), "http://10.0.0.5"),
    gateway_faults.exchange_fault(OSError(), "http://10.0.0.5"),
    *(
        gateway_faults.status_fault(status, {}, body, "http://10.0.0.5/v1/responses")
        for status in (302, 400, 401, 403, 404, 405, 429, 500, 502, 503)
        for body in (b"", b'{"error": {"message": "Ask an admin."}}')
    ),
    *(gateway_faults.wrong_content({}, body) for body in (b"", b"<html>", b"{}", b'{"error": "No."}')),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.message)
def test_people_hear_of_each_fault_of_a_gateway_in_their_language(refusal: errors.BackendError) -> None:
    with reading_as(Reader("zh_Hans")):
        chinese = told(refusal.message)
        retried = told(f"{refusal.message} Asking again in 2 s.")
    ours = chinese.removesuffix("Ask an admin.").removesuffix("No.")
    assert re.findall(r"[A-Za-z]{2,}", re.sub(r"HERMES_\w+|HTTP|https|hermes\.local|/v1/\w+", "", ours)) == []
    assert retried.endswith("将在 2 秒后重试。")
    assert chinese in retried


def test_the_compiled_sentences_are_those_of_the_source_and_take_the_same_numbers() -> None:
    folder = HERE / "translations" / "zh_Hans" / "LC_MESSAGES"
    with (folder / "errors.po").open("rb") as po, (folder / "errors.mo").open("rb") as mo:
        source, compiled = (
            {m.id: m.string for m in read(file) if m.id} for read, file in ((read_po, po), (read_mo, mo))
        )
    assert source == compiled
    for english, chinese in source.items():
        assert chinese, english
        assert english.count("{}") == chinese.count("{}"), english


def test_a_chinese_browser_gets_chinese_error_pages_and_forms(web: Web) -> None:
    browser = web.browser(web.admin)
    chinese = {"Accept-Language": "zh-CN,zh;q=0.9"}
    notice = browser.post("/chat/nobody/send", {"input": "x"}, headers={**chinese, "HX-Request": "true"})
    assert notice.status_code == 404
    assert "没有这个对话" in notice.get_data(as_text=True)
    wrong = web.browser().post("/login", {"login": "admin", "password": "x"}, headers=chinese)
    assert "用户名或密码错误" in wrong.get_data(as_text=True)
    program = web.program(web.admin)
    assert program.get("/api/chat/sessions/x", headers=chinese).json["detail"] == "There is no such session."
