"""The kernels: what both implementations do, compared with what reads one record at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.index_keys import index_key_texts, key_hash
from commitbus.commitlog.kernels import Kernels, RecordColumns, TopicTable
from commitbus.commitlog.kernels.choice import load_compiled
from commitbus.commitlog.kernels.columns import (
    COLUMNS,
    POSITION,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    SYS_FLAG,
    TOPIC,
)
from commitbus.commitlog.kernels.columns import PROPERTIES as PROPERTIES_ROW
from commitbus.commitlog.kernels.python_kernels import PythonKernels
from commitbus.commitlog.record_format import (
    BLANK_MAGIC_CODE,
    SCHEDULE_TOPIC,
    SIZE_AND_MAGIC,
    CheckedRecord,
    check_record,
    dispatch_request,
)
from commitbus.commitlog.types import DispatchRequest, Host, PhysicalOffset
from commitbus.consumequeue.unit_format import UNIT
from tests.records import encode_record

BASE = 1 << 40
V4 = Host.parse("10.1.2.3", 4567)
V6 = Host.parse("2001:db8::7", 10911)


@cache
def compiled_kernels() -> Kernels | None:
    try:
        return load_compiled()
    except ImportError:
        return None


@pytest.fixture(params=["python", "numba"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Each implementation; the compiled one where it can be."""
    if request.param == "python":
        return PythonKernels()
    compiled = compiled_kernels()
    if compiled is None:
        pytest.skip("numba is not installed")
    return compiled


# Random logs

