"""When messages become visible again: found quickly, and tidied up a little with each change."""

from __future__ import annotations

import pytest

from commitbus.broker.progress.expiries import Expiries
from commitbus.broker.progress.queue_progress import Lease, QueueProgress

MESSAGES = 20_000


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each offset of which a note was compared with what is in flight."""
    seen: list[int] = []
    counts = Expiries._counts

    def look(expiries: Expiries, offset: int, until_ms: int) -> bool:
        seen.append(offset)
        return counts(expiries, offset, until_ms)

    monkeypatch.setattr(Expiries, "_counts", look)
    return seen


def _filled(batch: int) -> QueueProgress:
    progress = QueueProgress(0)
    for start in range(0, MESSAGES, batch):
        lease = Lease(0, 1_000_000 + start, "c", auto_renew=False)
        progress.deliver(range(start, start + batch), lease, next_offset=start + batch)
    return progress


@pytest.mark.parametrize("batch", [1, 32])
def test_no_acknowledgement_looks_through_all_that_is_in_flight(
    looks: list[int], batch: int
) -> None:
    """With 640,000 in flight, one of them took 0.4 s."""
    progress = _filled(batch)
    for n in range(MESSAGES):
        offset = n * 7919 % MESSAGES
        looks.clear()
        progress.acknowledge(offset)
        assert len(looks) <= 64
    assert len(progress._expiries) <= 64


def test_no_change_looks_through_all_that_is_in_flight(looks: list[int]) -> None:
    progress = _filled(32)
    untils = dict[int, int]()
    for offset in [*range(MESSAGES), *range(0, MESSAGES, 2)]:
        looks.clear()
        untils[offset] = 2_000_000 + (offset * 7919) % MESSAGES
        progress.change_invisible(
            offset, pop_time_ms=1, invisible_until_ms=untils[offset], suspend=False
        )
        assert len(looks) <= 64
    found = progress.expired(3_000_000, MESSAGES)
    assert [entry.invisible_until_ms for entry in found] == sorted(untils.values())


def test_what_is_tidied_up_is_found_meanwhile() -> None:
    """The notes are in two heaps then."""
    progress = _filled(32)
    offsets = iter([*range(0, MESSAGES, 3), *range(1, MESSAGES, 3)])
    while not progress._expiries._old:
        progress.acknowledge(next(offsets))
    first = next(iter(progress.in_flight))
    assert progress.next_expiry_ms == progress.in_flight[first].invisible_until_ms
    assert progress.may_have_expired(1_000_000)
    assert not progress.may_have_expired(999_999)
    found = progress.expired(2_000_000, MESSAGES)
    assert [entry.offset for entry in found] == list(progress.in_flight)
