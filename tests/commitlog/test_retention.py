"""Which log files go, and when messages are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.commitlog.retention import (
    HOUR_MS,
    DiskUsage,
    RetentionPolicy,
    StoredFile,
    files_to_delete,
    is_too_full,
    parse_delete_hours,
)
from commitbus.commitlog.types import PhysicalOffset

SIZE = 100
POLICY = RetentionPolicy()


def files(*ages_in_hours: float | None) -> list[StoredFile]:
    """Files that were ended so long ago."""
    return [
        StoredFile(
            PhysicalOffset(number * SIZE),
            SIZE,
            None if age is None else round(age * HOUR_MS),
        )
        for number, age in enumerate(ages_in_hours)
    ]


def deleted(stored: list[StoredFile], *, used: int, hour: int, total: int = 1000) -> int:
    """How many go when `used` of `total` bytes are taken."""
    usage = DiskUsage(total, total - used)
    return files_to_delete(POLICY, stored, usage, local_hour=hour)


def test_expired_files_go_in_their_hour_only() -> None:
    """At four in the morning, and those alone whose last message is older than 48 hours."""
    stored = files(72, 48.001, 48, 1)
    assert deleted(stored, used=500, hour=4) == 2
    assert deleted(stored, used=500, hour=5) == 0


def test_a_fuller_disk_lets_expired_files_go_at_any_hour() -> None:
    """From 75 % on; unexpired ones stay."""
    stored = files(72, 49, 1)
    assert deleted(stored, used=749, hour=5) == 0
    assert deleted(stored, used=750, hour=5) == 2


def test_a_nearly_full_disk_takes_the_oldest_until_there_is_room() -> None:
    """From 85 % on, expired or not, and no more than it needs."""
    stored = files(3, 2, 1)
    assert deleted(stored, used=849, hour=4) == 0
    assert deleted(stored, used=850, hour=5) == 1
    assert deleted(stored, used=960, hour=5) == 2
    assert deleted(stored, used=1000, hour=5, total=1000) == 2
    assert deleted(files(50, 49, 1), used=850, hour=5) == 2


def test_a_file_of_unknown_age_stays_unless_room_is_needed() -> None:
    """Nobody knows whether its messages are old enough."""
    stored = files(72, None, 71)
    assert deleted(stored, used=800, hour=4) == 1
    assert deleted(stored, used=990, hour=4) == 2


def test_nothing_goes_where_there_is_nothing() -> None:
    """The file that is written is not among those that may go."""
    assert deleted([], used=999, hour=4) == 0


def test_messages_are_refused_from_the_limit_on() -> None:
    """90 %, and at 100 the limit is off."""
    assert not is_too_full(POLICY, DiskUsage(1000, 101))
    assert is_too_full(POLICY, DiskUsage(1000, 100))
    off = RetentionPolicy(force_percent=100, refuse_percent=100)
    assert not is_too_full(off, DiskUsage(1000, 0))
    usage = DiskUsage(1000, 0)
    assert files_to_delete(off, files(1), usage, local_hour=4) == 0


def test_a_file_system_without_a_size_is_never_full() -> None:
    """As some that live in memory have none."""
    assert DiskUsage(0, 0).used_percent == 0


@given(
    ages=st.lists(st.one_of(st.none(), st.floats(0, 200)), max_size=6),
    used=st.integers(0, 1000),
    hour=st.integers(0, 23),
)
def test_more_use_never_keeps_more(ages: list[float | None], used: int, hour: int) -> None:
    """And what goes is always a beginning of the files."""
    stored = files(*ages)
    count = deleted(stored, used=used, hour=hour)
    assert 0 <= count <= len(stored)
    assert deleted(stored, used=min(used + 50, 1000), hour=hour) >= count


@pytest.mark.parametrize(("text", "hours"), [("04", {4}), ("4;16", {4, 16}), ("00;23", {0, 23})])
def test_hours_are_separated_by_semicolons(text: str, hours: set[int]) -> None:
    """As RocketMQ has them."""
    assert parse_delete_hours(text) == hours


@pytest.mark.parametrize("text", ["", "24", "4;", "-1", "4,5", "four", "004", "٤"])
def test_anything_else_is_refused(text: str) -> None:
    """A misspelt hour must not mean never."""
    with pytest.raises(ValueError, match="is not an hour"):
        parse_delete_hours(text)
