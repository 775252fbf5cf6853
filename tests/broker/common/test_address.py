"""`HOST:PORT`, one parser for all of them."""

from __future__ import annotations

import pytest

from commitbus.broker.common.address import Endpoint, join_host_port, split_host_port
from commitbus.broker.common.shown import shown


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8081", "127.0.0.1", 8081),
        ("[::1]:0", "::1", 0),
        ("mq.example:65535", "mq.example", 65535),
    ],
)
def test_host_and_port_survive_a_round_trip(text: str, host: str, port: int) -> None:
    """An IPv6 address loses its brackets and gets them back."""
    assert split_host_port(text) == (host, port)
    assert join_host_port(host, port) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", ":80", "host", "host:", "host:x", "host:-1", "host:65536", "::1:80", "h:²"),
        *("[]:80", "h:" + "9" * 5000, "h: 80", "h:8_0"),
        *("a..b:8081", ".a:1", f"{'x' * 64}:1", f"{'x.' * 127}x:1", "a b:1", "a\0b:1", "é..b:1"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    """In words, whatever is wrong with it."""
    with pytest.raises(ValueError, match="is not"):
        split_host_port(text)


@pytest.mark.parametrize(
    "text", ["a.b.:1", "under_score:1", "[fe80::1%eth0]:1", "bücher.example:1"]
)
def test_unusual_host_names_are_taken(text: str) -> None:
    """A dot at the end, compose's underscores, a scope, letters that are not ASCII."""
    assert split_host_port(text)[1] == 1


def test_an_endpoint_is_a_host_and_a_port_or_a_path() -> None:
    """`str` returns the text that was parsed."""
    assert Endpoint.parse("[::1]:80") == Endpoint("::1", 80)
    assert Endpoint.parse("unix:run/x.sock") == Endpoint(path="run/x.sock")
    for text in ("[::1]:80", "mq:80", "unix:x.sock", "unix:/run/x.sock"):
        assert str(Endpoint.parse(text)) == text
    assert str(Endpoint.parse("unix:///run/x.sock")) == "unix:/run/x.sock"


@pytest.mark.parametrize("text", ["unix:", "unix:a\0b", "unix:" + "x" * 108, "UNIX:x"])
def test_a_path_that_no_socket_can_have_is_refused(text: str) -> None:
    """Before anything is tried."""
    with pytest.raises(ValueError, match="is not"):
        Endpoint.parse(text)


def test_a_long_text_is_shown_by_its_beginning() -> None:
    """An error must not be a page of what somebody typed."""
    assert shown("x") == "'x'"
    assert shown("x" * 5000) == f"'{'x' * 80}'... (5000 long)"
