"""A store directory goes to and fro between us and RocketMQ's own classes, unclean stops included.

Both sides see every message of the other field by field, in the same queues, by the same keys,
tags and times, and go on writing where the other stopped.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from commitbus.broker.metadata.sqlite_metadata import SqliteMetadata
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.broker.store.check import check_store
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.store_reader import END_OF_TIME_MS
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import Record
from commitbus.indexfile.index_format import KeyKind
from tests.interop.java_program import build_java, run_tool

PROJECT = Path(__file__).with_name("rocketmq_store")
WRITER = Path(__file__).with_name("store_writer.py")
SIZES = ("65536", "2000", "100", "400")
"""Of a log file and a queue file in bytes; slots and entries of an index file."""
HITS_MAX = 100_000
RUN_LIMIT_S = 60

Line: TypeAlias = dict[str, Any]
"""What one of the two programs says about one thing."""
IndexKey: TypeAlias = tuple[str, str, str]
"""Topic, KEY or TAG, and the key or tag."""
Original: TypeAlias = Callable[..., list[Line]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def original() -> Original:
    """RocketMQ's side: run `StoreProgram` on a directory and return the lines it prints."""
    java = build_java(PROJECT, "StoreProgram")

    def run(command: str, directory: Path, *name: str) -> list[Line]:
        output = run_tool(*java, command, str(directory), *SIZES, *name)
        return [json.loads(line) for line in output.splitlines()]

    return run


def write_ours(directory: Path, name: str, *, kill: bool = False) -> list[Line]:
    """Let a process of ours write to the store, and stop cleanly or be killed; return its lines."""
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(directory), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        lines: list[Line] = []
        while not lines or lines[-1]["kind"] != "opened":
            lines.append(json.loads(writer.stdout.readline()))
        if kill:
            writer.kill()
        writer.communicate(timeout=RUN_LIMIT_S)
    assert kill or writer.returncode == 0
    return lines


def of_kind(lines: Iterable[Line], kind: str) -> list[Line]:
    """Return the lines of one kind, without their kind."""
    return [
        {k: v for k, v in line.items() if k != "kind"} for line in lines if line["kind"] == kind
    ]


def place(line: Line) -> tuple[str, int, int]:
    """Return topic, queue and queue offset of a message."""
    return line["topic"], line["queueId"], line["queueOffset"]


class Expected:
    """Everything that was acknowledged by either side."""

    def __init__(self) -> None:
        self.messages: list[Line] = []
        self.unclean_starts = 0
        """Of RocketMQ: each indexes the message once more that the last index file ends with which
        it trusts."""

    def add(self, lines: list[Line]) -> None:
        """Add what a program says to have written."""
        self.messages += of_kind(lines, "written")

    def queues(self) -> dict[tuple[str, int], int]:
        """Return the end of each queue; they all begin at 0."""
        return {place(m)[:2]: m["queueOffset"] + 1 for m in self.messages}

    def index(self) -> dict[IndexKey, list[int]]:
        """Return the physical offsets under each key and tag."""
        hits: dict[IndexKey, list[int]] = defaultdict(list)
        for message in self.messages:
            properties = message["properties"]
            for key in (properties["UNIQ_KEY"], *properties.get("KEYS", "").split()):
                hits[message["topic"], "KEY", key].append(message["physicalOffset"])
            if "TAGS" in properties:
                hits[message["topic"], "TAG", properties["TAGS"]].append(message["physicalOffset"])
        return dict(hits)

    def with_times(self) -> list[Line]:
        """Return the messages with the queue offset that their own store timestamp leads to."""
        times: dict[tuple[str, int], list[int]] = defaultdict(list)
        for message in self.messages:
            times[place(message)[:2]].append(message["storeTimestamp"])
        return [
            {**m, "offsetAtStoreTime": bisect_left(times[place(m)[:2]], m["storeTimestamp"])}
            for m in sorted(self.messages, key=place)
        ]


def check_original(lines: list[Line], expected: Expected, *, after_clean_stop: bool) -> None:
    """What RocketMQ found in the store is what was acknowledged, neither less nor more."""
    (store,) = of_kind(lines, "store")
    assert store["clean"] is after_clean_stop
    if expected.messages:
        last = expected.messages[-1]
        assert store["minPhysicalOffset"] == 0
        assert store["maxPhysicalOffset"] == last["physicalOffset"] + last["size"]
    queues = {(q["topic"], q["queueId"]): q for q in of_kind(lines, "queue")}
    assert {key: queue["maxOffset"] for key, queue in queues.items()} == expected.queues()
    assert {queue["minOffset"] for queue in queues.values()} <= {0}
    assert sorted(of_kind(lines, "message"), key=place) == expected.with_times()
    hits = {
        (h["topic"], h["type"], h["key"]): h["physicalOffsets"] for h in of_kind(lines, "index")
    }
    assert {key: sorted(set(offsets)) for key, offsets in hits.items()} == expected.index()
    expected.unclean_starts += not after_clean_stop
    repeated = {at for offsets in hits.values() for at in offsets if offsets.count(at) > 1}
    assert len(repeated) <= expected.unclean_starts


