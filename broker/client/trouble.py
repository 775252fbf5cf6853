"""Finds out why a connection failed, where the client's own settings may be the reason.

A broker that takes TLS only closes a plaintext connection without a word, and the reverse looks no
different. So the other way is tried once, without verifying anything and without sending anything.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

import trio

from commitbus.broker.client.errors import Trouble
from commitbus.broker.common.address import Endpoint
from commitbus.broker.rpc.call import RpcError
from commitbus.broker.rpc.http2.client_connection import connect_to

_PROBE_S: Final = 3.0
_REASONS: Final = {
    Trouble.EXPECTS_TLS: "it expects TLS",
    Trouble.EXPECTS_PLAINTEXT: "it expects plaintext, not TLS",
}


async def trouble_of(
    endpoint: Endpoint, tls: ssl.SSLContext | None, error: RpcError
) -> tuple[Trouble, str]:
    """Return what is wrong with a connection that failed, and the reason in words.

    Args:
        endpoint: Where it went.
        tls: The TLS context that it was begun with.
        error: How it failed.
    """
    trouble = await _trouble_of(endpoint, tls, error)
    prefix = f"cannot connect to {endpoint}: "
    return trouble, _REASONS.get(trouble, error.message.removeprefix(prefix))


async def _trouble_of(endpoint: Endpoint, tls: ssl.SSLContext | None, error: RpcError) -> Trouble:
    if endpoint.path:
        return Trouble.OTHER
    if tls is None:
        # With a cause there was no connection at all: no listener, or no such host.
        speaks_tls = error.__cause__ is None and await _speaks_tls(endpoint)
        return Trouble.EXPECTS_TLS if speaks_tls else Trouble.OTHER
    cause = error.__cause__
    if not isinstance(cause, trio.BrokenResourceError):
        return Trouble.OTHER
    if isinstance(cause.__cause__, ssl.SSLCertVerificationError):
        return Trouble.UNTRUSTED
    speaks_plaintext = await _speaks_plaintext(endpoint)
    return Trouble.EXPECTS_PLAINTEXT if speaks_plaintext else Trouble.OTHER


async def _speaks_tls(endpoint: Endpoint) -> bool:
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    with suppress(RpcError):
        async with connect_to(endpoint, tls=anyone, timeout_s=_PROBE_S):
            return True
    return False


async def _speaks_plaintext(endpoint: Endpoint) -> bool:
    with suppress(RpcError), trio.move_on_after(_PROBE_S):
        async with connect_to(endpoint) as connection:
            await connection.greeted()
            return True
    return False
