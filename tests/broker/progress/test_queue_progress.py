"""The state machine of one group in one queue, beside a model that is a plain dict."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from commitbus.broker.progress.queue_progress import InFlight, Lease, QueueProgress


def _deliver(progress: QueueProgress, *offsets: int, until: int = 100, end: int = 0) -> None:
    progress.deliver(
        offsets, Lease(10, until, "c", auto_renew=False), next_offset=end or offsets[-1] + 1
    )


def _redeliver(progress: QueueProgress, offset: int, until: int = 200) -> int:
    return progress.redeliver(offset, Lease(150, until, "d", auto_renew=True))


def _offsets(entries: list[InFlight]) -> list[int]:
    return [entry.offset for entry in entries]


def test_the_committed_offset_is_the_smallest_in_flight() -> None:
    progress = QueueProgress(5)
    assert (progress.committed_offset, progress.next_offset) == (5, 5)
    _deliver(progress, 5, 6, 7)
    assert (progress.committed_offset, progress.next_offset) == (5, 8)
    assert progress.acknowledge(6)
    assert progress.committed_offset == 5
    assert progress.acknowledge(5)
    assert progress.committed_offset == 7
    assert progress.acknowledge(7)
    assert progress.committed_offset == 8


def test_what_was_filtered_out_counts_as_acknowledged() -> None:
    progress = QueueProgress(0)
    _deliver(progress, 3, 8, end=20)
    assert progress.committed_offset == 3
    assert not progress.acknowledge(4)
    progress.deliver([], Lease(0, 0, "c", auto_renew=False), next_offset=30)
    assert list(progress.in_flight) == [3, 8]
    assert progress.next_offset == 30


def test_a_time_of_the_consumers_own_ends_the_automatic_renewal() -> None:
    """A renewal keeps the pop time, and goes on."""
    progress = QueueProgress(0)
    _deliver(progress, 0)
    _redeliver(progress, 0)
    progress.change_invisible(0, pop_time_ms=150, invisible_until_ms=300, suspend=False)
    assert progress.in_flight[0].auto_renew
    progress.change_invisible(0, pop_time_ms=151, invisible_until_ms=300, suspend=False)
    assert not progress.in_flight[0].auto_renew


def test_a_second_acknowledgement_is_told_from_the_first() -> None:
    progress = QueueProgress(0)
    _deliver(progress, 0)
    assert [progress.acknowledge(0), progress.acknowledge(0)] == [True, False]


def test_messages_expire_in_the_order_of_their_times_and_at_most_limit() -> None:
    progress = QueueProgress(0)
    _deliver(progress, 0, 1, until=300)
    _deliver(progress, 2, until=100)
    assert progress.next_expiry_ms == 100
    assert progress.expired(99, 10) == []
    assert _offsets(progress.expired(300, 10)) == [2, 0, 1]
    assert _offsets(progress.expired(300, 2)) == [2, 0]
    assert _offsets(progress.expired(300, 2)) == [2, 0], "until something is done about them"
    progress.acknowledge(2)
    assert progress.next_expiry_ms == 300
    progress.acknowledge(0)
    progress.acknowledge(1)
    assert progress.next_expiry_ms is None


def test_a_redelivery_counts_unless_it_was_suspended() -> None:
    progress = QueueProgress(0)
    _deliver(progress, 0)
    assert _redeliver(progress, 0) == 2
    progress.change_invisible(0, pop_time_ms=1, invisible_until_ms=300, suspend=True)
    assert _redeliver(progress, 0) == 2
    assert _redeliver(progress, 0) == 3
    entry = progress.in_flight[0]
    assert (entry.pop_time_ms, entry.invisible_until_ms, entry.client_id) == (150, 200, "d")
    assert entry.auto_renew


def test_a_change_to_the_time_it_had_does_not_make_two_of_it() -> None:
    progress = QueueProgress(0)
    _deliver(progress, 0, 1, until=100)
    progress.change_invisible(0, pop_time_ms=1, invisible_until_ms=100, suspend=False)
    assert sorted(_offsets(progress.expired(100, 10))) == [0, 1]
    assert sorted(_offsets(progress.expired(100, 10))) == [0, 1]


def test_a_reset_forgets_what_is_in_flight() -> None:
    progress = QueueProgress(0)
    _deliver(progress, 0, 1)
    progress.reset(1)
    assert (progress.committed_offset, progress.in_flight_count) == (1, 0)
    assert progress.expired(10**15, 10) == []
    _deliver(progress, 1)
    assert list(progress.in_flight) == [1]


def test_a_clamp_forgets_only_what_lies_beyond() -> None:
    progress = QueueProgress(0)
    _deliver(progress, 2, 4, 6)
    progress.clamp(9)
    assert progress.next_offset == 7
    progress.clamp(4)
    assert (progress.next_offset, list(progress.in_flight)) == (4, [2])
    progress.clamp(1)
    assert (progress.committed_offset, progress.in_flight_count) == (1, 0)


def test_hours_of_stale_expiries_do_not_pile_up() -> None:
    progress = QueueProgress(0)
    for offset in range(5_000):
        _deliver(progress, offset, until=12 * 3_600_000 + offset)
        progress.acknowledge(offset)
        assert len(progress._expiries) <= 64
    _deliver(progress, 5_000)
    for n in range(5_000):
        progress.change_invisible(5_000, pop_time_ms=n, invisible_until_ms=10**9 + n, suspend=False)
    assert len(progress._expiries) <= 66


class ProgressMachine(RuleBasedStateMachine):
    """Random operations; after each, everything visible equals a dict's answer."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = QueueProgress(0)
        self.next = 0
        self.model: dict[int, tuple[int, int, bool]] = {}  # until, attempt, suspended
        self.acknowledged: set[int] = set()

    @rule(
        gaps=st.lists(st.integers(0, 2), max_size=8),
        tail=st.integers(0, 2),
        until=st.integers(0, 50),
    )
    def deliver(self, gaps: list[int], tail: int, until: int) -> None:
        offsets, at = [], self.next
        for gap in gaps:
            offsets.append(at + gap)
            at = offsets[-1] + 1
        self.next = at + tail
        self.progress.deliver(
            offsets, Lease(0, until, "c", auto_renew=False), next_offset=self.next
        )
        self.model |= dict.fromkeys(offsets, (until, 1, False))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.model)))
        assert self.progress.acknowledge(offset)
        del self.model[offset]
        self.acknowledged.add(offset)

    @rule(offset=st.integers(-1, 100))
    def acknowledge_anything(self, offset: int) -> None:
        assert self.progress.acknowledge(offset) == (offset in self.model)
        if self.model.pop(offset, None) is not None:
            self.acknowledged.add(offset)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), until=st.integers(0, 50), suspend=st.booleans())
    def change(self, data: st.DataObject, until: int, suspend: bool) -> None:  # noqa: FBT001 - named by hypothesis
        offset = data.draw(st.sampled_from(sorted(self.model)))
        self.progress.change_invisible(
            offset, pop_time_ms=0, invisible_until_ms=until, suspend=suspend
        )
        self.model[offset] = until, self.model[offset][1], suspend

    @rule(now=st.integers(0, 60), limit=st.integers(1, 5), until=st.integers(0, 90))
    def redeliver_expired(self, now: int, limit: int, until: int) -> None:
        found = _offsets(self.progress.expired(now, limit))
        due = sorted(until for until, _, _ in self.model.values() if until <= now)
        assert [self.model[offset][0] for offset in found] == due[:limit]
        assert len(set(found)) == len(found)
        assert not self.acknowledged & set(found)
        for offset in found:
            _, attempt, suspended = self.model[offset]
            attempt += not suspended
            assert _redeliver(self.progress, offset, until) == attempt
            self.model[offset] = until, attempt, False

    @rule(back=st.integers(0, 5))
    def clamp(self, back: int) -> None:
        end = max(0, self.next - back)
        self.progress.clamp(end)
        self.next = end
        self.model = {o: v for o, v in self.model.items() if o < end}
        self.acknowledged = {o for o in self.acknowledged if o < end}

    @rule()
    def restore(self) -> None:
        entries = list(self.progress.in_flight.values())
        self.progress = QueueProgress(self.next)
        self.progress.restore(entries)

    @invariant()
    def equals_the_model(self) -> None:
        progress = self.progress
        assert progress.next_offset == self.next
        assert progress.committed_offset == min(self.model, default=self.next)
        assert progress.next_expiry_ms == min((v[0] for v in self.model.values()), default=None)
        assert {
            offset: (entry.invisible_until_ms, entry.delivery_attempt, entry.suspended)
            for offset, entry in progress.in_flight.items()
        } == self.model
        assert list(progress.in_flight) == sorted(self.model)
        assert len(progress._expiries) <= 2 * len(self.model) + 64


TestProgressMachine = ProgressMachine.TestCase
TestProgressMachine.settings = settings(
    max_examples=30, stateful_step_count=40, deadline=None, derandomize=True
)
