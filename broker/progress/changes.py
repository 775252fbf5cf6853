"""The changes of a group's progress in a queue, and their bytes in the journal.

A change is a value. It is written to the journal (`encode`), read back by a replay (`decode`, which
checks it against the progress so far) and made in memory (`apply`). A new kind of change is a class
here, a row of `_DECODERS`, and a method of `QueueProgress`.

The payloads, all integers big-endian, strings UTF-8 behind their length:

    DEFINE       next offset i64, queue id u32, group length u16, topic length u16, group, topic
    DELIVER      next offset i64, lease, then runs of offsets: start i64, count u16
    REDELIVER    offset i64, lease, then the attempt u32, which older journals lack
    ACKNOWLEDGE  offsets, i64 each
    CHANGE       offset i64, pop time i64, invisible until i64, suspend u8
    RESET        next offset i64
    CLAMP        end i64
    DELETE       nothing
    WRAP         nothing
    HOLD         next offset i64, then runs of offsets as in DELIVER
    EXTEND       invisible until i64, then runs of offsets as in DELIVER

A lease is pop time i64, invisible until i64, flags u8, receiver length u16, receiver. Flags: 1 auto
renew, 2 a redelivery that is no other attempt. A receiver is a client id, and in a FIFO group a NUL
and the name of the attempt. No client id has a NUL: they come as HTTP headers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from struct import Struct, pack
from struct import error as StructError  # noqa: N812 - the standard library names it in lower case
from typing import Final, NamedTuple, Protocol, final

from commitbus.broker.progress.fifo_lock import Receiver
from commitbus.broker.progress.queue_progress import Lease, QueueProgress

PAYLOAD_BYTES_MAX: Final = 0xFFFF - 20
CHANGE_OFFSETS_MAX: Final = 1024
"""Offsets of one change. It is made in one step, in which the broker serves nobody else."""
CLIENT_ID_BYTES_MAX: Final = 16384
"""More than any transport lets pass as request metadata."""

_DEFINE: Final = Struct(">qIHH")
_DELIVER: Final = Struct(">qqqBH")
_RUN: Final = Struct(">qH")
_CHANGE: Final = Struct(">qqqB")
_OFFSET: Final = Struct(">q")
_ATTEMPT: Final = Struct(">I")
_AUTO_RENEW: Final = 1
_DOES_NOT_COUNT: Final = 2


@final
class EntryKind(IntEnum):
    """The kind of a journal entry."""

    DEFINE = 1
    DELIVER = 2
    REDELIVER = 3
    ACKNOWLEDGE = 4
    CHANGE = 5
    RESET = 6
    CLAMP = 7
    DELETE = 8
    WRAP = 9
    HOLD = 10
    EXTEND = 11


@final
class EntryError(ValueError):
    """The entry's bytes are none that this module makes, or do not fit the progress so far."""


Entry = tuple[EntryKind, bytes]
"""A kind and its payload, as the journal keeps them."""


class Change(Protocol):
    """One change of one progress."""

    def encode(self) -> Entry:
        """Return the journal entry."""

    def apply(self, progress: QueueProgress) -> None:
        """Make the change in memory."""


@final
class Definition(NamedTuple):
    """A key id stands for this queue of this group, whose progress begins at `next_offset`."""

    key: tuple[str, str, int]
    """Group, topic, queue id."""
    next_offset: int

    def encode(self) -> Entry:
        """Return the journal entry."""
        group_name, topic_name, queue_id = self.key
        group, topic = group_name.encode(), topic_name.encode()
        head = _DEFINE.pack(self.next_offset, queue_id, len(group), len(topic))
        return EntryKind.DEFINE, head + group + topic

    @classmethod
    def decode(cls, payload: bytes) -> Definition:
        """Return the definition that a DEFINE entry holds.

        Raises:
            EntryError: The payload is not that of a DEFINE entry.
        """
        try:
            next_offset, queue_id, group_bytes, topic_bytes = _DEFINE.unpack_from(payload)
            names = payload[_DEFINE.size :]
            if len(names) != group_bytes + topic_bytes or next_offset < 0:
                raise EntryError("DEFINE has the wrong length or offset")
            group, topic = names[:group_bytes].decode(), names[group_bytes:].decode()
        except (StructError, UnicodeDecodeError) as error:
            raise EntryError(f"DEFINE: {error}") from error
        return cls((group, topic, queue_id), next_offset)


