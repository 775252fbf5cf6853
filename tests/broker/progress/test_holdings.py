"""What clients hold with automatic renewal, beside what is in flight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from commitbus.broker.progress.holdings import Holding, Holdings
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.queue_progress import InFlight, Lease

Open = Callable[..., ProgressTable]
Killed = Callable[[Path, Path], Path]


def _offsets(holdings: dict[Holding, None]) -> list[int]:
    return sorted(entry.offset for holding in holdings for entry in holding.entries())


def _lease(client_id: str = "c", until_ms: int = 60_000, attempt_id: str = "") -> Lease:
    return Lease(0, until_ms, client_id, auto_renew=True, attempt_id=attempt_id)


def _filled(table: ProgressTable) -> Holdings:
    progress = table.create("g", "t", 0, 0)
    table.deliver(progress, range(4), _lease(), next_offset=4)
    table.deliver(progress, range(4, 6), _lease("c", 65_000, "attempt"), next_offset=6)
    table.deliver(progress, range(6, 8), _lease("d"), next_offset=8)
    never = Lease(0, 60_000, "c", auto_renew=False)
    table.deliver(progress, range(8, 10), never, next_offset=10)
    return table.holdings


def test_a_clients_messages_are_found_whatever_its_attempt(
    open_table: Open, tmp_path: Path
) -> None:
    table = open_table(tmp_path)
    holdings = _filled(table)
    progress = table.create("g", "t", 0, 0)
    table.acknowledge(progress, 0, 3)
    table.change_invisible(progress, 1, pop_time_ms=0, invisible_until_ms=61_000, suspend=False)
    table.change_invisible(progress, 2, pop_time_ms=9, invisible_until_ms=61_000, suspend=False)
    assert _offsets(holdings.taken_from("c")) == [1, 4, 5], "2 has a time of the consumer's own"
    table.redeliver(progress, 6, _lease("c", 90_000))
    assert _offsets(holdings.taken_from("c")) == [6]
    assert _offsets(holdings.taken_from("d")) == [7]
    assert holdings.taken_from("nobody") == {}


def test_what_is_due_is_found_by_its_second(open_table: Open, tmp_path: Path) -> None:
    table = open_table(tmp_path)
    holdings = _filled(table)
    assert not list(holdings.due(59_999))
    assert [holding.offsets for holding in holdings.due(64_999)] == [(0, 1, 2, 3), (6, 7)]
    due = [holding.offsets for holding in holdings.due(65_000)]
    assert due == [(0, 1, 2, 3), (6, 7), (4, 5)], "what nobody renewed or dropped is still due"
    for holding in holdings.due(100_000):
        holdings.drop(holding)
    assert not list(holdings.due(100_000))
    assert len(holdings) == len(holdings._by_second) == len(holdings._by_client) == 0


def test_what_is_extended_together_is_one_holding(
    open_table: Open, tmp_path: Path, killed: Killed
) -> None:
    """After a start too."""
    table = open_table(tmp_path / "a")
    holdings = _filled(table)
    progress = table.create("g", "t", 0, 0)
    table.extend(progress, [0, 1, 2, 3], 120_000)
    assert [holding.offsets for holding in holdings.due(65_000)] == [(6, 7), (4, 5)]
    again = open_table(killed(tmp_path / "a", tmp_path / "b"))
    kept = again.create("g", "t", 0, 0)
    assert list(kept.in_flight.values()) == list(progress.in_flight.values())
    assert [holding.offsets for holding in again.holdings.due(130_000)] == [
        *[(6, 7), (4, 5), (0, 1, 2, 3)]
    ]
    table.close()
    third = open_table(tmp_path / "a")
    assert _offsets(third.holdings.taken_from("c")) == [0, 1, 2, 3, 4, 5]


def test_a_reset_leaves_nothing_to_renew(open_table: Open, tmp_path: Path) -> None:
    table = open_table(tmp_path)
    holdings = _filled(table)
    table.reset("g", "t", 0, 0)
    progress = table.create("g", "t", 0, 0)
    table.deliver(progress, range(2), Lease(1, 99_000, "c", auto_renew=True), next_offset=2)
    found = [entry for holding in holdings.due(90_000) for entry in holding.entries()]
    assert found == list[InFlight]()
    assert _offsets(holdings.taken_from("c")) == [0, 1]
