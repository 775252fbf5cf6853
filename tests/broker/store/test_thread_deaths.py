"""Each thread of the store dies once: the store fails, says so once, and no caller hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitbus.broker.store.checkpoint_service import CheckpointService
from commitbus.broker.store.housekeeping import Housekeeping
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.dispatch_reader import DispatchReader
from commitbus.commitlog.errors import StoreError, StoreReadOnlyError
from commitbus.commitlog.mapped_file import MappedFile
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.service_thread import ServiceThread
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.policy import FlushMode
from tests.broker.store.conftest import message, small_config

SOON_S = 1.0
# By thread: a function that only this thread calls, and that a put, a flush or a round reaches.
DEATHS = {
    "commitlog-preparer": (MappedFile, "warm"),
    "commitbus-flush": (MappedFileQueue, "flush"),
    "commitbus-reput": (DispatchReader, "read"),
    "commitbus-checkpoint": (CheckpointService, "save"),
    "commitbus-housekeeping": (Housekeeping, "_round"),
}


def die(*_: object) -> None:
    """Run out of memory."""
    raise MemoryError


@pytest.fixture
def fail_quietly() -> Iterator[Callable[[MessageStore], None]]:
    """Close stores that have failed."""
    stores: list[MessageStore] = []
    yield stores.append
    for store in stores:
        store.close()


def within(limit_s: float, work: Callable[[], object]) -> BaseException | None:
    """Return what `work` raises, on a thread of its own: a wait for ever must not hang the test."""
    errors: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            errors.append(None)
        except BaseException as error:  # noqa: BLE001 - returned
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    assert errors, "somebody waits for ever"
    return errors[0]


@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("thread", DEATHS)
def test_a_thread_that_dies_is_a_failed_store(
    thread: str,
    mode: FlushMode,
    store_dir: Path,
    fail_quietly: Callable[[MessageStore], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Waiters get an error within a second, the listener one call, and puts are refused."""
    store = MessageStore.open(store_dir, small_config(mode))
    fail_quietly(store)
    failures: list[StoreError] = []
    failed = threading.Event()
    store.add_failure_listener(failures.append)
    store.add_failure_listener(lambda _: failed.set())
    assert store.durable_watermark.wait(store.put(message()).end_offset, 20)
    owner, name = DEATHS[thread]
    monkeypatch.setattr(owner, name, die)
    end = store.end_offset

    def put_and_wait() -> None:
        nonlocal end
        # Several files: the preparer has work with each.
        for _ in range(100):
            end = store.put(message(body=bytes(2000))).end_offset
        if thread == "commitbus-housekeeping":
            store._housekeeping._bell.ring()
        if thread in ("commitbus-flush", "commitbus-reput", "commitlog-preparer"):
            store.durable_watermark.wait(end)
            store.dispatched.wait(end)

    error = within(SOON_S, put_and_wait)
    assert failed.wait(SOON_S)
    if thread in ("commitbus-flush", "commitbus-reput"):
        assert isinstance(error, StoreError)
    assert len(failures) == 1
    assert "MemoryError" in str(failures[0])
    assert store.failure is failures[0]
    refused = within(SOON_S, lambda: store.put(message()))
    assert isinstance(refused, StoreReadOnlyError)
    # Those who come later do not wait either.
    within(SOON_S, lambda: store.durable_watermark.wait(store.end_offset))
    within(SOON_S, lambda: store.dispatched.wait(store.end_offset))
    assert within(20, store.close) is None
    assert len(failures) == 1
    assert (store_dir / "abort").exists()


def test_who_waits_for_a_flush_that_failed_is_told_by_reput_too(
    store_dir: Path,
    fail_quietly: Callable[[MessageStore], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In SYNC_FLUSH what was never durable is never dispatched; what was, is."""
    store = MessageStore.open(store_dir, small_config(FlushMode.SYNC_FLUSH))
    fail_quietly(store)
    durable = store.put(message()).end_offset
    assert store.dispatched.wait(durable, 20)
    monkeypatch.setattr(MappedFileQueue, "flush", die)
    lost = store.put(message()).end_offset
    assert isinstance(within(SOON_S, lambda: store.dispatched.wait(lost)), StoreError)
    assert store.dispatched.wait(durable, 0)


def test_a_listener_that_runs_out_of_memory_fails_the_store(
    store_dir: Path, fail_quietly: Callable[[MessageStore], None]
) -> None:
    """Somebody may wait for what it did not pass on; the others hear it all the same."""
    store = MessageStore.open(store_dir, small_config())
    fail_quietly(store)
    told: list[PhysicalOffset] = []
    failed = threading.Event()
    store.add_failure_listener(lambda _: failed.set())
    store.durable_watermark.listen(die)
    store.durable_watermark.listen(told.append)
    store.put(message())
    assert failed.wait(SOON_S)
    assert told


def test_a_store_that_gets_no_thread_is_not_opened(
    store_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads that did start end, and the next attempt finds the store free."""
    start, started = ServiceThread.start, list[ServiceThread]()

    def refuse_third(self: ServiceThread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(self)
        started.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(ServiceThread, "start", refuse_third)
        with pytest.raises(RuntimeError):
            MessageStore.open(store_dir, small_config())
    for thread in started:
        assert not thread._thread.is_alive()
    MessageStore.open(store_dir, small_config()).close()


SERVE = """
import sys, time
from commitbus.broker.cli.main import main
from commitbus.broker.store.checkpoint_service import CheckpointService
def die(self):
    raise MemoryError
CheckpointService.save = die
sys.exit(main())
"""


def test_serve_ends_with_an_error(tmp_path: Path) -> None:
    """A process that only looks alive would be worse. The start asks for a checkpoint already."""
    begun_s = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-c", SERVE, "serve", "--listen", "127.0.0.1:0",
         "--store", str(tmp_path / "store")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert process.returncode == 1, process.stderr
    assert "the thread commitbus-checkpoint died: MemoryError()" in process.stderr
    assert time.monotonic() - begun_s < 30
