"""Redis Streams: a server of the distribution, driven with redis-py."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.peers.jvm import PeerMissingError
from bench.peers.rocketmq import free_ports
from bench.python_side import BODY, Client, closed_loop, need_module

STREAM: Final = "bench"
PIPELINE: Final = 1000
START_LIMIT_S: Final = 20


class Redis:
    """Starts it.

    Raises:
        PeerMissingError: There is no redis-server or no redis-py.
    """

    name: Final = "Redis"

    def __init__(self) -> None:
        if shutil.which("redis-server") is None:
            raise PeerMissingError("redis-server is missing: apt install redis-server")
        need_module("redis", "redis[hiredis]")

    @property
    def remark(self) -> str:
        """How it is set up."""
        version = subprocess.run(["redis-server", "--version"], capture_output=True, text=True,
                                 check=True).stdout.split()[2]  # fmt: skip
        return (
            f"Redis {version}, redis-py: XADD to one stream, pipelines of {PIPELINE} at full rate, "
            f"XREAD of {PIPELINE}; its default keeps messages in memory only, fsync is "
            "appendfsync always."
        )

    @contextmanager
    def start(self, directory: Path, *, fsync: bool) -> Iterator[Client]:
        """As the protocol says."""
        (port,) = free_ports(1)
        durable = ["--appendonly", "yes", "--appendfsync", "always"] if fsync else []
        with subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1",
             "--dir", str(directory), *durable],
            stdout=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                client = RedisClient(port)
                client.until_ready()
                yield client
            finally:
                process.kill()


class RedisClient:
    """redis-py, with a connection for each task that awaits."""

    def __init__(self, port: int) -> None:
        import redis  # noqa: PLC0415 - an option, which other benchmarks do not need

        self._port = port
        self._redis: Any = redis.Redis(port=port)

    def until_ready(self) -> None:
        """Wait until the server answers."""
        import redis  # noqa: PLC0415 - as above

        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self._redis.ping()
            except redis.exceptions.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def awaited(self, tasks: int, seconds: float) -> float:
        """As the protocol says."""
        return asyncio.run(self._awaited(tasks, seconds))

    async def _awaited(self, tasks: int, seconds: float) -> float:
        import redis.asyncio  # noqa: PLC0415 - as above

        async with redis.asyncio.Redis(port=self._port, max_connections=tasks) as client:
            return await closed_loop(lambda: client.xadd(STREAM, {"body": BODY}), tasks, seconds)

    def produce(self, messages: int) -> None:
        """As the protocol says."""
        for _ in range(messages // PIPELINE):
            pipeline = self._redis.pipeline(transaction=False)
            for _ in range(PIPELINE):
                pipeline.xadd(STREAM, {"body": BODY})
            pipeline.execute()

    def consume(self, messages: int) -> None:
        """As the protocol says."""
        last, seen = "0", 0
        while seen < messages:
            ((_, entries),) = self._redis.xread({STREAM: last}, count=PIPELINE)
            assert entries[0][1][b"body"] == BODY
            last = entries[-1][0]
            seen += len(entries)
