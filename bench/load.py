"""Load for a broker that speaks apache.rocketmq.v2: requests, and the generator that sends them.

`loadgen/`, a Go program, makes the calls: it knows no broker and costs little beside one.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import grpc

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

BODY: Final = bytes(range(256)) * 4
TOPIC: Final = "Bench"
SERVICE: Final = "/apache.rocketmq.v2.MessagingService"
SEND: Final = f"{SERVICE}/SendMessage"
CLIENT_ID: Final = "loadgen@1@0@abc"
"""Of the generator as well: a broker looks up the settings of a receiver by it."""
METADATA: Final = (
    ("x-mq-client-id", CLIENT_ID),
    ("x-mq-language", "GO"),
    ("x-mq-client-version", "5.1.4"),
    ("x-mq-protocol", "v2"),
    ("x-mq-date-time", "20261121T000000Z"),
    ("x-mq-request-id", "0e3c86a2-1f2a-4a3d-8c7f-3d6f3f1c9a10"),
    ("x-mq-namespace", ""),
)
IMPATIENT: Final = (
    # grpcio waits a second before it tries again to reach a server that is just starting.
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 20),
)
START_LIMIT_S: Final = 120
REFUSED_SHARE_MAX: Final = 0.01
RECEIVE_MAX: Final = 32
INVISIBLE_S: Final = 3600
"""Nothing that one round received may come back during the next."""


def send_request(number: int, count: int = 1, topic: str = TOPIC) -> bytes:
    """Return a SendMessage request of messages with 1 KB bodies, serialized."""
    request = pb.SendMessageRequest()
    for at in range(number, number + count):
        message = request.messages.add()
        message.topic.name = topic
        message.body = BODY
        properties = message.system_properties
        properties.message_id = f"01AABBCCDDEEFF0001{at:016X}"
        properties.tag = "bench"
        properties.keys.append(f"key-{at}")
        properties.message_type = pb.NORMAL
        properties.body_encoding = pb.IDENTITY
        properties.born_timestamp.GetCurrentTime()
    return request.SerializeToString()


def receive_request(group: str, topic: str) -> bytes:
    """Return a ReceiveMessage request for 32 messages of any queue, serialized."""
    request = pb.ReceiveMessageRequest()
    request.group.name = group
    request.message_queue.topic.name = topic
    request.message_queue.id = -1
    request.message_queue.broker.name = "bench"
    request.filter_expression.type = pb.TAG
    request.filter_expression.expression = "*"
    request.batch_size = RECEIVE_MAX
    request.invisible_duration.FromSeconds(INVISIBLE_S)
    request.long_polling_timeout.FromSeconds(5)
    return request.SerializeToString()


def ack_request(group: str, topic: str) -> bytes:
    """Return an AckMessage request without entries, serialized."""
    request = pb.AckMessageRequest()
    request.group.name = group
    request.topic.name = topic
    return request.SerializeToString()


def framed(requests: Iterable[bytes]) -> bytes:
    """Return what the generator's option `requests` takes: each after its length, a u32."""
    return b"".join(len(request).to_bytes(4) + request for request in requests)


def check_response(data: bytes) -> None:
    """A refused message is not a fast one. All responses have their status where this has it."""
    response = pb.HeartbeatResponse.FromString(data)
    assert response.status.code == pb.OK, response.status.message


@cache
def generator() -> Path:
    """Compile `loadgen/` once; return the program."""
    source = Path(__file__).with_name("loadgen")
    program = Path(tempfile.mkdtemp(prefix="commitbus-loadgen-")) / "loadgen"
    atexit.register(shutil.rmtree, program.parent)
    subprocess.run(["go", "build", "-o", program, "."], cwd=source, check=True)
    return program


