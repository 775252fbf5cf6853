"""Our broker as a process: unary sends over gRPC, start-up, memory."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.load import SEND, generate, send_for, send_request, send_with_python, until_accepted
from bench.measure import Row
from bench.store_process import anonymous_megabytes
from commitbus.broker.config import Transport

IN_FLIGHT = (1, 16, 64)
SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Server:
    """A broker that was started: its process, where it takes calls, when it was started."""

    process: subprocess.Popen[str]
    endpoint: str
    started: float
    """By `time.perf_counter`."""
    metrics_url: str = ""
    """Where the metrics are, if they are served."""

    def seconds(self) -> float:
        """How long ago it was started."""
        return time.perf_counter() - self.started


@contextmanager
def serve(
    store: Path,
    *,
    flush: str = "async",
    transport: str | None = None,
    more: Sequence[str] = (),
) -> Iterator[Server]:
    """Start `commitbus serve` and wait until it listens; stop it at the end.

    Args:
        store: The store's directory.
        flush: async or sync.
        transport: What carries the calls; the default's when None.
        more: Further arguments of the program.
    """
    program = str(Path(sys.executable).with_name("commitbus"))
    arguments = ["--store", str(store), "--listen", "127.0.0.1:0", "--flush", flush]
    started = time.perf_counter()
    process = subprocess.Popen(
        [program, "serve", *arguments, "--auto-create-topics",
         *(["--transport", transport] if transport else []), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            found = {"listening on": "", "metrics at": ""}
            while not found["listening on"]:
                line = next(process.stdout)
                for words in found:
                    if words in line:
                        found[words] = line.rsplit(words, 1)[1].split()[0]
            yield Server(process, found["listening on"], started, found["metrics at"])
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextmanager
def broker(transport: str | None = None) -> Iterator[Server]:
    """Our broker on an empty store."""
    with (
        tempfile.TemporaryDirectory(prefix="commitbus-bench-") as directory,
        serve(Path(directory) / "store", transport=transport) as server,
    ):
        yield server


def unary_send() -> list[Row]:
    """Send 1 KB messages one by one over each transport, so many calls in flight."""
    rows: list[Row] = []
    send, client = (
        (send_with_go, "load from a Go client on the same cores")
        if shutil.which("go")
        else (send_with_python, "load from grpcio, as dear as the server: install Go")
    )
    request, note = send_request(0), f"1 KB, ASYNC_FLUSH; {client}"
    for transport in Transport:
        with broker(transport) as server:
            for in_flight in IN_FLIGHT:
                send(server.endpoint, request, in_flight, 0.5)
                rate, p99_ms = send(server.endpoint, request, in_flight, SECONDS)
                name = f"unary SendMessage over {transport}, {in_flight} in flight"
                rows += [(name, "msg/s", rate, note), (f"{name}, p99", "ms", p99_ms, note)]
    return rows


def send_with_go(
    endpoint: str, request: bytes, in_flight: int, seconds: float
) -> tuple[float, float]:
    """Run the load generator; return its calls a second and their 99th percentile in ms."""
    result = generate(endpoint, SEND, request, in_flight=in_flight, seconds=seconds)
    return result["calls"] / result["seconds"], result["p99_ms"]


def start_to_first_send() -> list[Row]:
    """From starting the process on an empty store to the first accepted message."""
    with broker() as server:
        until_accepted(server.endpoint, send_request(0))
        seconds = server.seconds()
    return [("start to first send, empty store", "s", seconds, "process start included")]


def memory_idle() -> list[Row]:
    """Anonymous memory of a broker that has just started and is idle."""
    with broker() as server:
        asyncio.run(send_for(server.endpoint, send_request(0), 1, 0.1))
        megabytes = anonymous_megabytes(server.process.pid)
    return [("anonymous RSS, idle", "MB", megabytes, "after a tenth of a second of sends")]
