"""What only this transport has: TLS and plaintext on one port, a Unix socket, answers in gzip."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import trio

from commitbus.broker.config.tls_mode import TlsMode
from commitbus.broker.rpc.call import Call, Send, StatusCode
from commitbus.broker.rpc.http2.engine import DataReceived, ResponseReceived, TrailersReceived
from commitbus.broker.rpc.http2.grpc_wire import PREFIX, encode_message
from commitbus.broker.rpc.listen import certificate
from commitbus.broker.rpc.listen.accept import AcceptOptions
from commitbus.broker.rpc.listen.certificate import TlsContexts
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

WAIT_S = 20.0
# Defined in conftest.py, which a test module cannot import.
Kit = Any
Start = Callable[..., Any]
Connect = Callable[..., Any]

BIG = "x" * (3 * 1024 * 1024)


@pytest.fixture
def tls(tmp_path: Path) -> tuple[AcceptOptions, grpc.ChannelCredentials]:
    """A server's certificate, and a client's trust in it."""
    pem = certificate._self_signed_pem()
    path = tmp_path / "server.pem"
    path.write_bytes(pem)
    roots = pem[pem.index(b"-----BEGIN CERTIFICATE-----") :]
    return AcceptOptions(tls=TlsContexts(path)), grpc.ssl_channel_credentials(roots)


def ask(channel: grpc.Channel, kit: Kit, text: str) -> str:
    """Make the kit's unary call."""
    call: Any = channel.unary_unary(
        next(path for kind, path in kit.paths.items() if kind.name == "UNARY"),
        pb.RecallMessageRequest.SerializeToString,
        pb.RecallMessageResponse.FromString,
    )
    return str(call(kit.text(text), timeout=WAIT_S).message_id)


def test_one_port_takes_tls_and_plaintext(
    kit: Kit, start_server: Start, connect: Connect, tls: Any
) -> None:
    """Large messages both ways, and a stream, over TLS."""
    options, credentials = tls

    async def pour(request: pb.PullMessageRequest, _: Call, send: Send) -> None:
        for offset in range(request.batch_size):
            await send(pb.PullMessageResponse(next_offset=offset))

    server = start_server(kit.unary(kit.echo), kit.stream(pour), accept_options=options)
    big = [("grpc.max_receive_message_length", -1)]
    with grpc.secure_channel(f"localhost:{server.port}", credentials, big) as channel:
        for text in ("small", BIG, "small again"):
            assert ask(channel, kit, text) == text
        pull: Any = channel.unary_stream(
            next(path for kind, path in kit.paths.items() if kind.name == "SERVER_STREAM"),
            pb.PullMessageRequest.SerializeToString,
            pb.PullMessageResponse.FromString,
        )
        responses = pull(pb.PullMessageRequest(batch_size=5000))
        assert [response.next_offset for response in responses] == list(range(5000))
    assert connect(server).ask(kit.text("plain")).message_id == "plain"


def refused(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the records of connections that were refused."""
    return [record for record in caplog.records if record.message == "connection refused"]


def test_health_probes_are_not_logged_and_refusals_are(
    kit: Kit, start_server: Start, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A load balancer connects and closes every few seconds; a client that needs TLS is news."""
    options = AcceptOptions(TlsContexts(), tls_mode=TlsMode.ENFORCING)
    server = start_server(kit.unary(kit.echo), accept_options=options)
    with caplog.at_level(logging.INFO):
        for sent in (b"", b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                # Bytes that the server has not read turn the close into a reset.
                with suppress(ConnectionResetError):
                    assert client.recv(1) == b""
        # The client learns of the close before the server logs it.
        deadline_s = time.monotonic() + WAIT_S
        while not (refusals := refused(caplog)) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        server.stop()
    assert refusals == refused(caplog)
    assert [vars(record)["reason"] for record in refusals] == ["TLS is required"]


def test_a_drain_reaches_clients_over_tls(kit: Kit, start_server: Start, tls: Any) -> None:
    """The status of what was cancelled arrives before the connection ends."""
    options, credentials = tls
    parked = kit.parked()
    server = start_server(kit.unary(parked), accept_options=options, drain_grace_s=0.05)
    with grpc.secure_channel(f"localhost:{server.port}", credentials) as channel:
        path = next(path for kind, path in kit.paths.items() if kind.name == "UNARY")
        call: Any = channel.unary_unary(path, bytes, bytes)
        future = call.future(b"")
        assert parked.entered.wait(WAIT_S)
        server.stop()
        with kit.refused(grpc.StatusCode.UNAVAILABLE, "the server is shutting down"):
            future.result(WAIT_S)


def test_a_unix_socket_serves_too(kit: Kit, start_server: Start, tmp_path: Path) -> None:
    """Beside the port; its clients have no address."""
    peers = []

    def handler(request: pb.RecallMessageRequest, call: Call) -> Any:
        peers.append(call.peer)
        return kit.echo(request, call)

    path = tmp_path / "broker.sock"
    server = start_server(kit.unary(handler), unix_socket=path)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert ask(channel, kit, "local") == "local"
    assert peers == ["unix:"]
    server.stop()
    assert not path.exists()


@pytest.fixture
def raw(start_abused: Any) -> Any:
    """A client that sees the bytes."""
    return start_abused().connect()


def test_an_answer_to_gzip_is_gzip(raw: Any) -> None:
    """If it is worth it; the client has shown that it wants it."""
    stream_id = raw.open("Pour", body=None, extra=((b"grpc-encoding", b"gzip"),))
    raw.engine.submit_data(stream_id, encode_message(b"", gzip=True), end_stream=True)
    raw.flush()
    events = []
    body = b""
    while len(body) < 1000:
        events += raw.read()
        body = b"".join(event.data for event in events if isinstance(event, DataReceived))
    (response,) = [event for event in events if isinstance(event, ResponseReceived)]
    assert dict(response.headers)[b"grpc-encoding"] == b"gzip"
    flag, length = PREFIX.unpack_from(body)
    assert flag == 1
    unpacked = zlib.decompress(body[PREFIX.size : PREFIX.size + length], 31)
    assert pb.RecallMessageResponse.FromString(unpacked).message_id == "x" * 16_384


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", StatusCode.UNIMPLEMENTED),
        (encode_message(b"") * 2, StatusCode.UNIMPLEMENTED),
        (encode_message(b"")[:3], StatusCode.UNIMPLEMENTED),
        (encode_message(b"") + b"\0", StatusCode.UNIMPLEMENTED),
        (encode_message(bytes(2000), gzip=True), StatusCode.INTERNAL),
        (b"\0\xff\xff\xff\xff", StatusCode.RESOURCE_EXHAUSTED),
        (encode_message(b"\x12\xff"), StatusCode.INTERNAL),
    ],
    ids=["none", "two", "cut off", "more", "unannounced gzip", "too large", "no protobuf"],
)
def test_a_unary_call_has_one_request(raw: Any, body: bytes, status: StatusCode) -> None:
    """Anything else is refused, and the connection goes on."""
    stream_id = raw.open("Count", body=None)
    raw.engine.submit_data(stream_id, body, end_stream=True)
    raw.flush()
    assert raw.status_of(stream_id) == status
    assert raw.handlers() == 0