def generate(
    endpoint: str, path: str, request: bytes, **options: float | str | bytes
) -> dict[str, Any]:
    """Run the generator; return what it prints, its refused calls left out.

    Args:
        endpoint: host:port.
        path: The method.
        request: Its request.
        options: Of the program, underscores for hyphens; bytes are handed over in a file.
    """
    with tempfile.TemporaryDirectory(prefix="commitbus-loadgen-") as directory:
        words: list[str | Path] = ["-endpoint", endpoint, "-path", path]
        for name, value in {"request": request, **options}.items():
            words.append(f"-{name.replace('_', '-')}")
            if isinstance(value, bytes):
                file = Path(directory, name)
                file.write_bytes(value)
                words.append(file)
            else:
                words.append(str(value))
        done = subprocess.run([generator(), *words], stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    if result["first_hex"]:
        check_response(bytes.fromhex(result["first_hex"]))
    # A broker that is overrun may say so now and then; that many are no load that it bears.
    assert result["others"] <= result["calls"] * REFUSED_SHARE_MAX, f"refused: {result['others']}"
    return result


def fill(endpoint: str, topic: str, messages: int) -> None:
    """Store messages as fast as SendMessage takes them: 64 in a request."""
    request = send_request(0, 64, topic)
    generate(endpoint, SEND, request, calls=messages // 64, in_flight=8, seconds=600)


def until_accepted(endpoint: str, request: bytes) -> None:
    """Try to send until the server is there and takes the message.

    Raises:
        TimeoutError: It did not within two minutes.
    """
    deadline = time.monotonic() + START_LIMIT_S
    with grpc.insecure_channel(endpoint, options=IMPATIENT) as channel:
        call = channel.unary_unary(SEND, None, None)
        while time.monotonic() < deadline:
            try:
                answer = pb.SendMessageResponse.FromString(
                    call(request, metadata=METADATA, timeout=10)
                )
            except grpc.RpcError:
                answer = None
            if answer is not None and answer.status.code == pb.OK:
                return
            time.sleep(0.005)
    raise TimeoutError(f"{endpoint} took no message within {START_LIMIT_S} s")


@contextmanager
def receiver_settings(endpoint: str, group: str, topic: str) -> Iterator[None]:
    """Hold a telemetry stream open, without which RocketMQ serves no receiver."""
    command = pb.TelemetryCommand()
    settings = command.settings
    settings.client_type = pb.SIMPLE_CONSUMER
    settings.request_timeout.FromSeconds(3)
    settings.subscription.group.name = group
    subscription = settings.subscription.subscriptions.add()
    subscription.topic.name = topic
    subscription.expression.type = pb.TAG
    subscription.expression.expression = "*"
    settings.user_agent.language = pb.GOLANG
    settings.user_agent.version = "5.1.4"
    with grpc.insecure_channel(endpoint) as channel:
        stream = channel.stream_stream(f"{SERVICE}/Telemetry", None, None)
        ended = False

        def commands() -> Iterator[bytes]:
            yield command.SerializeToString()
            while not ended:
                time.sleep(0.1)

        call: Any = stream(commands(), metadata=METADATA)
        try:
            answer = pb.TelemetryCommand.FromString(next(call))
            assert answer.status.code == pb.OK, answer.status.message
            yield
        finally:
            ended = True
            call.cancel()


def send_with_python(
    endpoint: str, request: bytes, in_flight: int, seconds: float
) -> tuple[float, float]:
    """Calls a second and their 99th percentile in ms from this process, for machines without Go."""
    latencies = sorted(asyncio.run(send_for(endpoint, request, in_flight, seconds)))
    return len(latencies) / seconds, latencies[int(len(latencies) * 0.99)] * 1000


async def send_for(endpoint: str, request: bytes, in_flight: int, seconds: float) -> list[float]:
    """Run a closed loop of `in_flight` senders; return every call's seconds."""
    latencies: list[float] = []
    async with grpc.aio.insecure_channel(endpoint) as channel:
        call = channel.unary_unary(SEND, None, None)
        end = time.perf_counter() + seconds

        async def sender() -> None:
            while (start := time.perf_counter()) < end:
                check_response(await call(request, metadata=METADATA, timeout=10))
                latencies.append(time.perf_counter() - start)

        await asyncio.gather(*(sender() for _ in range(in_flight)))
    return latencies
