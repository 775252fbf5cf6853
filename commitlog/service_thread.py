"""A thread of the store whose death is reported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from commitbus.commitlog.errors import ThreadDiedError
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads

_logger = logging.getLogger(__name__)


@final
class ServiceThread:
    """Runs a service on a thread of its own; an exception that ends it is reported, whatever it is.

    The waiters of a thread that has died would wait for ever. So the service passes the error to
    them, and to the store, which fails.
    """

    __slots__ = ("_name", "_on_death", "_service", "_thread")

    def __init__(
        self,
        name: str,
        service: Callable[[], None],
        on_death: Callable[[ThreadDiedError], None],
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        """Make the thread; it runs `service` from `start` on.

        Args:
            name: The thread's name.
            service: Returns when the service was stopped.
            on_death: Called on the thread, once, if `service` raises.
            threads: Where the thread comes from.
        """
        self._name, self._service, self._on_death = name, service, on_death
        self._thread = threads.thread(self._run, name)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: The system allows no more threads.
        """
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread to end, if it was started. The service must have been stopped."""
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._service()
        except BaseException as cause:
            error = ThreadDiedError(self._name, cause)
            error.__cause__ = cause
            # Before anything else that may fail, as writing to the log may when memory is short.
            self._on_death(error)
            _logger.critical("a thread of the store died", exc_info=cause)
