"""Connections over real sockets, and certificates to secure them with."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from commitbus.broker.rpc.listen.accept import Accepted, AcceptError, AcceptOptions, accept
from commitbus.broker.rpc.listen.certificate import TlsContexts
from commitbus.broker.rpc.listen.sockets import open_listeners

WAIT_S = 20.0


@dataclass
class Front:
    """What clients connect to, and what became of the connections, in their order."""

    port: int
    outcomes: trio.MemoryReceiveChannel[Accepted | AcceptError]

    async def connect(self, host: str = "127.0.0.1") -> trio.SocketStream:
        """A connection that has sent nothing yet."""
        return await trio.open_tcp_stream(host, self.port)

    async def accepted(self) -> Accepted:
        """The next connection, which must have been accepted."""
        outcome = await self.outcomes.receive()
        assert isinstance(outcome, Accepted), outcome
        return outcome

    async def refused(self) -> str:
        """Why the next connection, which must have been refused, was."""
        outcome = await self.outcomes.receive()
        assert isinstance(outcome, AcceptError), outcome
        return outcome.reason


OpenFront = Callable[..., AbstractAsyncContextManager[Front]]


@pytest.fixture
def open_front() -> OpenFront:
    """Accept on a free port; everything is closed at the end of the context."""

    @asynccontextmanager
    async def open_front(
        options: AcceptOptions | None = None,
        *,
        listen: str = "127.0.0.1:0",
        unix_socket: Path | None = None,
    ) -> AsyncIterator[Front]:
        options = options or AcceptOptions(TlsContexts())
        send, receive = trio.open_memory_channel[Accepted | AcceptError](100)

        async def handle(stream: trio.SocketStream) -> None:
            try:
                await send.send(await accept(stream, options))
            except AcceptError as error:
                await send.send(error)
            else:
                await trio.sleep_forever()

        with trio.fail_after(WAIT_S), open_listeners(listen, unix_socket) as listeners:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, handle, listeners.sockets)
                yield Front(listeners.port, receive)
                nursery.cancel_scope.cancel()

    return open_front


def client_context(alpn: list[str] | None = None) -> ssl.SSLContext:
    """A client as RocketMQ's: it verifies nothing, and offers h2 unless told otherwise."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    alpn = ["h2"] if alpn is None else alpn
    if alpn:
        context.set_alpn_protocols(alpn)
    return context


@dataclass(frozen=True)
class Seen:
    """What a TLS client saw."""

    version: str | None
    alpn: str | None
    certificate: bytes


class TlsClient:
    """Clients that use the `ssl` module as programs do: blocking, in a thread."""

    context = staticmethod(client_context)

    async def visit(self, port: int, context: ssl.SSLContext | None = None) -> Seen:
        """Shake hands and leave."""
        return await trio.to_thread.run_sync(self._visit, port, context or client_context())

    @staticmethod
    def _visit(port: int, context: ssl.SSLContext) -> Seen:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection,
            context.wrap_socket(connection) as secured,
        ):
            certificate = secured.getpeercert(binary_form=True)
            assert certificate is not None
            return Seen(secured.version(), secured.selected_alpn_protocol(), certificate)


@pytest.fixture
def tls_client() -> TlsClient:
    """A TLS client."""
    return TlsClient()


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes
    encrypted_key: bytes


def make_pair() -> Pair:
    """A new key and its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mq.example")])
    now = datetime.now(tz=UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )

    def pem(encryption: serialization.KeySerializationEncryption) -> bytes:
        return key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )

    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        pem(serialization.NoEncryption()),
        pem(serialization.BestAvailableEncryption(b"secret")),
    )


@pytest.fixture(scope="session")
def pairs() -> list[Pair]:
    """Two certificates with their keys."""
    return [make_pair(), make_pair()]


@pytest.fixture
def ipv6() -> None:
    """The test needs IPv6 on the loopback interface."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error.strerror}")
