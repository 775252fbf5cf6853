"""A call of a method from begin to end, as every transport makes it, but without a transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, final

import trio

from commitbus.broker.rpc.call import Call, Pieces, Response, RpcError
from commitbus.broker.rpc.exchange import Crew, Exchange, Outcome
from commitbus.broker.rpc.method import Method

Take = Callable[..., Awaitable[None]]
"""A `Send`, or less: a test knows how many responses its handler sends at once."""


@final
class _Caller:
    """Runs in the caller's own task what an exchange starts: the caller sees each end at once."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._work: list[Callable[[], Awaitable[object]]] = []
        self._goes_on = trio.Event()

    def start_soon(self, work: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Take a task of the handler's: this is the exchange's nursery."""
        self._work.append(lambda: work(*arguments))
        self._goes_on.set()

    def finish(self, outcome: Outcome) -> None:
        """Take the outcome."""
        self.outcomes.append(outcome)
        self._goes_on.set()

    async def until_over(self) -> None:
        """Work as long as there is something to do, and wait for what is settled or parked."""
        while not self.outcomes:
            if not self._work:
                await self._goes_on.wait()
            self._goes_on = trio.Event()
            await self.work()

    async def work(self) -> None:
        """Run what was started."""
        while self._work:
            await self._work.pop()()


async def carried(method: Method, request: Any, call: Call, send: Take | None = None) -> bytes:
    """Make a call and return its response; of a stream of responses nothing is left to return.

    Cancelled, the call ends as if its client had gone. Raises `RpcError` where the client gets one;
    in place of it what `send` has raised, if it has.
    """
    errors: list[Exception] = []

    async def noted(*responses: Response | Pieces) -> None:
        assert send is not None
        try:
            await send(*responses)
        except Exception as error:
            errors.append(error)
            raise

    caller: Any = _Caller()
    exchange = Exchange(method, call, crew=Crew(caller), finish=caller.finish)
    exchange.start(request, call, *(() if send is None else (noted,)))
    try:
        await caller.until_over()
    except trio.Cancelled:
        if not caller.outcomes:
            exchange.cancel()
        await caller.work()
        raise
    (outcome,) = caller.outcomes
    if isinstance(outcome, RpcError):
        raise errors[-1] if errors else RpcError(outcome.code, outcome.message)
    return outcome or b""
