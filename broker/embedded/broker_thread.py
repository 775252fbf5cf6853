"""The thread that an embedded broker runs on, safe against Ctrl-C and fork.

Ctrl-C raises KeyboardInterrupt in the main thread, between any two lines. So whatever has to be
undone is made and undone on the broker's thread, where it never happens; the caller's thread only
asks and waits. It waits for plain locks: after an interrupted `Thread.join` a running thread counts
as stopped (CPython 3.11), and an interrupted `Event.wait` may leave its condition without its lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, final

import trio

from commitbus.broker.config import BrokerConfig
from commitbus.broker.embedded.temporary_store import temporary_store
from commitbus.broker.embedded.virtual_clock import VirtualClock
from commitbus.broker.server import RunningBroker, run_broker

T = TypeVar("T")

FORGOTTEN_WAIT_S: Final = 10.0


@final
class BrokerError(RuntimeError):
    """The embedded broker refuses, or cannot do, what it was asked for."""


@final
class BrokerThread:
    """One run of a broker. It has no reference to the `Broker` object, which may be collected.

    Args:
        directory: the store; a temporary one if None.
        settings: changes of the default configuration.
        clock: the broker's time.
    """

    def __init__(
        self, directory: Path | None, settings: dict[str, object], clock: VirtualClock
    ) -> None:
        self._directory, self._settings, self._clock = directory, settings, clock
        self.process: Final = os.getpid()
        self._caller = threading.get_ident()
        self.running: RunningBroker | None = None
        """Set once the broker takes calls."""
        self._failure: BaseException | None = None
        self._guard = threading.Lock()
        self._is_begun = self._stops = False
        self._stop: trio.Event | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        # Locks that are released when the event of their name has happened.
        self._started, self._ended = threading.Lock(), threading.Lock()
        self._started.acquire()
        self._ended.acquire()
        self._thread = threading.Thread(target=self._work, name="commitbus-broker", daemon=True)

    def start(self) -> None:
        """Start the broker and wait until it takes calls.

        Raises:
            StoreError: the store cannot be opened.
            ListenError: the address cannot be listened on.
            ConfigError: a setting cannot be used.
        """
        self._thread.start()
        with self._started:
            pass
        self._raise_failure()

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a forked child, in which the thread does not exist."""
        return os.getpid() != self.process

    @property
    def directory(self) -> Path:
        """The store."""
        assert self._directory is not None, "the broker has started"
        return self._directory

    def stop(self) -> None:
        """Stop the broker, wait for the end of the thread.

        It may be called again after an interruption. In a forked child it
        does nothing.

        Raises:
            StoreError: the store failed, while the broker ran or while it was closed.
        """
        if self.is_elsewhere or not self._request_stop():
            return
        with self._ended:
            pass
        # It is about to return; joined, it is not among `threading.enumerate()` any more.
        self._thread.join()
        self._raise_failure()

    def stop_unreferenced(self) -> None:
        """Stop a broker whose object was garbage-collected."""
        if self.is_elsewhere or not self._ended.locked() or not self._request_stop():
            return
        # On any other thread, such as one of the broker's, waiting might be waiting for itself.
        if threading.get_ident() == self._caller:
            self._ended.acquire(timeout=FORGOTTEN_WAIT_S)
        warnings.warn("a Broker was never stopped", ResourceWarning, stacklevel=2)

    def run(self, function: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Call an async function on the broker's thread and return its result.

        Raises:
            BrokerError: the broker is stopped, or was started by the process that this one was
                forked from.
        """
        if self.is_elsewhere:
            raise BrokerError(
                f"the broker runs in process {self.process}, which this one was forked from: "
                "here it can be reached through its endpoint only"
            )
        try:
            return trio.from_thread.run(function, *arguments, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise BrokerError("the broker is stopped") from None

    def _request_stop(self) -> bool:
        """Ask for the end; return False if there is none, because nothing was begun."""
        with self._guard:
            self._stops = True
            if not self._is_begun:
                return False
            token, stop = self._token, self._stop
        if token is not None and stop is not None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(stop.set)
        return True

    # On the thread

    def _work(self) -> None:
        with self._guard:
            # The start was interrupted before this thread ran: no caller waits for it.
            if self._stops:
                return
            self._is_begun = True
        try:
            with contextlib.ExitStack() as resources:
                if self._directory is None:
                    self._directory = resources.enter_context(temporary_store())
                config = BrokerConfig().with_changes(
                    {**self._settings, "store_directory": self._directory}
                )
                trio.run(self._main, config, clock=self._clock)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._failure = error
        finally:
            if self.running is None:
                self._started.release()
            self._ended.release()

    async def _main(self, config: BrokerConfig) -> None:
        stop = trio.Event()
        with self._guard:
            self._token, self._stop = trio.lowlevel.current_trio_token(), stop
            if self._stops:
                return
        async with trio.open_nursery() as nursery:
            run = partial(run_broker, clock=self._clock, is_patient=True)
            self.running = await nursery.start(run, config, stop)
            self._started.release()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        # Nurseries wrap exceptions in groups, mostly of one.
        while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
            failure = failure.exceptions[0]
        if failure is not None:
            raise failure
