"""The consistency check: sound stores pass, and nothing that is broken does."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from commitbus.broker.store.check import CheckReport, check_store
from commitbus.broker.store.check_report import LISTED_MAX
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import NotAStoreError
from commitbus.commitlog.types import AppendResult, OutgoingMessage

OpenStore = Callable[..., MessageStore]
MakeMessage = Callable[..., OutgoingMessage]
FIRST_FILE = "0" * 20
QUEUE_FILE = f"consumequeue/TopicA/0/{FIRST_FILE}"


@pytest.fixture
def sound(
    open_store: OpenStore,
    make_message: MakeMessage,
    copy_of: Callable[[Path], Path],
    store_dir: Path,
) -> tuple[Path, list[AppendResult]]:
    """Return a copy of a cleanly closed store, to be broken, and where its messages lie."""
    store = open_store()
    results = [
        store.put(make_message("TopicA", i % 2, b"%d" % i * 300, KEYS=f"k{i} all", TAGS="t"))
        for i in range(180)
    ]
    store.keep_house()
    store.close()
    return copy_of(store_dir), results


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Change bytes in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int, mask: int = 0x40) -> None:
    """Change bits of one byte."""
    overwrite(path, position, bytes([path.read_bytes()[position] ^ mask]))


def the_problem(directory: Path) -> str:
    """Check a store with one problem and return that as text."""
    report = check_store(directory)
    assert len(report.problems) == report.problem_count == 1, report.problems
    assert not report.is_sound
    return str(report.problems[0])


@pytest.mark.shared
@pytest.mark.parametrize("name", ["broker", "directA"])
def test_stores_of_rocketmq_are_sound(
    name: str, rocketmq_store: Callable[[str], Path], shared_dir: Path
) -> None:
    """With the numbers that RocketMQ's own classes counted; and nothing is touched."""
    directory = rocketmq_store(name)
    before = {path: path.stat() for path in directory.rglob("*")}
    report = check_store(directory)
    expected = (shared_dir / "fixtures" / f"{name}-store.check.txt").read_text()
    queues = [int(end) for end in re.findall(r"^QUEUE .* max=(\d+) ", expected, re.MULTILINE)]
    assert report.problems == []
    assert f"messages={report.messages} bad=0 notInConsumeQueue=0 " in expected
    assert f"commitlog min={report.log_begin} max={report.log_end}\n" in expected
    assert report.blank_records == expected.count("BLANK")
    assert (report.queues, report.queue_units) == (len(queues), sum(queues))
    assert report.index_entries == {"broker": 548, "directA": 126}[name]
    assert report.was_closed_cleanly
    assert report.durable_watermark is None
    after = {path: path.stat() for path in directory.rglob("*")}
    assert {p: (s.st_size, s.st_mtime_ns) for p, s in before.items()} == {
        p: (s.st_size, s.st_mtime_ns) for p, s in after.items()
    }


def test_a_report_is_json(sound: tuple[Path, list[AppendResult]]) -> None:
    """Counts and problems, for programs."""
    directory, results = sound
    report = check_store(directory)
    assert report.is_sound
    assert report.to_be_recovered == report.not_in_queue == report.not_in_index == 0
    flip(directory / QUEUE_FILE, 7)
    values = json.loads(json.dumps(check_store(directory).to_json()))
    assert values["messages"] == values["queue_units"] == len(results) == 180
    assert values["index_entries"] == 540
    assert values["log_end"] == values["durable_watermark"] == results[-1].end_offset
    assert values["problems"][0].keys() == {"file", "position", "what"}


@pytest.mark.parametrize("folder", ["consumequeue/TopicA/0", "consumequeue/TopicA/1", "index"])
def test_every_byte_of_queues_and_index_counts(
    folder: str, sound: tuple[Path, list[AppendResult]]
) -> None:
    """Whichever one is changed (a sample), the check finds a problem in that file."""
    directory, _ = sound
    choice = random.Random(folder)  # noqa: S311 - repeatable, not secret
    for path in sorted((directory / folder).iterdir()):
        data = path.read_bytes()
        positions = set(range(len(data.rstrip(b"\0"))))
        if folder == "index":
            # RocketMQ itself leaves it open what an index file's header says about its begin; entry
            # 0 is not used; the first entry of all counts from a file that is not there.
            positions -= {*range(24), *range(440, 460), *range(472, 476)}
        for position in (*choice.sample(sorted(positions), 15), max(positions)):
            flip(path, position)
            report = check_store(directory)
            assert report.problem_count > 0, (path, position)
            assert {problem.file for problem in report.problems} <= {
                str(other.relative_to(directory)) for other in (directory / folder).iterdir()
            }
            path.write_bytes(data)
    assert check_store(directory).is_sound


def test_a_body_that_rotted_is_named_and_passed(sound: tuple[Path, list[AppendResult]]) -> None:
    """One bad checksum hides none of the messages behind it."""
    directory, results = sound
    bad = results[70]
    file = f"commitlog/{bad.physical_offset // 65536 * 65536:020}"
    flip(directory / file, bad.physical_offset % 65536 + 200)
    problem = the_problem(directory)
    assert problem.startswith(f"{file}, position {bad.physical_offset % 65536}: ")
    assert "checksum" in problem
    assert check_store(directory).messages == 180


