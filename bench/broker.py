"""The broker as a process: unary sends over gRPC, start-up, memory."""

from __future__ import annotations

import asyncio
import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import grpc

from bench.store_process import anonymous_megabytes
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

BODY = bytes(range(256)) * 4
IN_FLIGHT = (1, 16, 64)
SECONDS = 3.0
SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
METADATA = (
    ("x-mq-client-id", "bench@1@0@abc"),
    ("x-mq-language", "PYTHON"),
    ("x-mq-protocol", "GRPC_V2"),
    ("x-mq-client-version", "5.1.2"),
    ("x-mq-date-time", "20261121T000000Z"),
    ("x-mq-request-id", "0e3c86a2-1f2a-4a3d-8c7f-3d6f3f1c9a10"),
    ("x-mq-namespace", ""),
)


def send_request(number: int) -> bytes:
    """Return a SendMessage request with a 1 KB body, serialized."""
    request = pb.SendMessageRequest()
    message = request.messages.add()
    message.topic.name = "Bench"
    message.body = BODY
    properties = message.system_properties
    properties.message_id = f"01AABBCCDDEEFF0001{number:016X}"
    properties.tag = "bench"
    properties.keys.append(f"key-{number}")
    properties.message_type = pb.NORMAL
    properties.body_encoding = pb.IDENTITY
    properties.born_timestamp.GetCurrentTime()
    return request.SerializeToString()


@contextmanager
def broker() -> Iterator[tuple[subprocess.Popen[str], str, float]]:
    """Start `commitbus serve` on an empty store; yield process, endpoint and start time."""
    program = str(Path(sys.executable).with_name("commitbus"))
    with tempfile.TemporaryDirectory(prefix="commitbus-bench-") as directory:
        arguments = ["serve", "--store", f"{directory}/store", "--listen", "127.0.0.1:0"]
        started = time.perf_counter()
        process = subprocess.Popen(
            [program, *arguments, "--auto-create-topics"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            ready = next(line for line in process.stdout if "listening on" in line)
            yield process, ready.rsplit("listening on", 1)[1].split()[0], started
        finally:
            process.terminate()
            process.wait(timeout=30)


def unary_send() -> list[tuple[str, str, float, str]]:
    """Send 1 KB messages one by one with a fixed number of calls in flight."""
    rows = []
    send, client = (
        (send_with_go, "load from a Go client on the same cores")
        if shutil.which("go")
        else (send_with_python, "load from grpcio, as dear as the server: install Go")
    )
    with broker() as (_, endpoint, _), tempfile.TemporaryDirectory() as directory:
        request = Path(directory, "request")
        request.write_bytes(send_request(0))
        for in_flight in IN_FLIGHT:
            send(endpoint, request, in_flight, 0.5)
            rate, p99_ms = send(endpoint, request, in_flight, SECONDS)
            name = f"unary SendMessage, {in_flight} in flight"
            note = f"1 KB, ASYNC_FLUSH; {client}"
            rows += [(name, "msg/s", rate, note), (f"{name}, p99", "ms", p99_ms, note)]
    return rows


def send_with_go(
    endpoint: str, request: Path, in_flight: int, seconds: float
) -> tuple[float, float]:
    """Run the load generator; return its calls a second and its 99th percentile."""
    program = build_load_generator()
    done = subprocess.run(
        [program, "-endpoint", endpoint, "-path", SEND, "-request", request,
         "-in-flight", str(in_flight), "-seconds", str(seconds)],
        stdout=subprocess.PIPE,
        check=True,
    )  # fmt: skip
    result = json.loads(done.stdout)
    check_response(bytes.fromhex(result["first_hex"]))
    return result["calls"] / result["seconds"], result["p99_ms"]


@cache
def build_load_generator() -> Path:
    """Compile `loadgen/` once; return the program."""
    source = Path(__file__).with_name("loadgen")
    program = Path(tempfile.mkdtemp(prefix="commitbus-loadgen-")) / "loadgen"
    atexit.register(shutil.rmtree, program.parent)
    subprocess.run(["go", "build", "-o", program, "."], cwd=source, check=True)
    return program


def send_with_python(
    endpoint: str, request: Path, in_flight: int, seconds: float
) -> tuple[float, float]:
    """The same from this process, for machines without Go."""
    latencies = sorted(asyncio.run(send_for(endpoint, request.read_bytes(), in_flight, seconds)))
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


def check_response(data: bytes) -> None:
    """A refused message is not a fast one."""
    response = pb.SendMessageResponse.FromString(data)
    assert response.status.code == pb.OK, response.status.message


def start_to_first_send() -> list[tuple[str, str, float, str]]:
    """From starting the process on an empty store to the first accepted message."""
    with broker() as (_, endpoint, started), grpc.insecure_channel(endpoint) as channel:
        call = channel.unary_unary(SEND, None, None)
        check_response(call(send_request(0), metadata=METADATA, timeout=10))
        seconds = time.perf_counter() - started
    return [("start to first send, empty store", "s", seconds, "process start included")]


def memory_idle() -> list[tuple[str, str, float, str]]:
    """Anonymous memory of a broker that has just started and is idle."""
    with broker() as (process, endpoint, _):
        asyncio.run(send_for(endpoint, send_request(0), 1, 0.1))
        megabytes = anonymous_megabytes(process.pid)
    return [("anonymous RSS, idle", "MB", megabytes, "after a tenth of a second of sends")]