TEXTS = st.text(
    st.characters(exclude_characters="\0\x01\x02", exclude_categories=["Cs"]), max_size=12
) | st.sampled_from(["", "a", "🦀x", "\U00010000", "k1 k2", "  k  k ", "Zz" * 20, "\uffff"])
TOPICS = (
    TEXTS.filter(bool)
    | st.sampled_from([SCHEDULE_TOPIC, "t", "topic", "T" * 127, "T" * 128, "ü" * 127])
).filter(lambda topic: len(topic.encode()) <= 255)
ITEMS = st.tuples(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TAG", "XTAGS", "", "A\x01TAGS"]), TEXTS
).map(lambda item: f"{item[0]}\x01{item[1]}\x02".encode())
PIECES = ITEMS | st.sampled_from(
    [b"\x02", b"TAGS\x01", b"TAGS", b"KEYS\x01\xff \xed\xa0\x80\x02", b"UNIQ_KEY\x01\xc3\x02",
     b"TAGS\x01\xf0\x9f\xa6\x02", b"DELAY\x013\x02", b"KEYS\x01\xc1\xbf\x02", bytes(511) + b"\x02",
     bytes(512) + b"\x02", b"P\x01" + b"v" * 600 + b"\x02", b"TAGS\x01\xf4\x90\x80\x80\x02"]
)  # fmt: skip
PROPERTIES = st.lists(PIECES, max_size=6).map(b"".join)
RECORDS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "topic": TOPICS,
        "body": st.binary(max_size=40),
        "properties": PROPERTIES,
        "queue_id": st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 2),
        "queue_offset": st.integers(0, (1 << 63) - 1),
        "sys_flag": st.sampled_from([0, 1, 4, 8, 12, 0x100]),
        "born_host": st.sampled_from([V4, V6]),
        "store_host": st.sampled_from([V4, V6]),
        "store_timestamp": st.integers(0, 1 << 45),
        "born_timestamp": st.just(0),
    }
)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Return records, possibly a blank one behind them, and possibly something wrong."""
    data = b""
    for fields in draw(st.lists(RECORDS, max_size=8)):
        data += encode_record(physical_offset=BASE + len(data), **fields)
    if draw(st.booleans()):
        rest = draw(st.integers(8, 200))
        data += SIZE_AND_MAGIC.pack(rest, BLANK_MAGIC_CODE) + bytes(rest - 8)
    data += draw(st.sampled_from([b"", bytes(3), bytes(300), b"noise" * 40]))
    damage = draw(st.sampled_from(["none", "flip", "cut", "zeros", "header"]))
    if damage == "none" or not data:
        return data
    position = draw(st.integers(0, len(data) - 1))
    if damage == "cut":
        return data[:position]
    changed = bytearray(data)
    if damage == "zeros":
        length = min(draw(st.integers(1, 600)), len(data) - position)
        changed[position : position + length] = bytes(length)
    elif damage == "header":
        changed[min(position, 87)] = draw(st.integers(0, 255))
    else:
        changed[position] ^= 1 << draw(st.integers(0, 7))
    return bytes(changed)


def one_by_one(view: memoryview, *, verify_crc: bool) -> Iterator[CheckedRecord]:
    """The oracle."""
    position = 0
    while True:
        try:
            checked = check_record(view, position, BASE + position, verify_crc=verify_crc)
        except CorruptRecordError:
            return
        yield checked
        position = checked[-1]


def scan_all(
    kernels: Kernels, view: memoryview, topics: TopicTable, step: int, *, verify_crc: bool
) -> Iterator[RecordColumns]:
    position = 0
    while True:
        records = kernels.scan(
            view, BASE, position, topics, max_records=step, verify_crc=verify_crc
        )
        if not len(records):
            return
        yield records
        position = records.end


def names(rows: RecordColumns) -> list[tuple[object, ...]]:
    """Return the columns as rows, the topic by its name."""
    found = []
    for position, size, topic, *rest in rows.table.T.tolist():
        found.append((position, size, rows.topics.names[topic], *rest))
    return found


def expected(checked: CheckedRecord) -> tuple[object, ...]:
    size, queue_id, queue_offset, sys_flag, timestamp, topic, _, _, properties, end = checked
    return end - size, size, topic, queue_id, queue_offset, sys_flag, timestamp, properties


@settings(max_examples=200, deadline=None)
@given(data=logs(), step=st.integers(1, 9), verify_crc=st.booleans(), writable=st.booleans())
def test_a_scan_returns_what_checking_each_record_accepts(
    *, data: bytes, step: int, verify_crc: bool, writable: bool
) -> None:
    """All of it, to the first record that is not whole; in steps of any size; and its names."""
    view = memoryview(bytearray(data) if writable else data)
    want = list(one_by_one(view, verify_crc=verify_crc))
    requests = [
        dispatch_request(view, PhysicalOffset(BASE + checked[-1] - checked[0]), checked)
        for checked in want
    ]
    for kernels in filter(None, (PythonKernels(), compiled_kernels())):
        topics = TopicTable()
        batches = list(scan_all(kernels, view, topics, step, verify_crc=verify_crc))
        assert [row for batch in batches for row in names(batch)] == list(map(expected, want))
        check_names(kernels, view, batches, requests)


def check_names(
    kernels: Kernels,
    view: memoryview,
    batches: list[RecordColumns],
    requests: list[DispatchRequest],
) -> None:
    codes, hashes, counts, offsets = [], [], [], []
    for batch in batches:
        columns = kernels.dispatch(view, BASE, batch)
        codes += columns.tags_codes.tolist()
        hashes += columns.key_hashes.tolist()
        counts += columns.key_counts.tolist()
        offsets += columns.physical_offsets.tolist()
        assert columns.end_offset == BASE + batch.end
        assert columns.key_hashes.dtype == np.int32
    texts = [
        index_key_texts(one.topic, one.sys_flag, one.unique_key, one.keys, one.tags)
        for one in requests
    ]
    assert codes == [one.tags_code for one in requests]
    assert counts == list(map(len, texts))
    assert hashes == [key_hash(text) for some in texts for text in some]
    assert offsets == [one.physical_offset for one in requests]


def plain_record(position: int, topic: str, queue_id: int, *, sys_flag: int = 0) -> bytes:
    return encode_record(
        topic=topic,
        body=b"",
        properties=b"KEYS\x01k\x02",
        queue_id=queue_id,
        queue_offset=0,
        physical_offset=BASE + position,
        born_timestamp=0,
        born_host=V4,
        store_timestamp=1,
        store_host=V4,
        sys_flag=sys_flag,
    )


def test_many_topics_are_told_apart(kernels: Kernels) -> None:
    """The table of topics grows; numbers stay, and so does where each one's names are found."""
    whole = bytearray()
    for number in range(3000):
        whole += plain_record(len(whole), f"topic-{number % 1500}", number % 3)
    view = memoryview(whole)
    topics = TopicTable()
    (records,) = scan_all(kernels, view, topics, 5000, verify_crc=True)
    assert [row[2] for row in names(records)] == [f"topic-{n % 1500}" for n in range(3000)]
    assert topics.names == [f"topic-{n}" for n in range(1500)]
    hashes = kernels.dispatch(view, BASE, records).key_hashes.tolist()
    assert hashes == [key_hash(f"topic-{n % 1500}#k") for n in range(3000)]


