"""`kill -9` of the broker, again and again, while a producer sends: nothing lost, nothing twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

from commitbus.broker.client import (
    ClientError,
    Consumer,
    Message,
    Producer,
    ProducerOptions,
    Receipt,
)
from commitbus.broker.store.check import check_store

SERVE = "import sys; from commitbus.broker.cli.main import main; sys.exit(main())"
KILLS = 4
WITHIN_S = 240
"""Starting a broker anew takes seconds on a machine that is busy."""
TOPIC = "storm"
QUEUE = 0
# Small, so that logs roll and queues grow files between two kills.
CONFIG = """
log_file_bytes = 262144
max_body_bytes = 65536
queue_file_bytes = 4000
index_slots = 500
index_entries = 2000
"""


class Victim:
    """A broker process that is killed and started again on the same port."""

    def __init__(self, directory: Path, transport: str, flush: str) -> None:
        self.store = directory / "store"
        config = directory / "broker.toml"
        config.write_text(CONFIG)
        self._options = ["--config", str(config), "--store", str(self.store)]
        self._options += ["--transport", transport, "--flush", flush, "--auto-create-topics"]
        self.endpoint = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, "serve", "--listen", self.endpoint, *self._options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        ready = next(line for line in self._process.stdout if line.startswith("listening on "))
        self.endpoint = ready.removeprefix("listening on ").strip()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()


class Storm:
    """Sends numbered messages while the broker is killed, and keeps what it is told."""

    def __init__(self, victim: Victim) -> None:
        self.victim = victim
        self.sent = 0
        self.receipts: dict[int, Receipt] = {}
        self._acknowledged = trio.Event()

    async def run(self) -> None:
        await trio.to_thread.run_sync(self.victim.start)
        options = ProducerOptions(batch_bytes=1000, connect_timeout_s=30)
        async with (
            Producer(self.victim.endpoint, options) as producer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._send_all, producer)
            for _ in range(KILLS):
                until = len(self.receipts) + 200
                while len(self.receipts) < until:
                    self._acknowledged = trio.Event()
                    await self._acknowledged.wait()
                await trio.to_thread.run_sync(self.victim.kill)
                await trio.to_thread.run_sync(self.victim.start)
            nursery.cancel_scope.cancel()

    async def _send_all(self, producer: Producer) -> None:
        while True:
            told = partial(self._delivered, self.sent)
            body = body_of(self.sent)
            await producer.produce(body, topic=TOPIC, queue_id=QUEUE, on_delivery=told)
            self.sent += 1
            if self.sent % 20 == 0:
                await trio.sleep(0.001)

    def _delivered(self, number: int, error: ClientError | None, receipt: Receipt | None) -> None:
        assert error is None
        assert receipt is not None
        assert number not in self.receipts
        self.receipts[number] = receipt
        self._acknowledged.set()

    async def fetched(self) -> list[Message]:
        """Return what is stored."""
        async with Consumer(self.victim.endpoint, TOPIC, follow=False) as consumer:
            return [message async for message in consumer]


def body_of(number: int) -> bytes:
    return b"%d " % number * 20


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("transport", ["grpcio", "trio"])
def test_every_message_is_stored_once_and_in_order(
    tmp_path: Path, transport: str, flush: str, run: Callable[..., None]
) -> None:
    """Whatever was in flight when the broker died is sent again by sequence."""
    victim = Victim(tmp_path, transport, flush)

    async def main() -> None:
        storm = Storm(victim)
        await storm.run()
        assert sorted(storm.receipts) == list(range(storm.sent))
        messages = await storm.fetched()
        assert [message.body for message in messages] == list(map(body_of, range(storm.sent)))
        assert [message.queue_offset for message in messages] == [
            storm.receipts[number].queue_offset for number in range(storm.sent)
        ]

    try:
        run(main, WITHIN_S)
    finally:
        victim.kill()
    assert check_store(victim.store).problems == []
