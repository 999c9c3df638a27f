"""Hide secrets in text before it is stored, shown or logged (RELIABILITY S42). Pure: no I/O.

`redact` takes a whole text, `StreamRedactor` the pieces of one; for every way of cutting a text into pieces the results
are equal. Hidden: keys of known makers, AWS keys, JSON web tokens, Bearer and other authorization values, private keys,
passwords in addresses, and the values of names such as API_KEY or "password" in .env, JSON, YAML and command lines.
Names and prose stay.

Every alternative of the pattern begins with a fixed mark, reads each character in one way and has a greatest length, so
the time is linear (S50). Every one that is complete grows character by character: one that ends before the end of the
text so far is as long as it will ever be. That is what lets a stream decide early.
"""

import re
from typing import Any

import regex

HIDDEN = "[redacted]"
HIDDEN_KEY = "[redacted private key]"
SLICE_CHARS = 65_536  # a long text is searched in slices of this size, so that other threads get a turn
NAME_CHARS = 48  # how far back a name such as OPENAI_API_KEY is looked at

_T = "[A-Za-z0-9_-]"
_WORD = "(?<![A-Za-z0-9])"
_MAKERS = "|".join(
    (
        rf"[sr]k[-_]{_T}{{16,4096}}",  # OpenAI, Anthropic, OpenRouter, Stripe
        r"A(?:KIA|SIA|BIA|CCA|ROA|IDA)[A-Z0-9]{16,32}",  # AWS
        r"gh[pousr]_[A-Za-z0-9]{30,255}",  # GitHub
        r"github_pat_[A-Za-z0-9_]{30,255}",
        rf"glpat-{_T}{{18,255}}",  # GitLab
        r"xox[abeoprs]-[A-Za-z0-9-]{10,255}",  # Slack
        r"xapp-[A-Za-z0-9-]{10,255}",
        rf"AIza{_T}{{30,255}}",  # Google
        r"ya29\.[A-Za-z0-9_.-]{20,4096}",
        r"hf_[A-Za-z0-9]{30,255}",  # Hugging Face
        r"gsk_[A-Za-z0-9]{30,255}",  # Groq
        rf"xai-{_T}{{20,255}}",
        rf"pplx-{_T}{{20,255}}",
        rf"tvly-{_T}{{20,255}}",
        r"r8_[A-Za-z0-9]{30,255}",  # Replicate
        r"npm_[A-Za-z0-9]{30,255}",
        rf"pypi-{_T}{{40,1024}}",
        rf"SG\.{_T}{{16,255}}\.{_T}{{16,255}}",  # SendGrid
        rf"eyJ{_T}{{8,4096}}\.eyJ{_T}{{4,4096}}(?:\.{_T}{{0,4096}})?",  # JSON web token
    )
)
_QUOTE = r"""(?:\\{0,3}["'])"""  # also that of JSON inside JSON
_BETWEEN = rf"{_QUOTE}?[ \t]{{0,3}}[:=：][ \t]{{0,3}}"
_QUOTED = r"""\\{0,3}"[^"\r\n]{0,1024}|\\{0,3}'[^'\r\n]{0,1024}"""
_PLAIN = r"""[^\s"'`\\]{1,1024}"""
_PEM_NAME = "[A-Z0-9 ]{0,40}"
_PEM_BODY = r"(?:[A-Za-z0-9+/=\s\\:,]|-[A-Za-z0-9]){0,16384}"
_PEM_END = "(?:-(?:-(?:-(?:-(?:-(?:E(?:N(?:D[A-Z0-9 ]{0,60}-{0,5})?)?)?)?)?)?)?)?"  # each beginning of it will do
_HEADERS = "x-(?:[a-z]{1,12}-){0,2}(?:key|token|secret)|(?:set-)?cookie"
_OPTIONS = "password|passwd|token|api-key|secret|secret-key|access-key"
_NAME_ENDS = "KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|_PWD|CREDENTIALS?"
_FIELDS = (
    "(?:api|secret|access|private|signing|encryption)[_-]?key|client[_-]?secret|(?:access|refresh|auth|id|session)"
    "[_-]?token|token|secret|password|passwd|passphrase|db[_-]pass(?:word)?|密码|密钥|口令|令牌"
)
_MARKS = (  # the first two characters of the alternatives that begin a word and are not names, then of the names
    "sk rk AK AS AB AC AR AI gh gi gl xo xa ya hf gs pp tv r8 np py SG ey",
    "be au x- se co ap ac pr si en cl re id to pa db",
    "KE TO SE PA CR _P 密码 密钥 口令 令牌",
)
_PATTERN = "|".join(
    (
        rf"{_WORD}(?P<maker>{_MAKERS})",
        rf"(?P<pem>-----BEGIN {_PEM_NAME}PRIVATE KEY(?: BLOCK)?-----{_PEM_BODY}{_PEM_END})",
        rf"{_WORD}(?i:bearer)[ \t]{{1,3}}(?P<bearer>[A-Za-z0-9._~+/-]{{16,4096}}={{0,2}})",
        rf"{_WORD}(?i:authorization){_BETWEEN}{_QUOTE}?(?i:basic|digest|token|apikey)[ \t]{{1,3}}(?P<auth>{_PLAIN})",
        rf"{_WORD}(?i:{_HEADERS}):[ \t]{{0,3}}(?P<header>[^\r\n\"']{{4,1024}})",
        r"""://[^\s/:@"']{0,64}:(?P<address>[^\s/@"']{1,256})@""",
        rf"--(?i:{_OPTIONS})[ ]{{1,2}}(?P<option>[^\s\"'`\\-]{_PLAIN})",
        rf"(?:{_NAME_ENDS})(?:_BASE|_ID|_[0-9]{{1,3}})?{_BETWEEN}(?P<env>{_QUOTED}|{_PLAIN})",
        rf"{_WORD}(?P<name>(?i:{_FIELDS})){_BETWEEN}(?P<field>{_QUOTED}|{_PLAIN})",
    )
)
_WHOLE = re.compile(_PATTERN)
_NAME = re.compile(rf"(?:{_NAME_ENDS})(?:_BASE|_ID|_[0-9]{{1,3}})?\Z|{_WORD}(?i:{_FIELDS})\Z")
_DIGIT = re.compile("[0-9]")
_PARTIAL: Any = regex.compile(_PATTERN)
_VALUES = ("bearer", "auth", "header", "address", "option", "env", "field")
_STRONG = ("TOKEN", "SECRET", "PASS", "PWD", "CREDENTIAL", "API", "ACCESS", "PRIVATE")
_NOT_A_VALUE = tuple("$<{([*%=>&|,;")  # a variable, a placeholder, an expression, or hidden already
_SCHEMES = frozenset({"bearer", "basic", "digest", "token", "apikey"})


