"""A response stream that waits for messages: what ReceiveMessage and PullMessage have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, final

import trio

from commitbus.broker.common.errors import REFUSALS
from commitbus.broker.messaging.clients import DISCONNECT_GRACE_S, IDLE_S, Client
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.rpc.call import Call, Send
from commitbus.broker.rpc.method import Parked


class Poll(Protocol):
    """A call that looks for messages, as the core has it: `Receiving`, `Pulling`."""

    def park(self, go_on: Callable[[], None]) -> None:
        """Have `go_on` called, once, when there may be messages or the time is over."""

    def leave(self) -> None:
        """Wait no more."""

    def batch(self) -> AbstractContextManager[Any]:
        """Return an empty batch, to look and to answer in its block."""

    async def look(self, batch: Any, /) -> bool:  # noqa: ANN401 - of its own `batch()`
        """Fill a batch; return whether it is worth waiting."""


@final
class Answers(NamedTuple):
    """How a method answers."""

    batch: Callable[[PolledCall, Any], Awaitable[None]]
    """Sends the messages of a batch, or that there are none."""
    refusal: Callable[[PolledCall, Exception], Awaitable[None]] | None = None
    """Sends the status of an error, if what the method's `refusal` makes of it does not do."""


@final
class PolledCall(Parked):
    """One call. While it is parked it has no task."""

    __slots__ = ("_answers", "_client", "call", "context", "poll", "send")

    def __init__(
        self,
        context: MessagingContext,
        client: Client,
        poll: Poll,
        answers: Answers,
        *,
        call: Call,
        send: Send,
    ) -> None:
        self.context, self.call, self.send, self.poll = context, call, send, poll
        self._client, self._answers = client, answers
        context.clients.stream_began(client)

    def when_woken(self, go_on: Callable[[], None]) -> None:
        """Wait."""
        self.poll.park(go_on)

    def abandon(self) -> None:
        """Wait no more."""
        self.poll.leave()
        self.context.clients.stream_ended(self._client, DISCONNECT_GRACE_S)

    async def resume(self) -> Parked | None:
        """Look for messages, and answer with what there is unless it is worth waiting."""
        parks, idle_after_s = False, IDLE_S
        try:
            parks = await self._look()
        except trio.Cancelled:
            idle_after_s = DISCONNECT_GRACE_S
            raise
        finally:
            if not parks:
                self.context.clients.stream_ended(self._client, idle_after_s)
        return self if parks else None

    async def _look(self) -> bool:
        """Return whether it is worth waiting, else answer."""
        try:
            with self.poll.batch() as batch:
                waits = await self.poll.look(batch)
                if not waits:
                    await self._answers.batch(self, batch)
                return waits
        except REFUSALS as error:
            if self._answers.refusal is None:
                raise
            await self._answers.refusal(self, error)
            return False
