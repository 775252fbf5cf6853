"""The handlers alone, from request bytes to response bytes: CPU time, without a transport."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, final

import trio
import trio.testing

from bench.load import METADATA, send_request
from bench.measure import Row
from commitbus.broker.config import BrokerConfig
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.methods import messaging_methods
from commitbus.broker.observe.rpc_latency import RpcLatency
from commitbus.broker.rpc.call import Call, Response
from commitbus.broker.rpc.exchange import begin, encoded
from commitbus.broker.rpc.interceptor import intercepted
from commitbus.broker.rpc.method import Method, Parked
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.wire_format import key_of
from commitbus.broker.server import RunningBroker, run_broker

MESSAGES = 20_000
BATCH = 32
PARKED = 10_000
PARKED_IN_GROUP = 1_000
MESSAGE = key_of(pb.ReceiveMessageResponse, "message")
OK = pb.Status(code=pb.OK).SerializeToString()
SHORT = 10
"""Responses begin with their status."""
SERVICE = "/apache.rocketmq.v2.MessagingService/"

Measure = Callable[[MessagingContext, dict[str, Method]], Awaitable[list[Row]]]


@final
@dataclass
class Deliveries:
    """What a consumer group was handed."""

    messages: list[bytes] = field(default_factory=list)
    """The responses that carry them."""
    size_bytes: int = 0

    async def take(self, *responses: Response) -> None:
        """Serialize responses as a transport does."""
        data = [encoded(response) for response in responses]
        self.size_bytes += sum(map(len, data))
        self.messages += [response for response in data if response.startswith(MESSAGE)]

    def handles(self) -> list[str]:
        """Return the receipt handles."""
        responses = map(pb.ReceiveMessageResponse.FromString, self.messages)
        return [response.message.system_properties.receipt_handle for response in responses]


def handlers() -> list[Row]:
    """Send, receive and acknowledge 1 KB messages by calling the handlers directly."""
    return in_a_broker(measure_all)


def in_a_broker(measure_rows: Measure) -> list[Row]:
    """Measure with a broker whose handlers are called directly."""
    # In a new process each round: memory that an earlier one has freed would be taken for none.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(run, measure_rows).result()


def run(measure_rows: Measure) -> list[Row]:
    """Do so in this process."""
    with tempfile.TemporaryDirectory(prefix="commitbus-bench-") as directory:
        config = BrokerConfig(
            store_directory=Path(directory, "store"), listen="127.0.0.1:0", auto_create_topics=True
        )
        return trio.run(measure, config, measure_rows)


async def measure(config: BrokerConfig, measure_rows: Measure) -> list[Row]:
    """Run a broker and call its handlers, their latency measured as if metrics were served."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:

        async def serve(*, task_status: trio.TaskStatus[RunningBroker]) -> None:
            await run_broker(config, stop, task_status=task_status)

        broker: RunningBroker = await nursery.start(serve)
        context = broker.context.messaging
        interceptors = [RpcLatency().intercept, context.clients.intercept]
        methods = {
            method.path.removeprefix(SERVICE): method
            for method in intercepted(messaging_methods(context), interceptors)
        }
        rows = await measure_rows(context, methods)
        stop.set()
    return rows


async def measure_all(context: MessagingContext, methods: dict[str, Method]) -> list[Row]:
    """Return the rows of all handlers. What is done once for each batch size has two values."""
    send, receive, ack = (methods[name] for name in ("SendMessage", "ReceiveMessage", "AckMessage"))
    # First, while no memory is free that they could take instead of new one.
    rows = [await parked(context, receive)]
    requests = [send_request(number) for number in range(MESSAGES)]
    await calls(send, requests[:1])  # makes the topic
    rows.append(await row("handler SendMessage, 1 KB", len(requests), calls(send, requests)))
    # Only what reput has put into the queues can be received.
    end = context.store.end_offset
    assert await trio.to_thread.run_sync(context.store.dispatched.wait, end, 60)
    for size in (BATCH, 1):
        group = f"group-{size}"
        deliveries = Deliveries()
        name = f"handler ReceiveMessage, {size} of 1 KB per call"
        work = drain(receive, receive_request(group, size), deliveries, MESSAGES + 1)
        rows.append(await row(name, MESSAGES, work))
        handles = deliveries.handles()
        requests = [
            ack_request(group, handles[at : at + size]) for at in range(0, len(handles), size)
        ]
        name = f"handler AckMessage, {size} per call"
        rows.append(await row(name, len(handles), calls(ack, requests)))
    return rows


