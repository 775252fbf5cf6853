"""`HOST:PORT`, one parser for all of them."""

from __future__ import annotations

import pytest

from commitbus.broker.address import join_host_port, split_host_port


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
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    """In words, whatever is wrong with it."""
    with pytest.raises(ValueError, match="is not"):
        split_host_port(text)
