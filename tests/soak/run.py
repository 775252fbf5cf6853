"""One run: a broker, its clients, perhaps who kills it, and the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Final

from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.cli.output import CommandError
from commitbus.broker.client import ClientError
from commitbus.broker.config import Transport
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin
from commitbus.broker.store.check import check_store
from tests.soak import bulk, resources, visitors, workers
from tests.soak.load import Load
from tests.soak.messages import GROUPS, QUIET_TOPIC, TOPICS
from tests.soak.reign import Options, reign, watch
from tests.soak.server import BrokerDiedError, Server

CONSUMERS_PER_GROUP: Final = 2
ALARMS_SHOWN_MAX: Final = 5
SHARES: Final = {"orders": 0.3, "events": 0.2, "bulk": 0.5}
"""Of the messages that are sent. The bulk client's cost a tenth of the others."""


async def side_by_side(
    directory: Path, transports: Sequence[Transport], options: Options
) -> list[dict[str, Any]]:
    """Run a broker over each transport, all at the same time; return their summaries."""
    places = [directory / transport for transport in transports]
    for place in places:
        place.mkdir()
    runs = (run(place, each, options) for place, each in zip(places, transports, strict=True))
    return list(await asyncio.gather(*runs))


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
                watching = tasks.create_task(watch(load, options, samples))
                for each in _clients(load, options.rate):
                    tasks.create_task(_awaited(each))
                await reign(load, options)
                watching.cancel()
        finally:
            for event in (load.sending_ends, load.settling, load.ends):
                event.set()
        await _close(load)
    except* (BrokerDiedError, OSError, ClientError, CommandError) as group:
        load.recorder.fail(f"ended early: {group.exceptions}")
    finally:
        server.kill()
    # Reading a store takes a while, and the other broker's clients go on.
    return await asyncio.to_thread(_summary, load, transport, options, samples)


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
    # First, because of what clients saw only so much is listed.
    failures = load.server.alarms()[:ALARMS_SHOWN_MAX]
    if options.kill_every_s is None:
        failures += resources.growth(samples)
    report = check_store(load.server.store)
    if not report.is_sound or not report.was_closed_cleanly:
        failures.append(f"commitbus check: {[str(problem) for problem in report.problems]}")
    if report.log_begin:
        failures.append(f"retention deleted what lay before {report.log_begin}")
    failures += recorder.failures
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
        "failures": failures,
        "passed": not failures,
    }


def _put_topics(endpoint: str) -> None:
    with AdminClient(endpoint) as client:
        for name, queues in {**TOPICS, QUIET_TOPIC: 1}.items():
            client.put_topic(
                admin.PutTopicRequest(name=name, write_queue_nums=queues, read_queue_nums=queues)
            )
