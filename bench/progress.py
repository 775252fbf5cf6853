"""What it costs that progress survives: 100 groups that commit in 100 queues each, at a rate."""

from __future__ import annotations

import tempfile
import threading
import time
from itertools import count
from pathlib import Path
from typing import Final

import trio

from bench.handlers import OK, SHORT, call_of, in_a_broker
from bench.measure import Row
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.progress.changes import Reset
from commitbus.broker.progress.journal import (
    JOURNAL_BYTES_DEFAULT,
    JournalMark,
    ProgressJournal,
)
from commitbus.broker.rpc.exchange import begin
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import Host, OutgoingMessage

GROUPS: Final = 100
QUEUES: Final = 100
MESSAGES: Final = 10
"""In each queue; a group that has committed them all begins anew."""
COMMITS_PER_S: Final = 30_000
"""Each queue of each group three times. Pull consumers of RocketMQ commit every five seconds."""
SECONDS: Final = 10.0
"""Twice as long as from one mirror of the offsets to the next."""
SLICE_S: Final = 0.005
SAVER: Final = "sqlite progress.db"


def commits() -> list[Row]:
    """Commit every queue of every group several times a second with UpdateOffset."""
    return in_a_broker(measure_commits)


async def measure_commits(context: MessagingContext, methods: dict[str, Method]) -> list[Row]:
    """Return what saving takes of a core, by the CPU time of the thread that does it."""
    method = methods["UpdateOffset"]
    requests = await prepare(context)
    call = call_of(method)
    numbers = count()

    def commit(commits: int) -> None:
        for _ in range(commits):
            number = next(numbers)
            request = requests[number % len(requests)]
            request.offset = (number // len(requests)) % MESSAGES + 1
            answer = begin(method, call, (request, call))
            assert isinstance(answer, bytes)
            assert OK in answer[:SHORT], pb.UpdateOffsetResponse.FromString(answer)

    commit(len(requests))  # begins the progress of each
    await trio.to_thread.run_sync(context.progress.save)
    saver, own, began_s = saver_cpu_s(), time.thread_time(), time.perf_counter()
    done = 0
    while (elapsed := time.perf_counter() - began_s) < SECONDS:
        due = int(elapsed * COMMITS_PER_S)
        commit(due - done)
        done = due
        await trio.sleep(SLICE_S)
    rate, share = done / elapsed, (saver_cpu_s() - saver) / elapsed
    own_us = (time.thread_time() - own) / done * 1e6
    append_us = journal_append_us()
    journal = rate * append_us / 1e6
    note = (
        f"{rate:,.0f} commits/s; journal {journal * 100:.1f}, {append_us:.1f} us each; the rest "
        f"SQLite and the mirror. UpdateOffset {own_us:.1f} us each, the journal included"
    )
    name = f"{GROUPS} groups x {QUEUES} queues commit, saving"
    return [(name, "% of a core", (share + journal) * 100, note)]


async def prepare(context: MessagingContext) -> list[pb.UpdateOffsetRequest]:
    """Make the topic, its messages and the groups; return a request for each commit of a round."""
    await context.metadata.put_topic(
        TopicConfig("Bench", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
    )
    host = Host(b"\x7f\0\0\1", 40000)
    context.store.put_batch(
        [
            OutgoingMessage("Bench", queue_id, b"x", b"", 0, host)
            for queue_id in range(QUEUES)
            for _ in range(MESSAGES)
        ]
    )
    end = context.store.end_offset
    assert await trio.to_thread.run_sync(context.store.dispatched.wait, end, 60)
    requests = []
    for number in range(GROUPS):
        await context.group(f"group-{number}")
        for queue_id in range(QUEUES):
            request = pb.UpdateOffsetRequest()
            request.group.name = f"group-{number}"
            request.message_queue.topic.name, request.message_queue.id = "Bench", queue_id
            requests.append(request)
    return requests


def saver_cpu_s() -> float:
    """Return the CPU time of the thread that saves progress."""
    (saver,) = (thread for thread in threading.enumerate() if thread.name == SAVER)
    assert saver.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(saver.ident))


def journal_append_us() -> float:
    """Return the CPU time of writing one commit to a journal."""
    with tempfile.TemporaryDirectory(prefix="commitbus-bench-") as directory:
        path = Path(directory, "progress.journal")
        journal = ProgressJournal(path, JOURNAL_BYTES_DEFAULT, file_system=RealFileSystem())
        journal.start(JournalMark(1, 0, 0))
        begin = time.thread_time()
        for offset in range(COMMITS_PER_S):
            kind, payload = Reset(offset).encode()
            journal.append(kind, 1, payload)
        seconds = time.thread_time() - begin
        journal.close()
    return seconds / COMMITS_PER_S * 1e6
