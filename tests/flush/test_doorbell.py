"""The bell that wakes the store's threads."""

from __future__ import annotations

import threading

import pytest

from commitbus.flush.doorbell import Doorbell


def test_rings_add_up_to_one() -> None:
    """The waiter looks for itself what is to be done."""
    bell = Doorbell()
    assert not bell.wait(0)
    bell.ring()
    bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)


def test_a_ring_that_failed_does_not_silence_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory for it nobody was woken, and a stop would have waited for ever."""
    bell = Doorbell()

    def fail(_: threading.Event) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "set", fail)
        with pytest.raises(MemoryError):
            bell.ring()
    bell.ring()
    assert bell.wait(0)
