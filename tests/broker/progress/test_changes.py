"""The journal's payloads: every change comes back as it was, anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.broker.progress.changes import (
    PAYLOAD_BYTES_MAX,
    Definition,
    EntryError,
    EntryKind,
    apply_entry,
    decode_definition,
    encode_acknowledgement,
    encode_change,
    encode_definition,
    encode_delivery,
    encode_hold,
    encode_offset,
    encode_redelivery,
)
from commitbus.broker.progress.queue_progress import Lease, QueueProgress

EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True)
NAMES = st.text(max_size=60)
TIMES = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.sets(st.integers(0, 2**62), max_size=40).map(sorted) | st.builds(
    lambda start, count: list(range(start, start + count)),
    st.integers(0, 2**40),
    st.integers(0, 32),
)


def _state(progress: QueueProgress) -> tuple[int, list[object]]:
    return progress.next_offset, list(progress.in_flight.values())


def _delivered(*offsets: int) -> QueueProgress:
    progress = QueueProgress(0)
    payload = encode_delivery(
        offsets, Lease(1, 2, "c", auto_renew=False), next_offset=offsets[-1] + 1
    )
    apply_entry(progress, EntryKind.DELIVER, payload)
    return progress


@EXAMPLES
@given(OFFSETS, st.integers(0, 9), TIMES, TIMES, st.text(max_size=40))
def test_a_delivery_is_applied_as_it_was_made(
    offsets: list[int], tail: int, pop: int, until: int, client: str
) -> None:
    next_offset = (offsets[-1] if offsets else 0) + 1 + tail
    for renew in (False, True):
        lease = Lease(pop, until, client, auto_renew=renew)
        direct, replayed = QueueProgress(0), QueueProgress(0)
        direct.deliver(offsets, lease, next_offset=next_offset)
        payload = encode_delivery(offsets, lease, next_offset=next_offset)
        apply_entry(replayed, EntryKind.DELIVER, payload)
        assert _state(replayed) == _state(direct)


@EXAMPLES
@given(OFFSETS, st.integers(0, 9))
def test_what_is_held_back_is_applied_as_it_was_made(offsets: list[int], tail: int) -> None:
    next_offset = (offsets[-1] if offsets else 0) + 1 + tail
    direct, replayed = QueueProgress(0), QueueProgress(0)
    direct.hold(offsets, next_offset=next_offset)
    payload = encode_hold(offsets, next_offset=next_offset)
    apply_entry(replayed, EntryKind.HOLD, payload)
    assert _state(replayed) == _state(direct)
    assert [entry.delivery_attempt for entry in replayed.in_flight.values()] == [0] * len(offsets)


@pytest.mark.parametrize("renew", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_a_redelivery_says_whether_it_counts(*, renew: bool, counts: bool) -> None:
    progress = _delivered(3)
    payload = encode_redelivery(3, Lease(7, 8, "c", auto_renew=renew), counts=counts)
    apply_entry(progress, EntryKind.REDELIVER, payload)
    entry = progress.in_flight[3]
    assert (entry.auto_renew, entry.delivery_attempt) == (renew, 1 + counts)


def test_a_run_of_offsets_takes_ten_bytes_however_long() -> None:
    def size(offsets: list[int]) -> int:
        payload = encode_delivery(offsets, Lease(0, 0, "", auto_renew=False), next_offset=99)
        return len(payload)

    assert size([1]) == size(list(range(1, 33))) == size([]) + 10
    assert size([1, 3, 4, 9]) == size([]) + 30


def test_the_longest_delivery_fits() -> None:
    payload = encode_delivery(
        range(0, 2048, 2), Lease(0, 0, "c" * 16384, auto_renew=False), next_offset=2048
    )
    assert len(payload) <= PAYLOAD_BYTES_MAX


def test_every_other_change_is_applied_as_it_was_made() -> None:
    direct, replayed = _delivered(3, 4, 5), _delivered(3, 4, 5)
    direct.redeliver(3, Lease(7, 8, "é", auto_renew=True))
    direct.change_invisible(4, pop_time_ms=9, invisible_until_ms=10, suspend=True)
    direct.acknowledge(3)
    direct.clamp(5)
    payload = encode_redelivery(3, Lease(7, 8, "é", auto_renew=True))
    apply_entry(replayed, EntryKind.REDELIVER, payload)
    change = encode_change(4, pop_time_ms=9, invisible_until_ms=10, suspend=True)
    apply_entry(replayed, EntryKind.CHANGE, change)
    apply_entry(replayed, EntryKind.ACKNOWLEDGE, encode_acknowledgement([3]))
    apply_entry(replayed, EntryKind.CLAMP, encode_offset(5))
    assert _state(replayed) == _state(direct)
    apply_entry(replayed, EntryKind.RESET, encode_offset(2))
    assert _state(replayed) == (2, [])


def test_offsets_are_acknowledged_together_or_not_at_all() -> None:
    progress = _delivered(3, 4, 5)
    for wrong in ([4, 6], [4, 4], []):
        with pytest.raises(EntryError):
            apply_entry(progress, EntryKind.ACKNOWLEDGE, encode_acknowledgement(wrong))
    assert list(progress.in_flight) == [3, 4, 5]
    apply_entry(progress, EntryKind.ACKNOWLEDGE, encode_acknowledgement([5, 3]))
    assert list(progress.in_flight) == [4]
    assert len(encode_acknowledgement(range(1024))) <= PAYLOAD_BYTES_MAX


@EXAMPLES
@given(NAMES, NAMES, st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1))
def test_a_definition_comes_back(group: str, topic: str, queue_id: int, offset: int) -> None:
    definition = Definition((group, topic, queue_id), offset)
    payload = encode_definition(definition)
    assert decode_definition(payload) == definition
    for wrong in (payload[:-1], payload + b"x"):
        with pytest.raises(EntryError):
            decode_definition(wrong)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (EntryKind.ACKNOWLEDGE, encode_offset(9)),
        (EntryKind.ACKNOWLEDGE, b"short"),
        (EntryKind.RESET, encode_offset(-1)),
        (EntryKind.CLAMP, encode_offset(-1)),
        (EntryKind.CHANGE, encode_change(9, pop_time_ms=0, invisible_until_ms=0, suspend=True)),
        (EntryKind.DEFINE, b""),
        (EntryKind.WRAP, b""),
        (200, b""),
    ],
)
def test_an_entry_that_does_not_fit_changes_nothing(kind: int, payload: bytes) -> None:
    progress = _delivered(3, 4)
    before = _state(progress)
    with pytest.raises(EntryError):
        apply_entry(progress, kind, payload)
    assert _state(progress) == before


def test_a_delivery_of_what_was_delivered_is_refused() -> None:
    payload = encode_delivery([4], Lease(0, 0, "client", auto_renew=False), next_offset=9)
    progress = _delivered(3, 4)
    with pytest.raises(EntryError, match="before"):
        apply_entry(progress, EntryKind.DELIVER, payload)
    fresh = QueueProgress(0)
    for wrong in (payload[:30], payload[:-1], payload + b"\0", payload[:-2] + b"\0\0"):
        with pytest.raises(EntryError):
            apply_entry(fresh, EntryKind.DELIVER, wrong)
    assert _state(fresh) == (0, [])


@EXAMPLES
@given(st.sampled_from([*EntryKind, 0, 77]), st.binary(max_size=80))
def test_any_bytes_are_applied_or_refused(kind: int, payload: bytes) -> None:
    progress = _delivered(3, 4)
    try:
        apply_entry(progress, kind, payload)
    except EntryError:
        assert progress.next_offset == 5
    assert list(progress.in_flight) == sorted(progress.in_flight)
    assert all(offset < progress.next_offset for offset in progress.in_flight)
