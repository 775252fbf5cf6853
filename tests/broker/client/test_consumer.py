"""Consuming: every message of a queue, in order, once, from anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import pytest
import trio

from commitbus.broker import Broker
from commitbus.broker.client import (
    Begin,
    BrokerUnavailableError,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    RefusedError,
)
from commitbus.broker.rpc import trio_transport
from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.wire.bulk_paths import FETCH
from tests.broker.client.cutting_proxy import cutting_proxy

Run = Callable[..., None]


async def fill(endpoint: str, topic: str, *numbers: int) -> list[int]:
    """Send numbers to queue 0, the even ones with the tag `even`; return their store times."""
    async with Producer(endpoint) as producer:
        receipts = [
            await producer.send(
                b"%d" % number, topic=topic, tag="" if number % 2 else "even", queue_id=0
            )
            for number in numbers
        ]
    return [receipt.store_timestamp for receipt in receipts]


async def taken(consumer: Consumer, count: int) -> list[int]:
    return [int((await anext(consumer)).body) for _ in range(count)]


def test_it_begins_where_it_is_told(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        await fill(broker.endpoint, topic, *range(5))
        await trio.sleep(0.02)
        after = datetime.now(UTC)
        await fill(broker.endpoint, topic, *range(5, 10))
        begins: list[tuple[Begin, int]] = [("earliest", 0), (after, 5), ({0: 3}, 3)]
        for begin, first in begins:
            async with Consumer(broker.endpoint, topic, begin=begin) as consumer:
                assert await taken(consumer, 10 - first) == list(range(first, 10))
                assert consumer.positions[0] == 10

    run(main)


def test_latest_waits_for_what_comes(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        await fill(broker.endpoint, topic, 1)
        async with Consumer(broker.endpoint, topic, begin="latest") as consumer:
            while not consumer.positions:
                with trio.move_on_after(0.01):
                    await consumer.next_batch()
            await fill(broker.endpoint, topic, 2)
            assert await taken(consumer, 1) == [2]

    run(main)


def test_without_following_the_iteration_ends(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        await fill(broker.endpoint, topic, *range(10))
        async with Consumer(broker.endpoint, topic, begin={0: 0}) as consumer:
            await taken(consumer, 10)
        async with Consumer(broker.endpoint, topic, follow=False, tags="even") as consumer:
            assert [int(message.body) async for message in consumer] == [0, 2, 4, 6, 8]
            assert consumer.positions == {0: 10, 1: 0}
            assert await consumer.next_batch() is None

    run(main)


def test_a_batch_has_columns_objects_and_arrow(run: Run, broker: Broker, topic: str) -> None:
    """And they all say the same."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")

    async def main() -> None:
        async with Producer(broker.endpoint) as producer:
            for number in range(20):
                await producer.send(
                    bytes([number]) * (number + 1),
                    topic=topic,
                    tag="t" if number % 3 else "",
                    keys=["a", "b"][: number % 3],
                    properties={"é": "ü"} if number % 2 else {},
                    queue_id=0,
                )
        messages: list[Message] = []
        rows: list[dict[str, object]] = []
        async with Consumer(broker.endpoint, topic) as consumer:
            while len(messages) < 20:
                batch = await consumer.next_batch()
                assert batch is not None
                assert batch.bodies() == [message.body for message in batch]
                assert batch.queue_offsets.tolist() == [m.queue_offset for m in batch]
                assert batch.physical_offsets.tolist() == [m.physical_offset for m in batch]
                assert batch.store_timestamps.tolist() == [m.store_timestamp for m in batch]
                assert batch.born_timestamps.tolist() == [m.born_timestamp for m in batch]
                messages += batch
                rows += batch.to_arrow().to_pylist()
        for number, (message, row) in enumerate(zip(messages, rows, strict=True)):
            assert message.queue_offset == row["queue_offset"] == number
            assert message.body == row["body"] == bytes([number]) * (number + 1)
            assert message.tag == (row["tags"] or "") == ("t" if number % 3 else "")
            assert list(message.keys) == (row["keys"] or []) == ["a", "b"][: number % 3]
            assert dict(message.properties) == dict(row["properties"])  # type: ignore[call-overload] # Arrow's maps are lists of pairs
            assert message.message_id == row["message_id"]
            assert (message.properties.get("é") == "ü") == bool(number % 2)

    run(main)


