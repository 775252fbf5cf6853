"""A server in a thread of its own, and a client of another implementation to talk to it."""

from __future__ import annotations

import logging
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import grpc
import pytest
import trio
from google.protobuf.message import Message

from commitbus.broker.rpc import grpcio_transport, trio_transport
from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.method import Handler, Method, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

WAIT_S = 20.0


class Serve(Protocol):
    """What every transport offers."""

    async def __call__(
        self,
        methods: Sequence[Method],
        *,
        listen: str,
        max_message_bytes: int = ...,
        concurrent_calls_max: int = ...,
        drain_grace_s: float = ...,
        task_status: trio.TaskStatus[int] = ...,
    ) -> None: ...


TRANSPORTS: dict[str, Serve] = {
    "grpcio": grpcio_transport.serve,
    "trio": trio_transport.serve,
}


@dataclass
class RunningServer:
    """One server; `stop` may be called more than once."""

    serve: Serve
    methods: Sequence[Method]
    options: dict[str, Any]
    port: int = 0
    _error: BaseException | None = None
    _started: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _scope: trio.CancelScope | None = None
    _token: trio.lowlevel.TrioToken | None = None

    def start(self) -> None:
        """Return when calls are accepted; raise what starting raised."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(WAIT_S)
        if self._error is not None:
            self._thread.join(WAIT_S)
            raise self._error

    def begin_stop(self) -> None:
        """Cancel the server and return at once; no harm if it has just ended by itself."""
        assert self._token is not None
        assert self._scope is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)

    def stop(self) -> None:
        """Cancel the server and wait for its end."""
        assert self._thread is not None
        if self._thread.is_alive():
            self.begin_stop()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the server did not stop"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self._error = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._scope:
            await self.serve(self.methods, **self.options, task_status=self)

    def started(self, port: int = 0) -> None:
        """Take the port: this object is the server's `task_status`."""
        self.port = port
        self._started.set()


StartServer = Callable[..., RunningServer]


