"""Create, fill and delete 100 topics, again and again, beside a load and the broker's checkpoints.

python -m tests.soak.deleted_topics --minutes 10

It prints a JSON summary and exits with 1 if something was not as it must be: the broker ends or
logs an error, a topic that is made again does not go on at the queue offsets where it ended, the
check finds something, or memory, descriptors or threads grow.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.client import SyncProducer
from commitbus.broker.config import Transport
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin
from commitbus.broker.store.check import check_store
from tests.soak import resources
from tests.soak.server import Server

TOPICS: Final = 100
AT_A_TIME: Final = 20
"""Topics that are there together; what the broker holds is looked at when they are gone."""
QUEUES: Final = 2
MESSAGES: Final = 4
"""To each topic, each time it is made."""
LOAD_TOPIC: Final = "load"
LOAD_PAUSE_S: Final = 0.005
LOG_FILE_BYTES: Final = 128 << 20
"""Each log file takes a descriptor, up to a limit; what is looked for here are those of queues."""
KERNELS: Final = "python"
"""The compiled ones take 40 MB once they are loaded, after 50,000 messages."""


def run(directory: Path, seconds: float, *, flush: str = "sync") -> dict[str, Any]:
    """Run a broker and do it all for some seconds; return the summary, with its failures."""
    server = Server(
        directory, Transport.TRIO, flush=flush, log_file_bytes=LOG_FILE_BYTES, kernels=KERNELS
    )
    failures: list[str] = []
    samples: list[resources.Sample] = []
    ends = threading.Event()
    sent = [0]
    rounds = 0
    server.start()
    try:
        server.wait_ready()
        with AdminClient(server.endpoint) as client:
            _put_topic(client, LOAD_TOPIC)
        load = threading.Thread(target=_load, args=(server.endpoint, ends, sent, failures))
        load.start()
        began_s = time.monotonic()
        try:
            with AdminClient(server.endpoint) as client:
                while not failures and time.monotonic() - began_s < seconds:
                    for first in range(0, TOPICS, AT_A_TIME):
                        failures += _come_and_go(client, first, rounds)
                        at_s = time.monotonic() - began_s
                        samples.append(resources.sample(server.pid, server.store, at_s))
                    rounds += 1
        finally:
            ends.set()
            load.join()
        if status := server.stop():
            failures.append(f"the broker's exit status is {status}")
    except Exception as error:  # noqa: BLE001 - the summary says what it was
        failures.append(f"ended early: {error!r}")
    finally:
        server.kill()
    failures += server.alarms()[:5] + resources.growth(samples, of_store=True)
    report = check_store(server.store)
    failures += [str(problem) for problem in report.problems[:5]]
    return {
        "seconds": seconds,
        "flush": flush,
        "rounds": rounds,
        "topics_deleted": rounds * TOPICS,
        "load_messages": sent[0],
        "process": resources.summary(samples),
        "failures": failures,
    }


def _put_topic(client: AdminClient, name: str) -> None:
    client.put_topic(
        admin.PutTopicRequest(name=name, write_queue_nums=QUEUES, read_queue_nums=QUEUES)
    )


def _come_and_go(client: AdminClient, first: int, rounds: int) -> list[str]:
    """Make some topics, fill them, look at them, delete them; return what was wrong."""
    names = [f"topic-{number}" for number in range(first, first + AT_A_TIME)]
    expected = (rounds + 1) * MESSAGES
    for name in names:
        _put_topic(client, name)
        for _ in range(MESSAGES):
            client.send(admin.SendMessageRequest(topic=name, body=b"body"))
    wrong = []
    for name in names:
        ends = sum(queue.max_offset for queue in client.topic_status(name).queues)
        if ends != expected:
            wrong.append(f"the queues of {name} end at {ends} together, not at {expected}")
        client.delete_topic(name)
    return wrong


def _load(endpoint: str, ends: threading.Event, sent: list[int], failures: list[str]) -> None:
    try:
        with SyncProducer(endpoint) as producer:
            while not ends.wait(LOAD_PAUSE_S):
                producer.produce(b"x" * 500, topic=LOAD_TOPIC)
                sent[0] += 1
    except Exception as error:  # noqa: BLE001 - the summary says what it was
        failures.append(f"the load ended: {error!r}")


def main() -> int:
    """Run what the arguments say; return 1 if anything was not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.deleted_topics")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--flush", choices=["sync", "async"], default="sync")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="commitbus-topics-"))
    summary = run(directory, arguments.minutes * 60, flush=arguments.flush)
    print(json.dumps(summary, indent=2))  # noqa: T201 - a command, whose output this is
    if summary["failures"]:
        sys.stderr.write(f"failed; the store and the log are in {directory}\n")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
