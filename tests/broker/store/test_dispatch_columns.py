"""Queues and index filled from columns: the same bytes as message by message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.broker.store.reput import arrivals_of, last_store_timestamp
from commitbus.commitlog import dispatch_reader
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.dispatch_reader import DispatchReader
from commitbus.commitlog.errors import CorruptRecordError, OffsetOutOfRangeError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.kernels import DispatchBatch, DispatchColumns
from commitbus.commitlog.record_format import encode_properties
from commitbus.commitlog.types import (
    Host,
    OutgoingMessage,
    PhysicalOffset,
    QueueOffset,
)
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.indexfile.index_service import IndexService

HOST = Host.parse("127.0.0.1", 10911)
MESSAGES = st.builds(
    OutgoingMessage,
    topic=st.sampled_from(["a", "b", "größer", "x" * 200]),
    queue_id=st.integers(0, 2),
    body=st.binary(max_size=30),
    properties=st.dictionaries(
        st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "other"]),
        st.sampled_from(["k", "k1 k2 k3", "ключ 🦀", "u1", ""]),
    ).map(encode_properties),
    born_timestamp=st.just(0),
    born_host=st.just(HOST),
    flag=st.just(0),
    sys_flag=st.sampled_from([0, 0, 0, 4, 8, 12]),
    reconsume_times=st.just(0),
    prepared_transaction_offset=st.just(0),
)


class SteppingClock:
    """Moves 300 ms at every look: index entries keep seconds."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        self.ms += 300
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


@pytest.fixture(autouse=True)
def _columns_even_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_reader, "FEW_RECORDS", {"python": 0, "numba": 0})


@contextmanager
def open_log(directory: Path) -> Iterator[CommitLog]:
    log = CommitLog(
        directory / "commitlog", 1500, store_host=HOST, max_body_bytes=100, clock=SteppingClock(),
        file_system=RealFileSystem(),
    )  # fmt: skip
    try:
        yield log
    finally:
        log.close()


@contextmanager
def open_targets(directory: Path) -> Iterator[tuple[ConsumeQueueStore, IndexService]]:
    """Small files, so that nearly every batch rolls to the next."""
    queues = ConsumeQueueStore(directory / "consumequeue", 60, file_system=RealFileSystem())
    index = IndexService(
        directory / "index", slot_count=3, entry_count=9, clock=SteppingClock(),
        file_system=RealFileSystem(),
    )  # fmt: skip
    try:
        queues.load()
        index.load()
        yield queues, index
    finally:
        index.close()
        queues.close()


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def read_all(
    reader: DispatchReader, log: CommitLog, start: PhysicalOffset, step: int
) -> Iterator[DispatchBatch]:
    while start < log.end_offset:
        batch, start = reader.read(start, log.end_offset, step)
        yield batch


@settings(max_examples=25, deadline=None)
@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=25),
    step=st.integers(1, 12),
    known=st.integers(0, 25),
    again_from=st.integers(0, 25),
    deleted_before=st.integers(0, 25),
)
def test_columns_leave_the_same_bytes_as_messages_one_by_one(
    messages: list[OutgoingMessage], step: int, known: int, again_from: int, deleted_before: int
) -> None:
    """Over file ends, for what is there already, and for what was there before a deletion."""
    with TemporaryDirectory() as name, open_log(Path(name)) as log:
        for message in messages:
            log.append(message)
        requests, _ = log.dispatch_requests(log.min_offset, log.end_offset, 1000)
        again = requests[min(again_from, known, len(requests) - 1)].physical_offset
        before = requests[min(deleted_before, len(requests) - 1)].physical_offset
        got: list[dict[str, bytes]] = []
        for kind in ("one", "columns"):
            directory = Path(name, kind)
            with open_targets(directory) as (queues, index):
                queues.deleted.note("a", before, {0: QueueOffset(0)})
                for target in (queues, index):
                    target.put(requests[:known])
                    if kind == "one":
                        target.put([r for r in requests if r.physical_offset >= again])
                        continue
                    for batch in read_all(DispatchReader(log), log, again, step):
                        assert isinstance(batch, DispatchColumns)
                        target.put(batch)
                assert queues.dispatched_to == index.dispatched_to == log.end_offset
            got.append(contents(directory))
        assert got[0] == got[1]


@settings(max_examples=8, deadline=None)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=25))
def test_arrivals_are_the_same_from_columns(messages: list[OutgoingMessage]) -> None:
    """Each queue once, with its new end; and the store time of the last message."""
    with TemporaryDirectory() as name, open_log(Path(name)) as log:
        for message in messages:
            log.append(message)
        start = log.min_offset
        reader = DispatchReader(log)
        while start < log.end_offset:
            batch, end = reader.read(start, log.end_offset, 1000)
            requests, _ = log.dispatch_requests(start, end, 1000)
            assert len(batch) == len(requests)
            assert sorted(arrivals_of(batch)) == sorted(arrivals_of(requests))
            assert last_store_timestamp(batch) == requests[-1].store_timestamp
            start = end


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """The first bad record is named; nothing lies before the first file; the end is the end."""
    message = OutgoingMessage("a", 0, b"body", b"", 0, HOST)
    with open_log(tmp_path) as log:
        for _ in range(3):
            log.append(message)
        reader, end = DispatchReader(log), log.end_offset
        assert reader.read(end, end, 9) == ([], end)
        second = PhysicalOffset(end // 3)
        log.files.files[0].write(second, b"\xff")
        batch, reached = reader.read(log.min_offset, end, 9)
        assert (len(batch), reached) == (1, second)
        with pytest.raises(CorruptRecordError) as caught:
            reader.read(second, end, 9)
        assert caught.value.physical_offset == second
        with pytest.raises(OffsetOutOfRangeError):
            reader.read(PhysicalOffset(-1500), end, 9)
