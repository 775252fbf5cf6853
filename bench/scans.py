"""A few messages among a million that a filter does not let pass, found by receives."""

from __future__ import annotations

import time

import trio

from bench.handlers import BATCH, Deliveries, drain, in_a_broker, receive_request
from bench.measure import Row
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.record_format import encode_properties
from commitbus.commitlog.types import Host, OutgoingMessage

MESSAGES = 1_000_000
WANTED_EVERY = 1000
QUEUES = 8
BODY = b"x" * 100
SQL = "region = 'eu' AND amount > 100"


def scans() -> list[Row]:
    """Receive 1 in 1,000 of a million messages, chosen by tag and by an SQL filter."""
    return in_a_broker(measure_scans)


async def measure_scans(context: MessagingContext, methods: dict[str, Method]) -> list[Row]:
    """Return a row for each filter: messages looked at in a second of all threads' CPU time."""
    await context.metadata.put_topic(
        TopicConfig("Bench", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
    )
    await trio.to_thread.run_sync(store_messages, context)
    rows = []
    for name, kind, text in (("tag", pb.TAG, "vip"), ("SQL, two terms", pb.SQL, SQL)):
        request = pb.ReceiveMessageRequest.FromString(receive_request(f"by-{kind}", BATCH))
        request.filter_expression.type, request.filter_expression.expression = kind, text
        deliveries, begin = Deliveries(), (time.process_time(), time.perf_counter())
        receive = methods["ReceiveMessage"]
        await drain(receive, request.SerializeToString(), deliveries, MESSAGES // WANTED_EVERY)
        cpu_s, wall_s = time.process_time() - begin[0], time.perf_counter() - begin[1]
        note = f"CPU; by the clock {MESSAGES / wall_s:,.0f}"
        rows.append((f"receive 1 in 1,000 by {name}", "msg/s", MESSAGES / cpu_s, note))
    return rows


def store_messages(context: MessagingContext) -> None:
    """Put the messages into the store, and wait until its threads have done their work."""
    wanted, other = message_properties("vip", "250"), message_properties("new", "50")
    for first in range(0, MESSAGES, WANTED_EVERY):
        context.store.put_batch(
            [
                message(number, wanted if number % WANTED_EVERY == 0 else other)
                for number in range(first, first + WANTED_EVERY)
            ]
        )
    assert context.store.dispatched.wait(context.store.end_offset, 60)
    while context.store.indexed_to < context.store.end_offset or context.store.flush_behind_bytes:
        time.sleep(0.1)


def message(number: int, properties: bytes) -> OutgoingMessage:
    """Return one; each queue has its share of what is wanted."""
    queue_id = number % QUEUES if number % WANTED_EVERY else number // WANTED_EVERY % QUEUES
    return OutgoingMessage("Bench", queue_id, BODY, properties, 0, Host(b"\x7f\0\0\1", 40000))


def message_properties(tag: str, amount: str) -> bytes:
    """Return eleven properties, of which the filters want two."""
    properties = {
        "KEYS": "order-12345",
        "UNIQ_KEY": "01ABCDEF0123456789ABCDEF01234567",
        "TRACE_ON": "true",
        "MSG_REGION": "DefaultRegion",
        "__BORNHOST": "127.0.0.1",
        "BORN_TIMESTAMP": "1700000000000",
        "region": "eu",
        "amount": amount,
        "WAIT": "true",
        "CLUSTER": "DefaultCluster",
        "TAGS": tag,
    }
    return encode_properties(properties)