def test_records_are_grouped_by_queue_in_log_order(kernels: Kernels) -> None:
    """Half messages and rolled-back ones are in no queue."""
    whole = bytearray()
    flags = [0, 4, 8, 12, 0, 0]
    for number, flag in enumerate(flags):
        whole += plain_record(len(whole), "ab"[number % 2], number % 2 - 1, sys_flag=flag)
    view = memoryview(whole)
    records = kernels.scan(view, BASE, 0, TopicTable(), max_records=9, verify_crc=True)
    columns = kernels.dispatch(view, BASE, records)
    offsets, sizes = columns.physical_offsets.tolist(), records.table[SIZE].tolist()
    assert {
        (queue.topic, queue.queue_id): list(UNIT.iter_unpack(queue.units))
        for queue in columns.queues
    } == {
        (topic, queue_id): [(offsets[row], sizes[row], 0) for row in rows]
        for topic, queue_id, rows in [("a", -1, [0, 2, 4]), ("b", 0, [5])]
    }


@st.composite
def rows_of_queues(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Draw (topic, queue id, queue offset, sys flag) of records; most offsets follow each other."""
    ends: dict[tuple[int, int], int] = {}
    rows = []
    for _ in range(draw(st.integers(0, 30))):
        topic = draw(st.integers(0, 2))
        queue_id = draw(
            st.sampled_from([-(1 << 31), -1, 0, 1, 7, (1 << 31) - 1]) | st.integers(0, 3)
        )
        next_offset = st.just(ends.get((topic, queue_id), 5))
        queue_offset = draw(next_offset | next_offset | next_offset | st.integers(0, 1 << 40))
        ends[topic, queue_id] = queue_offset + 1
        rows.append((topic, queue_id, queue_offset, draw(st.sampled_from([0, 0, 4, 8, 12]))))
    return rows


@settings(deadline=None)
@given(rows_of_queues())
def test_queues_and_their_ends_are_those_of_a_loop(rows: list[tuple[int, int, int, int]]) -> None:
    """Whatever the queue ids: near each other, which is fast, or as far apart as 32 bits allow."""
    topics = TopicTable()
    assert [topics.learn(name) for name in (b"a", b"b", b"c")] == [0, 1, 2]
    table = np.zeros((COLUMNS, len(rows)), np.int64)
    expected: dict[tuple[str, int], list[int]] = {}
    for row, (topic, queue_id, queue_offset, sys_flag) in enumerate(rows):
        # Sizes of nothing, so that no record has properties to look at.
        table[[POSITION, PROPERTIES_ROW, TOPIC, QUEUE_ID, QUEUE_OFFSET, SYS_FLAG], row] = (
            row, row, topic, queue_id, queue_offset, sys_flag,
        )  # fmt: skip
        if not sys_flag & 4:
            expected.setdefault(("abc"[topic], queue_id), []).append(row)
    records = RecordColumns(table, topics)
    assert records.queue_ends() == {key: rows[found[-1]][2] + 1 for key, found in expected.items()}
    for kernels in filter(None, (PythonKernels(), compiled_kernels())):
        queues = kernels.dispatch(memoryview(bytes(40)), BASE, records).queues
        assert len(queues) == len(expected)
        for name, queue_id, queue_offsets, units in queues:
            found = expected[name, queue_id]
            assert list(queue_offsets) == [rows[row][2] for row in found]
            is_dense = all(after == before + 1 for before, after in pairwise(queue_offsets))
            assert isinstance(queue_offsets, range) == is_dense
            assert list(UNIT.iter_unpack(units)) == [(BASE + row, 0, 0) for row in found]


# The index

BEGINS = (1_000_500, 2_000_000)


@settings(max_examples=50, deadline=None)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 20) | st.integers(0, (1 << 31) - 1),
                st.integers(0, (1 << 63) - 1),
                st.integers(0, 9_000_000) | st.integers(0, 1 << 50),
            ),
            min_size=1,
            max_size=20,
        ),
        min_size=1,
        max_size=5,
    ),
    stray=st.integers(-(1 << 31), (1 << 31) - 1),
)
def test_index_entries_are_chained_alike(
    batches: list[list[tuple[int, int, int]]], stray: int
) -> None:
    """As one by one: the newest entry heads its slot's chain, a slot beyond the end is empty."""
    slot_count, entry_count = 7, 128
    size = 40 + 4 * slot_count + 20 * entry_count
    start_bytes = bytearray(size)
    # What a process that died may leave in a slot.
    if not 0 <= stray < entry_count:
        start_bytes[40:44] = stray.to_bytes(4, "big", signed=True)
    wanted, wanted_new = index_one_by_one(bytearray(start_bytes), slot_count, batches)
    for kernels in filter(None, (PythonKernels(), compiled_kernels())):
        data, new, index = bytearray(start_bytes), [], 1
        view, entries_at = memoryview(data), 40 + 4 * slot_count
        pages = bytearray(1)
        for batch in batches:
            hashes, offsets, stored = zip(*batch, strict=True)
            at = entries_at + 20 * index
            new.append(
                kernels.append_index_entries(
                    view[40:entries_at],
                    memoryview(pages),
                    view[at : at + 20 * len(batch)],
                    start=index,
                    key_hashes=np.array(hashes, np.int32),
                    physical_offsets=np.array(offsets, np.int64),
                    store_timestamps=np.array(stored, np.int64),
                    begins=BEGINS,
                )
            )
            index += len(batch)
        assert (data, new) == (wanted, wanted_new)
        assert pages == b"\1"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=20))
