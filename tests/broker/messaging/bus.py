"""A whole broker but for its transport, on a clock that the tests set.

Time is trio's mock clock, which stands still until a test moves it; the store's own threads run in
real time, so `Bus.settle` waits for them before a test looks at what they did.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import pytest
import trio
import trio.testing
from google.protobuf.message import Message

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.config import BrokerConfig
from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.methods import messaging_methods
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.sqlite_metadata import SqliteMetadata
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.observe.rates import Rates
from commitbus.broker.progress.journal import JOURNAL_BYTES_MIN
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.queue_progress import IN_FLIGHT_MAX_DEFAULT
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.broker.rpc.call import Call, Response, Send
from commitbus.broker.rpc.interceptor import intercepted
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.clock import Clock, SystemClock
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.log_reader import LogReader
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.flush.policy import FlushPolicy
from tests.broker.rpc.carried import carried
from tests.running_copies import copy_running

EPOCH_MS = 1_800_000_000_000
NEVER_MS = 3_600_000
"""Progress is not saved in the background: a copy of the files is what a kill would leave."""
SERVICE = "/apache.rocketmq.v2.MessagingService/"
PEER = "10.1.2.3:4567"


@final
class TrioClock:
    """Trio's time, asked on any thread, and how far the wall clock was set back or forward."""

    def __init__(self, clock: trio.abc.Clock) -> None:
        self._clock = clock
        self.offset_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + round(self.monotonic_s() * 1000)

    def monotonic_s(self) -> float:
        return self._clock.current_time()


@final
@dataclass
class Received:
    """The answer to one ReceiveMessage."""

    status: pb.Status = field(default_factory=pb.Status)
    messages: list[pb.Message] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def handles(self) -> list[str]:
        return [message.system_properties.receipt_handle for message in self.messages]

    async def take(self, *responses: Response) -> None:
        for response in map(parsed, responses):
            kind = response.WhichOneof("content")
            assert kind is not None
            self.kinds.append(kind)
            if kind == "status":
                self.status = response.status
            elif kind == "message":
                self.messages.append(response.message)


def parsed(response: Response) -> pb.ReceiveMessageResponse:
    """Return what a client makes of a response."""
    data = response if isinstance(response, bytes) else response.SerializeToString()
    return pb.ReceiveMessageResponse.FromString(data)


@final
class Bus:
    """A broker without a transport, and shorthands for calling it."""

    def __init__(self, context: MessagingContext, clock: trio.testing.MockClock) -> None:
        self.context, self.clock = context, clock
        self.peer = PEER
        methods = intercepted(messaging_methods(context), [context.clients.intercept])
        self.methods: dict[str, Method] = {
            method.path.removeprefix(SERVICE): method for method in methods
        }

    parsed = staticmethod(parsed)

    def now_ms(self) -> int:
        return self.context.clock.now_ms()

    async def sleep(self, seconds: float) -> None:
        """Let time pass, and everything that was due run."""
        await trio.testing.wait_all_tasks_blocked()
        self.clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()

    def admin(self) -> AdminContext:
        """What the operators' handlers work on."""
        return AdminContext(
            messaging=self.context,
            rates=Rates(self.context.counters, self.context.clock),
            version="",
            boot_ms=0,
            file_system=RealFileSystem(),
        )

    def settle(self) -> None:
        """Wait until the store's threads have shown everything that was sent."""
        assert self.context.store.dispatched.wait(self.context.store.end_offset, 10)

    async def topic(self, name: str = "T", queues: int = 1, **changes: Any) -> None:
        config = TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, **changes)
        await self.context.metadata.put_topic(config)

    async def group(self, name: str = "G", **changes: Any) -> None:
        await self.context.metadata.put_group(GroupConfig(name, **changes))

    def call(
        self, client_id: str = "client", *, deadline_s: float | None = None, **headers: str
    ) -> Call:
        metadata = {"x-mq-client-id": client_id, "x-mq-client-version": "5.1.2", **headers}
        return Call(
            method="",
            metadata=metadata,
            peer=self.peer,
            authority="broker.example:8081",
            deadline_s=None if deadline_s is None else trio.current_time() + deadline_s,
        )

    async def unary(self, name: str, request: Message, call: Call | None = None) -> Any:
        method = self.methods[name]
        return method.response_type.FromString(await carried(method, request, call or self.call()))

    async def send(
        self, *bodies: bytes, topic: str = "T", tag: str = "", **user_properties: str
    ) -> None:
        """Send messages one by one and wait until they can be received."""
        for number, body in enumerate(bodies):
            message = make_message(body, topic=topic, message_id=f"id-{number}-{body[:20]!r}")
            if tag:
                message.system_properties.tag = tag
            message.user_properties.update(user_properties)
            response = await self.unary("SendMessage", pb.SendMessageRequest(messages=[message]))
            assert response.status.code == pb.OK, response.status.message
        self.settle()

    async def receive(
        self,
        *,
        topic: str = "T",
        group: str = "G",
        batch: int = 32,
        invisible_s: float | None = 30,
        auto_renew: bool = False,
        tags: str = "*",
        sql: str | None = None,
        call: Call | None = None,
        send: Send | None = None,
        polling_s: int | None = None,
        attempt_id: str = "",
    ) -> Received:
        request = pb.ReceiveMessageRequest(
            batch_size=batch, auto_renew=auto_renew, attempt_id=attempt_id
        )
        request.group.name, request.message_queue.topic.name = group, topic
        request.filter_expression.type, request.filter_expression.expression = pb.TAG, tags
        if sql is not None:
            request.filter_expression.CopyFrom(pb.FilterExpression(type=pb.SQL, expression=sql))
        if invisible_s is not None:
            request.invisible_duration.FromMilliseconds(round(invisible_s * 1000))
        if polling_s is not None:
            request.long_polling_timeout.seconds = polling_s
        received = Received()
        method = self.methods["ReceiveMessage"]
        await carried(method, request, call or self.call(), send or received.take)
        return received

    @asynccontextmanager
    async def receiving(self, **options: Any) -> AsyncIterator[list[Received]]:
        """Receive beside the block; what comes is in the list, at its end at the latest."""
        results: list[Received] = []

        async def receive() -> None:
            results.append(await self.receive(**options))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            yield results

    async def stream(self, name: str, request: Message, send: Send) -> None:
        """Call a method that streams responses, and wait for its end."""
        await carried(self.methods[name], request, self.call(), send)

    async def ack(self, *handles: str, topic: str = "T", group: str = "G") -> list[pb.Code]:
        """Acknowledge, and return the code of each entry."""
        request = pb.AckMessageRequest()
        request.group.name, request.topic.name = group, topic
        for handle in handles:
            request.entries.add(receipt_handle=handle, message_id="some")
        response = await self.unary("AckMessage", request)
        return [entry.status.code for entry in response.entries]

    async def change(
        self, handle: str, seconds: float, *, topic: str = "T", group: str = "G", **extra: Any
    ) -> pb.ChangeInvisibleDurationResponse:
        request = pb.ChangeInvisibleDurationRequest(receipt_handle=handle, **extra)
        request.group.name, request.topic.name = group, topic
        request.invisible_duration.FromMilliseconds(round(seconds * 1000))
        answer = await self.unary("ChangeInvisibleDuration", request)
        assert isinstance(answer, pb.ChangeInvisibleDurationResponse)
        return answer

    async def telemetry(
        self, *commands: pb.TelemetryCommand, call: Call | None = None
    ) -> list[pb.TelemetryCommand]:
        """Send commands, then close the stream; return the answers."""

        async def requests() -> AsyncGenerator[pb.TelemetryCommand, None]:
            for command in commands:
                yield command

        answers: list[pb.TelemetryCommand] = []

        async def collect(answer: bytes) -> None:
            answers.append(pb.TelemetryCommand.FromString(answer))

        async with aclosing(requests()) as stream:
            await carried(self.methods["Telemetry"], stream, call or self.call(), collect)
        return answers


