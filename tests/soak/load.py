"""What all clients of one broker share."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final, final

import grpc.aio

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.soak.client import FAILURES, Client
from tests.soak.messages import number_of, tag_of
from tests.soak.recorder import Recorder
from tests.soak.server import Server

RETRY_S: Final = 0.1


@final
class Load:
    """The broker, what is recorded of it, and when what ends."""

    def __init__(self, server: Server, seed: int, *, is_killed: bool) -> None:
        self.server, self.recorder = server, Recorder()
        self.sending_ends = threading.Event()
        self.settling = threading.Event()
        """From now on everything is acknowledged at once."""
        self.ends = threading.Event()
        self._seed, self._is_killed = seed, is_killed

    def choice(self, name: str) -> random.Random:
        """Return a source of numbers that are the same with each run of a seed."""
        return random.Random(f"{self._seed} {name}")  # noqa: S311 - repeatable, not secret

    def client(self, name: str, *, over_tls: bool = False) -> Client:
        """Return a new connection; over TLS where the broker knows it."""
        return Client(self.server.endpoint, name, self.server.trusted if over_tls else None)

    async def repeat(
        self, what: str, until: threading.Event, step: Callable[[], Awaitable[object]]
    ) -> None:
        """Do something again and again. A call without an answer is a failure, unless we kill."""
        while not until.is_set():
            try:
                await step()
            except FAILURES as error:
                code = error.code().name if isinstance(error, grpc.aio.AioRpcError) else "OVERDUE"
                self.recorder.count(f"calls {code}")
                if not self._is_killed:
                    self.recorder.fail(f"{what}: no answer: {error!r}")
                await asyncio.sleep(RETRY_S)

    def refused(self, what: str, status: pb.Status) -> bool:
        """Return whether a request was refused, which is a failure: all of ours are right."""
        if status.code == pb.OK:
            return False
        self.recorder.fail(f"{what}: {pb.Code.Name(status.code)}: {status.message}")
        return True

    def number_of(self, who: str, message: pb.Message) -> int | None:
        """Return whose message this is; None, and a failure, if it is none that was sent."""
        number = number_of(message.body)
        place = message.system_properties
        if number is None or place.tag != tag_of(number):
            where = f"{message.topic.name}, queue {place.queue_id}, offset {place.queue_offset}"
            self.recorder.fail(f"{who}: not what was sent: {place.message_id} at {where}")
            return None
        return number


@final
class Pace:
    """So many messages a second; what a slow moment missed is made up for one second only."""

    def __init__(self, rate: float) -> None:
        self._rate, self._next_s = rate, time.monotonic()

    def delay_s(self, count: int) -> float:
        """Return how long to wait after so many messages."""
        now_s = time.monotonic()
        self._next_s = max(self._next_s + count / self._rate, now_s - 1)
        return max(0.0, self._next_s - now_s)
