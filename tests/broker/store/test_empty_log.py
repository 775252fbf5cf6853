"""Queue ends survive a log that retention has emptied: no queue offset is given away twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.file_ages import FileAges
from tests.broker.store.killed_starts import (
    CONFIG,
    EXPIRED_MS,
    QUEUES,
    copied,
    fill,
    killed,
    live,
    put,
    stay_open,
    without,
)
from tests.simulation.disk import Disk
from tests.simulation.oracle import QueueKey
from tests.simulation.process import Process, message

KILLS_IN_A_ROW = 4
ENDS = dict.fromkeys(QUEUES, 30)


# No checkpoint comes by itself: what else flushes, a power cut shows.
RARELY_SAVED = replace(CONFIG, checkpoint_interval_ms=1 << 50)


@pytest.fixture(autouse=True)
def files_are_as_old_as_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files expire when the wall clock moves: days would take too many points."""

    def look(
        self: FileAges, base_offsets: Sequence[int], last_stored_at: Callable[[int], int | None]
    ) -> None:
        now_ms, wall_ms = self._elapsed_ms(), self._clock.now_ms()
        ages = {base: wall_ms - (last_stored_at(base) or wall_ms) for base in base_offsets}
        self._ended_ms = {base: now_ms - age for base, age in ages.items()}

    monkeypatch.setattr(FileAges, "look", look)


def let_all_go(process: Process, store: MessageStore) -> None:
    """Let retention remove all messages of a store, which have expired."""
    store.seal_segment()
    store.dispatched.wait(store.end_offset)
    while store.indexed_to < store.end_offset:
        process.scheduler.sleep(0.1)
    store.keep_house()
    assert store.min_physical_offset == store.end_offset


def empty_and_die(process: Process) -> None:
    """Leave an empty log, as a process does that was killed."""
    let_all_go(process, process.open(CONFIG))
    process.scheduler.die()


def fill_and_empty(process: Process) -> None:
    """Put messages and let all of them go, in one life."""
    store = process.open(RARELY_SAVED)
    put(process, store, 90)
    process.clock.error_ms += EXPIRED_MS
    let_all_go(process, store)
    process.scheduler.die()


def filled() -> Disk:
    """A store that was closed, with messages in three queues."""
    disk = Disk()
    live(disk, fill)
    return disk


def emptied() -> Disk:
    """A store whose process died with an empty log."""
    disk = filled()
    live(disk, empty_and_die, later_ms=EXPIRED_MS)
    return disk


def ends_after(disk: Disk) -> dict[QueueKey, int]:
    """Put a message to each queue after a start; return what queue offsets they get."""
    disk = copied(disk)
    ends: dict[QueueKey, int] = {}

    def act(process: Process) -> None:
        store = process.open(CONFIG)
        for key in QUEUES:
            ends[key] = store.put(message(key, b"new", "new")).queue_offset
            assert store.queue_end(*key) == ends[key] + 1
        store.close()
        process.check(CONFIG)

    live(disk, act, later_ms=2 * EXPIRED_MS)
    return ends


def test_every_kill_leaves_the_queue_ends_of_an_empty_log() -> None:
    """Each took the newest unit of all queues: its message was to bring it back."""
    disk = emptied()
    for _ in range(KILLS_IN_A_ROW):
        live(disk, stay_open, later_ms=EXPIRED_MS)
        assert ends_after(disk) == ENDS


def test_kills_in_starts_on_an_empty_log_take_no_queue_end() -> None:
    """At any file operation, several in a row."""
    disk = emptied()
    choice = random.Random(1)  # noqa: S311 - repeatable, not secret
    for _, left in killed(disk, stay_open, step=5):
        for _ in range(KILLS_IN_A_ROW):
            live(left, stay_open, dies_at=choice.randrange(1, 250), later_ms=EXPIRED_MS)
        assert ends_after(left) == ENDS


def test_retention_that_is_killed_takes_no_queue_end() -> None:
    """Nor does a power cut after it."""
    choice = random.Random(2)  # noqa: S311 - repeatable, not secret
    for _, left in killed(filled(), empty_and_die, step=9, later_ms=EXPIRED_MS):
        assert ends_after(left) == ENDS
        for again in left.state().disks(choice, 3):
            assert ends_after(again) == ENDS


def test_units_are_durable_before_the_log_lets_their_messages_go() -> None:
    """They alone then tell the queue ends: a power cut must not take them."""
    choice = random.Random(3)  # noqa: S311 - repeatable, not secret
    disk = Disk()
    live(disk, fill_and_empty)
    for again in disk.state().disks(choice, 20):
        assert ends_after(again) == ENDS


def test_queues_that_are_removed_on_an_empty_log_go_on_where_they_ended() -> None:
    """No unit and no message tells where that is: retention has noted it."""
    disk = without(emptied(), "consumequeue")
    choice = random.Random(4)  # noqa: S311 - repeatable, not secret
    for _, left in killed(disk, stay_open, step=7, later_ms=EXPIRED_MS):
        live(left, stay_open, dies_at=choice.randrange(1, 250), later_ms=EXPIRED_MS)
        assert ends_after(left) == ENDS


def test_what_a_kill_leaves_of_a_deleted_topic_goes_though_its_note_is_forgotten() -> None:
    """The log has no message of it any more, so the note goes: not before the last file has."""

    def delete(process: Process) -> None:
        store = process.open(CONFIG)
        store.delete_topic("T")
        process.scheduler.die()

    def look(process: Process) -> None:
        store = process.open(CONFIG)
        topics.append({topic for topic, _ in store.queues()})
        process.scheduler.die()

    for point, left in killed(emptied(), delete, step=1, first=100, later_ms=EXPIRED_MS):
        topics: list[set[str]] = []
        noted = any(
            path.name == "deleted_topics.json" and b'"T"' in inode.cache
            for path, inode in left.files()
        )
        for _ in range(2):
            live(left, look, later_ms=EXPIRED_MS)
        assert topics == [{"U"} if noted else {"T", "U"}] * 2, f"killed at point {point}"


def test_retention_on_a_full_disk_makes_room_without_a_note() -> None:
    """There is no block for it; the units tell the same."""
    disk = Disk()

    def fill_disk(process: Process) -> None:
        store = process.open(RARELY_SAVED)
        put(process, store, 90)
        store.seal_segment()
        process.faults.capacity_pages = disk.used_pages()
        process.clock.error_ms += EXPIRED_MS
        let_all_go(process, store)
        process.scheduler.die()

    live(disk, fill_disk)
    assert not any("queue_ends" in str(path) and path.suffix == ".json" for path, _ in disk.files())
    assert ends_after(disk) == ENDS
