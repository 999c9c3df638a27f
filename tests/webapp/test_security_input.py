"""Bad input from outside: JSON bombs, sizes, patterns, secrets in wrong places (S34, S41, S43, S44, S49, S50, F55)."""

import json
import logging
import time
from io import StringIO

import pytest

from shared import errors, logs
from shared.database import transaction
from shared.models import ChatMessage, Run
from tests.rig.web import Web
from webapp import json_input

DEEP = "[" * 33 + "]" * 33


# ---- JSON


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "nul", "{'a': 1}", '{"a": NaN}', '{"a": Infinity}', "[1,]", '{"a": 01}', "\ufeff{}", DEEP,
        '{"a":' * 40 + "1" + "}" * 40, "1" * 10_000, '"\x01"', b"\xff\xfe{}", b'{"a": "\xc3\x28"}',
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(errors.InvalidCommand):
        json_input.parse_object(text)


def test_limits_are_exact() -> None:
    inner = "[" * 31 + "]" * 31
    assert json_input.parse(f"[{inner}]") is not None
    with pytest.raises(errors.InvalidCommand, match="deeper"):
        json_input.parse(f"[[{inner}]]")
    assert json_input.parse('"' + "x" * (json_input.MAX_BYTES - 2) + '"')
    with pytest.raises(errors.TooLarge, match="1024 KB"):
        json_input.parse('"' + "x" * (json_input.MAX_BYTES - 1) + '"')


def test_brackets_in_strings_are_no_depth() -> None:
    text = '{"a": "' + "[" * 100 + '\\"' + "{" * 100 + '"}'
    assert json_input.parse_object(text)["a"].count("[") == 100


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000, '"' + '\\"' * 500_000, '"' * 1_000_000, "\\" * 1_000_000,
        '"a' * 500_000, "{" * 500_000 + "}" * 500_000,
        '"' + "\\" * 999_999, "[]" * 500_000, '{"a":' * 200_000,
    ],
    ids=range(9),
)  # fmt: skip
def test_bombs_cost_no_time(text: str) -> None:
    begun = time.thread_time()
    with pytest.raises(errors.InvalidCommand):
        json_input.parse(text[: json_input.MAX_BYTES])
    assert time.thread_time() - begun < 5


def test_nul_and_lone_surrogates_become_the_replacement_character() -> None:
    got = json_input.parse_object('{"a\\u0000": ["x\\ud800y", "\\udc00", "\\ud83d\\ude00", "\u00e9"]}')
    assert got == {"a\ufffd": ["x\ufffdy", "\ufffd", "\U0001f600", "\u00e9"]}


# ---- bodies of the API


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        ("", "application/json", "bad_json"),
        ("{}", "text/plain", "not_json"),
        ("message=Hello", "application/x-www-form-urlencoded", "not_json"),
        ("[]", "application/json", "bad_json"),
        ("{}", "application/json", "invalid_command"),
        ('{"message": 5}', "application/json", "invalid_command"),
        ('{"message": "x", "mesage": "y"}', "application/json", "invalid_command"),
        ('{"message": "x", "maxIterations": 0}', "application/json", "invalid_command"),
        ('{"message": "x", "maxIterations": "many"}', "application/json", "invalid_command"),
        ('{"message": [{"type": "video", "url": "x"}]}', "application/json", "invalid_command"),
        ('{"message": ""}', "application/json", "empty_message"),
        ('{"message": " \\n\\t "}', "application/json", "empty_message"),
        ('{"message": []}', "application/json", "empty_message"),
        ('{"message": "x", "source": "../x"}', "application/json", "bad_name"),
        ('{"message": "x", "skillFolder": "../../etc"}', "application/json", "bad_name"),
        ('{"message": "x", "skillFolder": "a/b"}', "application/json", "bad_name"),
        ('{"message": "x", "modelId": "/etc/passwd"}', "application/json", "bad_name"),
        ('{"message": "x", "modelId": "a/../b"}', "application/json", "bad_name"),
        ('{"message": "x", "modelId": "a\\nb"}', "application/json", "bad_name"),
        ('{"message": "x", "attachments": ["no"]}', "application/json", "unknown_attachment"),
        (
            '{"message": [{"type": "image_url", "image_url": "http://169.254.169.254/"}]}',
            "application/json",
            "invalid_command",
        ),
        (f'{{"message": "x", "instructions": {DEEP}}}', "application/json", "bad_json"),
    ],
)
def test_a_bad_turn_is_refused_with_a_code_and_leaves_nothing(
    web: Web, body: str, content_type: str, code: str
) -> None:
    program = web.program(web.admin)
    session_id = program.new_session()
    answer = program.send("POST", f"/api/chat/sessions/{session_id}/runs", data=body, content_type=content_type)
    problem = answer.json
    assert problem["code"] == code
    expected = (415, "Unsupported Media Type") if code == "not_json" else (400, "Bad Request")
    assert (answer.status_code, problem["title"]) == expected
    assert problem["status"] == answer.status_code
    assert answer.content_type == "application/problem+json"
    assert problem["detail"]
    with transaction(web.factory, write=False) as db:
        assert db.query(Run).count() == db.query(ChatMessage).count() == 0