def test_a_small_read_ahead_still_reads_everything(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        await fill(broker.endpoint, topic, *range(100))
        options = ConsumerOptions(read_ahead_bytes=1, slice_bytes=1)
        async with Consumer(broker.endpoint, topic, options=options) as consumer:
            assert await taken(consumer, 100) == list(range(100))

    run(main)


def test_a_lost_connection_neither_loses_nor_doubles(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        await fill(broker.endpoint, topic, *range(200))
        options = ConsumerOptions(slice_bytes=500, read_ahead_bytes=2000)
        async with cutting_proxy(broker.endpoint) as proxy:
            async with Consumer(proxy.endpoint, topic, options=options) as consumer:
                for first in range(0, 200, 20):
                    assert await taken(consumer, 20) == list(range(first, first + 20))
                    proxy.cut()
            assert proxy.connections > 1

    run(main)


@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_queues_that_come_while_the_connection_is_lost_are_read(
    run: Run, broker: Broker, topic: str, begin: Begin
) -> None:
    """From their first message on: what is in a new queue is new."""

    async def main() -> None:
        async with (
            cutting_proxy(broker.endpoint) as proxy,
            Consumer(proxy.endpoint, topic, begin=begin) as consumer,
        ):
            while len(consumer.positions) < 2:
                with trio.move_on_after(0.01):
                    await consumer.next_batch()
            await fill(broker.endpoint, topic, 1)
            assert await taken(consumer, 1) == [1]
            # Nobody gets through until the queue is there and has a message.
            proxy.cut_after_bytes = 0
            proxy.cut()
            await trio.to_thread.run_sync(lambda: broker.create_topic(topic, queues=4))
            async with Producer(broker.endpoint) as producer:
                await producer.send(b"2", topic=topic, queue_id=3)
            proxy.cut_after_bytes = None
            assert await taken(consumer, 1) == [2]
            assert consumer.positions == {0: 1, 1: 0, 2: 0, 3: 1}

    run(main)


def test_queues_that_had_not_begun_when_the_connection_was_lost_are_asked_for_again(
    run: Run,
) -> None:
    asked: list[dict[int, int]] = []

    async def fetch(requests: AsyncIterator[pb.FetchRequest], _: Call, send: Send) -> None:
        what = (await anext(requests)).topic
        asked.append({queue.queue_id: queue.position.queue_offset for queue in what.queues})
        if len(asked) == 1:
            await send(pb.FetchResponse(queue_id=0, first_offset=5, next_offset=5))
            raise RpcError(StatusCode.UNAVAILABLE, "cut between the beginnings of two queues")

    async def serve(*, task_status: trio.TaskStatus[int]) -> None:
        method = Method(
            FETCH, MethodKind.BIDI, pb.FetchRequest, pb.FetchResponse, fetch, access=NOTHING
        )
        await trio_transport.serve([method], listen="127.0.0.1:0", task_status=task_status)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            endpoint = f"127.0.0.1:{await nursery.start(serve)}"
            async with Consumer(endpoint, "t", begin={0: 5, 1: 7}, follow=False) as consumer:
                assert await consumer.next_batch() is None
            nursery.cancel_scope.cancel()
        assert asked == [{0: 5, 1: 7}] * 2

    run(main)


def test_a_broker_that_answers_with_errors_only_is_given_up(run: Run) -> None:
    """A connection that stands is not yet a broker that works, and each attempt costs it work."""
    attempts = 0

    async def fetch(_requests: AsyncIterator[pb.FetchRequest], _: Call, _send: Send) -> None:
        nonlocal attempts
        attempts += 1
        raise RpcError(StatusCode.RESOURCE_EXHAUSTED, "the disk is full")

    async def serve(*, task_status: trio.TaskStatus[int]) -> None:
        method = Method(
            FETCH, MethodKind.BIDI, pb.FetchRequest, pb.FetchResponse, fetch, access=NOTHING
        )
        await trio_transport.serve([method], listen="127.0.0.1:0", task_status=task_status)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            endpoint = f"127.0.0.1:{await nursery.start(serve)}"
            options = ConsumerOptions(reconnect_timeout_s=2.0)
            async with Consumer(endpoint, "t", options=options) as consumer:
                with pytest.raises(BrokerUnavailableError, match="the disk is full"):
                    await consumer.next_batch()
            nursery.cancel_scope.cancel()

    run(main, within_s=10)
    assert 1 < attempts < 10


def test_what_cannot_be_read_is_refused(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        for name, begin, code in (
            ("unknown", "earliest", StatusCode.NOT_FOUND),
            (topic, {0: 1}, StatusCode.OUT_OF_RANGE),
            (topic, {9: 0}, StatusCode.INVALID_ARGUMENT),
        ):
            async with Consumer(broker.endpoint, name, begin=begin) as consumer:  # type: ignore[arg-type] # one of each
                with pytest.raises(RefusedError) as caught:
                    await consumer.next_batch()
                assert caught.value.code is code

    run(main)


def test_a_broker_that_stays_away_is_named(run: Run) -> None:
    async def main() -> None:
        with Broker() as broker:
            await trio.to_thread.run_sync(broker.create_topic, "t")
            options = ConsumerOptions(reconnect_timeout_s=0.3)
            async with Consumer(broker.endpoint, "t", options=options) as consumer:
                await trio.to_thread.run_sync(broker.stop)
                with pytest.raises(BrokerUnavailableError):
                    await consumer.next_batch()

    run(main)
