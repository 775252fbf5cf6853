"""One run: a broker, its clients, perhaps who kills it, and the verdict."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.cli.output import CommandError
from commitbus.broker.client import ClientError
from commitbus.broker.config import Transport
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin
from commitbus.broker.store.check import check_store
from tests.soak import bulk, resources, visitors, workers
from tests.soak.load import Load
from tests.soak.messages import GROUPS, QUIET_TOPIC, TOPICS
from tests.soak.server import BrokerDiedError, Server

CONSUMERS_PER_GROUP: Final = 2
SETTLE_S: Final = 120
SAMPLES_MAX: Final = 2000
SAMPLE_S: Final = 3.0
SAY_S: Final = 30.0
SHARES: Final = {"orders": 0.3, "events": 0.2, "bulk": 0.5}
"""Of the messages that are sent. The bulk client's cost a tenth of the others."""


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
    log_file_bytes: int = 64 << 20


async def run(directory: Path, transport: Transport, options: Options) -> dict[str, Any]:
    """Load a broker, check what its clients saw and what it left behind; return the summary."""
    server = Server(
        directory, transport, flush=options.flush, log_file_bytes=options.log_file_bytes
    )
    load = Load(server, options.seed, is_killed=options.kill_every_s is not None)
    samples: list[resources.Sample] = []
    try:
        server.start()
        await asyncio.to_thread(server.wait_ready)
        await asyncio.to_thread(_put_topics, server.endpoint)
        # A client that fails ends the others; threads end by what is set here.
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(_watch(load, options, samples))
                for each in _clients(load, options.rate):
                    tasks.create_task(_awaited(each))
                await _reign(load, options)
                watching.cancel()
        finally:
            for event in (load.sending_ends, load.settling, load.ends):
                event.set()
        await _close(load)
    except* (BrokerDiedError, OSError, ClientError, CommandError) as group:
        load.recorder.fail(f"ended early: {group.exceptions}")
    finally:
        server.kill()
    return _summary(load, transport, options, samples)


async def _awaited(work: Awaitable[None]) -> None:
    await work


def _clients(load: Load, rate: float) -> list[Awaitable[None]]:
    consumers = [
        workers.Consumer(load, group, f"{group.name}-{number}")
        for group in GROUPS
        for number in range(CONSUMERS_PER_GROUP)
    ]
    return [
        *(workers.send(load, topic, rate * SHARES[topic]) for topic in ("orders", "events")),
        *(consumer.run() for consumer in consumers),
        *(visit(load) for visit in (visitors.give_up_polls, visitors.introduce, visitors.connect)),
        asyncio.to_thread(bulk.produce, load, rate * SHARES[bulk.TOPIC]),
        asyncio.to_thread(bulk.fetch, load),
    ]


async def _reign(load: Load, options: Options) -> None:
    """Let the clients work until the time is over, then until all is acknowledged."""
    if options.kill_every_s is None:
        await asyncio.sleep(options.seconds)
    else:
        await _kill_again_and_again(load, options.seconds, options.kill_every_s)
    load.sending_ends.set()
    load.settling.set()
    await _settle(load)
    load.ends.set()


async def _watch(load: Load, options: Options, samples: list[resources.Sample]) -> None:
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


async def _close(load: Load) -> None:
    """Stop the broker, and hold what was seen against what it promises and what it leaves."""
    dead = {group: await asyncio.to_thread(bulk.dead_letters, load, group) for group in GROUPS}
    load.recorder.count("dead letters", sum(map(len, dead.values())))
    status = await asyncio.to_thread(load.server.stop)
    if status:
        load.recorder.fail(f"the broker's exit status is {status}")
    load.recorder.check(dead)


def _summary(
    load: Load, transport: Transport, options: Options, samples: list[resources.Sample]
) -> dict[str, Any]:
    recorder = load.recorder
    if options.kill_every_s is None:
        for grown in resources.growth(samples):
            recorder.fail(grown)
    for line in load.server.alarms():
        recorder.fail(f"logged: {line}")
    report = check_store(load.server.store)
    if not report.is_sound or not report.was_closed_cleanly:
        recorder.fail(f"commitbus check: {[str(problem) for problem in report.problems]}")
    if report.log_begin:
        recorder.fail(f"retention deleted what lay before {report.log_begin}")
    return {
        "transport": str(transport),
        "seconds": options.seconds,
        "rate": options.rate,
        "seed": options.seed,
        "kill_every_s": options.kill_every_s,
        "flush": options.flush,
        "counts": dict(sorted(recorder.counts.items())),
        # Of processes that are killed all the time quarters say nothing.
        "process": resources.summary(samples) if options.kill_every_s is None else None,
        "store": {"messages": report.messages, "log_files": report.log_files},
        "failures": recorder.failures,
        "passed": not recorder.failures,
    }


def _put_topics(endpoint: str) -> None:
    with AdminClient(endpoint) as client:
        for name, queues in {**TOPICS, QUIET_TOPIC: 1}.items():
            client.put_topic(
                admin.PutTopicRequest(name=name, write_queue_nums=queues, read_queue_nums=queues)
            )