@pytest.fixture(params=sorted(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> Serve:
    """Each transport in turn: they behave alike."""
    return TRANSPORTS[request.param]


@pytest.fixture
def start_server(transport: Serve) -> Iterator[StartServer]:
    """Start servers on free ports; all are stopped after the test."""
    running: list[RunningServer] = []

    def start(*methods: Method, listen: str = "127.0.0.1:0", **options: Any) -> RunningServer:
        server = RunningServer(transport, methods, {"listen": listen, **options})
        server.start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.stop()


class Parked:
    """A handler that waits for ever, and tells what becomes of it."""

    def __init__(self) -> None:
        self.entered, self.left = threading.Event(), threading.Event()

    async def __call__(self, *_: object) -> Any:
        """Be any handler."""
        self.entered.set()
        try:
            await trio.sleep_forever()
        finally:
            self.left.set()


class Kit:
    """Methods of every kind, with messages of the protocol, and what their clients expect."""

    paths: ClassVar = {
        MethodKind.UNARY: "/apache.rocketmq.v2.MessagingService/Heartbeat",
        MethodKind.SERVER_STREAM: "/apache.rocketmq.v2.MessagingService/PullMessage",
        MethodKind.BIDI: "/apache.rocketmq.v2.MessagingService/Telemetry",
        # The protocol has none of this kind, and reflection need not know every method.
        MethodKind.CLIENT_STREAM: "/apache.rocketmq.v2.MessagingService/Upload",
    }
    types: ClassVar[dict[MethodKind, tuple[type[Message], type[Message]]]] = {
        MethodKind.UNARY: (pb.RecallMessageRequest, pb.RecallMessageResponse),
        MethodKind.SERVER_STREAM: (pb.PullMessageRequest, pb.PullMessageResponse),
        MethodKind.BIDI: (pb.TelemetryCommand, pb.TelemetryCommand),
        MethodKind.CLIENT_STREAM: (pb.RecallMessageRequest, pb.RecallMessageResponse),
    }
    parked = Parked

    def of_kind(self, kind: MethodKind, handler: Handler) -> Method:
        """A method with this handler."""
        return Method(self.paths[kind], kind, *self.types[kind], handler, access=NOTHING)

    def unary(self, handler: Handler) -> Method:
        """A method that has a text each way."""
        return self.of_kind(MethodKind.UNARY, handler)

    def stream(self, handler: Handler) -> Method:
        """A method that streams numbers or messages."""
        return self.of_kind(MethodKind.SERVER_STREAM, handler)

    def upload(self, handler: Handler) -> Method:
        """A method that takes a stream of texts and answers once."""
        return self.of_kind(MethodKind.CLIENT_STREAM, handler)

    def bidi(self, handler: Handler) -> Method:
        """A method that streams commands both ways."""
        return self.of_kind(MethodKind.BIDI, handler)

    def text(self, handle: str) -> pb.RecallMessageRequest:
        """A request with a text."""
        return pb.RecallMessageRequest(recall_handle=handle)

    def command(self, nonce: str) -> pb.TelemetryCommand:
        """A command with a text."""
        return pb.TelemetryCommand(verify_message_result=pb.VerifyMessageResult(nonce=nonce))

    def echo(self, request: pb.RecallMessageRequest, _: Call) -> pb.RecallMessageResponse:
        """A unary handler that need not wait."""
        return pb.RecallMessageResponse(message_id=request.recall_handle)

    def logged(self, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
        """What we ourselves have logged."""
        return [record for record in caplog.records if record.name.startswith("commitbus")]

    @contextmanager
    def refused(self, code: grpc.StatusCode, message: str | None = None) -> Iterator[None]:
        """Expect that the client is told this status."""
        with pytest.raises(grpc.RpcError) as caught:
            yield
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is code, caught.value.details()
        if message is not None:
            assert caught.value.details() == message


class Client:
    """A grpcio client of the kit's methods."""

    def __init__(self, address: str) -> None:
        # A subchannel pool of its own, so that no test gets a connection of an earlier one.
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(address, options)
        # The stubs of grpcio are incomplete, hence Any.
        channel: Any = self.channel
        openers = {
            MethodKind.UNARY: channel.unary_unary,
            MethodKind.SERVER_STREAM: channel.unary_stream,
            MethodKind.BIDI: channel.stream_stream,
            MethodKind.CLIENT_STREAM: channel.stream_unary,
        }
        self.callables = {
            kind: opener(Kit.paths[kind], serialize, Kit.types[kind][1].FromString)
            for kind, opener in openers.items()
        }
        self.ask = self.callables[MethodKind.UNARY]
        self.pull = self.callables[MethodKind.SERVER_STREAM]
        self.talk = self.callables[MethodKind.BIDI]
        self.upload = self.callables[MethodKind.CLIENT_STREAM]

    def finish(self, kind: MethodKind, *, raw_request: bytes = b"", **options: Any) -> None:
        """Make one call with one request and wait for its end."""
        request = iter([raw_request]) if kind.streams_requests else raw_request
        call = self.callables[kind]
        if kind.streams_responses:
            list(call(request, **options))
        else:
            call(request, **options)

    @contextmanager
    def open(self, kind: MethodKind) -> Iterator[Any]:
        """Begin a call whose requests do not end before the context does."""
        requests: queue.Queue[bytes | None] = queue.Queue()
        requests.put(b"")
        request = iter(requests.get, None) if kind.streams_requests else b""
        call = self.callables[kind]
        yield call(request) if kind.streams_responses else call.future(request)
        requests.put(None)


def serialize(request: Message | bytes) -> bytes:
    """Let bytes through, so that tests can send what is no message."""
    return request if isinstance(request, bytes) else request.SerializeToString()


@pytest.fixture
def kit() -> Kit:
    """The methods that the conformance tests serve."""
    return Kit()


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Connect clients to servers; all are closed after the test."""
    clients: list[Client] = []

    def connect(server: RunningServer, host: str = "127.0.0.1") -> Client:
        clients.append(Client(f"{host}:{server.port}"))
        return clients[-1]

    yield connect
    for client in clients:
        client.channel.close()


@pytest.fixture(scope="session")
def build_go(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds a Go program from the module proxy; without Go or the proxy the test is skipped."""
    directory = tmp_path_factory.mktemp("go")

    def build(program: str) -> Path:
        if shutil.which("go") is None:
            pytest.skip(f"{program} is built with go, which is not installed")
        done = subprocess.run(
            ["go", "install", program],
            env={**os.environ, "GOBIN": str(directory)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"go could not fetch {program}: {done.stderr.strip()[-200:]}")
        return directory / program.partition("@")[0].rsplit("/", 1)[1]

    return build
