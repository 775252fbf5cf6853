"""What happens to a broker under load: it is watched, perhaps killed, and left alone in the end."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Final, final

from commitbus.broker.cli.admin_client import AdminClient
from tests.soak import resources
from tests.soak.load import Load
from tests.soak.messages import GROUPS
from tests.soak.server import BrokerDiedError

SETTLE_S: Final = 120
SAMPLES_MAX: Final = 2000
SAMPLE_S: Final = 3.0
SAY_S: Final = 30.0


@final
@dataclass(frozen=True, slots=True)
class Options:
    """What is run."""

    seconds: float
    rate: float
    """Messages a second."""
    seed: int
    kill_every_s: float | None = None
    flush: str = "async"
    log_file_bytes: int = 16 << 20


async def reign(load: Load, options: Options) -> None:
    """Let the clients work until the time is over, then until all is acknowledged."""
    if options.kill_every_s is None:
        await asyncio.sleep(options.seconds)
    else:
        await _kill_again_and_again(load, options.seconds, options.kill_every_s)
    load.sending_ends.set()
    load.settling.set()
    await _settle(load)
    load.ends.set()


async def watch(load: Load, options: Options, samples: list[resources.Sample]) -> None:
    """Look at the process every few seconds, and say now and then how far we are.

    Raises:
        BrokerDiedError, OSError: It is gone, and we did not kill it.
    """
    server, began_s = load.server, time.monotonic()
    every_s, said_s = max(min(SAMPLE_S, options.seconds / 20), options.seconds / SAMPLES_MAX), 0.0
    while True:
        await asyncio.sleep(every_s)
        at_s = time.monotonic() - began_s
        try:
            samples.append(resources.sample(server.pid, server.store, at_s))
        except (BrokerDiedError, OSError):
            if options.kill_every_s is None:
                raise
        if at_s - said_s >= SAY_S and samples:
            said_s, counts = at_s, load.recorder.counts
            sys.stderr.write(
                f"{at_s:.0f} s: {counts['sent']} sent, {counts['acked']} acknowledged, "
                f"{counts['failures']} failures, {samples[-1].memory_mb:.0f} MB\n"
            )


async def _kill_again_and_again(load: Load, seconds: float, every_s: float) -> None:
    """Kill and start; one start in four is killed too, maybe while it recovers."""
    choice, server, ends_s = load.choice("kills"), load.server, time.monotonic() + seconds
    while time.monotonic() < ends_s:
        await asyncio.sleep(every_s * choice.uniform(0.5, 1.5))
        server.kill()
        server.start()
        if choice.random() < 0.25:
            await asyncio.sleep(choice.uniform(0, 1))
            server.kill()
            load.recorder.count("kills")
            server.start()
        await asyncio.to_thread(server.wait_ready)
        load.recorder.count("kills")


async def _settle(load: Load) -> None:
    """Wait until no group has anything to receive or to acknowledge."""
    deadline_s = time.monotonic() + SETTLE_S
    while left := await asyncio.to_thread(_unsettled, load.server.endpoint):
        if time.monotonic() > deadline_s:
            load.recorder.fail(f"never acknowledged within {SETTLE_S} s: {left}")
            return
        await asyncio.sleep(0.5)


def _unsettled(endpoint: str) -> list[str]:
    with AdminClient(endpoint) as client:
        return [
            f"{group.name}, queue {queue.queue_id}: at {queue.consumer_offset} of "
            f"{queue.broker_offset}, {queue.inflight} in flight"
            for group in GROUPS
            for queue in client.consumer_progress(group.name, group.topic).queues
            if queue.consumer_offset != queue.broker_offset or queue.inflight
        ]
