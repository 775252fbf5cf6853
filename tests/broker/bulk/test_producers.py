"""The table of producers: as many as streams are open, however many ids there are."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from commitbus.broker.bulk.producers import Producers


def test_nothing_is_kept_of_a_producer_whose_streams_have_ended() -> None:
    """A stream that was taken over leaves nothing behind either, whichever of them ends last."""
    store: Any = SimpleNamespace(end_offset=0)
    durability: Any = None
    producers = Producers(store, durability)
    for number in range(1000):
        with producers.speak("T", number.to_bytes(16, "big"), resumes=False):
            assert len(producers._speaking) == 1
    with ExitStack() as first, ExitStack() as second:
        for stack in first, second, first:
            stack.enter_context(producers.speak("T", bytes(16), resumes=True))
        first.close()
        assert len(producers._speaking) == 0
    assert producers._speaking == {}