def test_pages_whose_slots_change_are_noted(hashes: list[int]) -> None:
    """Pages of the file: its header comes before the slots."""
    slot_count = 5000
    wanted = {(40 + 4 * (key % slot_count)) // 4096 for key in hashes}
    for kernels in filter(None, (PythonKernels(), compiled_kernels())):
        pages = bytearray(5)
        kernels.append_index_entries(
            memoryview(bytearray(4 * slot_count)),
            memoryview(pages),
            memoryview(bytearray(20 * len(hashes))),
            start=1,
            key_hashes=np.array(hashes, np.int32),
            physical_offsets=np.zeros(len(hashes), np.int64),
            store_timestamps=np.zeros(len(hashes), np.int64),
            begins=BEGINS,
        )
        assert {number for number, changed in enumerate(pages) if changed} == wanted


def index_one_by_one(
    data: bytearray, slot_count: int, batches: list[list[tuple[int, int, int]]]
) -> tuple[bytearray, list[int]]:
    new, index = [], 1
    for batch in batches:
        start_slots = 0
        for position, (key, offset, store_timestamp) in enumerate(batch):
            elapsed_ms = store_timestamp - BEGINS[position > 0]
            seconds = min(max(elapsed_ms // 1000, 0), (1 << 31) - 1)
            slot = 40 + 4 * (key % slot_count)
            head = int.from_bytes(data[slot : slot + 4], "big", signed=True)
            head = head if 0 < head < index else 0
            start_slots += head == 0
            entry = 40 + 4 * slot_count + 20 * index
            data[entry : entry + 20] = b"".join(
                (key.to_bytes(4, "big"), offset.to_bytes(8, "big"), seconds.to_bytes(4, "big"),
                 head.to_bytes(4, "big"))
            )  # fmt: skip
            data[slot : slot + 4] = index.to_bytes(4, "big")
            index += 1
        new.append(start_slots)
    return data, new


# CRC-32


def test_the_table_gives_the_same_checksum_as_zlib() -> None:
    """At every length and alignment: it stands in where ISA-L's function cannot be found."""
    pytest.importorskip("numba")
    from commitbus.commitlog.kernels.linked_crc32 import (  # noqa: PLC0415 - needs numba
        compile_by_table,
    )

    compiled = compile_by_table()
    data = np.frombuffer(bytes(range(256)) * 3, np.uint8)
    for offset in range(9):
        for length in (0, 1, 7, 8, 9, 31, 255, 700):
            address = data[offset:].ctypes.data_as(compiled.ctypes.argtypes[1])
            expected = zlib.crc32(data[offset : offset + length].tobytes())
            assert compiled.ctypes(0, address, length) == expected