@final
class Delivery(NamedTuple):
    """New offsets go in flight for the first time; the group goes on at `next_offset`."""

    offsets: Sequence[int]
    """Ascending, from the progress's next offset up to `next_offset`. Offsets between them that
    are left out count as acknowledged."""
    lease: Lease
    next_offset: int

    def encode(self) -> Entry:
        """Return the journal entry."""
        head = _encode_lease(self.next_offset, self.lease)
        return EntryKind.DELIVER, head + _encode_runs(self.offsets)

    @classmethod
    def decode(cls, payload: bytes, progress: QueueProgress) -> Delivery:
        """Return the change of an entry that fits the progress. Raises EntryError."""
        next_offset, lease, _, runs = _decode_lease(payload)
        change = cls(_decode_runs(runs), lease, next_offset)
        _check_new(progress, change.offsets, change.next_offset)
        return change

    def apply(self, progress: QueueProgress) -> None:
        """Put the offsets in flight."""
        progress.deliver(self.offsets, self.lease, next_offset=self.next_offset)


@final
class Hold(NamedTuple):
    """New offsets are kept back for their turn; the group goes on at `next_offset`."""

    offsets: Sequence[int]
    """Chosen as those of a delivery."""
    next_offset: int

    def encode(self) -> Entry:
        """Return the journal entry."""
        return EntryKind.HOLD, _OFFSET.pack(self.next_offset) + _encode_runs(self.offsets)

    @classmethod
    def decode(cls, payload: bytes, progress: QueueProgress) -> Hold:
        """Return the change of an entry that fits the progress. Raises EntryError."""
        (next_offset,) = _OFFSET.unpack_from(payload)
        change = cls(_decode_runs(payload[_OFFSET.size :]), next_offset)
        _check_new(progress, change.offsets, change.next_offset)
        return change

    def apply(self, progress: QueueProgress) -> None:
        """Put the offsets in flight, visible and never delivered."""
        progress.hold(self.offsets, next_offset=self.next_offset)


@final
class Redelivery(NamedTuple):
    """An offset in flight is delivered once more."""

    offset: int
    lease: Lease
    counts: bool
    """Whether it is another attempt. A suspended offset's next delivery is none either way."""
    attempt: int | None
    """The attempt's number, None in older journals. With it the change may be applied to a row that
    has it already: a large row is packed while changes go on."""

    def encode(self) -> Entry:
        """Return the journal entry."""
        flags = (not self.counts) * _DOES_NOT_COUNT
        payload = _encode_lease(self.offset, self.lease, flags=flags)
        if self.attempt is not None:
            payload += _ATTEMPT.pack(self.attempt)
        return EntryKind.REDELIVER, payload

    @classmethod
    def decode(cls, payload: bytes, progress: QueueProgress) -> Redelivery:
        """Return the change of an entry that fits the progress. Raises EntryError."""
        offset, lease, flags, rest = _decode_lease(payload)
        attempt = _ATTEMPT.unpack(rest)[0] if rest else None
        change = cls(offset, lease, not flags & _DOES_NOT_COUNT, attempt)
        _check_in_flight(progress, (change.offset,))
        return change

    def apply(self, progress: QueueProgress) -> None:
        """Give the offset its new lease and attempt."""
        progress.redeliver(self.offset, self.lease, counts=self.counts, attempt=self.attempt)


@final
class Acknowledgement(NamedTuple):
    """Offsets leave what is in flight for good."""

    offsets: Sequence[int]
    """1 to `CHANGE_OFFSETS_MAX`, all in flight, each once."""

    def encode(self) -> Entry:
        """Return the journal entry."""
        count = len(self.offsets)
        if count == 1:  # the usual number, in a third of the time
            return EntryKind.ACKNOWLEDGE, _OFFSET.pack(self.offsets[0])
        assert count <= CHANGE_OFFSETS_MAX
        return EntryKind.ACKNOWLEDGE, pack(f">{count}q", *self.offsets)

    @classmethod
    def decode(cls, payload: bytes, progress: QueueProgress) -> Acknowledgement:
        """Return the change of an entry that fits the progress. Raises EntryError."""
        change = cls([offset for (offset,) in _OFFSET.iter_unpack(payload)])
        _check_in_flight(progress, change.offsets)
        return change

    def apply(self, progress: QueueProgress) -> None:
        """Take the offsets out of flight."""
        for offset in self.offsets:
            progress.acknowledge(offset)