def _starts() -> re.Pattern[str]:
    """Finds quickly every place where an alternative may begin: by two characters, or one at the end."""
    makers, any_case, names = (marks.split() for marks in _MARKS)
    seconds: dict[str, str] = {}
    for mark in makers:
        seconds[mark[0]] = seconds.get(mark[0], "") + mark[1]
    for mark in any_case:
        for first in (mark[0], mark[0].upper()):
            seconds[first] = seconds.get(first, "") + mark[1] + mark[1].upper()
    words = "|".join(rf"{first}(?:[{re.escape(second)}]|\Z)" for first, second in seconds.items())
    ends = "|".join(rf"{mark[0]}(?:{mark[1]}|\Z)" for mark in names)
    return re.compile(rf"(?:\b|(?<=_))(?:{words})|{ends}|-(?:-|\Z)|:(?:/|\Z)", re.ASCII)


_START = _starts()


def redact(text: str) -> str:
    """`text` with the secrets in it replaced."""
    return _scan(text, 0, is_whole=True)[0]


def redact_field(name: str, value: str) -> str:
    """The value of a field, argument or variable of that name: hidden whole where the name says so, else redacted."""
    found = _NAME.search(name)
    if found is None:
        return redact(value)
    kind = "env" if name.isupper() else "field"
    return HIDDEN if _is_secret(kind, value, name=name, is_quoted=True) else redact(value)


