"""Batches that take long to read and encode, although they are in memory."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest

from commitbus.broker.consuming import store_reads
from commitbus.broker.receiving import encoder
from tests.broker.messaging.bus import noted_threads
from tests.broker.messaging.pulls import pull

Run = Callable[..., None]

LARGE = [bytes([number]) * 60_000 for number in range(3)]
SMALL = [b"1", b"2", b"3"]


@pytest.mark.parametrize("bodies", [LARGE, SMALL], ids=["large", "small"])
def test_a_large_batch_is_encoded_on_another_thread(
    run: Run, monkeypatch: pytest.MonkeyPatch, bodies: list[bytes]
) -> None:
    """32 messages of 1 MiB kept the trio thread for 70 ms; small ones are not worth a thread."""
    monkeypatch.setattr(store_reads, "AT_ONCE_BYTES_MAX", 100_000)
    noted, receiving = noted_threads(monkeypatch, encoder, "encode_message"), set[int]()

    async def scenario(bus: Any) -> None:
        await bus.send(*bodies)
        assert (await bus.receive()).bodies == bodies
        receiving.update(noted)
        noted.clear()
        assert (await pull(bus)).bodies == bodies

    run(scenario)
    for threads in (receiving, noted):
        assert len(threads) == 1
        assert (get_ident() in threads) is (bodies is SMALL)