MESSAGES = {
    "nul": ("a\x00b", "a\ufffdb"),
    "lone surrogates": ("a\ud800b\udfff", "a\ufffdb\ufffd"),
    "right to left": ("\u202eabc \u05d0\u05d1\u05d2 \u0627\u0644\u0639\u0631\u0628\u064a\u0629", None),
    "100,000 lines": ("\n".join(str(n % 10) for n in range(100_000)), None),
    "emoji": ("\U0001f469\u200d\U0001f469\u200d\U0001f467 " * 1_000, None),
    "crlf and tabs": ("a\r\nb\tc\rd", None),
    "markup": ("<script>alert(1)</script><img src=x onerror=y>", None),
    "just below the limit": ("x" * (512 * 1024), None),
    "unicode at the limit": ("\u4e2d" * (512 * 1024 // 3), None),
}


def test_odd_messages_are_stored_exactly(web_on_each: Web) -> None:
    """F55, on both databases."""
    program = web_on_each.program(web_on_each.admin)
    for name, (given, stored) in MESSAGES.items():
        session_id = program.new_session()
        escaped = json.dumps({"message": given})  # a lone surrogate can only be sent so
        body = escaped if len(escaped) < json_input.MAX_BYTES else json.dumps({"message": given}, ensure_ascii=False)
        path = f"/api/chat/sessions/{session_id}/runs"
        answer = program.send("POST", path, data=body.encode(), content_type="application/json")
        assert answer.status_code == 202, (name, answer.json)
        [message] = program.get(f"/api/chat/sessions/{session_id}/messages").json["messages"]
        assert message["content"] == (stored or given), name
        assert message["role"] == "USER"


@pytest.mark.parametrize("size", [512 * 1024 + 1, 10 << 20])
def test_a_message_that_is_too_large_gets_413_with_the_limit(web: Web, size: int) -> None:
    program = web.program(web.admin)
    session_id = program.new_session()
    answer = program.submit(session_id, "x" * size)
    assert answer.status_code == 413
    assert answer.json["code"] == "too_large"
    assert "KB" in answer.json["detail"]
    browser = web.browser(web.admin)
    page = browser.post(f"/chat/{session_id}/send", {"input": "x" * size})
    assert page.status_code == 413
    with transaction(web.factory, write=False) as db:
        assert db.query(Run).count() == 0


def test_forms_too_are_cleaned(web: Web) -> None:
    """What a form brings as %00 or as bytes that are no UTF-8."""
    browser = web.browser(web.admin)
    session_id = web.program(web.admin).new_session()
    body = b"csrf_token=" + browser.csrf().encode() + b"&input=a%00b%ED%A0%80c%FF"
    answer = browser.open(
        f"/chat/{session_id}/send", method="POST", data=body, content_type="application/x-www-form-urlencoded"
    )
    assert answer.status_code in (200, 201, 303)
    with transaction(web.factory, write=False) as db:
        content = db.query(ChatMessage).one().content
    assert content.startswith("a\ufffdb")
    assert "\x00" not in content


# ---- queries, patterns


@pytest.mark.parametrize("query", ["'", '"; DROP TABLE run; --', "%", "_", "\\", "\x00", "%' OR 1=1 --", "ü" * 500])
def test_a_search_is_only_a_search(web: Web, query: str) -> None:
    program = web.program(web.admin)
    program.new_session(title="100% sure_thing")
    program.new_session(title="Other")
    found = program.get("/api/chat/sessions", query_string={"q": query})
    assert found.status_code == 200
    titles = [item["title"] for item in found.json["sessions"]]
    assert titles in ([], ["100% sure_thing"], ["Other", "100% sure_thing"])
    if query in ("%", "_"):
        assert titles == ["100% sure_thing"]


ADDRESSES = [
    ("/api/chat/sessions?limit=-1", 400), ("/api/chat/sessions?limit=x", 400),
    ("/api/chat/sessions?limit=" + "9" * 5_000, 400),
    ("/api/chat/sessions?archived=maybe", 400), ("/api/chat/sessions?before=nobody", 200),
    ("/api/chat/sessions?limit=\u0663", 400), ("/api/chat/sessions/%00", 404),
    ("/api/chat/sessions?before=%00&q=%00", 200), ("/api/chat/sessions/" + "x" * 4_000, 404),
    ("/api/chat/runs/'%20OR%201=1/state", 404), ("/api/chat/sessions/%ED%A0%80/messages", 404),
]  # fmt: skip


def test_odd_addresses_get_a_clear_answer(web_on_each: Web) -> None:
    program = web_on_each.program(web_on_each.admin)
    for path, code in ADDRESSES:
        assert program.get(path).status_code == code, path[:100]


@pytest.mark.parametrize(
    "title",
    ["a" * 50_000 + "!", " " * 50_000 + "x", "-." * 25_000, "\t\n" * 20_000, "/" * 50_000, "a/" * 25_000],
    ids=range(6),
)
def test_patterns_are_linear(web: Web, title: str) -> None:
    """S50: names and titles go through regular expressions."""
    program = web.program(web.admin)
    begun = time.thread_time()
    program.send("POST", "/api/chat/sessions", {"title": title})
    program.send("POST", "/api/chat/sessions", {"modelId": title, "skillFolder": title, "source": title})
    assert time.thread_time() - begun < 2


# ---- errors and logs


def test_an_error_that_nobody_foresaw_is_told_by_its_id_only(web: Web) -> None:
    secret = "postgresql://portal:hunter2@db.internal/portal"

    def broken() -> str:
        raise RuntimeError(secret)

    web.app.add_url_rule("/api/broken", "broken_api", broken)
    web.app.add_url_rule("/broken", "broken_page", broken)
    answer = web.program(web.admin).get("/api/broken")
    assert answer.status_code == 500
    assert set(answer.json) == {"type", "title", "status", "code", "detail", "errorId"}
    page = web.browser(web.admin).get("/broken")
    assert page.status_code == 500
    for told in (answer.get_data(as_text=True), page.get_data(as_text=True)):
        assert "hunter2" not in told
        assert "RuntimeError" not in told
        assert "Traceback" not in told
        assert ".py" not in told
    assert answer.json["errorId"] in answer.json["detail"]


def test_logs_hold_ids_and_no_contents(web: Web) -> None:
    """S41, S43: a canary in every place where a client can put text."""
    stream = StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure(web.settings, "web", stream=stream)
    try:
        program = web.program(web.admin)
        agent = {"User-Agent": "canary-agent\r\nINJECTED: yes \x1b[31m"}
        session_id = program.new_session(title="canary-title")
        done = program.submit(session_id, "canary-message", key="canary-key", instructions="canary-instructions")
        program.get(f"/api/chat/sessions?q=canary-query&token={program.secret}")
        browser = web.browser()
        browser.open(
            "/login",
            method="POST",
            data={"csrf_token": browser.csrf(), "login": "canary-login", "password": "canary-password"},
        )
        browser.get("/no/such/canary-path\x1b[31m%0d%0aINJECTED")
        web.browser().open("/login", environ_overrides={"HTTP_USER_AGENT": agent["User-Agent"]})
    finally:
        root.handlers[:], root.level = handlers, level
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 6
    for line in lines:
        assert json.loads(line)["process"] == "web"
        assert line.isascii()
        assert "\x1b" not in line
    text = stream.getvalue()
    for canary in ("title", "message", "key", "instructions", "query", "login", "password", "agent"):
        assert f"canary-{canary}" not in text, canary
    assert program.secret not in text
    assert done.json["runId"]
    assert session_id in text
