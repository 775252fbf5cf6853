"""Clients that send, receive and acknowledge while their broker is killed and started again."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from commitbus.broker.consuming.receipt_handle import ReceiptHandle
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.clock import SystemClock

SERVE = "import sys; from commitbus.broker.cli.main import main; sys.exit(main())"
SERVICE = "/apache.rocketmq.v2.MessagingService/"
TOPIC = "storm"
GROUPS = ("first", "second")
SENDERS = 2
CONSUMERS_PER_GROUP = 2
STALLED_AFTER_S = 60
CALL_TIMEOUT_S = 30
ENDED_WITHIN_S = 10
# Small, so that logs roll and queues grow files between two kills.
CONFIG = """
log_file_bytes = 262144
max_body_bytes = 65536
queue_file_bytes = 4000
index_slots = 500
index_entries = 2000
"""

CLOCK = SystemClock()

Response = TypeVar("Response", bound=Message)


class Place(NamedTuple):
    """Where a message lies, for good."""

    queue_id: int
    queue_offset: int


class Delivery(NamedTuple):
    """A message as a consumer got it."""

    place: Place
    pop_ms: int
    attempt: int
    message_id: str
    body: bytes


@dataclass
class History:
    """What the clients saw; changed under the lock."""

    lock: threading.Condition = field(default_factory=threading.Condition)
    sent: dict[str, int] = field(default_factory=dict)
    """Of each send that was answered: message id to queue offset."""
    deliveries: dict[str, list[Delivery]] = field(
        default_factory=lambda: {group: [] for group in GROUPS}
    )
    acknowledged: dict[str, dict[Place, int]] = field(
        default_factory=lambda: {group: {} for group in GROUPS}
    )
    """By group, when an acknowledgement was answered first: Unix ms."""

    def saw(self, group: str, message: pb.Message) -> None:
        properties = message.system_properties
        place = Place(properties.queue_id, properties.queue_offset)
        handle = ReceiptHandle.parse(properties.receipt_handle)
        assert Place(handle.queue_id, handle.queue_offset) == place
        delivery = Delivery(
            place,
            handle.pop_time_ms,
            properties.delivery_attempt,
            properties.message_id,
            message.body,
        )
        with self.lock:
            self.deliveries[group].append(delivery)

    def acked(self, group: str, place: Place, now_ms: int) -> None:
        with self.lock:
            self.acknowledged[group].setdefault(place, now_ms)
            self.lock.notify_all()

    def wait_acknowledged(self, more: int) -> None:
        """Return at the moment when so many messages more are acknowledged."""
        with self.lock:
            wanted = self._count() + more
            assert self.lock.wait_for(lambda: self._count() >= wanted, STALLED_AFTER_S)

    def _count(self) -> int:
        return sum(map(len, self.acknowledged.values()))


def body_of(message_id: str) -> bytes:
    """The one body that a message id ever has: mostly small, sometimes some kilobytes."""
    choice = repeatable(message_id)
    return choice.randbytes(choice.choice((10, 100, 100, 4000)))


def repeatable(seed: object) -> random.Random:
    """Return a source of the same numbers each time."""
    return random.Random(str(seed))  # noqa: S311 - repeatable, not secret


class Server:
    """A `commitbus serve` process, one after the other on the same store."""

    def __init__(self, directory: Path, flush: str) -> None:
        config = directory / "broker.toml"
        config.write_text(CONFIG)
        self.store = directory / "store"
        self.endpoint = ""
        """Of the process that was ready last."""
        self._errors = directory / "stderr"
        self._command = [sys.executable, "-c", SERVE, "serve", "--store", str(self.store)]
        self._command += ["--listen", "127.0.0.1:0", "--flush", flush, "--config", str(config)]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start a process; it is not ready yet."""
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def wait_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("listening on "):
                self.endpoint = line.removeprefix("listening on ").strip()
                return
        raise AssertionError(f"the broker did not start: {self._errors.read_text()[-3000:]}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._end(self._process)

    def terminate(self) -> None:
        """Ask it to stop, as `kill` without a number does."""
        assert self._process is not None
        self._process.terminate()

    def wait_stopped(self) -> int:
        assert self._process is not None
        try:
            return self._process.wait(timeout=30)
        finally:
            self.kill()

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Client:
    """Calls whichever process is ready, over a connection of its own. For one thread."""

    def __init__(self, server: Server, name: str) -> None:
        self._server, self._endpoint = server, ""
        self._metadata = (("x-mq-client-id", name), ("x-mq-client-version", "5.1.2"))
        self._channel: grpc.Channel | None = None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def send(self, messages: list[pb.Message]) -> pb.SendMessageResponse:
        request = pb.SendMessageRequest(messages=messages)
        return self._unary("SendMessage", request, pb.SendMessageResponse)

    def ack(self, group: str, messages: list[pb.Message]) -> pb.AckMessageResponse:
        request = pb.AckMessageRequest()
        request.group.name, request.topic.name = group, TOPIC
        for message in messages:
            properties = message.system_properties
            request.entries.add(
                receipt_handle=properties.receipt_handle, message_id=properties.message_id
            )
        return self._unary("AckMessage", request, pb.AckMessageResponse)

    def change_invisible(
        self, group: str, message: pb.Message, duration_ms: int
    ) -> pb.ChangeInvisibleDurationResponse:
        properties = message.system_properties
        request = pb.ChangeInvisibleDurationRequest(
            receipt_handle=properties.receipt_handle, message_id=properties.message_id
        )
        request.group.name, request.topic.name = group, TOPIC
        request.invisible_duration.FromMilliseconds(duration_ms)
        return self._unary("ChangeInvisibleDuration", request, pb.ChangeInvisibleDurationResponse)

    def receive(self, group: str, batch: int, invisible_ms: int) -> Iterator[pb.Message]:
        request = pb.ReceiveMessageRequest(batch_size=batch)
        request.group.name, request.message_queue.topic.name = group, TOPIC
        request.filter_expression.expression = "*"
        request.invisible_duration.FromMilliseconds(invisible_ms)
        request.long_polling_timeout.FromSeconds(5)
        call: grpc.UnaryStreamMultiCallable[Any, Any] = self._connection().unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )
        for response in call(request, timeout=CALL_TIMEOUT_S, metadata=self._metadata):
            if response.HasField("message"):
                yield response.message

    def _unary(self, name: str, request: Message, response_type: type[Response]) -> Response:
        call: grpc.UnaryUnaryMultiCallable[Any, Any] = self._connection().unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        response = call(request, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        assert isinstance(response, response_type)
        return response

    def _connection(self) -> grpc.Channel:
        endpoint = self._server.endpoint
        if self._channel is None or self._endpoint != endpoint:
            self.close()
            self._endpoint = endpoint
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
            self._channel = grpc.insecure_channel(endpoint, options)
        return self._channel


@dataclass
class Storm:
    """The clients, and what they share."""

    server: Server
    seed: int
    history: History = field(default_factory=History)
    sending_ends: threading.Event = field(default_factory=threading.Event)
    settling: threading.Event = field(default_factory=threading.Event)
    """From now on everything is acknowledged at once."""
    ends: threading.Event = field(default_factory=threading.Event)

    def send(self, name: str) -> None:
        """Send one to four messages at a time, each under an id that is never used again."""
        choice, client, number = repeatable((self.seed, name)), Client(self.server, name), 0
        while not self.sending_ends.wait(0.004):
            ids = [f"{name}-{number + i}" for i in range(choice.choice((1, 1, 1, 4)))]
            number += len(ids)
            try:
                response = client.send([outgoing(message_id) for message_id in ids])
            except grpc.RpcError:
                self.sending_ends.wait(0.02)
                continue
            if response.status.code == pb.OK:
                with self.history.lock:
                    self.history.sent |= {e.message_id: e.offset for e in response.entries}
        client.close()

    def consume(self, group: str, name: str) -> None:
        """Receive, and acknowledge, prolong or do nothing."""
        choice, client = repeatable((self.seed, name)), Client(self.server, name)
        held: list[pb.Message] = []
        while not self.ends.is_set():
            batch, invisible_ms = choice.randint(1, 32), choice.choice((1000, 1000, 2000, 3000))
            try:
                received = client.receive(group, batch, invisible_ms)
                # What came before the connection broke counts as well.
                self._take(group, received, held)
                self._settle(group, client, choice, held)
            except grpc.RpcError:
                self.ends.wait(0.02)
        client.close()

    def _take(self, group: str, received: Iterator[pb.Message], held: list[pb.Message]) -> None:
        for message in received:
            self.history.saw(group, message)
            held.append(message)

    def _settle(
        self, group: str, client: Client, choice: random.Random, held: list[pb.Message]
    ) -> None:
        """Do something about what is held; some stays, and is acknowledged late or not in time."""
        while held and (self.settling.is_set() or choice.random() < 0.95):
            # Off the list first: whether a call that fails did its work is not known.
            messages = [held.pop(choice.randrange(len(held))) for _ in range(min(4, len(held)))]
            if self.settling.is_set() or choice.random() < 0.7:
                self._ack(group, client, messages)
            elif choice.random() < 0.5:
                self._change(group, client, messages[0], choice, held)

    def _ack(self, group: str, client: Client, messages: list[pb.Message]) -> None:
        response = client.ack(group, messages)
        now_ms = CLOCK.now_ms()
        for message, entry in zip(messages, response.entries, strict=True):
            if entry.status.code == pb.OK:
                properties = message.system_properties
                place = Place(properties.queue_id, properties.queue_offset)
                self.history.acked(group, place, now_ms)

    def _change(
        self,
        group: str,
        client: Client,
        message: pb.Message,
        choice: random.Random,
        held: list[pb.Message],
    ) -> None:
        response = client.change_invisible(group, message, choice.choice((0, 300, 1000, 2000)))
        if response.status.code == pb.OK:
            message.system_properties.receipt_handle = response.receipt_handle
            held.append(message)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the clients; what one of them raises is raised here."""
        tasks: list[Callable[[], None]] = [
            partial(self.send, f"sender{self.seed}-{i}") for i in range(SENDERS)
        ]
        for group in GROUPS:
            names = (f"{group}-{i}" for i in range(CONSUMERS_PER_GROUP))
            tasks += [partial(self.consume, group, name) for name in names]
        failures: list[Exception] = []
        # grpcio 1.85 lost the end of a stream when its server was killed, once in 900 kills: the
        # status UNAVAILABLE was there, and the client waited past its deadline for a message. Such
        # a thread is left behind; its messages become visible to the group's other consumer.
        threads = [
            threading.Thread(target=run_noting_failure, args=(task, failures), daemon=True)
            for task in tasks
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.sending_ends.set()
            self.ends.set()
            # A receiver may still be waiting for messages.
            self.server.kill()
            for thread in threads:
                thread.join(ENDED_WITHIN_S)
        if failures:
            raise failures[0]


def run_noting_failure(task: Callable[[], None], failures: list[Exception]) -> None:
    try:
        task()
    except Exception as error:  # noqa: BLE001 - raised again by the thread that waits for this one
        failures.append(error)


def outgoing(message_id: str) -> pb.Message:
    message = pb.Message(body=body_of(message_id))
    message.topic.name = TOPIC
    message.system_properties.message_id = message_id
    message.system_properties.body_encoding = pb.IDENTITY
    return message
