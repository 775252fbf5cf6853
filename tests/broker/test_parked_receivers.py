"""Ten thousand receivers wait in a real broker: what that takes, and that they are woken."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

import pytest

from commitbus.broker.rpc.http2.engine import (
    DataReceived,
    Engine,
    EngineLimits,
    Event,
    PingAcknowledged,
    Role,
    SettingsReceived,
    StreamClosed,
)
from commitbus.broker.rpc.http2.grpc_wire import MessageReader, encode_message
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

CONNECTIONS: Final = 10
RECEIVERS_PER_CONNECTION: Final = 1000
WAIT_S: Final = 30.0
MEMORY_MB_MAX: Final = 60
"""Of the whole process: the interpreter and its libraries are two thirds of it."""
SERVE = "import sys; from commitbus.broker.cli.main import main; sys.exit(main())"
TOPIC: Final = "quiet"


@final
class Consumer:
    """One connection with the calls of a group's consumers, as the Java client sends them."""

    def __init__(self, port: int, number: int) -> None:
        self.group, self._number, self._calls = f"group-{number}", number, 0
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self._engine = Engine(Role.CLIENT, EngineLimits())
        self._receives: dict[int, MessageReader] = {}
        """What has come of the answers of the receives that have not ended."""
        self.bodies: list[bytes] = []
        self.ended = 0
        """Receives that were answered to the end."""
        self._output = b""
        self.flush()
        self.read_until(SettingsReceived)

    def flush(self) -> None:
        self._socket.sendall(self._output + self._engine.take_output())
        self._output = b""

    def call(self, method: str, request: pb.ReceiveMessageRequest | pb.SendMessageRequest) -> int:
        """Begin a call, not flushed; return its stream."""
        self._calls += 1
        service = b"/apache.rocketmq.v2.MessagingService/"
        unique = b"%08x-0000-4000-8000-%012x" % (self._number, self._calls)
        stream_id = self._engine.submit_request(
            [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", service + method.encode()),
                (b":authority", b"broker.example:8081"),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
                (b"user-agent", b"grpc-java-netty/1.53.0"),
                (b"x-mq-language", b"JAVA"),
                (b"x-mq-protocol", b"v2"),
                (b"x-mq-client-version", b"5.0.7"),
                (b"x-mq-date-time", b"20261121T0000%02dZ" % (self._calls % 60)),
                (b"x-mq-request-id", unique),
                (b"x-mq-client-id", b"host-%d@%d@0@a1b2c3d4" % (self._number, self._calls % 20)),
                (b"x-mq-namespace", b""),
                (b"authorization", b"MQv2-HMAC-SHA1 Credential=me, Signature=" + unique),
                (b"grpc-timeout", b"33S"),
                (b"grpc-accept-encoding", b"gzip"),
            ]
        )
        assert stream_id is not None
        data = encode_message(request.SerializeToString(), gzip=False)
        self._engine.submit_data(stream_id, data, end_stream=True)
        # As clients do it: the engine would send the headers of all calls before the first request.
        self._output += self._engine.take_output()
        return stream_id

    def receive(self) -> None:
        """Begin a long poll of 20 seconds, the longest."""
        request = pb.ReceiveMessageRequest(batch_size=32, auto_renew=True)
        request.group.name, request.message_queue.topic.name = self.group, TOPIC
        request.filter_expression.type, request.filter_expression.expression = pb.TAG, "*"
        request.long_polling_timeout.seconds = 20
        stream_id = self.call("ReceiveMessage", request)
        self._receives[stream_id] = MessageReader(1 << 20, is_gzip=False)

    def send(self, *bodies: bytes) -> None:
        """Send messages and wait until they are stored."""
        request = pb.SendMessageRequest()
        for body in bodies:
            message = request.messages.add(body=body)
            message.topic.name = TOPIC
            message.system_properties.message_id = f"id-{body!r}"
            message.system_properties.body_encoding = pb.IDENTITY
        self.call("SendMessage", request)
        self.flush()
        self.read_until(StreamClosed)

    def wait_served(self) -> None:
        """Wait until the server has read, and served or parked, everything that was flushed."""
        self._engine.ping()
        self.flush()
        self.read_until(PingAcknowledged)

    def wait_for_bodies(self, count: int) -> None:
        """Wait until so many messages were received in all."""
        self.flush()
        while len(self.bodies) < count:
            self._read()

    def read_until(self, kind: type[Event]) -> None:
        """Read until there was an event of this kind."""
        while not any(isinstance(event, kind) for event in self._read()):
            pass

    def _read(self) -> list[Event]:
        data = self._socket.recv(1 << 16)
        assert data, "the server closed the connection"
        events = self._engine.receive(data)
        for event in events:
            if isinstance(event, DataReceived):
                self._engine.consume(event.stream_id, len(event.data))
                if event.stream_id in self._receives:
                    self._receives[event.stream_id].feed(event.data)
            elif isinstance(event, StreamClosed) and event.stream_id in self._receives:
                self._answered(self._receives.pop(event.stream_id))
        self.flush()
        return events

    def _answered(self, responses: MessageReader) -> None:
        self.ended += 1
        while (data := responses.take()) is not None:
            response = pb.ReceiveMessageResponse.FromString(data)
            if response.message.body:
                self.bodies.append(response.message.body)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A broker's process on the trio transport, and its port; it must end as it should."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", SERVE, "serve", "--store", str(tmp_path / "store")),
            *("--listen", "127.0.0.1:0", "--transport", "trio", "--auto-create-topics"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        yield process, next(int(line.split(":")[-1]) for line in process.stdout if "on 127" in line)
        process.terminate()
        assert process.wait(WAIT_S) == 0


def memory_mb(pid: int) -> float:
    """Return a process's own memory: what is not a file's, such as a shared library."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.slow
def test_ten_thousand_parked_receivers_leave_the_broker_below_60_mb(
    broker: tuple[subprocess.Popen[str], int],
) -> None:
    """Real calls over ten connections, ten groups; then five messages, which each group gets."""
    process, port = broker
    consumers = [Consumer(port, number) for number in range(CONNECTIONS)]
    try:
        consumers[0].send(b"first")
        for consumer in consumers:
            consumer.receive()
            consumer.wait_for_bodies(1)
        for consumer in consumers:
            for _ in range(RECEIVERS_PER_CONNECTION):
                consumer.receive()
        ended = [consumer.ended for consumer in consumers]
        for consumer in consumers:
            consumer.flush()
        for consumer in consumers:
            consumer.wait_served()
        assert memory_mb(process.pid) < MEMORY_MB_MAX
        assert [consumer.ended for consumer in consumers] == ended, "some wait no longer"

        bodies = {b"%d" % number for number in range(5)}
        consumers[0].send(*bodies)
        for consumer in consumers:
            consumer.wait_for_bodies(6)
            assert set(consumer.bodies) == {b"first", *bodies}
        answered = sum(consumer.ended for consumer in consumers) - sum(ended)
        assert answered <= CONNECTIONS * len(bodies), "more were woken than could be needed"
    finally:
        for consumer in consumers:
            consumer.close()
