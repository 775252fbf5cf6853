"""The client's connection: TLS, Unix sockets, and brokers that are not what was expected."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from commitbus.broker.client import (
    BrokerUnavailableError,
    Consumer,
    ConsumerOptions,
    DeliveryUnknownError,
    Producer,
    ProducerOptions,
    SyncConsumer,
    SyncProducer,
    Trouble,
)
from commitbus.broker.client.link import Link
from commitbus.broker.common.address import split_host_port
from tests.broker.tls_broker import Signed, broker_with, signed_certificate

Run = Callable[..., None]
LONG_S = 60.0
"""A timeout that no test reaches: a known failure must be reported before."""


def anyone() -> ssl.SSLContext:
    """A client that verifies nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def trusting(path: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=path)


@pytest.fixture
def signed(tmp_path: Path) -> Signed:
    return signed_certificate(tmp_path)


def send_and_read(endpoint: str, tls: ssl.SSLContext | None = None, server_name: str = "") -> bytes:
    """Send a message and return what is read then, both with the blocking client."""
    producing = ProducerOptions(connect_timeout_s=LONG_S, tls=tls, server_name=server_name)
    with SyncProducer(endpoint, producing) as producer:
        producer.send(b"hello", topic="greetings")
    consuming = ConsumerOptions(connect_timeout_s=LONG_S, tls=tls, server_name=server_name)
    with SyncConsumer(endpoint, "greetings", follow=False, options=consuming) as consumer:
        (message,) = consumer
    return message.body


def test_a_certificate_that_an_authority_signed_is_verified(signed: Signed) -> None:
    """By the address it was reached at, or by the name it was said to have."""
    with broker_with(tls_certificate=signed.server, tls_mode="enforcing") as broker:
        assert send_and_read(broker.endpoint, trusting(signed.authority)) == b"hello"
        assert Link(broker.endpoint, None).endpoint == broker.endpoint
        with SyncProducer(
            broker.endpoint,
            ProducerOptions(tls=trusting(signed.authority), server_name="mq.test"),
        ) as producer:
            assert producer.send(b"x", topic="greetings").topic == "greetings"


def test_a_broker_s_own_certificate_can_be_pinned() -> None:
    """Somebody has looked at it once; or nothing is verified."""
    with broker_with(tls_mode="enforcing") as broker:
        pem = ssl.get_server_certificate(split_host_port(broker.endpoint))
        assert send_and_read(broker.endpoint, ssl.create_default_context(cadata=pem)) == b"hello"
    with broker_with(tls_mode="enforcing") as broker:
        assert send_and_read(broker.endpoint, anyone()) == b"hello"


def test_a_unix_socket_needs_no_tls(tmp_path: Path) -> None:
    """Whatever the port demands, and whatever the client was given."""
    path = tmp_path / "broker.sock"
    with broker_with(tls_mode="enforcing", unix_socket=path):
        assert send_and_read(f"unix:{path}", anyone()) == b"hello"


@pytest.mark.parametrize(
    ("mode", "tls", "trouble", "reason"),
    [
        ("enforcing", None, Trouble.EXPECTS_TLS, "it expects TLS"),
        ("disabled", anyone, Trouble.EXPECTS_PLAINTEXT, "it expects plaintext, not TLS"),
        ("enforcing", ssl.create_default_context, Trouble.UNTRUSTED, "self-signed certificate"),
    ],
)
def test_a_setting_that_is_wrong_is_named_at_once(
    run: Run,
    mode: str,
    tls: Callable[[], ssl.SSLContext] | None,
    trouble: Trouble,
    reason: str,
) -> None:
    """Waiting would not help, and silence would not tell."""
    context = tls() if tls else None

    async def main(endpoint: str) -> None:
        for client in (
            Producer(endpoint, ProducerOptions(connect_timeout_s=LONG_S, tls=context)),
            Consumer(endpoint, "t", options=ConsumerOptions(connect_timeout_s=LONG_S, tls=context)),
        ):
            with pytest.raises(BrokerUnavailableError, match=reason) as caught:
                await client.__aenter__()
            assert caught.value.trouble is trouble

    with broker_with(tls_mode=mode) as broker:
        run(lambda: main(broker.endpoint), within_s=10)


def test_a_certificate_of_another_name_is_not_trusted(run: Run, signed: Signed) -> None:
    async def main(endpoint: str) -> None:
        options = ProducerOptions(tls=trusting(signed.authority), server_name="other.test")
        with pytest.raises(BrokerUnavailableError, match="Hostname mismatch") as caught:
            await Producer(endpoint, options).__aenter__()
        assert caught.value.trouble is Trouble.UNTRUSTED

    with broker_with(tls_certificate=signed.server) as broker:
        run(lambda: main(broker.endpoint), within_s=10)


@asynccontextmanager
async def serving(
    handle: Callable[[trio.SocketStream], Awaitable[None]],
) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the server does not speak HTTP/2"),
        (b"", "the server closed the connection without a word"),
        (None, "it does not answer"),
    ],
)
def test_what_is_no_broker_is_not_taken_for_one(run: Run, said: bytes | None, reason: str) -> None:
    """A listener on the port need not be a broker."""

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            if said is None:
                await trio.sleep_forever()
            elif said:
                await stream.send_all(said)
                await stream.receive_some()

    async def main() -> None:
        async with serving(answer) as endpoint:
            options = ProducerOptions(connect_timeout_s=0.5)
            with pytest.raises(BrokerUnavailableError, match=reason):
                await Producer(endpoint, options).__aenter__()

    run(main)


def test_a_broker_that_is_lost_is_tried_less_and_less_often(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """And said to be lost once. What was being sent fails in the time that the options give."""
    attempts = 0

    async def hang_up(stream: trio.SocketStream) -> None:
        nonlocal attempts
        attempts += 1
        await stream.aclose()

    async def main() -> None:
        with ExitStack() as stack:
            broker = stack.enter_context(broker_with())
            port = split_host_port(broker.endpoint)[1]
            options = ProducerOptions(delivery_timeout_s=2.0)
            async with (
                Producer(broker.endpoint, options) as producer,
                trio.open_nursery() as nursery,
            ):
                await producer.send(b"1", topic="t")
                await trio.to_thread.run_sync(stack.close)
                # Another server has its port now.
                await nursery.start(partial(trio.serve_tcp, hang_up, port, host="127.0.0.1"))
                with pytest.raises(DeliveryUnknownError, match="no acknowledgement in 2 s"):
                    await producer.send(b"2", topic="t")
                nursery.cancel_scope.cancel()

    with caplog.at_level(logging.WARNING, "commitbus.broker.client"):
        run(main)
    # Each attempt is one connection, and one more that asks whether TLS was expected.
    assert 0 < attempts < 2 * 8
    (record,) = (r for r in caplog.records if r.name == "commitbus.broker.client.link")
    assert " is not available: " in record.getMessage()
