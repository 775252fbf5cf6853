"""A server to be treated badly, and a client that does so."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.rpc import trio_transport
from commitbus.broker.rpc.http2 import engine
from commitbus.broker.rpc.http2.grpc_wire import PREFIX_BYTES, encode_message
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

WAIT_S = 20.0
ALL_I_CAN = 2**31 - 1


@pytest.fixture
def transport() -> Any:
    """The conformance suite's helpers, for this transport alone."""
    return trio_transport.serve


class RawClient:
    """A client without manners: what it sends and whether it reads is up to the test."""

    def __init__(
        self, port: int, *, window_bytes: int = 1 << 20, address: str = "127.0.0.1"
    ) -> None:
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=WAIT_S, source_address=(address, 0)
        )
        limits = engine.EngineLimits(
            stream_window_bytes=window_bytes, connection_window_bytes=window_bytes
        )
        self.engine = engine.Engine(engine.Role.CLIENT, limits)
        self.is_closed = False
        self._unseen: list[engine.Event] = []
        self.flush()
        self.read_until(engine.SettingsReceived)

    def flush(self) -> None:
        """Send what the engine has to send."""
        self.socket.sendall(self.engine.take_output())

    def open(
        self, name: str, body: bytes | None = b"", extra: tuple[tuple[bytes, bytes], ...] = ()
    ) -> int:
        """Begin a call with one request; without a body it stays open. Not flushed."""
        headers = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/test.Abused/" + name.encode()),
            (b":authority", b"test"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            *extra,
        ]
        stream_id = self.engine.submit_request(headers)
        assert stream_id is not None
        if body is not None:
            self.engine.submit_data(stream_id, encode_message(body), end_stream=True)
        return stream_id

    def read(self) -> list[engine.Event]:
        """What the next bytes mean; nothing once the server has closed the connection."""
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            data = b""
        self.is_closed = not data
        return self.engine.receive(data) if data else []

    def read_until(self, kind: type[Any], stream_id: int | None = None) -> Any:
        """The first event of this kind, of this stream if it is one's."""
        while self._unseen or not self.is_closed:
            self._unseen = self._unseen or self.read()
            while self._unseen:
                event = self._unseen.pop(0)
                if isinstance(event, kind) and stream_id in (None, getattr(event, "stream_id", 0)):
                    return event
        pytest.fail(f"the server closed the connection before any {kind.__name__}")

    def read_to_the_end(self) -> list[engine.Event]:
        """Everything up to the server's closing the connection."""
        events = []
        while not self.is_closed:
            events += self.read()
        return events

    def status_of(self, stream_id: int) -> int:
        """The gRPC status that a call is answered with."""
        headers = dict(self.read_until(engine.ResponseReceived, stream_id).headers)
        if b"grpc-status" not in headers:
            headers = dict(self.read_until(engine.TrailersReceived, stream_id).headers)
        return int(headers[b"grpc-status"])

    def handlers(self, name: str = "Count") -> int:
        """How many handlers the server has at work; "Operate" asks as an operator."""
        stream_id = self.open(name)
        self.flush()
        data = self.read_until(engine.DataReceived, stream_id).data
        return int(pb.RecallMessageResponse.FromString(data[PREFIX_BYTES:]).message_id)

    def wait_for_handlers(self, count: int) -> None:
        """Wait until the server has so many at work."""
        until = time.monotonic() + WAIT_S
        while (found := self.handlers()) != count:
            assert time.monotonic() < until, f"{found} handlers, not {count}"
            time.sleep(0.02)


class AbusedServer:
    """The server process, and how much memory it takes."""

    def __init__(self, limits: dict[str, Any]) -> None:
        script = Path(__file__).with_name("abused_server.py")
        self.process = subprocess.Popen(
            [sys.executable, script, json.dumps(limits)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.clients: list[RawClient] = []
        self.connect().handlers()
        self._before_kb = self._memory_kb("VmRSS")

    def connect(self, **options: Any) -> RawClient:
        """A new client."""
        self.clients.append(RawClient(self.port, **options))
        return self.clients[-1]

    def peak_growth_mb(self) -> float:
        """The most memory that it ever had, beyond what it had at first."""
        return (self._memory_kb("VmHWM") - self._before_kb) / 1024

    def _memory_kb(self, field: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{field}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1])

    def cpu_s(self) -> float:
        """The CPU time that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it; it must have been alive."""
        for client in self.clients:
            client.socket.close()
        assert self.process.poll() is None, "the server died"
        self.process.terminate()
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start_abused() -> Iterator[Callable[..., AbusedServer]]:
    """Start servers with some limits changed; each must survive its test."""
    running: list[AbusedServer] = []

    def start(**limits: Any) -> AbusedServer:
        running.append(AbusedServer(limits))
        return running[-1]

    yield start
    for server in running:
        server.stop()
