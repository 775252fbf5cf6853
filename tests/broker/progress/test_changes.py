"""The journal's payloads: every change comes back as it was, anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.broker.progress.changes import (
    PAYLOAD_BYTES_MAX,
    Acknowledgement,
    Change,
    Clamp,
    Definition,
    Delivery,
    EntryError,
    EntryKind,
    Hold,
    Redelivery,
    Reset,
    VisibilityChange,
    decode_change,
    decode_receiver,
    encode_receiver,
)
from commitbus.broker.progress.progress_rows import pack_in_flight, unpack_in_flight
from commitbus.broker.progress.queue_progress import Lease, QueueProgress

EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True)
CLIENTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
NAMES = st.text(max_size=60)
TIMES = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.sets(st.integers(0, 2**62), max_size=40).map(sorted) | st.builds(
    lambda start, count: list(range(start, start + count)),
    st.integers(0, 2**40),
    st.integers(0, 32),
)


def _state(progress: QueueProgress) -> tuple[int, list[object]]:
    return progress.next_offset, list(progress.in_flight.values())


def _apply(progress: QueueProgress, kind: int, payload: bytes) -> None:
    """Replay an entry."""
    decode_change(kind, payload, progress).apply(progress)


def _replay(progress: QueueProgress, change: Change) -> None:
    """Write a change and replay it."""
    _apply(progress, *change.encode())


def _delivered(*offsets: int) -> QueueProgress:
    progress = QueueProgress(0)
    _replay(progress, Delivery(offsets, Lease(1, 2, "c", auto_renew=False), offsets[-1] + 1))
    return progress


@EXAMPLES
@given(OFFSETS, st.integers(0, 9), TIMES, TIMES, CLIENTS)
def test_a_delivery_is_applied_as_it_was_made(
    offsets: list[int], tail: int, pop: int, until: int, client: str
) -> None:
    next_offset = (offsets[-1] if offsets else 0) + 1 + tail
    for renew in (False, True):
        lease = Lease(pop, until, client, auto_renew=renew)
        direct, replayed = QueueProgress(0), QueueProgress(0)
        direct.deliver(offsets, lease, next_offset=next_offset)
        _replay(replayed, Delivery(offsets, lease, next_offset))
        assert _state(replayed) == _state(direct)


@EXAMPLES
@given(OFFSETS, st.integers(0, 9))
def test_what_is_held_back_is_applied_as_it_was_made(offsets: list[int], tail: int) -> None:
    next_offset = (offsets[-1] if offsets else 0) + 1 + tail
    direct, replayed = QueueProgress(0), QueueProgress(0)
    direct.hold(offsets, next_offset=next_offset)
    _replay(replayed, Hold(offsets, next_offset))
    assert _state(replayed) == _state(direct)
    assert [entry.delivery_attempt for entry in replayed.in_flight.values()] == [0] * len(offsets)


@pytest.mark.parametrize("renew", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_a_redelivery_says_whether_it_counts(*, renew: bool, counts: bool) -> None:
    progress = _delivered(3)
    _replay(progress, Redelivery(3, Lease(7, 8, "c", auto_renew=renew), counts, None))
    entry = progress.in_flight[3]
    assert (entry.auto_renew, entry.delivery_attempt) == (renew, 1 + counts)


@pytest.mark.parametrize("attempt_id", ["", "A", "with\0nul"])
def test_an_attempt_to_receive_is_kept_beside_its_client(attempt_id: str) -> None:
    """Whatever the attempt's text is; without one the bytes are the client's alone."""
    receiver = "client@1", attempt_id
    assert decode_receiver(encode_receiver(receiver)) == receiver
    assert encode_receiver(("client@1", "")) == b"client@1"
    assert encode_receiver(("client@1", "A")) == b"client@1\0A", "as earlier versions wrote it"
    progress = QueueProgress(0)
    lease = Lease(1, 2, "client@1", auto_renew=False, attempt_id=attempt_id)
    _replay(progress, Delivery([0], lease, 1))
    assert progress.in_flight[0].receiver == receiver
    entries = unpack_in_flight(pack_in_flight(progress.entries()), 1)
    assert entries == progress.entries()


def test_a_run_of_offsets_takes_ten_bytes_however_long() -> None:
    def size(offsets: list[int]) -> int:
        return len(Delivery(offsets, Lease(0, 0, "", auto_renew=False), 99).encode()[1])

    assert size([1]) == size(list(range(1, 33))) == size([]) + 10
    assert size([1, 3, 4, 9]) == size([]) + 30


def test_the_longest_delivery_fits() -> None:
    lease = Lease(0, 0, "c" * 16384, auto_renew=False)
    _, payload = Delivery(range(0, 2048, 2), lease, 2048).encode()
    assert len(payload) <= PAYLOAD_BYTES_MAX


def test_every_other_change_is_applied_as_it_was_made() -> None:
    direct, replayed = _delivered(3, 4, 5), _delivered(3, 4, 5)
    direct.redeliver(3, Lease(7, 8, "é", auto_renew=True))
    direct.change_invisible(4, pop_time_ms=9, invisible_until_ms=10, suspend=True)
    direct.acknowledge(3)
    direct.clamp(5)
    _replay(replayed, Redelivery(3, Lease(7, 8, "é", auto_renew=True), counts=True, attempt=None))
    _replay(replayed, VisibilityChange(4, 9, 10, suspend=True))
    _replay(replayed, Acknowledgement([3]))
    _replay(replayed, Clamp(5))
    assert _state(replayed) == _state(direct)
    _replay(replayed, Reset(2))
    assert _state(replayed) == (2, [])


def test_offsets_are_acknowledged_together_or_not_at_all() -> None:
    progress = _delivered(3, 4, 5)
    for wrong in ([4, 6], [4, 4], []):
        with pytest.raises(EntryError):
            _replay(progress, Acknowledgement(wrong))
    assert list(progress.in_flight) == [3, 4, 5]
    _replay(progress, Acknowledgement([5, 3]))
    assert list(progress.in_flight) == [4]
    assert len(Acknowledgement(range(1024)).encode()[1]) <= PAYLOAD_BYTES_MAX


@EXAMPLES
@given(NAMES, NAMES, st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1))
def test_a_definition_comes_back(group: str, topic: str, queue_id: int, offset: int) -> None:
    definition = Definition((group, topic, queue_id), offset)
    kind, payload = definition.encode()
    assert kind is EntryKind.DEFINE
    assert Definition.decode(payload) == definition
    for wrong in (payload[:-1], payload + b"x"):
        with pytest.raises(EntryError):
            Definition.decode(wrong)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        Acknowledgement([9]).encode(),
        (EntryKind.ACKNOWLEDGE, b"short"),
        Reset(-1).encode(),
        Clamp(-1).encode(),
        VisibilityChange(9, 0, 0, suspend=True).encode(),
        (EntryKind.DEFINE, b""),
        (EntryKind.WRAP, b""),
        (200, b""),
    ],
)
def test_an_entry_that_does_not_fit_changes_nothing(kind: int, payload: bytes) -> None:
    progress = _delivered(3, 4)
    before = _state(progress)
    with pytest.raises(EntryError):
        _apply(progress, kind, payload)
    assert _state(progress) == before


def test_a_delivery_of_what_was_delivered_is_refused() -> None:
    _, payload = Delivery([4], Lease(0, 0, "client", auto_renew=False), 9).encode()
    progress = _delivered(3, 4)
    with pytest.raises(EntryError, match="before"):
        _apply(progress, EntryKind.DELIVER, payload)
    fresh = QueueProgress(0)
    for wrong in (payload[:30], payload[:-1], payload + b"\0", payload[:-2] + b"\0\0"):
        with pytest.raises(EntryError):
            _apply(fresh, EntryKind.DELIVER, wrong)
    assert _state(fresh) == (0, [])


@EXAMPLES
@given(st.sampled_from([*EntryKind, 0, 77]), st.binary(max_size=80))
def test_any_bytes_are_applied_or_refused(kind: int, payload: bytes) -> None:
    progress = _delivered(3, 4)
    try:
        _apply(progress, kind, payload)
    except EntryError:
        assert progress.next_offset == 5
    assert list(progress.in_flight) == sorted(progress.in_flight)
    assert all(offset < progress.next_offset for offset in progress.in_flight)
