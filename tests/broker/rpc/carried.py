"""A call of a method from begin to end, as every transport makes it, but without a transport."""

from __future__ import annotations

from typing import Any

import trio

from commitbus.broker.rpc.call import Call, RpcError, Send
from commitbus.broker.rpc.exchange import Crew, Exchange, Outcome
from commitbus.broker.rpc.method import Method


async def carried(method: Method, request: Any, call: Call, send: Send | None = None) -> bytes:
    """Make a call and return its response; of a stream of responses nothing is left to return.

    Cancelled, the call ends as if its client had gone. Raises `RpcError` where the client gets one.
    """
    outcomes: list[Outcome] = []
    is_over = trio.Event()

    def finish(outcome: Outcome) -> None:
        outcomes.append(outcome)
        is_over.set()

    async with trio.open_nursery() as nursery:
        exchange = Exchange(method, call, crew=Crew(nursery), finish=finish)
        exchange.start(request, call, *(() if send is None else (send,)))
        try:
            if not outcomes:
                await is_over.wait()
        except trio.Cancelled:
            exchange.cancel()
            raise
    (outcome,) = outcomes
    if isinstance(outcome, RpcError):
        raise RpcError(outcome.code, outcome.message)
    return outcome or b""