async def parked(context: MessagingContext, receive: Method) -> Row:
    """Return the memory of a receiver that waits, the transport's share left out."""
    groups = [f"parked-{number}" for number in range(PARKED // PARKED_IN_GROUP)]
    # Made before: who waits for that to be stored is not parked yet.
    await context.topic("Empty")
    for group in groups:
        await context.group(group)
    # The transport keeps the call as long as its handler waits: that is its share.
    kept = [call_of(receive) for _ in range(PARKED)]
    calls_left = iter(kept)
    before = resident_bytes()
    waiting = []
    for group in groups:
        data = receive_request(group, BATCH, topic="Empty")
        for _ in range(PARKED_IN_GROUP):
            request = pb.ReceiveMessageRequest.FromString(data)
            call = next(calls_left)
            answer: Any = begin(receive, call, (request, call, Deliveries().take))
            receiver = answer if isinstance(answer, Parked) else await answer
            receiver.when_woken(lambda: None)
            waiting.append(receiver)
    each = (resident_bytes() - before) / PARKED
    for receiver in waiting:
        receiver.abandon()
    return ("receiver parked, the handler's share", "KB", each / 1024, f"{PARKED:,} of them")


def resident_bytes() -> int:
    """Return how much memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def row(name: str, messages: int, work: Awaitable[None]) -> Row:
    """Return what each message costs the handlers' thread; the note has the others' work for it."""
    process, thread = time.process_time(), time.thread_time()
    await work
    thread, process = time.thread_time() - thread, time.process_time() - process
    others_us = (process - thread) / messages * 1e6
    return (name, "us/message", thread / messages * 1e6, f"CPU; other threads {others_us:.1f}")


async def calls(method: Method, requests: Sequence[bytes]) -> None:
    """Make unary calls as a transport does; one that was refused is not a fast one."""
    request_type: Any = method.request_type
    for request in requests:
        call = call_of(method)
        answer: Any = begin(method, call, (request_type.FromString(request), call))
        data = answer if isinstance(answer, bytes) else encoded(await answer)
        assert OK in data[:SHORT], method.response_type.FromString(data)


async def drain(method: Method, data: bytes, deliveries: Deliveries, count: int) -> None:
    """Receive until so many messages were delivered."""
    while len(deliveries.messages) < count:
        request, call = pb.ReceiveMessageRequest.FromString(data), call_of(method)
        answer: Any = begin(method, call, (request, call, deliveries.take))
        parked = await answer
        assert parked is None, "there is nothing more to receive"


def receive_request(group: str, batch_size: int, *, topic: str = "Bench") -> bytes:
    """Return a ReceiveMessage request, serialized."""
    request = pb.ReceiveMessageRequest(batch_size=batch_size)
    request.group.name, request.message_queue.topic.name = group, topic
    request.filter_expression.type, request.filter_expression.expression = pb.TAG, "*"
    request.invisible_duration.seconds = 600
    return request.SerializeToString()


def ack_request(group: str, handles: Sequence[str]) -> bytes:
    """Return an AckMessage request, serialized."""
    request = pb.AckMessageRequest()
    request.group.name, request.topic.name = group, "Bench"
    for handle in handles:
        request.entries.add(message_id="01AABBCCDDEEFF0001", receipt_handle=handle)
    return request.SerializeToString()


def call_of(method: Method) -> Call:
    """Return what a transport tells about a call."""
    return Call(
        method=method.path,
        metadata=dict(METADATA),
        peer="127.0.0.1:40000",
        authority="127.0.0.1:8081",
        deadline_s=None,
    )
