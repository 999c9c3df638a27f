"""Addresses that were typed in a page: which may be asked, and that a name cannot stand for another one later (S37)."""

import ipaddress
import socket
from typing import Any

import pytest

from shared import outbound
from shared.outbound import RefusedAddress

NEVER = [
    "169.254.169.254",  # metadata of most clouds
    "169.254.0.1",
    "fe80::1",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "0.0.0.0",
    "::",
    "224.0.0.1",
    "ff02::1",
    "255.255.255.255",
]
PRIVATE = ["127.0.0.1", "::1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12::1", "::ffff:127.0.0.1"]


@pytest.mark.parametrize("ip", NEVER)
def test_management_and_what_is_no_server_is_never_asked(ip: str) -> None:
    for allow_private in (False, True):
        assert outbound.why_refused(ipaddress.ip_address(ip), allow_private=allow_private)


@pytest.mark.parametrize("ip", PRIVATE)
def test_private_addresses_need_the_setting_and_the_refusal_names_it(ip: str) -> None:
    refusal = outbound.why_refused(ipaddress.ip_address(ip), allow_private=False)
    assert "PORTAL_ALLOW_PRIVATE_ADDRESSES" in (refusal or "")
    assert outbound.why_refused(ipaddress.ip_address(ip), allow_private=True) is None


@pytest.mark.parametrize("ip", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_public_addresses_may_be_asked(ip: str) -> None:
    assert outbound.why_refused(ipaddress.ip_address(ip), allow_private=False) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://2852039166/",  # the same as one number
        "http://0xa9fea9fe/",
        "http://[::ffff:169.254.169.254]/",
        "http://127.0.0.1:6379",
        "http://localhost:8642",
        "http://127.1/",
        "http://2130706433/",
        "http://[::1]:8642",
    ],
)
def test_an_address_in_any_writing_is_refused(url: str) -> None:
    with pytest.raises(RefusedAddress) as refused:
        outbound.check_url(url, allow_private=False)
    assert refused.value.code == "refused_address"


@pytest.mark.parametrize(
    "url",
    [
        "", "/p/work", "1.1.1.1", "ftp://1.1.1.1", "file:///etc/passwd", "gopher://1.1.1.1", "javascript:alert(1)",
        "http://", "http:///x", "http://1.1.1.1:port", "http://1.1.1.1:99999", "http://[::1", "http://1.1.1.1/a b",
        "http://1.1.1.1/\n", "http://1.1.1.1\\@evil", "http://1.1.1.1/\u202e", "http://例え.jp/", "http://" + "a" * 600,
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(RefusedAddress):
        outbound.check_url(url, allow_private=True)


@pytest.mark.parametrize("url", ["http://u:p@1.1.1.1", "http://u@1.1.1.1", "http://:p@1.1.1.1"])
def test_a_password_in_an_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(RefusedAddress, match="no place in an address") as refused:
        outbound.check_url(url, allow_private=True)
    assert "u:p" not in refused.value.message


@pytest.mark.parametrize("tail", ["?key=x", "#x", "?", "/p?x=1#y"])
def test_what_could_hold_a_key_is_refused(tail: str) -> None:
    with pytest.raises(RefusedAddress, match="ends before"):
        outbound.check_url(f"http://1.1.1.1{tail}", allow_private=True)


def test_an_address_is_kept_as_it_is_but_for_its_last_slash() -> None:
    assert outbound.check_url("https://1.1.1.1:8443/p/Work/", allow_private=False) == "https://1.1.1.1:8443/p/Work"


def test_a_name_that_nobody_knows_is_said() -> None:
    with pytest.raises(RefusedAddress) as refused:
        outbound.check_url("https://no-such-host.invalid", allow_private=True)
    assert refused.value.code == "unknown_host"


def names(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
    """A name server of ours: the answers one after another, then the last one again."""
    left = list(answers)
    real = socket.getaddrinfo

    def look_up(host: str, port: Any, *args: Any, **given: Any) -> Any:
        if host != "rebinding.example":
            return real(host, port, *args, **given)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [
            (socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in found
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_one_bad_address_of_a_name_refuses_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, ["1.1.1.1", "169.254.169.254"])
    with pytest.raises(RefusedAddress):
        outbound.check_url("http://rebinding.example", allow_private=True)


def test_a_name_that_stands_for_something_else_later_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, ["1.1.1.1"], ["127.0.0.1"])
    outbound.check_url("http://rebinding.example", allow_private=False)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(RefusedAddress):
        outbound.connect("rebinding.example", server.getsockname()[1], 60, allow_private=False)


def test_the_address_that_was_looked_at_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second look would get another answer: there is none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        names(monkeypatch, ["127.0.0.1"], ["169.254.169.254"])
        with outbound.connect("rebinding.example", server.getsockname()[1], 60, allow_private=True) as made:
            assert made.getpeername() == server.getsockname()


def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # so that nobody else listens there
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            outbound.connect("localhost", port, 60, allow_private=True)