@final
class VisibilityChange(NamedTuple):
    """An offset in flight becomes visible at another time."""

    offset: int
    pop_time_ms: int
    """A time other than the present one ends the automatic renewal."""
    invisible_until_ms: int
    suspend: bool
    """Whether the next delivery does not count as another attempt."""

    def encode(self) -> Entry:
        """Return the journal entry."""
        return EntryKind.CHANGE, _CHANGE.pack(*self)

    @classmethod
    def decode(cls, payload: bytes, progress: QueueProgress) -> VisibilityChange:
        """Return the change of an entry that fits the progress. Raises EntryError."""
        offset, pop_time_ms, invisible_until_ms, suspend = _CHANGE.unpack(payload)
        change = cls(offset, pop_time_ms, invisible_until_ms, bool(suspend))
        _check_in_flight(progress, (change.offset,))
        return change

    def apply(self, progress: QueueProgress) -> None:
        """Set the offset's times."""
        progress.change_invisible(
            self.offset,
            pop_time_ms=self.pop_time_ms,
            invisible_until_ms=self.invisible_until_ms,
            suspend=self.suspend,
        )


@final
class Extension(NamedTuple):
    """Messages in flight of one client become visible later, and nothing else changes."""

    offsets: Sequence[int]
    """Ascending, 1 to `CHANGE_OFFSETS_MAX`."""
    invisible_until_ms: int

    def encode(self) -> Entry:
        """Return the journal entry."""
        head = _OFFSET.pack(self.invisible_until_ms)
        return EntryKind.EXTEND, head + _encode_runs(self.offsets)

    @classmethod
    def decode(cls, payload: bytes, progress: QueueProgress) -> Extension:
        """Return the change of an entry that fits the progress. Raises EntryError."""
        (invisible_until_ms,) = _OFFSET.unpack_from(payload)
        change = cls(_decode_runs(payload[_OFFSET.size :]), invisible_until_ms)
        _check_in_flight(progress, change.offsets)
        return change

    def apply(self, progress: QueueProgress) -> None:
        """Set the time."""
        progress.extend(self.offsets, self.invisible_until_ms)


@final
class Reset(NamedTuple):
    """The group goes on at an offset before or after; what is in flight is forgotten."""

    next_offset: int

    def encode(self) -> Entry:
        """Return the journal entry."""
        return EntryKind.RESET, _OFFSET.pack(self.next_offset)

    @classmethod
    def decode(cls, payload: bytes, _progress: QueueProgress) -> Reset:
        """Return the change of an entry that fits the progress. Raises EntryError."""
        change = cls(*_OFFSET.unpack(payload))
        _check_offset(change.next_offset)
        return change

    def apply(self, progress: QueueProgress) -> None:
        """Forget what is in flight."""
        progress.reset(self.next_offset)


@final
class Clamp(NamedTuple):
    """Everything at or beyond an offset is forgotten: the log no longer has it."""

    end: int

    def encode(self) -> Entry:
        """Return the journal entry."""
        return EntryKind.CLAMP, _OFFSET.pack(self.end)

    @classmethod
    def decode(cls, payload: bytes, _progress: QueueProgress) -> Clamp:
        """Return the change of an entry that fits the progress. Raises EntryError."""
        change = cls(*_OFFSET.unpack(payload))
        _check_offset(change.end)
        return change

    def apply(self, progress: QueueProgress) -> None:
        """Forget what is beyond the end."""
        progress.clamp(self.end)