def test_a_header_that_rotted_ends_its_file_only(
    sound: tuple[Path, list[AppendResult]],
) -> None:
    """Without sizes nothing can be told about the rest of a file; the next file can be read."""
    directory, results = sound
    bad = next(i for i, result in enumerate(results) if result.physical_offset > 30_000)
    flip(directory / "commitlog" / FIRST_FILE, results[bad].physical_offset + 5)
    in_first_file = sum(result.physical_offset < 65536 for result in results)
    report = check_store(directory)
    assert report.messages == 180 - (in_first_file - bad)
    assert f"commitlog/{FIRST_FILE}, position {results[bad].physical_offset}: " in "\n".join(
        map(str, report.problems)
    )
    assert report.log_end == results[-1].end_offset


def test_bytes_behind_the_end_are_a_problem(sound: tuple[Path, list[AppendResult]]) -> None:
    """A cleanly closed log ends with zeros."""
    directory, results = sound
    end = results[-1].end_offset
    overwrite(directory / "commitlog" / f"{end // 65536 * 65536:020}", end % 65536 + 100, b"x")
    assert "101 bytes up to the last non-zero one follow" in the_problem(directory)


def test_a_watermark_above_the_end_is_a_problem(sound: tuple[Path, list[AppendResult]]) -> None:
    """Then promised bytes are gone."""
    directory, results = sound
    last = results[-1]
    file = directory / "commitlog" / f"{last.physical_offset // 65536 * 65536:020}"
    overwrite(file, last.physical_offset % 65536, bytes(last.size_bytes))
    report = check_store(directory)
    assert any("below the durable watermark" in problem.what for problem in report.problems)


def test_a_checkpoint_must_not_promise_the_future(
    sound: tuple[Path, list[AppendResult]],
) -> None:
    """Each of its three times is held against the newest message."""
    directory, results = sound
    newest = results[-1].store_timestamp
    overwrite(directory / "checkpoint", 8, struct.pack(">q", newest + 1))
    assert "it vouches for messages until" in the_problem(directory)
    overwrite(directory / "checkpoint", 8, struct.pack(">q", newest))
    (directory / "checkpoint").write_bytes((directory / "checkpoint").read_bytes()[:4000])
    assert "4000 bytes instead of 4096" in the_problem(directory)


def test_missing_files_are_named(sound: tuple[Path, list[AppendResult]]) -> None:
    """Of the log and of a queue; an index that ends early is only behind."""
    directory, _ = sound
    (directory / "consumequeue/TopicA/0" / f"{2000:020}").write_bytes(b"short")
    report = check_store(directory)
    assert report.problems[0].what == "5 bytes where a file of 2000 at 2000 is expected"
    assert report.not_in_queue == 90
    second = sorted((directory / "index").iterdir())[1]
    second.unlink()
    (directory / "index" / "notes").touch()
    report = check_store(directory)
    assert any("no name of an index file" in problem.what for problem in report.problems)
    assert report.to_be_recovered > 0
    (directory / "commitlog" / f"{65536:020}").unlink()
    report = check_store(directory)
    assert any("is missing" in problem.what for problem in report.problems)


def test_a_million_problems_do_not_fill_the_memory(
    sound: tuple[Path, list[AppendResult]],
) -> None:
    """All are counted, the first are kept."""
    directory, _ = sound
    report = CheckReport(str(directory), was_closed_cleanly=True)
    for position in range(LISTED_MAX + 5):
        report.add(directory / "commitlog", position, "wrong")
    assert report.problem_count == LISTED_MAX + 5
    assert len(report.problems) == LISTED_MAX


def test_a_store_in_use_has_no_problems(
    open_store: OpenStore,
    make_message: MakeMessage,
    store_dir: Path,
    copy_of: Callable[[Path], Path],
) -> None:
    """What is yet to come, or torn above the watermark, is counted apart."""
    store = open_store()
    result = [store.put(make_message(KEYS="k")) for _ in range(50)][-1]
    assert store.durable_watermark.wait(result.end_offset, 20)
    assert store.dispatched.wait(result.end_offset, 20)
    copy = copy_of(store_dir)
    overwrite(copy / "commitlog" / FIRST_FILE, result.end_offset, b"torn")
    overwrite(copy / QUEUE_FILE, 20 * 48, bytes(40))
    heard: list[tuple[str, int, int]] = []
    report = check_store(copy, on_progress=lambda *what: heard.append(what))
    assert report.problems == []
    assert not report.was_closed_cleanly
    assert report.torn_bytes == 4
    assert report.to_be_recovered == 2
    assert heard[-1][0] == "checking the log"
    assert heard[-1][1] == heard[-1][2] > 0


def test_messages_of_a_deleted_topic_are_no_problem(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path
) -> None:
    """They stay in the log until it is cut; the topic may come back."""
    store = open_store()
    for topic in ("Gone", "Kept") * 5:
        store.put(make_message(topic))
    assert store.dispatched.wait(store.end_offset, 20)
    store.delete_topic("Gone")
    store.close()
    report = check_store(store_dir)
    assert report.is_sound
    assert report.of_deleted_topics == 5


def test_what_is_no_store_cannot_be_checked(tmp_path: Path) -> None:
    """An empty directory is none either."""
    with pytest.raises(NotAStoreError):
        check_store(tmp_path)
