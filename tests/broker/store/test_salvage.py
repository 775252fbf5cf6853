"""What salvage takes over, numbers anew, reports, and refuses."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.layout import UNFINISHED, check_directory
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.salvage import QueueNumbers, Salvage, salvage_store
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.errors import NotAStoreError
from commitbus.commitlog.file_system import RealFileSystem, replace_file
from commitbus.commitlog.types import AppendResult, OutgoingMessage, QueueOffset
from tests.broker.store.killed_starts import CONFIG, copied, fill, killed, live
from tests.simulation.disk import Disk
from tests.simulation.process import STORE, Process

FILE = 1 << 16
Make = Callable[..., OutgoingMessage]
Run = Callable[..., Salvage]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def stored(
    open_store: Callable[..., MessageStore],
    make_message: Make,
    copy_of: Callable[[Path], Path],
    store_dir: Path,
) -> tuple[Path, list[AppendResult]]:
    """A copy of a closed store with two sealed files, to be damaged; where its messages lie."""
    store = open_store()
    results: list[AppendResult] = []
    while store.end_offset < 2 * FILE:
        number = len(results)
        body = b"%d" % number + bytes(1000)
        results.append(store.put(make_message("TopicA", number % 2, body, UNIQ_KEY=f"u{number}")))
    assert store.durable_watermark.wait(store.end_offset, 20)
    store.keep_house()
    store.close()
    return copy_of(store_dir), results


@pytest.fixture
def run(out: Path, config: StoreConfig) -> Run:
    """Salvage to `out`."""

    def salvage(directory: Path, **changes: Any) -> Salvage:
        return salvage_store(
            directory,
            changes.pop("out", out),
            config=replace(config, **changes),
            clock=SystemClock(),
            file_system=RealFileSystem(),
        )

    return salvage


def flip(store: Path, physical_offset: int) -> None:
    """Change a bit of the log."""
    path = store / "commitlog" / f"{physical_offset - physical_offset % FILE:020}"
    data = bytearray(path.read_bytes())
    data[physical_offset % FILE] ^= 1
    path.write_bytes(data)


def numbers_of(store: MessageStore, queue_id: int) -> list[int]:
    """Which messages a queue has."""
    queue = "TopicA", queue_id
    units = store.fetch(*queue, store.min_offset(*queue), 10_000).units
    return [int(store.read(u.physical_offset).properties["UNIQ_KEY"][1:]) for u in units]


def test_a_sound_store_is_copied_whole(
    stored: tuple[Path, list[AppendResult]], run: Run, out: Path, config: StoreConfig
) -> None:
    """With the same queue offsets, its log byte for byte, and nothing to report."""
    directory, results = stored
    report = run(directory).report
    assert (report.records, report.loss_count, report.lost_bytes) == (len(results), 0, 0)
    assert report.topics == {"TopicA": len(results)}
    json.dumps(report.to_json())
    for path in (directory / "commitlog").iterdir():
        assert (out / "commitlog" / path.name).read_bytes() == path.read_bytes()
    with MessageStore.open(out, config) as store:
        assert store.end_offset == results[-1].end_offset
        assert store.max_offset("TopicA", 0) == store.queue_end("TopicA", 0)
        assert store.query_by_unique_key("TopicA", "u7")[0].body.startswith(b"7\0")


@pytest.mark.shared
@pytest.mark.parametrize("name", ["broker", "directA"])
def test_stores_of_rocketmq_are_copied_whole(
    name: str, rocketmq_store: Callable[[str], Path], run: Run, out: Path
) -> None:
    """Half messages, delayed ones and all versions of the record with them."""
    directory = rocketmq_store(name)
    before = check_store(directory)
    report = run(directory, index_slots=100, index_entries=400).report
    assert (report.records, report.losses) == (before.messages, [])
    after = check_store(out)
    assert after.problems == []
    assert (after.messages, after.queue_units) == (before.messages, before.queue_units)
    assert after.index_entries == before.index_entries


def test_a_lost_record_leaves_no_gap(
    stored: tuple[Path, list[AppendResult]], run: Run, out: Path, config: StoreConfig
) -> None:
    """Its queue goes on counting; the other keeps its offsets; the place is reported."""
    directory, results = stored
    flip(directory, results[4].physical_offset + 300)
    salvage = run(directory)
    (loss,) = salvage.report.losses
    assert (loss.start, loss.end) == (results[4].physical_offset, results[4].end_offset)
    assert str(loss) == (
        f"commitlog/{0:020}: {results[4].size_bytes} bytes from physical offset {loss.start}: "
        "its body does not match its checksum"
    )
    with MessageStore.open(out, config) as store:
        assert numbers_of(store, 0) == [n for n in range(0, len(results), 2) if n != 4]
        assert numbers_of(store, 1) == list(range(1, len(results), 2))
    queue = salvage.numbers["TopicA", 0]
    assert [queue.translate(old) for old in (0, 1, 2, 3, 4)] == [0, 1, 2, 2, 3]


def test_missing_files_are_reported(stored: tuple[Path, list[AppendResult]], run: Run) -> None:
    """The first one too: a manifest still tells of it."""
    directory, results = stored
    (directory / "commitlog" / f"{0:020}").unlink()
    report = run(directory).report
    assert [(loss.start, loss.end, loss.reason) for loss in report.losses] == [
        (0, FILE, "no log file is there")
    ]
    assert report.records == sum(result.physical_offset >= FILE for result in results)


def test_a_gap_and_a_lost_end_are_reported(
    stored: tuple[Path, list[AppendResult]], run: Run
) -> None:
    """What lies between two files, and what the watermark says was there."""
    directory, results = stored
    (directory / "commitlog" / f"{FILE:020}").unlink()
    with (directory / "commitlog" / f"{2 * FILE:020}").open("r+b") as file:
        file.truncate(100)
    report = run(directory).report
    end = results[-1].end_offset
    places = [(loss.start, loss.end) for loss in report.losses]
    assert (FILE, 2 * FILE) in places
    assert places[-1] == (2 * FILE + 100, end)
    assert report.lost_bytes == end - FILE


def test_a_changed_header_is_reported_where_a_manifest_tells(
    stored: tuple[Path, list[AppendResult]], run: Run
) -> None:
    """The record is copied as it is: nobody knows which one it is."""
    directory, results = stored
    flip(directory, results[3].physical_offset + 40)
    report = run(directory).report
    assert report.records == len(results)
    assert "bytes have changed since it was sealed" in report.losses[0].reason
    assert (report.loss_count, report.lost_bytes) == (1, 0)


def test_a_record_that_no_queue_can_take_is_reported(
    stored: tuple[Path, list[AppendResult]], run: Run
) -> None:
    """A damaged topic must not become a path, nor a damaged queue id a negative name."""
    directory, results = stored
    path = directory / "commitlog" / f"{0:020}"
    data = bytearray(path.read_bytes())
    at = data.index(b"TopicA", results[2].physical_offset)
    data[at : at + 6] = b"../../"
    data[results[5].physical_offset + 12] = 0xFF
    path.write_bytes(data)
    report = run(directory).report
    assert report.records == len(results) - 2
    assert all("cannot be names of directories" in loss.reason for loss in report.losses[:2])


def test_other_files_are_reported(stored: tuple[Path, list[AppendResult]], run: Run) -> None:
    """Directories are passed over, as everywhere."""
    directory, _ = stored
    (directory / "commitlog" / "note").write_text("of the operator")
    (directory / "commitlog" / f"{9 * FILE:020}").mkdir()
    report = run(directory).report
    assert [str(loss) for loss in report.losses] == [
        "commitlog/note: this is no name of a log file"
    ]


def test_the_rest_of_a_store_is_not_needed(
    stored: tuple[Path, list[AppendResult]], run: Run, out: Path, config: StoreConfig
) -> None:
    """Queues, index, checkpoint and watermark are derived from the log."""
    directory, results = stored
    for path in directory.iterdir():
        if path.is_dir() and path.name != "commitlog":
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
    assert run(directory).report.records == len(results)
    assert check_store(out, config=config).problems == []


def test_without_an_intact_record_nothing_is_made(
    stored: tuple[Path, list[AppendResult]], run: Run, out: Path
) -> None:
    """An empty store would look like success."""
    directory, _ = stored
    for path in (directory / "commitlog").iterdir():
        path.write_bytes(bytes(FILE))
    report = run(directory).report
    assert report.records == 0
    assert report.loss_count > 0
    assert not out.exists()


def test_places_that_cannot_be_right_are_refused(
    stored: tuple[Path, list[AppendResult]], run: Run, out: Path, tmp_path: Path
) -> None:
    """No store to read, one to overwrite, one inside the other, and the damaged one itself."""
    directory, _ = stored
    with pytest.raises(NotAStoreError, match="has no directory commitlog"):
        run(tmp_path / "nothing")
    with pytest.raises(NotAStoreError, match="lies in the damaged store"):
        run(directory, out=directory / "new")
    with pytest.raises(NotAStoreError, match="lies in the damaged store"):
        run(directory, out=directory / "commitlog")
    (tmp_path / "same").symlink_to(directory)
    for same in (directory, tmp_path / "same"):
        with pytest.raises(NotAStoreError, match="it is the damaged store itself"):
            run(directory, out=same)
    out.write_text("a file")
    with pytest.raises(NotAStoreError, match="it is a file"):
        run(directory)
    out.unlink()
    out.mkdir()
    (out / "something").touch()
    with pytest.raises(NotAStoreError, match="not empty"):
        run(directory)


# Numbers


def test_a_queue_begins_where_its_first_intact_record_was() -> None:
    """Retention has deleted what was before."""
    queue = QueueNumbers()
    assert [queue.next(old, 1 << 30) for old in (700, 701, 703)] == [700, 701, 702]
    assert [queue.translate(old) for old in (0, 700, 702, 703, 704, 9999)] == [
        700, 700, 702, 702, 702, 702,
    ]  # fmt: skip


def test_damaged_numbers_lead_nobody_astray() -> None:
    """Neither a first one that cannot be, nor a single one that fits nowhere."""
    queue = QueueNumbers()
    assert queue.next(1 << 60, 1000) == 0
    numbers = [queue.next(old, 1000) for old in (1, 2, 3 | 1 << 40, 4, 5, 6)]
    assert numbers == list(range(1, 7))
    assert queue.translate(2) == 2
    assert queue.translate(6) == 6
    assert queue.translate(7) == 7
    assert QueueNumbers().next(-5, 1000) == 0


def test_the_later_of_two_topics_of_one_name_counts() -> None:
    """A topic that was deleted and made anew began again at 0; its groups belong to the new one."""
    queue = QueueNumbers()
    for old in (0, 1, 2, 0, 1):
        queue.next(old, 1000)
    assert queue.translate(1) == QueueOffset(4)


def test_a_salvage_that_is_killed_leaves_no_store_and_can_be_run_again() -> None:
    """At any file operation, twice in a row: not even a sound part of one can be opened."""
    damaged, where = Disk(), Path("/simulated/out")
    live(damaged, fill)

    def salvage(process: Process) -> None:
        salvage_store(
            STORE, where, config=CONFIG, clock=process.clock, file_system=process.files,
            threads=process.threads,
            complete=lambda _, made: replace_file(made / "config" / "x.json", b"{}", process.files),
        )  # fmt: skip

    def salvaged(disk: Disk) -> dict[str, bytes]:
        # Index files are named by the time, and a lock says nothing.
        return {
            "index" if "index" in path.parts else str(path): bytes(inode.cache)
            for path, inode in disk.files()
            if "out" in path.parts
        }

    def is_whole(process: Process) -> None:
        try:
            check_directory(where, process.files, may_be_new=False)
            outcome.append(True)
        except NotAStoreError:
            outcome.append(False)
        if any(process.files.list_names(where)) and not outcome[-1]:
            with pytest.raises(NotAStoreError, match="did not finish"):
                MessageStore.open(
                    where, clock=process.clock, file_system=process.files, threads=process.threads
                )

    undisturbed = copied(damaged)
    points = live(undisturbed, salvage)
    expected = salvaged(undisturbed)
    outcome: list[bool] = []
    choice = random.Random(1)  # noqa: S311 - repeatable, not secret
    # The store moves up in the last ones.
    last = killed(damaged, salvage, first=points - 12)
    for point, left in chain(killed(damaged, salvage, step=7), last):
        live(left, is_whole)
        if not outcome[-1]:
            live(left, salvage, dies_at=choice.randrange(1, 300))
            live(left, is_whole)
        if not outcome[-1]:
            live(left, salvage)
        assert salvaged(left) == expected, f"killed at point {point}"
    assert set(outcome) == {False, True}


def test_what_is_not_of_a_salvage_is_not_removed_by_the_next(
    stored: tuple[Path, list[AppendResult]], run: Run, out: Path
) -> None:
    """A directory that holds anything else is refused as it is."""
    (out / UNFINISHED).mkdir(parents=True)
    (out / "thesis.txt").write_text("the only copy")
    with pytest.raises(NotAStoreError, match="not empty"):
        run(stored[0])
    assert {path.name for path in out.iterdir()} == {UNFINISHED, "thesis.txt"}