_DECODERS: Final[Mapping[int, Callable[[bytes, QueueProgress], Change]]] = {
    EntryKind.DELIVER: Delivery.decode,
    EntryKind.REDELIVER: Redelivery.decode,
    EntryKind.ACKNOWLEDGE: Acknowledgement.decode,
    EntryKind.CHANGE: VisibilityChange.decode,
    EntryKind.RESET: Reset.decode,
    EntryKind.CLAMP: Clamp.decode,
    EntryKind.HOLD: Hold.decode,
    EntryKind.EXTEND: Extension.decode,
}


def decode_change(kind: int, payload: bytes, progress: QueueProgress) -> Change:
    """Return the change of an entry; DEFINE, DELETE and WRAP entries are not about one progress.

    Raises:
        EntryError: The kind is unknown, or the payload does not fit it or the progress so far.
    """
    try:
        return _DECODERS[kind](payload, progress)
    except (KeyError, StructError, UnicodeDecodeError) as error:
        raise EntryError(f"an entry of kind {kind}: {error}") from error


def encode_receiver(receiver: Receiver) -> bytes:
    """Return a client id and an attempt as the journal and the rows have them."""
    client_id, attempt_id = receiver
    return (f"{client_id}\0{attempt_id}" if attempt_id else client_id).encode()


def decode_receiver(data: bytes) -> Receiver:
    """Return what `encode_receiver` encoded. Raises UnicodeDecodeError."""
    client_id, _, attempt_id = data.decode().partition("\0")
    return client_id, attempt_id


def _encode_lease(offset: int, lease: Lease, *, flags: int = 0) -> bytes:
    pop_time_ms, invisible_until_ms, client_id, auto_renew, attempt_id = lease
    client = encode_receiver((client_id, attempt_id))
    assert len(client) <= CLIENT_ID_BYTES_MAX
    flags |= auto_renew * _AUTO_RENEW
    return _DELIVER.pack(offset, pop_time_ms, invisible_until_ms, flags, len(client)) + client


def _decode_lease(payload: bytes) -> tuple[int, Lease, int, bytes]:
    """Return the offset, the lease, the flags, and the rest of the payload."""
    offset, pop_time_ms, invisible_until_ms, flags, client_bytes = _DELIVER.unpack_from(payload)
    end = _DELIVER.size + client_bytes
    if len(payload) < end:
        raise EntryError("an entry has the wrong length")
    client_id, attempt_id = decode_receiver(payload[_DELIVER.size : end])
    auto_renew = bool(flags & _AUTO_RENEW)
    lease = Lease(pop_time_ms, invisible_until_ms, client_id, auto_renew, attempt_id)
    return offset, lease, flags, payload[end:]


def _encode_runs(offsets: Sequence[int]) -> bytes:
    count = len(offsets)
    assert count <= CHANGE_OFFSETS_MAX
    # The usual delivery is one run: seen at once, because the offsets ascend.
    if count and offsets[-1] - offsets[0] == count - 1:
        return _RUN.pack(offsets[0], count)
    starts = [i for i in range(count) if i == 0 or offsets[i] != offsets[i - 1] + 1]
    return b"".join(_RUN.pack(offsets[i], j - i) for i, j in pairwise([*starts, count]))


def _decode_runs(runs: bytes) -> list[int]:
    offsets: list[int] = []
    for start, count in _RUN.iter_unpack(runs):
        if count == 0 or len(offsets) + count > CHANGE_OFFSETS_MAX:
            raise EntryError("an empty run, or more offsets than one change has")
        offsets.extend(range(start, start + count))
    return offsets


def _check_new(progress: QueueProgress, offsets: Sequence[int], next_offset: int) -> None:
    if any(a >= b for a, b in pairwise((progress.next_offset - 1, *offsets))):
        raise EntryError(f"offsets {list(offsets[:10])} were delivered before, or do not ascend")
    if next_offset < progress.next_offset or (offsets and next_offset <= offsets[-1]):
        raise EntryError(f"next offset {next_offset} lies before what is delivered")


def _check_in_flight(progress: QueueProgress, offsets: Collection[int]) -> None:
    if not offsets or len(progress.in_flight.keys() & set(offsets)) < len(offsets):
        raise EntryError(f"offsets {list(offsets)[:10]} are not all in flight, each once")


def _check_offset(offset: int) -> None:
    if offset < 0:
        raise EntryError(f"offset {offset} is negative")