class StreamRedactor:
    """Redacts one text that comes in pieces. What may be the beginning of a secret is held back until it is known: of
    prose at most the last word, only when a secret could begin so, and only until the next piece."""

    def __init__(self) -> None:
        self._before = ""  # the end of what was let go: a word's start and a name are known by it
        self._held = ""

    @property
    def held(self) -> str:
        """What waits for the next piece. Not to be shown."""
        return self._held

    def feed(self, piece: str) -> str:
        """The text that may be shown now."""
        return self._next(piece, is_whole=False)

    def flush(self) -> str:
        """What is still held, redacted: the text ends here, or something else stands between it and the next piece."""
        rest = self._next("", is_whole=True)
        self._before = ""
        return rest

    def _next(self, piece: str, *, is_whole: bool) -> str:
        text = self._before + self._held + piece
        shown, end = _scan(text, len(self._before), is_whole=is_whole)
        self._before, self._held = text[max(0, end - NAME_CHARS) : end], text[end:]
        return shown


def _scan(text: str, at: int, *, is_whole: bool) -> tuple[str, int]:
    """Redact `text` from `at` on; gives the result and where that ends which may be more than it seems."""
    shown: list[str] = []
    done = at
    while (start := _next_start(text, at)) is not None:
        match: Any = _WHOLE.match(text, start) if is_whole else _PARTIAL.match(text, start, partial=True)
        if match is None:
            at = start + 1
        elif not is_whole and (match.partial or match.end() == len(text)):
            shown.append(text[done:start])
            return "".join(shown), start
        else:
            hidden, at = _replacement(text, match)
            if hidden is not None:
                shown += (text[done:start], hidden)
                done = at
    shown.append(text[done:])
    return "".join(shown), len(text)


def _next_start(text: str, at: int) -> int | None:
    while at < len(text):
        found = _START.search(text, at, at + SLICE_CHARS)
        if found is not None:
            return found.start()
        at += SLICE_CHARS
    return None


def _replacement(text: str, match: Any) -> tuple[str | None, int]:
    """What stands for the match, or None when it is no secret; and where to go on."""
    whole: str = match[0]
    if match["pem"] is not None:
        return HIDDEN_KEY, match.end()
    if match["maker"] is not None:  # `sk-fading-circle` is a class of CSS
        return (HIDDEN if _DIGIT.search(whole) else None), match.end()
    kind = next(each for each in _VALUES if match[each] is not None)
    start, end = match.span(kind)
    opening = re.match(r"""\\{0,3}["']""", match[kind]) if kind in ("env", "field") else None
    if opening is not None:
        start += opening.end()
    value = text[start:end].rstrip("\\")  # the backslashes of a closing quote are not its
    name = ""
    if kind == "env" or (kind == "field" and match["name"].isupper()):
        kind, name = "env", _name(text, match.start())
    if not _is_secret(kind, value, name=name, is_quoted=opening is not None):
        return None, start
    return text[match.start() : start] + HIDDEN + text[start + len(value) : end], end


def _name(text: str, start: int) -> str:
    """The whole name whose last word begins at `start`, in upper case letters."""
    before = re.search(r"[A-Z0-9_]*\Z", text[max(0, start - NAME_CHARS) : start])
    after = re.match(r"[A-Z0-9_]*", text[start : start + NAME_CHARS])
    return (before[0] if before else "") + (after[0] if after else "")


def _is_secret(kind: str, value: str, *, name: str, is_quoted: bool) -> bool:
    if not value or value.startswith(_NOT_A_VALUE) or value.startswith("-----BEGIN") or value[:8].lower() in _SCHEMES:
        return False
    has_digit = _DIGIT.search(value) is not None
    if kind == "bearer":
        return has_digit or (len(value) >= 20 and value.lower() != value)
    if kind == "header":
        return "=" in value or has_digit
    if kind == "env":
        if "PUBLIC" in name:
            return False
        if any(word in name for word in _STRONG):
            return len(value) >= 3
        return len(value) >= 12 and has_digit
    if kind == "field":
        if any(each in value for each in "()[]{}<>$"):
            return is_quoted and has_digit and len(value) >= 12
        if is_quoted:
            return not re.search(r"\s", value) and (len(value) >= 12 or (len(value) >= 6 and not value.isalpha()))
        return len(value) >= 8 and has_digit
    return True
