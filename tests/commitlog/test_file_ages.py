"""The ages of log files, under a wall clock that may say anything."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import pytest

from commitbus.commitlog.file_ages import AGES_PATH, SETTLE_S, FileAges

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS
START_MS = 1_700_000_000_000


@final
class World:
    """Two clocks, the store timestamps that the wall clock gave, and runs of a store."""

    def __init__(self, store: Path, file_system: Any) -> None:
        self.store, self.file_system = store, file_system
        self.true_ms = START_MS
        self.error_ms = 0
        self.stored_at: dict[int, int] = {}
        self._last_stored_ms = 0
        self.start()

    def now_ms(self) -> int:
        return self.true_ms + self.error_ms

    def monotonic_s(self) -> float:
        return self.true_ms / 1000

    def start(self) -> None:
        """Open the store, as after a kill."""
        self.ages = FileAges(self.store, self, self.file_system)
        self.look()

    def end_file(self, base_offset: int) -> None:
        """End a file with a record that is stored now: store times never fall."""
        self._last_stored_ms = max(self._last_stored_ms, self.now_ms())
        self.stored_at[base_offset] = self._last_stored_ms
        self.look()

    def look(self) -> None:
        self.ages.look(sorted(self.stored_at), self.stored_at.get)

    def passes(self, elapsed_ms: int, look_every_ms: int = HOUR_MS) -> None:
        """Let time pass while the store is open."""
        end_ms = self.true_ms + elapsed_ms
        while self.true_ms < end_ms:
            self.true_ms = min(self.true_ms + look_every_ms, end_ms)
            self.look()

    def told(self) -> dict[int, int | None]:
        return {base: self.ages.age_ms(base) for base in self.stored_at}


@pytest.fixture
def world(tmp_path: Path, faulty: Any) -> World:
    return World(tmp_path, faulty)


def hours(ages: Mapping[int, int | None]) -> dict[int, int | None]:
    return {base: None if age is None else round(age / HOUR_MS) for base, age in ages.items()}


def test_an_age_is_the_time_since_the_last_record(world: World) -> None:
    """To the millisecond, although the end is seen only at a look."""
    world.passes(DAY_MS)
    world.stored_at[0] = world.now_ms()
    world.true_ms += 7_000
    world.look()
    world.true_ms += 5_000
    assert world.told() == {0: 12_000}


def test_a_year_ahead_and_back_changes_no_age(world: World) -> None:
    """Nor those of all the files whose records have the wrong time from then on."""
    world.passes(DAY_MS)
    world.end_file(0)
    world.passes(HOUR_MS)
    world.error_ms = YEAR_MS
    world.end_file(1)
    world.passes(HOUR_MS)
    assert hours(world.told()) == {0: 2, 1: 1}
    world.error_ms = 0
    world.end_file(2)
    world.passes(DAY_MS)
    world.end_file(3)
    world.passes(DAY_MS)
    assert hours(world.told()) == {0: 50, 1: 49, 2: 48, 3: 24}


@pytest.mark.parametrize("error_ms", [-YEAR_MS, -53 * YEAR_MS, YEAR_MS])
def test_a_clock_that_is_set_for_good_changes_no_age(world: World, error_ms: int) -> None:
    """In 1970 after a start without a battery, until the network tells the time."""
    world.error_ms = error_ms
    world.start()
    world.end_file(0)
    world.passes(DAY_MS)
    world.end_file(1)
    world.error_ms = 0
    world.passes(HOUR_MS)
    assert hours(world.told()) == {0: 25, 1: 1}
    world.start()
    world.passes(HOUR_MS)
    assert hours(world.told()) == {0: 26, 1: 2}


def test_what_a_machine_was_off_for_counts(world: World) -> None:
    """Once the clock of a machine that has just started can be believed; until then nothing."""
    world.passes(DAY_MS)
    world.end_file(0)
    world.passes(HOUR_MS)
    world.true_ms += 7 * DAY_MS
    world.start()
    world.end_file(1)
    world.passes(round(SETTLE_S * 1000) - 1, 60_000)
    assert world.told() == {0: None, 1: None}
    world.passes(HOUR_MS, 60_000)
    assert hours(world.told()) == {0: 7 * 24 + 2, 1: 1}


@pytest.mark.parametrize("error_ms", [-53 * YEAR_MS, -DAY_MS, YEAR_MS])
def test_a_clock_that_is_wrong_only_after_the_start_changes_no_age(
    world: World, error_ms: int
) -> None:
    world.passes(DAY_MS)
    world.end_file(0)
    world.passes(HOUR_MS)
    world.true_ms += HOUR_MS
    world.error_ms = error_ms
    world.start()
    world.end_file(1)
    world.passes(60_000, 10_000)
    world.error_ms = 0
    world.passes(HOUR_MS, 60_000)
    assert hours(world.told()) == {0: 3, 1: 1}


@pytest.mark.parametrize("wrong_when", ["stopping", "starting", "both"])
def test_a_restart_in_the_middle_keeps_no_file_for_ever(world: World, wrong_when: str) -> None:
    """At worst the time in which the store was closed is not counted."""
    world.passes(DAY_MS)
    world.end_file(0)
    world.error_ms = YEAR_MS if wrong_when != "starting" else 0
    world.end_file(1)
    world.passes(HOUR_MS)
    world.true_ms += HOUR_MS
    world.error_ms = YEAR_MS if wrong_when != "stopping" else 0
    world.start()
    world.passes(60_000, 10_000)
    world.error_ms = 0
    world.passes(DAY_MS, 60_000)
    told = world.told()
    assert hours(told)[0] in (25, 26)
    assert hours(told)[1] in (25, 26)


def test_runs_that_are_short_lose_no_time(world: World) -> None:
    """Each ends before its clock is believed: the next one counts from where the last good was."""
    world.passes(DAY_MS)
    world.end_file(0)
    for number in range(1, 5):
        world.true_ms += HOUR_MS
        world.start()
        world.end_file(number)
        world.passes(60_000, 10_000)
    world.start()
    world.passes(HOUR_MS, 60_000)
    assert hours(world.told()) == {0: 5, 1: 4, 2: 3, 3: 2, 4: 1}


def test_files_of_another_program_are_as_old_as_their_records(world: World, tmp_path: Path) -> None:
    """RocketMQ's have no saved ages, and those from the future or from 1970 begin now."""
    world.passes(HOUR_MS)
    now_ms = world.now_ms()
    world.stored_at = {0: now_ms - 3 * DAY_MS, 1: 86_400_000, 2: now_ms - DAY_MS,
                       3: now_ms + YEAR_MS}  # fmt: skip
    (tmp_path / AGES_PATH).unlink(missing_ok=True)
    world.start()
    assert set(world.told().values()) == {None}
    world.passes(HOUR_MS)
    assert hours(world.told()) == {0: 73, 1: 1, 2: 25, 3: 1}


