"""Producing: what has a receipt is stored, once, where the receipt says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from commitbus.broker import Broker
from commitbus.broker.client import (
    BrokerUnavailableError,
    ClientClosedError,
    ClientError,
    Consumer,
    DeliveryUnknownError,
    Message,
    Producer,
    ProducerOptions,
    Receipt,
    RefusedError,
)
from commitbus.broker.embedded.broker import SMALL_FILES
from commitbus.broker.rpc.call import StatusCode
from tests.broker.client.cutting_proxy import cutting_proxy

Run = Callable[..., None]


async def stored(endpoint: str, topic: str, count: int) -> list[Message]:
    """Return the first messages of a topic, and fail if there are more."""
    messages: list[Message] = []
    async with Consumer(endpoint, topic) as consumer:
        while len(messages) < count:
            messages.append(await anext(consumer))
        with trio.move_on_after(0.2):
            raise AssertionError(f"one too many: {await anext(consumer)}")
    return messages


def test_a_send_returns_where_the_message_lies(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with Producer(broker.endpoint) as producer:
            receipt = await producer.send(
                b"body", topic=topic, tag="t", keys=["k1", "k2"], properties={"a": "b"}, queue_id=1
            )
            assert receipt == Receipt(topic, 1, 0, receipt.store_timestamp)
        (message,) = await stored(broker.endpoint, topic, 1)
        assert (message.body, message.tag, message.keys) == (b"body", "t", ("k1", "k2"))
        assert message.properties.items() >= {"a": "b", "TAGS": "t"}.items()
        assert (message.queue_id, message.queue_offset) == (1, 0)
        assert message.store_timestamp == receipt.store_timestamp
        assert message.message_id == message.properties["UNIQ_KEY"]

    run(main)


def test_sends_of_many_tasks_share_batches(run: Run, broker: Broker, topic: str) -> None:
    """Each gets its own receipt, and far fewer batches than messages are stored."""

    async def main() -> None:
        receipts: dict[bytes, Receipt] = {}
        async with Producer(broker.endpoint) as producer:

            async def send(body: bytes) -> None:
                receipts[body] = await producer.send(body, topic=topic)

            async with trio.open_nursery() as nursery:
                for number in range(500):
                    nursery.start_soon(send, b"%d" % number)
        messages = await stored(broker.endpoint, topic, 500)
        assert {m.body: (m.queue_id, m.queue_offset) for m in messages} == {
            body: (receipt.queue_id, receipt.queue_offset) for body, receipt in receipts.items()
        }
        assert sum("UNIQ_KEY" in message.properties for message in messages) < 50

    run(main)


def test_produce_calls_back_in_order(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        told: list[tuple[int, ClientError | None, Receipt | None]] = []
        options = ProducerOptions(batch_bytes=1000)
        async with Producer(broker.endpoint, options) as producer:
            for number in range(1000):
                await producer.produce(
                    b"%d" % number,
                    topic=topic,
                    queue_id=0,
                    on_delivery=lambda *result, number=number: told.append((number, *result)),
                )
        assert [number for number, *_ in told] == list(range(1000))
        assert [receipt.queue_offset for *_, receipt in told if receipt] == list(range(1000))
        messages = await stored(broker.endpoint, topic, 1000)
        assert [int(message.body) for message in messages] == list(range(1000))

    run(main)


def test_a_message_that_is_refused_does_not_take_others_with_it(
    run: Run, broker: Broker, topic: str
) -> None:
    async def main() -> None:
        refused: list[ClientError | None] = []
        async with Producer(broker.endpoint, ProducerOptions(linger_s=0.05)) as producer:
            for body in (b"1", b"", b"2", b"", b"3"):
                await producer.produce(
                    body,
                    topic=topic,
                    queue_id=0,
                    on_delivery=lambda error, _: refused.append(error),
                )
            await producer.flush()
            await producer.send(b"4", topic=topic, queue_id=0)
        assert sorted(type(error).__name__ for error in refused) == [
            *["NoneType"] * 3,
            *["RefusedError"] * 2,
        ]
        messages = await stored(broker.endpoint, topic, 4)
        assert [message.body for message in messages] == [b"1", b"2", b"3", b"4"]

    run(main)


def test_what_can_never_be_right_is_refused_at_once(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with Producer(broker.endpoint) as producer:
            for wrong in (
                {"tag": "a|b"},
                {"keys": ["\n"]},
                {"properties": {"CLUSTER": "x"}},
                {"properties": {"": "x"}},
                {"properties": {"UNIQ_KEY": "x"}},
                {"properties": {"a": "\x01"}},
            ):
                with pytest.raises(RefusedError):
                    await producer.send(b"x", topic=topic, **wrong)
            with pytest.raises(RefusedError) as caught:
                await producer.send(b"x", topic="no topic")
            assert caught.value.code is StatusCode.INVALID_ARGUMENT

    run(main)


def test_flush_raises_what_nobody_else_was_told(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with Producer(broker.endpoint) as producer:
            await producer.produce(b"", topic=topic)
            with pytest.raises(RefusedError):
                await producer.flush()
            await producer.flush()

    run(main)


def test_producing_waits_while_the_buffer_is_full(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        options = ProducerOptions(buffer_bytes=5000, batch_bytes=1000)
        async with Producer(broker.endpoint, options) as producer:
            for _ in range(200):
                await producer.produce(bytes(100), topic=topic, queue_id=0)
                assert producer.sender(topic, 0).buffered_bytes < 5000 + 300
        await stored(broker.endpoint, topic, 200)

    run(main)


def test_a_message_that_no_broker_takes_is_refused_at_once(
    run: Run, broker: Broker, topic: str
) -> None:
    async def main() -> None:
        async with Producer(broker.endpoint) as producer:
            with pytest.raises(RefusedError, match="bytes, at most"):
                await producer.send(bytes(12 << 20), topic=topic)
            await producer.send(b"small", topic=topic)

    run(main)


def test_a_cancelled_send_leaves_the_producer_usable(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with Producer(broker.endpoint, ProducerOptions(linger_s=0.2)) as producer:
            with trio.move_on_after(0.01) as scope:
                await producer.send(b"1", topic=topic, queue_id=0)
            assert scope.cancelled_caught
            await producer.send(b"2", topic=topic, queue_id=0)
        messages = await stored(broker.endpoint, topic, 2)
        assert [message.body for message in messages] == [b"1", b"2"]

    run(main)


def test_a_broker_that_is_not_there_is_named(run: Run) -> None:
    async def main() -> None:
        options = ProducerOptions(connect_timeout_s=0.2)
        with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1 is not available"):
            async with Producer("127.0.0.1:1", options):
                pass

    run(main)


def test_a_closed_producer_takes_nothing(run: Run, broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with Producer(broker.endpoint) as producer:
            await producer.send(b"x", topic=topic)
        with pytest.raises(ClientClosedError):
            await producer.send(b"x", topic=topic)
        with pytest.raises(ClientClosedError):
            await producer.send(b"x", topic="another")

    run(main)


def test_an_exception_leaves_the_block_as_it_is(run: Run, broker: Broker, topic: str) -> None:
    """Without waiting for what was produced, and in no group."""

    async def main() -> None:
        async def fail() -> None:
            async with Producer(broker.endpoint, ProducerOptions(linger_s=60)) as producer:
                await producer.produce(b"x", topic=topic)
                raise KeyError

        with pytest.raises(KeyError):
            await fail()

    run(main)


@pytest.mark.parametrize("cut_after_bytes", [500, 30_000, 100_000])
def test_what_a_lost_connection_carried_is_stored_once(
    run: Run, broker: Broker, topic: str, cut_after_bytes: int
) -> None:
    """Every connection is cut after some bytes, in the middle of whatever."""

    async def main() -> None:
        options = ProducerOptions(batch_bytes=2000)
        async with cutting_proxy(broker.endpoint) as proxy:
            async with Producer(proxy.endpoint, options) as producer:
                proxy.cut_after_bytes = cut_after_bytes
                for number in range(2000):
                    await producer.produce(b"%04d" % number * 20, topic=topic, queue_id=0)
                    if number % 100 == 0:
                        await trio.sleep(0.001)
                    if proxy.connections > 5:
                        proxy.cut_after_bytes = None
                # The rest would never get through.
                await trio.sleep(0.5)
                proxy.cut_after_bytes = None
                proxy.cut()
            assert proxy.connections > 1
        messages = await stored(broker.endpoint, topic, 2000)
        assert [message.body for message in messages] == [
            b"%04d" % number * 20 for number in range(2000)
        ]

    run(main)


def test_more_than_can_be_sent_at_once_is_sent_again(run: Run, broker: Broker, topic: str) -> None:
    """While the first of it is acknowledged, the last of it has not left yet."""
    bodies = [b"%04d" % number * 25_000 for number in range(100)]

    async def main() -> None:
        options = ProducerOptions(batch_bytes=200_000)
        async with cutting_proxy(broker.endpoint) as proxy:
            async with Producer(proxy.endpoint, options) as producer:
                proxy.cut_after_bytes = 3_000_000
                for body in bodies:
                    await producer.produce(body, topic=topic, queue_id=0)
                await trio.sleep(0.3)
                proxy.cut_after_bytes = None
            assert proxy.connections > 1
        messages = await stored(broker.endpoint, topic, len(bodies))
        assert [message.body for message in messages] == bodies

    run(main)


def test_a_restart_of_the_broker_loses_and_doubles_nothing(run: Run, store: Path) -> None:
    async def main() -> None:
        receipts: Counter[bytes] = Counter()
        broker = await trio.to_thread.run_sync(Broker, store)
        listen = broker.endpoint

        async def send_all(producer: Producer, first: int) -> None:
            for number in range(first, 400, 4):
                body = b"%d" % number
                await producer.send(body, topic="t")
                receipts[body] += 1

        async with Producer(listen) as producer, trio.open_nursery() as nursery:
            for first in range(4):
                nursery.start_soon(send_all, producer, first)
            await trio.sleep(0.1)
            await trio.to_thread.run_sync(broker.stop)
            broker = await trio.to_thread.run_sync(lambda: Broker(store, listen=listen))
        messages = await stored(listen, "t", 400)
        assert Counter(message.body for message in messages) == receipts
        await trio.to_thread.run_sync(broker.stop)

    run(main)


def test_without_the_broker_a_send_fails_in_time(run: Run, store: Path) -> None:
    """It may have been stored: nobody can say."""

    async def main() -> None:
        broker = await trio.to_thread.run_sync(Broker, store)
        async with Producer(broker.endpoint, ProducerOptions(delivery_timeout_s=0.5)) as producer:
            await producer.send(b"x", topic="t")
            await trio.to_thread.run_sync(broker.stop)
            with pytest.raises(DeliveryUnknownError, match=r"no acknowledgement in 0.5 s"):
                await producer.send(b"y", topic="t")

    run(main)


def test_a_broker_that_takes_small_batches_gets_small_ones(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More is gathered before its first response than it takes in one batch."""
    monkeypatch.setitem(SMALL_FILES, "max_body_bytes", 65536)

    async def main(endpoint: str) -> None:
        async with Producer(endpoint) as producer:
            for number in range(5000):
                await producer.produce(b"%060d" % number, topic="small", queue_id=0)
            with pytest.raises(RefusedError, match="65537 bytes, at most 65536"):
                await producer.send(bytes(65537), topic="small", queue_id=0)
            await producer.send(bytes(65536), topic="small", queue_id=0)
        messages = await stored(endpoint, "small", 5001)
        assert [message.body for message in messages[:5000]] == [b"%060d" % n for n in range(5000)]

    with Broker() as broker:
        run(partial(main, broker.endpoint))
