"""A trio run in a thread of its own, for callers that have none."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar, final

import trio

from commitbus.broker.client.errors import ClientClosedError

Result = TypeVar("Result")


@final
class ClientLoop:
    """A trio run in a thread of its own, in which one client is open."""

    def __init__(self, client: AbstractAsyncContextManager[object]) -> None:
        """Start it. Raises what entering the client raises."""
        self._client = client
        self._token: trio.lowlevel.TrioToken
        self._stop: trio.Event
        self._discards = False
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commitbus-client", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._raise_failure()

    def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run something in the loop and wait for it.

        Raises:
            ClientClosedError: The loop has ended, or ends meanwhile.
        """
        try:
            return trio.from_thread.run(work, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise ClientClosedError from None

    def soon(self, work: Callable[[], object]) -> None:
        """Run something in the loop."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(work)

    def stop(self, *, discard: bool) -> None:
        """Leave the client and end the thread; `discard`: as if an exception had left it."""
        self._discards = discard
        self.soon(self._stop_now)
        self._thread.join()
        self._raise_failure()

    def _stop_now(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._failure = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        with suppress(_DiscardError):
            async with self._client:
                self._ready.set()
                await self._stop.wait()
                if self._discards:
                    raise _DiscardError

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


@final
class _DiscardError(Exception):
    """Leaves the client's block without waiting for acknowledgements."""
