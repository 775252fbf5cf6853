"""A thread whose death somebody hears of."""

from __future__ import annotations

import threading

import pytest

from commitbus.commitlog.errors import ThreadDiedError
from commitbus.commitlog.service_thread import ServiceThread


@pytest.mark.parametrize(
    "cause", [MemoryError(), RecursionError(), AssertionError(), SystemExit(3), KeyboardInterrupt()]
)
def test_any_exception_is_told_once_with_its_cause(
    cause: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    deaths: list[ThreadDiedError] = []

    def service() -> None:
        raise cause

    thread = ServiceThread("worker", service, deaths.append)
    thread.start()
    thread.join()
    assert [(death.thread, death.cause) for death in deaths] == [("worker", cause)]
    assert str(deaths[0]) == f"the thread worker died: {cause!r}"
    assert [record.message for record in caplog.records] == ["a thread of the store died"]


def test_an_end_is_no_death() -> None:
    """And a thread that was never started can be joined."""
    deaths: list[ThreadDiedError] = []
    done = threading.Event()
    thread = ServiceThread("worker", done.set, deaths.append)
    thread.join()
    thread.start()
    thread.join()
    assert done.is_set()
    assert deaths == []