def check_ours(directory: Path, expected: Expected, *, after_clean_stop: bool) -> None:
    """What we find in the store is what was acknowledged, and all of it holds together."""
    with MessageStore.open(directory) as store:
        stop = "a clean" if after_clean_stop else "an unclean"
        assert store.recovery_summary.startswith(f"after {stop} stop")
        assert "torn" not in store.recovery_summary
        last = expected.messages[-1]
        assert store.end_offset == last["physicalOffset"] + last["size"]
        store.dispatched.wait(store.end_offset)
        ends = {key: store.max_offset(*key) for key in store.queues()}
        assert ends == expected.queues()
        found = []
        for (topic, queue_id), end in ends.items():
            units = store.fetch(topic, queue_id, store.min_offset(topic, queue_id), end).units
            for unit in units:
                record = store.read(unit.physical_offset)
                at = store.offset_by_timestamp(topic, queue_id, record.store_timestamp)
                found.append({**line_of(record), "offsetAtStoreTime": at})
        assert sorted(found, key=place) == expected.with_times()
    # The index is filled in the background, and at the latest by the stop.
    with MessageStore.open(directory) as store:
        for (topic, kind, key), offsets in expected.index().items():
            records = store.query_by_key(
                topic, key, 0, END_OF_TIME_MS, HITS_MAX, kind=KeyKind[kind]
            )
            assert sorted(record.physical_offset for record in records) == offsets
    report = check_store(directory)
    assert report.problems == []
    assert report.not_in_index == report.not_in_queue == report.torn_bytes == 0
    assert report.messages == len(expected.messages)


def line_of(record: Record) -> Line:
    """Return a record as the programs print it."""
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "size": record.size_bytes,
        "properties": dict(record.properties),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bodyCrc": record.body_crc,
        "bodySha256": hashlib.sha256(record.body).hexdigest(),
        "bornTimestamp": record.born_timestamp,
        "bornHost": f"{record.born_host.address.hex()}:{record.born_host.port}",
        "storeTimestamp": record.store_timestamp,
        "storeHost": f"{record.store_host.address.hex()}:{record.store_host.port}",
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
    }


OURS: Final[tuple[Line, Line, Line]] = (
    {"name": "TopicOurs", "readQueueNums": 2, "writeQueueNums": 4, "perm": 6,
     "attributes": {"message.type": "DELAY"}},
    {"name": "GroupOurs", "retryMaxTimes": 3, "consumeMessageOrderly": False},
    {"key": "Shared1@GroupOurs", "queueId": 3, "offset": 11},
)  # fmt: skip
"""Topic, group and offset that our writer creates."""


def check_settings_of_rocketmq(directory: Path) -> None:
    """Topic, group and offset that RocketMQ wrote are ours now, beside the ones we had."""
    clock, file_system = SystemClock(), RealFileSystem()
    metadata = SqliteMetadata(directory, clock=clock, file_system=file_system)
    topic, group = metadata.topic("TopicTheirs"), metadata.group("GroupTheirs")
    assert metadata.topic("TopicOurs") is not None
    assert metadata.group("GroupOurs") is not None
    metadata.close()
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (3, 5, 6)
    assert topic.message_type == "FIFO"
    assert group is not None
    assert (group.retry_max_times, group.consume_message_orderly) == (7, True)
    table = ProgressTable(
        directory, SqliteRows(directory, file_system), clock=clock, file_system=file_system
    )
    table.open()
    theirs = table.get("GroupTheirs", "Shared0", 0)
    ours = table.get("GroupOurs", "Shared1", 3)
    table.close()
    assert theirs is not None
    assert ours is not None
    assert (theirs.committed_offset, ours.committed_offset) == (5, 11)


def test_rocketmq_opens_what_we_wrote_and_we_open_what_it_wrote(
    original: Original, tmp_path: Path
) -> None:
    """Clean stops first: us, RocketMQ. Then a kill of ours, and RocketMQ dying in its turn."""
    directory, expected = tmp_path / "store", Expected()
    expected.add(write_ours(directory, "Ours"))

    lines = original("write", directory, "Theirs")
    check_original(lines, expected, after_clean_stop=True)
    for kind, ours in zip(("topic", "group", "offset"), OURS, strict=True):
        assert ours in of_kind(lines, kind)
    assert of_kind(lines, "stopped") == [{"clean": True}]
    expected.add(lines)

    check_ours(directory, expected, after_clean_stop=True)
    check_settings_of_rocketmq(directory)
    expected.add(write_ours(directory, "Killed", kill=True))

    lines = original("halt", directory, "Halted")
    check_original(lines, expected, after_clean_stop=False)
    expected.add(lines)

    check_ours(directory, expected, after_clean_stop=False)
    check_original(original("read", directory), expected, after_clean_stop=True)


def test_we_take_over_from_a_rocketmq_that_died(original: Original, tmp_path: Path) -> None:
    """A store that never had a watermark of ours, and whose queues lack the last messages."""
    directory, expected = tmp_path / "store", Expected()
    expected.add(original("halt", directory, "First"))
    check_ours(directory, expected, after_clean_stop=False)

    expected.add(write_ours(directory, "Ours", kill=True))
    lines = original("write", directory, "Second")
    check_original(lines, expected, after_clean_stop=False)
    expected.add(lines)
    check_ours(directory, expected, after_clean_stop=True)