def make_message(body: bytes = b"x", *, topic: str = "T", message_id: str = "id") -> pb.Message:
    message = pb.Message(body=body)
    message.topic.name = topic
    message.system_properties.message_id = message_id
    message.system_properties.body_encoding = pb.IDENTITY
    return message


def noted_threads(patch: pytest.MonkeyPatch, owner: object, method: str) -> set[int]:
    """Note on which threads a method or function runs, in the set that is returned."""
    original, threads = getattr(owner, method), set[int]()

    def noted(*arguments: Any, **options: Any) -> Any:
        threads.add(threading.get_ident())
        return original(*arguments, **options)

    patch.setattr(owner, method, noted)
    return threads


def make_all_reads_cold(patch: pytest.MonkeyPatch) -> None:
    """Let each read of log and queues wait for a disk, as far as its reader can know."""
    for reader in LogReader, ConsumeQueue:
        patch.setattr(reader, "read_cached", lambda *_: None)


def work_in_turn(patch: pytest.MonkeyPatch) -> None:
    """Do the work of worker threads in the task that waits for it; others run before and after.

    A clock that stands still while all tasks wait does not know that one waits for a thread.
    """

    async def run_sync(work: Callable[..., Any], *arguments: Any, **_options: Any) -> Any:
        await trio.lowlevel.checkpoint()
        result = work(*arguments)
        await trio.lowlevel.checkpoint()
        return result

    patch.setattr(trio.to_thread, "run_sync", run_sync)


def copy_as_killed(directory: Path, copy: Path) -> None:
    """Copy a store's files as `kill -9` would leave them now, while nothing is being written."""
    copy_running(directory, copy)


@contextmanager
def open_context(
    directory: Path,
    config: BrokerConfig,
    handlers_clock: Clock,
    *,
    journal_bytes: int = JOURNAL_BYTES_MIN,
    in_flight_max: int = IN_FLIGHT_MAX_DEFAULT,
) -> Iterator[MessagingContext]:
    clock, file_system = SystemClock(), RealFileSystem()
    store_config = StoreConfig(
        log_file_bytes=config.log_file_bytes,
        queue_file_bytes=20 * 1000,
        index_slots=100,
        index_entries=10_000,
        max_body_bytes=config.max_body_bytes,
        flush=FlushPolicy(config.flush_mode),
    )
    with MessageStore.open(directory, store_config) as store:
        metadata = SqliteMetadata(directory, clock=clock, file_system=file_system)
        progress = ProgressTable(
            directory,
            SqliteRows(directory, file_system),
            clock=clock,
            file_system=file_system,
            save_interval_ms=NEVER_MS,
            mirror_interval_ms=NEVER_MS,
            journal_bytes=journal_bytes,
            in_flight_max=in_flight_max,
            sync=config.progress_sync,
        )
        progress.open()
        try:
            progress.clamp(store.queue_end)
            yield MessagingContext(
                BrokerCore(
                    store=store,
                    metadata=metadata,
                    progress=progress,
                    config=config,
                    clock=handlers_clock,
                )
            )
        finally:
            progress.close()
            metadata.close()
