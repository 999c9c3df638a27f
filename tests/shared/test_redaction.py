"""Secrets are hidden, prose stays, and how a text was cut into pieces makes no difference (CASES 153, S42, S50)."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.redaction import HIDDEN, HIDDEN_KEY, StreamRedactor, redact, redact_field

# put together here, so that no scanner of repositories takes them for real ones
OPENAI = "sk-" + "proj-Ab3dEf6hIj9kLm2nOp5q"
ANTHROPIC = "sk-" + "ant-api03-Zx9yW8vU7tS6rQ5pO4nM"
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
GITHUB = "ghp_" + "a1B2c3D4e5" * 4
JWT = "eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
PEM = f"-----BEGIN RSA {'PRIVATE'} KEY-----\nMIIEowIBAAKCAQEA0\nabc+/9==\n-----END RSA {'PRIVATE'} KEY-----"

SECRETS = [
    (OPENAI, HIDDEN),
    (f"my key: {ANTHROPIC}.", f"my key: {HIDDEN}."),
    (f"密钥是{OPENAI}。", f"密钥是{HIDDEN}。"),
    (f"aws {AWS}\n", f"aws {HIDDEN}\n"),
    (f"https://x:{GITHUB}@github.com/a/b", f"https://x:{HIDDEN}@github.com/a/b"),
    (f"token={GITHUB}", f"token={HIDDEN}"),
    (f"jwt {JWT} end", f"jwt {HIDDEN} end"),
    ("Authorization: Bearer abcDEF0123456789xyz\nAccept: */*", f"Authorization: Bearer {HIDDEN}\nAccept: */*"),
    ("-H 'authorization: basic dXNlcjpwYXNzd29yZA=='", f"-H 'authorization: basic {HIDDEN}'"),
    ("x-api-key: 9f8e7d6c5b4a", f"x-api-key: {HIDDEN}"),
    ("Set-Cookie: sid=38afes7a8; Path=/", f"Set-Cookie: {HIDDEN}"),
    (f"before\n{PEM}\nafter", f"before\n{HIDDEN_KEY}\nafter"),
    (f"cut off\n{PEM[:70]}", f"cut off\n{HIDDEN_KEY}"),
    (f'KEY="{PEM}"', f'KEY="{HIDDEN_KEY}"'),
    ('PRIVATE_KEY="' + PEM.replace("\n", "\\n") + '\\n"', f'PRIVATE_KEY="{HIDDEN_KEY}\\n"'),
    (
        "MY_API_KEY=abc\nDEBUG=1\nDB_PASSWORD='hunter 2'\n",
        f"MY_API_KEY={HIDDEN}\nDEBUG=1\nDB_PASSWORD='{HIDDEN}'\n",
    ),
    ("export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", f"export AWS_SECRET_ACCESS_KEY={HIDDEN}"),
    ("SECRET_KEY_BASE: deadbeef", f"SECRET_KEY_BASE: {HIDDEN}"),
    ('{"password": "hunter2!", "user": "bob"}', f'{{"password": "{HIDDEN}", "user": "bob"}}'),
    (r'{"env": "{\"api_key\": \"abc123def\"}"}', rf'{{"env": "{{\"api_key\": \"{HIDDEN}\"}}"}}'),
    ("api_key: a1b2c3d4e5f6", f"api_key: {HIDDEN}"),
    ("client_secret = 'correcthorsebattery'", f"client_secret = '{HIDDEN}'"),
    ("mysql --password hunter2 -u root", f"mysql --password {HIDDEN} -u root"),
    ("portal --token=a1b2c3d4e5", f"portal --token={HIDDEN}"),
    ("postgresql://portal:s3cr3t@db.example/portal", f"postgresql://portal:{HIDDEN}@db.example/portal"),
    ("redis://:pw123@h:6379/0", f"redis://:{HIDDEN}@h:6379/0"),
    ("AUTH_TOKEN=Bearer abcdef0123456789abcd", f"AUTH_TOKEN=Bearer {HIDDEN}"),
    ("密码：hunter2hunter2", f"密码：{HIDDEN}"),
]

HARMLESS = [
    "The bearer of good news, authentication_is_hard, tokens and keys: a secret to everybody.",
    "KEY=VALUE and PATH=/usr/bin:/bin, PWD=/root, MAX_TOKENS=4096, SSH_AUTH_SOCK=/tmp/agent.1",
    "def login(token: str, password: str = None) -> Token: return get_token(self.secret)",
    'password = os.environ["DB_PASSWORD"]; token = tokens[0]; api_key=$API_KEY; SECRET=${SECRET}',
    "sk-fading-circle-container sk-learn task-sk risk-1234567890123456 PUBLIC_KEY=abc123abc123abc123",
    "https://example.com:8080/a/b?c=d#e http://[::1]:80/ mailto:a@b.c git@github.com:a/b.git 12:30:45 a:b@c",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n--- a/x\n+++ b/x\n-- \n--help",
    '{"token": null, "password": "", "secret": false, "api_key": "<your key>", "tokens": 12, "password": "Passwort"}',
    "这里没有密码，也没有秘密：只有普通的文字。Ключ: значение. 👍",
    "Cookie: a sweet biscuit. Authorization: none. eyJ eyJhbGci. AKIA ghp_short hf_",
    "sort_key=name primary_key=id, cache_key: user, `key=lambda x: x[1]`, KEY_COUNT=3",
    "",
]


@pytest.mark.parametrize(
    ("name", "value", "is_hidden"),
    [
        ("password", "hunter2!", True),
        ("db_password", "correcthorsebattery", True),
        ("OPENAI_API_KEY", "abc", True),
        ("apiKey", "a1b2c3d4", True),
        ("密码", "hunter2!", True),
        ("password", "", False),
        ("token", "<your token>", False),
        ("API_KEY", "$API_KEY", False),
        ("tokens", "a1b2c3d4", False),
        ("path", "a1b2c3d4", False),
        ("PUBLIC_KEY", "a1b2c3d4e5f6a1b2", False),
    ],
)
def test_the_value_of_a_field_is_hidden_by_its_name(name: str, value: str, is_hidden: bool) -> None:
    assert redact_field(name, value) == (HIDDEN if is_hidden else value)


def test_the_value_of_any_other_field_is_redacted_as_text() -> None:
    assert redact_field("command", f"curl -H 'x-api-key: {OPENAI}'") == f"curl -H 'x-api-key: {HIDDEN}'"
    assert redact_field("token", f"see {OPENAI}") == f"see {HIDDEN}"


def in_pieces(text: str, cuts: list[int]) -> str:
    stream, shown, at = StreamRedactor(), "", 0
    for cut in [*sorted(cuts), len(text)]:
        shown += stream.feed(text[at:cut])
        at = cut
    return shown + stream.flush()


@pytest.mark.parametrize(("text", "expected"), SECRETS)
def test_secrets_are_hidden_and_what_stands_around_them_stays(text: str, expected: str) -> None:
    assert redact(text) == expected
    assert redact(expected) == expected


@pytest.mark.parametrize("text", HARMLESS)
def test_prose_code_and_addresses_stay(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("text", [text for text, _ in SECRETS] + HARMLESS)
def test_a_secret_cut_anywhere_is_hidden_the_same(text: str) -> None:
    for cut in range(len(text) + 1):
        assert in_pieces(text, [cut]) == redact(text)
    assert in_pieces(text, list(range(len(text)))) == redact(text)


LETTERS = list(" \n\t\"'\\=:：-./@_,;KTsabe密")
FRAGMENTS = st.sampled_from([text for text, _ in SECRETS] + HARMLESS + LETTERS + ["TOKEN", "API_", "://"])


@settings(max_examples=400, deadline=None)
@given(st.lists(FRAGMENTS, max_size=8).map("".join), st.data())
def test_how_a_text_is_cut_makes_no_difference(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    assert in_pieces(text, cuts) == redact(text)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_any_text_goes_through(text: str) -> None:
    assert in_pieces(text, list(range(0, len(text), 3))) == redact(text)
    assert redact(redact(text)) == redact(text)


def test_prose_is_held_back_by_a_word_at_most_and_only_until_the_next_piece() -> None:
    prose = (
        "As I said: to pass the secret test, access a token API. Keys are set; "
        "authorization is a client's id -- see https://example.com/x?y=z and try again.\n"
    )
    stream, shown, longest = StreamRedactor(), "", 0
    for word in (" " + each for each in (prose * 5).split(" ")):
        held_before = stream.held
        out = stream.feed(word)
        shown += out
        assert out.startswith(held_before)  # what was held is shown with the very next piece
        longest = max(longest, len(stream.held))
    assert longest <= len("authorization")
    assert shown + stream.flush() == " " + prose * 5


def test_chinese_is_never_held_back_but_for_the_beginnings_of_four_words() -> None:
    stream = StreamRedactor()
    for letter in "今天天气很好，我们去公园散步吧。":
        assert stream.feed(letter) == letter


def test_a_secret_is_shown_as_hidden_as_soon_as_it_is_over() -> None:
    stream = StreamRedactor()
    assert stream.feed("use sk-") == "use "
    assert stream.feed("Ab3dEf6hIj9kLm2nOp5q") == ""
    assert stream.feed(" now") == f"{HIDDEN} now"


def test_between_two_texts_nothing_is_joined() -> None:
    stream = StreamRedactor()
    first = stream.feed("task") + stream.flush()
    assert (first, stream.held) == ("task", "")
    assert stream.feed("sk-Ab3dEf6hIj9kLm2nOp5q.") == f"{HIDDEN}."


def test_a_secret_in_a_megabyte_is_found_wherever_it_stands() -> None:
    filler = "the quick brown fox jumps over the lazy dog, 12:30.\n" * 1300  # some 65,000 characters: a slice
    for shift in range(0, 40, 3):
        text = filler[: 65_536 - 30 + shift] + f" {OPENAI} " + filler
        assert OPENAI not in redact(text)
        assert redact(text).count(HIDDEN) == 1


HOSTILE = ["A", "sk-", "a_", "eyJ", "://", "-----BEGIN ", "A_KEY", '"', "x-", "token:", "Bearer ", "\\", "-", "KEY_1"]
HOSTILE += ["-----BEGIN PRIVATE KEY-----", "TOKEN=$", "API_KEY=\\\\\\", "secret: '", "--token ", "A" * 64 + "_KEY:"]


@pytest.mark.parametrize("unit", HOSTILE)
def test_the_time_is_linear_whatever_the_text(unit: str) -> None:
    def cost_s(size: int) -> float:
        text = (unit * size)[:size]
        best = 9.0
        for _ in range(3):
            began = time.thread_time()
            redact(text)
            best = min(best, time.thread_time() - began)
        return best

    small, large = cost_s(10_000), cost_s(40_000)
    assert large < 0.2
    assert large < 8 * small + 0.005


def test_a_stream_of_any_text_costs_the_same_for_each_piece() -> None:
    stream = StreamRedactor()
    began = time.thread_time()
    for _ in range(20_000):
        stream.feed("sk-A1b2")  # one secret of 140,000 characters
    assert time.thread_time() - began < 10
    assert len(stream.held) < 20_000
