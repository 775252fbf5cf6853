"""Answers that wait until progress is durable; `tests/broker/test_progress_sync.py` cuts power."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.messaging import progress_durability
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.progress.journal import ProgressJournal
from commitbus.broker.progress.journal_flush import ProgressFlush
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Run = Callable[..., None]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the journal's syncs wait until the event is set."""
    ready, original = threading.Event(), ProgressJournal.sync

    def sync(self: ProgressJournal) -> None:
        assert ready.wait(20)
        original(self)

    monkeypatch.setattr(ProgressJournal, "sync", sync)
    return ready


def test_many_acknowledgements_wait_for_the_same_sync(
    run: Run, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first for one, all that came meanwhile for the next."""
    syncs: list[int] = []
    original = ProgressFlush._sync

    def sync(self: ProgressFlush) -> None:
        original(self)
        syncs.append(self.durable_sequence)

    monkeypatch.setattr(ProgressFlush, "_sync", sync)

    async def scenario(bus: Any) -> None:
        disk.set()
        await bus.send(*(b"%d" % number for number in range(20)))
        received = await bus.receive()
        syncs.clear()
        disk.clear()
        answered: list[Any] = []

        async def ack(handle: str) -> None:
            answered.append(await bus.ack(handle))

        async with trio.open_nursery() as nursery:
            for handle in received.handles:
                nursery.start_soon(ack, handle)
            await trio.testing.wait_all_tasks_blocked()
            assert answered == [], "none before the disk has it"
            assert bus.context.progress.get("G", "T", 0).in_flight_count == 0
            disk.set()
        assert answered == [[pb.OK]] * 20
        assert len(syncs) <= 3

    run(scenario, progress_sync=True)


def test_what_did_not_become_durable_is_refused(
    run: Run, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the error of the disk; the next one may succeed."""

    async def scenario(bus: Any) -> None:
        disk.set()
        await bus.send(b"1", b"2")
        first, second = (await bus.receive()).handles
        error = StateWriteError(bus.context.config.store_directory, "it is broken")
        refuse = monkeypatch.context
        with refuse() as patch:

            def sync(self: ProgressFlush) -> None:
                self._tell(self._journal.sequence, error)

            patch.setattr(ProgressFlush, "_sync", sync)
            request = pb.AckMessageRequest()
            request.group.name, request.topic.name = "G", "T"
            request.entries.add(receipt_handle=first, message_id="some")
            answer = await bus.unary("AckMessage", request)
            assert answer.status.code // 10_000 == 5
            assert "it is broken" in answer.status.message
        assert await bus.ack(second) == [pb.OK]
        # The one that was refused has become durable with it, and counts as acknowledged.
        assert await bus.ack(first) == [pb.OK]

    run(scenario, progress_sync=True)


def test_more_than_a_disk_can_be_waited_for_by_are_refused(
    run: Run, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they change anything: they may be tried again."""
    monkeypatch.setattr(progress_durability, "WAITING_MAX", 1)

    async def scenario(bus: Any) -> None:
        disk.set()
        await bus.send(b"1", b"2")
        first, second = (await bus.receive()).handles
        disk.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bus.ack, first)
            await trio.testing.wait_all_tasks_blocked()
            request = pb.AckMessageRequest()
            request.group.name, request.topic.name = "G", "T"
            request.entries.add(receipt_handle=second, message_id="some")
            answer = await bus.unary("AckMessage", request)
            assert answer.status.code == pb.TOO_MANY_REQUESTS
            disk.set()
        assert bus.context.progress.get("G", "T", 0).in_flight_count == 1

    run(scenario, progress_sync=True)
