"""Answers to operators and bulk clients from a store with a bad block."""

from __future__ import annotations

import grpc
import pytest
import trio

from commitbus.broker.admin import dead_letters, groups, messages
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.observe.metrics import BrokerCollector
from commitbus.broker.observe.rpc_latency import RpcLatency
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin
from commitbus.commitlog.errors import ReadFailedError
from tests.broker.admin.test_dead_letters import bury
from tests.broker.bad_blocks import BadBlocks
from tests.broker.bulk.bulk_client import Bulk, make_batch
from tests.broker.bulk.conftest import broker, bulk, topic
from tests.broker.bulk.test_fetch import position
from tests.broker.messaging.bus import Bus
from tests.broker.messaging.test_receive import Run
from tests.broker.scenarios import run

__all__ = ["broker", "bulk", "run", "topic"]


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> BadBlocks:
    return BadBlocks(monkeypatch)


@pytest.mark.parametrize("spoilt", ["record", "unit"])
@pytest.mark.parametrize("tags", ["", "a"])
def test_a_bulk_client_gets_all_before_it_and_is_told(
    bulk: Bulk, topic: str, blocks: BadBlocks, spoilt: str, tags: str
) -> None:
    """And all behind it, by asking for that."""
    assert (
        bulk.append(
            topic, make_batch(0, [(b"%d" % n, {"TAGS": "a"}) for n in range(9)], queue_id=0)
        ).error
        is None
    )
    (record,) = bulk.fetch(topic, queues=position(queue_offset=5), slice_bytes_max=1).records[:1]
    if spoilt == "record":
        end = record.physical_offset + record.size_bytes
        blocks.add("/commitlog/", record.physical_offset, end)
    else:
        blocks.add_unit(topic, 5)
    fetched = bulk.fetch(topic, queues=position(), tags=tags)
    assert fetched.error is not None
    code, text = fetched.error
    assert code is grpc.StatusCode.DATA_LOSS
    assert "at position" in text
    assert [int(record.body) for record in fetched.records] == [0, 1, 2, 3, 4]
    behind = bulk.fetch(topic, queues=position(queue_offset=6), tags=tags)
    assert [int(record.body) for record in behind.records] == [6, 7, 8]


def test_a_letter_that_cannot_be_read_fails_alone(run: Run, blocks: BadBlocks) -> None:
    async def scenario(bus: Bus) -> None:
        # Each has pages of its own: one that lies in a bad page cannot be read either.
        context = await bury(bus, *(digit * 9000 for digit in (b"0", b"1", b"2")))
        blocks.add_record(bus.context.store, "%DLQ%G", 1)
        request = admin.SendBackDeadLettersRequest(group="G", from_offset=0)
        response = await dead_letters.send_back_dead_letters(context, request)
        outcomes = admin.SendBackDeadLettersResponse
        assert [letter.outcome for letter in response.letters] == [
            outcomes.SENT_BACK,
            outcomes.FAILED,
            outcomes.SENT_BACK,
        ]
        assert "at position" in response.letters[1].reason
        assert response.next_offset == 3

    run(scenario)


def test_an_operator_who_wants_it_is_told_and_sees_all_else(run: Run, blocks: BadBlocks) -> None:
    """Lag and metrics leave out only when it was stored."""

    async def scenario(bus: Bus) -> None:
        await bus.send(b"0", b"1")
        await bus.receive(batch=1)
        for offset in (0, 1):
            blocks.add_record(bus.context.store, "T", offset)
        context = bus.admin()
        place = admin.GetMessageRequest()
        place.place.topic, place.place.queue_offset = "T", 1
        with pytest.raises(ReadFailedError):
            await messages.get_message(context, place)
        progress = await groups.get_consumer_progress(
            context, admin.GetConsumerProgressRequest(group="G")
        )
        (queue,) = progress.queues
        assert (queue.broker_offset, queue.last_time_ms) == (2, -1)
        names = await trio.to_thread.run_sync(scraped, bus.context)
        assert "rocketmq_consumer_lag_messages" in names
        assert "rocketmq_storage_message_reserve_time_milliseconds" in names

    run(scenario)


def scraped(context: MessagingContext) -> set[str]:
    """The names of what a scrape shows."""
    collector = BrokerCollector(context, RpcLatency(), trio.from_thread.run_sync)
    return {family.name for family in collector.collect()}
