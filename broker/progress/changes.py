"""What an entry of the progress journal says: bytes from a change, and the change from bytes.

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

A lease is pop time i64, invisible until i64, flags u8, client id length u16, client id. Flags:
1 auto renew, 2 a redelivery that is no other attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from struct import Struct, pack
from struct import error as StructError  # noqa: N812 - the standard library names it in lower case
from typing import Final, NamedTuple, final

from commitbus.broker.progress.queue_progress import Lease, QueueProgress

PAYLOAD_BYTES_MAX: Final = 0xFFFF - 20
DELIVERY_OFFSETS_MAX: Final = 1024
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
    """What happened."""

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


@final
class Definition(NamedTuple):
    """Which queue of which group a key id stands for, and where its progress begins."""

    key: tuple[str, str, int]
    """Group, topic, queue id."""
    next_offset: int


def encode_definition(definition: Definition) -> bytes:
    """Return the payload of a DEFINE entry."""
    group_name, topic_name, queue_id = definition.key
    group, topic = group_name.encode(), topic_name.encode()
    head = _DEFINE.pack(definition.next_offset, queue_id, len(group), len(topic))
    return head + group + topic


def decode_definition(payload: bytes) -> Definition:
    """Return what a DEFINE entry says.

    Raises:
        EntryError: The payload is none.
    """
    try:
        next_offset, queue_id, group_bytes, topic_bytes = _DEFINE.unpack_from(payload)
        names = payload[_DEFINE.size :]
        if len(names) != group_bytes + topic_bytes or next_offset < 0:
            raise EntryError("DEFINE has the wrong length or offset")
        group, topic = names[:group_bytes].decode(), names[group_bytes:].decode()
    except (StructError, UnicodeDecodeError) as error:
        raise EntryError(f"DEFINE: {error}") from error
    return Definition((group, topic, queue_id), next_offset)


def encode_delivery(offsets: Sequence[int], lease: Lease, *, next_offset: int) -> bytes:
    """Return the payload of a DELIVER entry; `offsets` ascend."""
    assert len(offsets) <= DELIVERY_OFFSETS_MAX
    return _encode_lease(next_offset, lease) + _runs(offsets)


def encode_hold(offsets: Sequence[int], *, next_offset: int) -> bytes:
    """Return the payload of a HOLD entry; `offsets` ascend."""
    assert len(offsets) <= DELIVERY_OFFSETS_MAX
    return _OFFSET.pack(next_offset) + _runs(offsets)


def _runs(offsets: Sequence[int]) -> bytes:
    count = len(offsets)
    # The usual delivery is one run: seen at once, because the offsets ascend.
    if count and offsets[-1] - offsets[0] == count - 1:
        return _RUN.pack(offsets[0], count)
    starts = [i for i in range(count) if i == 0 or offsets[i] != offsets[i - 1] + 1]
    return b"".join(_RUN.pack(offsets[i], j - i) for i, j in pairwise([*starts, count]))


def encode_redelivery(
    offset: int, lease: Lease, *, counts: bool = True, attempt: int | None = None
) -> bytes:
    """Return the payload of a REDELIVER entry.

    With the attempt it may be applied to what it was applied to already: a save of much in flight
    goes on beside changes.
    """
    payload = _encode_lease(offset, lease, flags=(not counts) * _DOES_NOT_COUNT)
    return payload if attempt is None else payload + _ATTEMPT.pack(attempt)


def _encode_lease(offset: int, lease: Lease, *, flags: int = 0) -> bytes:
    pop_time_ms, invisible_until_ms, client_id, auto_renew = lease
    client = client_id.encode()
    assert len(client) <= CLIENT_ID_BYTES_MAX
    flags |= auto_renew * _AUTO_RENEW
    return _DELIVER.pack(offset, pop_time_ms, invisible_until_ms, flags, len(client)) + client


def encode_change(
    offset: int, *, pop_time_ms: int, invisible_until_ms: int, suspend: bool
) -> bytes:
    """Return the payload of a CHANGE entry."""
    return _CHANGE.pack(offset, pop_time_ms, invisible_until_ms, suspend)


def encode_extension(offsets: Sequence[int], invisible_until_ms: int) -> bytes:
    """Return the payload of an EXTEND entry; `offsets` ascend."""
    assert len(offsets) <= DELIVERY_OFFSETS_MAX
    return _OFFSET.pack(invisible_until_ms) + _runs(offsets)


encode_offset = _OFFSET.pack
"""Return the payload of a RESET or CLAMP entry."""


def encode_acknowledgement(offsets: Sequence[int]) -> bytes:
    """Return the payload of an ACKNOWLEDGE entry."""
    assert len(offsets) <= DELIVERY_OFFSETS_MAX
    return pack(f">{len(offsets)}q", *offsets)


def apply_entry(progress: QueueProgress, kind: int, payload: bytes) -> None:
    """Do to `progress` what the entry says; DEFINE, DELETE and WRAP are not about one progress.

    Raises:
        EntryError: The entry does not fit; the progress is as it was.
    """
    try:
        _APPLY[kind](progress, payload)
    except (KeyError, StructError, UnicodeDecodeError) as error:
        raise EntryError(f"an entry of kind {kind}: {error}") from error


def _apply_delivery(progress: QueueProgress, payload: bytes) -> None:
    next_offset, lease, _, runs = _decode_lease(payload)
    offsets = _new_offsets(progress, runs, next_offset)
    progress.deliver(offsets, lease, next_offset=next_offset)


def _apply_hold(progress: QueueProgress, payload: bytes) -> None:
    (next_offset,) = _OFFSET.unpack_from(payload)
    offsets = _new_offsets(progress, payload[_OFFSET.size :], next_offset)
    progress.hold(offsets, next_offset=next_offset)


def _new_offsets(progress: QueueProgress, runs: bytes, next_offset: int) -> list[int]:
    offsets: list[int] = []
    end = progress.next_offset
    for start, count in _RUN.iter_unpack(runs):
        if start < end or count == 0:
            raise EntryError(f"offset {start} was delivered before")
        end = start + count
        if len(offsets) + count > DELIVERY_OFFSETS_MAX:
            raise EntryError("more offsets than one delivery has")
        offsets.extend(range(start, end))
    if next_offset < end:
        raise EntryError(f"next offset {next_offset} lies before what is delivered")
    return offsets


def _apply_redelivery(progress: QueueProgress, payload: bytes) -> None:
    offset, lease, flags, rest = _decode_lease(payload)
    if not rest:
        progress.redeliver(offset, lease, counts=not flags & _DOES_NOT_COUNT)
        return
    (attempt,) = _ATTEMPT.unpack(rest)
    progress.redeliver(offset, lease, attempt=attempt)


def _decode_lease(payload: bytes) -> tuple[int, Lease, int, bytes]:
    """Return the offset, the lease, the flags, and what follows."""
    offset, pop_time_ms, invisible_until_ms, flags, client_bytes = _DELIVER.unpack_from(payload)
    end = _DELIVER.size + client_bytes
    if len(payload) < end:
        raise EntryError("an entry has the wrong length")
    client_id = payload[_DELIVER.size : end].decode()
    lease = Lease(pop_time_ms, invisible_until_ms, client_id, bool(flags & _AUTO_RENEW))
    return offset, lease, flags, payload[end:]


def _apply_acknowledgement(progress: QueueProgress, payload: bytes) -> None:
    offsets = [offset for (offset,) in _OFFSET.iter_unpack(payload)]
    # Looked at first: of an entry that does not fit nothing is done.
    if not offsets or len(progress.in_flight.keys() & offsets) < len(offsets):
        raise EntryError(f"offsets {offsets[:10]} are not all in flight, each once")
    for offset in offsets:
        progress.acknowledge(offset)


def _apply_change(progress: QueueProgress, payload: bytes) -> None:
    offset, pop_time_ms, invisible_until_ms, suspend = _CHANGE.unpack(payload)
    progress.change_invisible(
        offset,
        pop_time_ms=pop_time_ms,
        invisible_until_ms=invisible_until_ms,
        suspend=bool(suspend),
    )


def _apply_extension(progress: QueueProgress, payload: bytes) -> None:
    (invisible_until_ms,) = _OFFSET.unpack_from(payload)
    offsets: list[int] = []
    for start, count in _RUN.iter_unpack(payload[_OFFSET.size :]):
        if len(offsets) + count > DELIVERY_OFFSETS_MAX:
            raise EntryError("more offsets than one extension has")
        offsets.extend(range(start, start + count))
    if not offsets or len(progress.in_flight.keys() & offsets) < len(offsets):
        raise EntryError(f"offsets {offsets[:10]} are not all in flight, each once")
    progress.extend(offsets, invisible_until_ms)


def _apply_reset(progress: QueueProgress, payload: bytes) -> None:
    (next_offset,) = _OFFSET.unpack(payload)
    if next_offset < 0:
        raise EntryError(f"offset {next_offset} is negative")
    progress.reset(next_offset)


def _apply_clamp(progress: QueueProgress, payload: bytes) -> None:
    (end,) = _OFFSET.unpack(payload)
    if end < 0:
        raise EntryError(f"offset {end} is negative")
    progress.clamp(end)


_APPLY: Final[Mapping[int, Callable[[QueueProgress, bytes], None]]] = {
    EntryKind.DELIVER: _apply_delivery,
    EntryKind.REDELIVER: _apply_redelivery,
    EntryKind.ACKNOWLEDGE: _apply_acknowledgement,
    EntryKind.CHANGE: _apply_change,
    EntryKind.RESET: _apply_reset,
    EntryKind.CLAMP: _apply_clamp,
    EntryKind.HOLD: _apply_hold,
    EntryKind.EXTEND: _apply_extension,
}
