"""The lines between the worker and a bridge child: what is written is read, and nothing else is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.backends.bridge.process import wire
from worker.backends.bridge.process.wire import WireError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=5), children, max_size=4),
    max_leaves=20,
)


def code_of(line: bytes) -> str:
    with pytest.raises(WireError) as caught:
        wire.decode(line)
    return caught.value.code


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5))
def test_what_is_encoded_is_one_line_and_is_decoded(shape: dict):
    line = wire.encode(shape)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert wire.decode(line) == json.loads(wire.storable(json.dumps(shape, ensure_ascii=False)))


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"\n", "bad_json"),
        (b"", "bad_json"),
        (b"{", "bad_json"),
        (b'{"action": "ping"', "bad_json"),
        (b'{"a": 1} {"b": 2}\n', "bad_json"),
        (b'{"a": NaN}', "bad_json"),
        (b'{"a": -Infinity}', "bad_json"),
        (b'{"a": 1e999}', "bad_json"),
        (b'{"a": ' + b"9" * 5000 + b"}", "bad_json"),
        (b"[]\n", "not_an_object"),
        (b"null\n", "not_an_object"),
        (b'"text"\n', "not_an_object"),
        (b'{"a": "\xff\xfe"}\n', "bad_utf8"),
        (b'{"a": "\xed\xa0\x80"}\n', "bad_utf8"),
        ('{"a": "ü"}\n'.encode("latin-1"), "bad_utf8"),
        (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "too_deep"),
        (b"[" * 200_000, "too_deep"),
        (b'{"a":' * 200_000, "too_deep"),
        (b'{"a": "' + b"x" * wire.MAX_LINE_BYTES + b'"}', "line_too_long"),
    ],
)
def test_what_is_no_line_has_a_code(line: bytes, code: str):
    assert code_of(line) == code


def test_nesting_is_allowed_to_the_limit():
    nested: object = 1
    for _ in range(wire.MAX_DEPTH - 1):
        nested = [nested]
    assert wire.decode(wire.encode({"a": nested})) == {"a": nested}
    assert code_of(wire.encode({"a": [nested]})) == "too_deep"


def test_lone_surrogates_become_one_sign_each():
    line = wire.encode({"text": "a\ud800b\udfff\ud83d"})
    assert wire.decode(line) == {"text": "a\ufffdb\ufffd\ufffd"}
    assert wire.storable("plain 世界") == "plain 世界"


def test_what_cannot_be_a_line_is_not_sent():
    with pytest.raises(WireError, match="at most"):
        wire.encode({"text": "ä" * (wire.MAX_LINE_BYTES // 2)})
    for shape in ({"a": {1, 2}}, {"a": float("nan")}, {"a": b"bytes"}):
        with pytest.raises(WireError):
            wire.encode(shape)
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(WireError):
        wire.encode({"a": loop})


def test_a_piece_fits_a_line_whatever_its_characters():
    for char in ("\0", "\\", "世", "🌍", "\ud800"):
        assert len(wire.encode({"text": char * wire.PIECE_CHARS})) < wire.MAX_LINE_BYTES // 4


def test_depth_is_counted_without_recursion():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert wire.is_deeper(deep, 64)
    assert not wire.is_deeper({"a": [{"b": 1}]}, 3)
    assert wire.is_deeper({"a": [{"b": 1}]}, 2)
    assert not wire.is_deeper("text", 0)
