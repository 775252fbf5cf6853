"""Answers that wait until the progress they speak of survives a power cut."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, final

import trio
from google.protobuf.message import Message

from commitbus.broker.common.errors import TooManyRequestsError
from commitbus.broker.common.trio_thread import TrioThread
from commitbus.broker.progress.journal_flush import ProgressFlush
from commitbus.broker.rpc.call import Call, Response
from commitbus.broker.rpc.method import Later
from commitbus.commitlog.errors import StoreError

WAITING_MAX: Final = 10_000
"""Calls that wait for the disk, as many as messages."""

Handler = Callable[[Any, Call], Response | Later | Awaitable[Response]]
_Waiter = Callable[[StoreError | None], None]


@final
class ProgressDurability:
    """Lets handlers that change progress wait for the disk. Lives on the trio thread.

    Args:
        flush: Makes progress durable; None where an answer does not wait for that.
        sequence: Returns the journal entry of the last change.
        trio_thread: The thread whose calls wait.
    """

    def __init__(
        self, flush: ProgressFlush | None, sequence: Callable[[], int], trio_thread: TrioThread
    ) -> None:
        self._flush, self._sequence, self._trio_thread = flush, sequence, trio_thread
        # In the order of the journal entries that are waited for.
        self._waiting: deque[tuple[int, _Waiter]] = deque()
        if flush is not None:
            flush.listen(self._on_flushed)

    def once_durable(self, handler: Handler) -> Handler:
        """Return a handler of unary calls that answers when what was changed is durable.

        Nothing is added where no answer waits.
        """
        return handler if self._flush is None else partial(self._answer, self._flush, handler)

    def _answer(
        self, flush: ProgressFlush, handler: Handler, request: Message, call: Call
    ) -> Response | Later | Awaitable[Response]:
        if len(self._waiting) >= WAITING_MAX:
            raise TooManyRequestsError(f"{len(self._waiting)} calls wait for the disk")
        answer = handler(request, call)
        if not isinstance(answer, (bytes, Message)):
            assert not isinstance(answer, Later), "no handler that changes progress returns one"
            return self._awaited(answer)
        if flush.durable_sequence >= self._sequence():
            return answer
        later = Later()
        self._call_when_over(flush, lambda error: later.settle(partial(_result, answer, error)))
        return later

    async def _awaited(self, answer: Awaitable[Response]) -> Response:
        response = await answer
        await self.wait()
        return response

    async def wait(self) -> None:
        """Return when all that was changed before the call is durable, if answers wait for that.

        Raises:
            StoreError: Whether it survives a power cut is unknown.
        """
        flush = self._flush
        if flush is None or flush.durable_sequence >= self._sequence():
            return
        over, errors = trio.Event(), list[StoreError | None]()

        def finish(error: StoreError | None) -> None:
            errors.append(error)
            over.set()

        self._call_when_over(flush, finish)
        await over.wait()
        if errors[0] is not None:
            raise errors[0].with_traceback(None)

    def _call_when_over(self, flush: ProgressFlush, waiter: _Waiter) -> None:
        self._waiting.append((self._sequence(), waiter))
        flush.request()

    def _on_flushed(self, sequence: int, error: StoreError | None) -> None:
        """Release those whose change is durable, or lost. Called on the flush thread."""
        self._trio_thread.call_soon(partial(self._release, sequence, error))

    def _release(self, sequence: int, error: StoreError | None) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= sequence:
            waiting.popleft()[1](error)


def _result(answer: Response, error: StoreError | None) -> Response:
    if error is not None:
        raise error.with_traceback(None)
    return answer