def test_a_request_may_come_in_pieces(raw: Any) -> None:
    """Byte by byte, the end apart from the rest, or with trailers."""
    message = encode_message(pb.RecallMessageRequest(recall_handle="abc").SerializeToString())
    stream_id = raw.open("Count", body=None)
    for index in range(len(message)):
        raw.engine.submit_data(stream_id, message[index : index + 1])
        raw.flush()
    raw.engine.submit_trailers(stream_id, ((b"x-end", b"1"),))
    raw.flush()
    assert raw.status_of(stream_id) == StatusCode.OK


def test_a_malformed_timeout_is_refused(raw: Any) -> None:
    """Whatever the method."""
    stream_id = raw.open("Count", extra=((b"grpc-timeout", b"soon"),))
    raw.flush()
    assert raw.status_of(stream_id) == StatusCode.INTERNAL


def test_a_client_that_speaks_no_grpc_is_told_in_http(raw: Any) -> None:
    """A browser's GET gets a status and a line to read."""
    stream_id = raw.engine.submit_request(
        [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")],
        end_stream=True,
    )
    raw.flush()
    assert dict(raw.read_until(ResponseReceived, stream_id).headers)[b":status"] == b"405"


def test_the_requests_of_a_stream_may_be_larger_than_the_window(raw: Any) -> None:
    """The client sends on because the handler waits for the rest."""
    size = 5 << 20
    message = pb.RecallMessageRequest(recall_handle="x" * size).SerializeToString()
    stream_id = raw.open("Measure", body=None)
    for _ in range(2):
        raw.engine.submit_data(stream_id, encode_message(message))
    raw.engine.submit_data(stream_id, b"", end_stream=True)
    raw.flush()
    answer = b""
    while True:
        for event in raw.read():
            if isinstance(event, DataReceived):
                answer += event.data
            elif isinstance(event, TrailersReceived):
                found = pb.RecallMessageResponse.FromString(answer[PREFIX.size :]).message_id
                assert found == str(2 * size)
                return
        raw.flush()


def test_the_transport_needs_no_grpcio() -> None:
    """Its import costs 0.1 s and 20 MB, which nobody should pay who does not use it."""
    script = (
        "import sys; import commitbus.broker.rpc.trio_transport; sys.exit('grpc' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_kept_stream_of_requests_ends_with_its_call(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """Reading on after the handler has ended raises an error."""
    kept: list[Any] = []
    raised = []

    async def keep(requests: Any, _: Call) -> pb.RecallMessageResponse:
        kept.append(requests)
        return pb.RecallMessageResponse(message_id=str(len((await anext(requests)).recall_handle)))

    async def use(request: pb.RecallMessageRequest, call: Call) -> Any:
        await trio.lowlevel.checkpoint()
        try:
            await anext(kept[0])
        except Exception as error:  # noqa: BLE001 - looked at below
            raised.append(getattr(error, "code", error))
        return kit.echo(request, call)

    client = connect(start_server(kit.upload(keep), kit.unary(use)))
    assert client.upload(iter([kit.text("abc"), kit.text("de")])).message_id == "3"
    client.ask(kit.text("a"))
    assert raised == [StatusCode.CANCELLED]