def test_rocketmq_may_write_between_two_runs(world: World) -> None:
    """Its files are no older than the last look at the store, whatever their records say."""
    world.passes(DAY_MS)
    world.end_file(0)
    world.true_ms += 7 * DAY_MS
    world.stored_at |= {1: world.now_ms() - HOUR_MS, 2: world.now_ms() - YEAR_MS}
    world.start()
    world.passes(HOUR_MS)
    assert hours(world.told()) == {0: 7 * 24 + 1, 1: 2, 2: 7 * 24 + 1}


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": 2}', b"[]", b'{"format": 1}'])
def test_lost_ages_are_taken_from_the_records(world: World, tmp_path: Path, damage: bytes) -> None:
    world.passes(DAY_MS)
    world.end_file(0)
    (tmp_path / AGES_PATH).write_bytes(damage)
    world.start()
    world.passes(HOUR_MS)
    assert hours(world.told()) == {0: 1}


def test_ages_survive_a_kill_and_forget_deleted_files(world: World) -> None:
    world.passes(DAY_MS)
    for base_offset in range(3):
        world.end_file(base_offset)
        world.passes(HOUR_MS)
    del world.stored_at[0]
    world.look()
    world.start()
    world.stored_at[0] = world.now_ms()
    world.passes(HOUR_MS)
    assert hours(world.told()) == {1: 3, 2: 2, 0: 1}


def test_a_full_disk_stops_no_clock(
    world: World, faulty: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The ages are known nevertheless, and saved when there is room."""
    world.passes(DAY_MS)
    faulty.failing["pwrite"] = errno.ENOSPC
    world.end_file(0)
    world.passes(HOUR_MS)
    assert hours(world.told()) == {0: 1}
    assert "not saved" in caplog.text
    faulty.failing.clear()
    world.look()
    world.start()
    world.passes(HOUR_MS)
    assert hours(world.told()) == {0: 2}


def test_somebody_may_remove_the_file_at_any_time(world: World, tmp_path: Path) -> None:
    """It is made again when there is something to save."""
    world.passes(DAY_MS)
    world.end_file(0)
    (tmp_path / AGES_PATH).unlink()
    (tmp_path / AGES_PATH).parent.rmdir()
    world.end_file(1)
    assert (tmp_path / AGES_PATH).exists()
    assert set(world.told().values()) == {0}


def test_a_clock_that_jumps_ahead_at_the_moment_when_ages_are_taken_over_ages_nothing(
    world: World,
) -> None:
    """Twelve seconds of a wrong clock were enough to make all files a year older."""
    world.end_file(0)
    world.passes(HOUR_MS)
    world.start()
    world.passes(int(SETTLE_S * 1000) - 10_000, 10_000)
    world.error_ms = YEAR_MS
    world.passes(10_000)
    world.error_ms = 0
    assert hours(world.told()) == {0: None}
    world.passes(HOUR_MS, 10_000)
    assert hours(world.told()) == {0: 2}
