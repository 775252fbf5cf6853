"""Watches the broker: its memory, and whether health checks and operators are answered."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, final

from tests.attacks import protobuf, requests
from tests.attacks.connection import Connection
from tests.attacks.server import Server

_MEMORY_S: Final = 0.05
_HEALTH_S: Final = 0.5
_ADMIN_S: Final = 1.0
_MQADMIN_S: Final = 10.0
ANSWER_S_MAX: Final = 5.0
"""A probe without an answer by then has failed."""
MQADMIN_S_MAX: Final = 20.0
"""With its start, on a machine that is busy."""


@final
@dataclass(slots=True)
class Probe:
    """What became of one kind of probe."""

    answers_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@final
class Watcher:
    """Threads, from `__enter__` to `__exit__`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ends = threading.Event()
        self.memory: list[tuple[float, float]] = []
        """When, on the monotonic clock, and anonymous memory in MB."""
        self.probes = {"health": Probe(), "admin": Probe(), "mqadmin": Probe()}
        self._threads = [
            threading.Thread(target=self._repeat, args=each)
            for each in (
                (_MEMORY_S, self._look_at_memory),
                (_HEALTH_S, lambda: self._probe("health", self._check_health)),
                (_ADMIN_S, lambda: self._probe("admin", self._ask_for_broker)),
                (_MQADMIN_S, lambda: self._probe("mqadmin", self._run_mqadmin)),
            )
        ]

    def __enter__(self) -> Self:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End, after the probes that are under way."""
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def peak_mb(self, since_s: float = 0.0) -> float:
        """Return the most anonymous memory that was seen since then, in MB."""
        return max((size for at_s, size in self.memory if at_s >= since_s), default=0.0)

    def _repeat(self, every_s: float, step: Callable[[], None]) -> None:
        while not self._ends.wait(every_s):
            step()

    def _look_at_memory(self) -> None:
        try:
            status = Path("/proc", str(self._server.pid), "status").read_text()
        except OSError:
            return
        for line in status.splitlines():
            if line.startswith("RssAnon:"):
                self.memory.append((time.monotonic(), int(line.split()[1]) / 1024))

    def _probe(self, kind: str, check: Callable[[], str]) -> None:
        start_s = time.monotonic()
        try:
            trouble = check()
        except (OSError, subprocess.TimeoutExpired) as error:
            trouble = f"{type(error).__name__}: {error}"
        took_s, probe = time.monotonic() - start_s, self.probes[kind]
        probe.answers_s.append(took_s)
        if trouble:
            probe.failures.append(f"{trouble} after {took_s:.1f} s")

    # Each on a connection of its own: probes and operators come when something is wrong.

    def _check_health(self) -> str:
        with self._connect() as connection:
            answer = connection.call(requests.HEALTH_CHECK, b"")
        messages = answer.messages()
        is_serving = bool(messages) and protobuf.first(messages[0], 1) == requests.SERVING
        return "" if is_serving else answer.outcome()

    def _ask_for_broker(self) -> str:
        with self._connect() as connection:
            answer = connection.call(requests.ADMIN + "GetBroker", b"")
        return "" if answer.status == 0 else answer.outcome()

    def _run_mqadmin(self) -> str:
        done = self._server.mqadmin("clusterList", MQADMIN_S_MAX)
        return "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr[-300:]}"

    def _connect(self) -> Connection:
        return Connection(("127.0.0.1", self._server.port), timeout_s=ANSWER_S_MAX)
