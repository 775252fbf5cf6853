"""Saves beside changes: nobody waits for a large one, and a kill loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import pack

import pytest

from commitbus.broker.progress import progress_rows
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.queue_progress import InFlight, Lease, QueueProgress

Open = Callable[..., ProgressTable]
Killed = Callable[[Path, Path], Path]

MESSAGES = 3_000


def _change(table: ProgressTable, progress: QueueProgress, round_: int) -> None:
    """Make changes of every kind to messages that are being packed."""
    at = round_ * 10
    table.acknowledge(progress, at)
    table.redeliver(progress, at + 1, Lease(7 + at, 9_000, "d", auto_renew=True))
    table.redeliver(progress, at + 1, Lease(8 + at, 9_000, "e", auto_renew=True))
    table.change_invisible(progress, at + 2, pop_time_ms=9, invisible_until_ms=77, suspend=True)
    table.redeliver(progress, at + 2, Lease(10, 9_000, "f", auto_renew=True))
    table.extend(progress, [at + 3, at + 4], 8_000 + at)
    table.redeliver(progress, at + 5, Lease(3, 4, "g", auto_renew=False))
    table.acknowledge(progress, at + 5)
    start = progress.next_offset
    lease = Lease(11, 12, "h", auto_renew=True)
    table.deliver(progress, range(start, start + 3), lease, next_offset=start + 3)
    table.acknowledge(progress, start + 1)


def test_changes_go_on_while_much_in_flight_is_packed(
    open_table: Open, tmp_path: Path, killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive and an acknowledgement waited until all was packed, 0.4 s for 800,000."""
    table = open_table(tmp_path / "a", journal_bytes=1024 * 1024)
    progress = table.create("g", "t", 0, 0)
    for start in range(0, MESSAGES, 1_000):
        lease = Lease(1, 100, "c", auto_renew=True)
        table.deliver(progress, range(start, start + 1_000), lease, next_offset=start + 1_000)
    changed, asked = threading.Event(), threading.Event()
    late: list[str] = []

    def pack_after_a_change(layout: str, *values: object) -> bytes:
        asked.set()
        if not changed.wait(5):
            late.append("a change waited for the packing")
        changed.clear()
        return pack(layout, *values)

    def change() -> None:
        for round_ in range(6):
            assert asked.wait(5)
            asked.clear()
            _change(table, progress, round_)
            changed.set()

    with monkeypatch.context() as patch:
        patch.setattr(progress_rows, "pack", pack_after_a_change)
        changer = threading.Thread(target=change)
        changer.start()
        table.save()
        changer.join()
    assert not late
    expected = progress.next_offset, list(progress.in_flight.values())
    again = open_table(killed(tmp_path / "a", tmp_path / "b"), journal_bytes=1024 * 1024)
    kept = again.get("g", "t", 0)
    assert kept is not None
    assert (kept.next_offset, list(kept.in_flight.values())) == expected


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_a_reset_or_deletion_forgot_is_freed_one_by_one(
    open_table: Open,
    tmp_path: Path,
    is_deleted: bool,  # noqa: FBT001 - drawn
) -> None:
    """As a whole it would keep the interpreter from everybody."""
    table = open_table(tmp_path)
    progress = table.create("g", "t", 0, 0)
    for first in (0, 1_000):
        offsets = range(first, first + 1_000)
        lease = Lease(1, 2, "c", auto_renew=True)
        table.deliver(progress, offsets, lease, next_offset=offsets.stop)
    forgotten = progress.in_flight
    if is_deleted:
        table.delete_group("g")
    else:
        table.reset("g", "t", 0, 0)
    assert len(forgotten) == 2_000
    table._rows.run(table._tick)
    assert len(forgotten) == 0
    assert progress.in_flight_count == 0


def test_packing_says_the_same_in_pieces() -> None:
    entries = [InFlight(n, n, 2 * n, 1, f"c{n % 3}", auto_renew=n % 2 == 0) for n in range(9_000)]
    blob = progress_rows.pack_in_flight(entries)
    assert progress_rows.unpack_in_flight(blob, 9_000) == entries


def _sequence_of(entries: Sequence[InFlight]) -> list[int]:
    return [entry.offset for entry in entries]


def test_what_is_in_flight_is_copied_in_order(open_table: Open, tmp_path: Path) -> None:
    table = open_table(tmp_path)
    progress = table.create("g", "t", 0, 0)
    table.deliver(progress, range(50), Lease(1, 2, "c", auto_renew=False), next_offset=50)
    table.acknowledge(progress, *range(0, 50, 3))
    table.deliver(progress, range(50, 60), Lease(1, 2, "c", auto_renew=False), next_offset=60)
    next_offset, entries = table.snapshot(progress)
    assert next_offset == 60
    assert _sequence_of(entries) == list(progress.in_flight)
