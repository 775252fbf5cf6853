"""Giving a batch of messages to a client that may read slowly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from commitbus.broker.rpc.call import Response, RpcError, Send, StatusCode

HANDOVER_S_MAX: Final = 60.0
"""For one answer: 32 MiB in it are 4.5 Mbit/s. A client that reads more slowly holds memory that
others need, and it need not have set a deadline."""
PIECE_BYTES: Final = 64 * 1024
"""What is given to the transport at once, a message more at most."""


async def hand_over(send: Send, first: Response, messages: Sequence[bytes], last: Response) -> None:
    """Send messages with what belongs around them: small ones together, large ones not.

    Raises:
        RpcError: the client reads them too slowly.
    """
    with trio.move_on_after(HANDOVER_S_MAX) as scope:
        piece = [first]
        size_bytes = 0
        for message in messages:
            piece.append(message)
            size_bytes += len(message)
            if size_bytes >= PIECE_BYTES:
                await send(*piece)
                piece, size_bytes = [], 0
        await send(*piece, last)
    if scope.cancelled_caught:
        raise RpcError(StatusCode.DEADLINE_EXCEEDED, "the messages are read too slowly")
