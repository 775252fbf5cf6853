"""Reading the store for handlers, which must not wait for a disk on the trio thread.

Each function that takes `only_cached` returns (or yields) None where a disk would have to be
waited for; `read_or_wait` then calls it again in a worker thread. Nothing here changes any state.

An unreadable message is a value, not an exception: of 32 messages that are read together
one must not spoil the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar, final

from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.store.store_reader import FetchedUnit, StoreReader
from commitbus.commitlog.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    ReadFailedError,
    StoreError,
)
from commitbus.commitlog.record_format import check_record, decode_record
from commitbus.commitlog.types import PhysicalOffset, QueueOffset, Record
from commitbus.commitlog.without_body import HEAD_BYTES, header_without_body

SPAN_BYTES_MAX: Final = 1 << 20
"""Read of the log at once; a single longer record as well."""
AT_ONCE_BYTES_MAX: Final = 2 << 20
"""Bytes of messages above which a batch is read and encoded by a worker also where they are in
memory: a MiB takes 2 ms, in which the trio thread answers nobody."""
GAP_BYTES_MAX: Final = 16 << 10
"""Between two records, that is read with them: a system call takes longer."""
GAP_UNITS_MAX: Final = 64
"""Between two units of a queue; likewise."""
LONG_BYTES: Final = 32 << 10
"""Bytes of a record above which its body is not read if only properties are wanted."""

_T = TypeVar("_T")


@final
class Unreadable(NamedTuple):
    """A message whose place is unknown, because its unit cannot be read."""

    queue_offset: QueueOffset
    error: ReadFailedError
    physical_offset: PhysicalOffset = PhysicalOffset(-1)
    size_bytes: int = 0


Place = FetchedUnit | Unreadable
"""Where a message of a queue lies."""
QueuePlace = tuple[int, int]
"""Queue id and queue offset."""
NotRead = OffsetOutOfRangeError | ReadFailedError
"""Why a record is not there: retention has deleted it, or the disk does not give it back."""


@final
class ColdPlacesError(Exception):
    """A disk would have to be waited for to know where messages lie.

    Raised by decisions, which are made again once the places were read.
    """

    def __init__(self, places: Collection[QueuePlace]) -> None:
        self.places = places
        super().__init__(f"{len(places)} places are not in memory")


async def read_or_wait(
    read: Callable[..., _T | None],
    *arguments: Any,  # noqa: ANN401 - those of `read`
) -> _T:
    """Return what `read(*arguments, only_cached=...)` returns; others run if it must wait.

    Raises:
        TooManyRequestsError: it must, and the caller waits for too much already.
    """
    found = read(*arguments, only_cached=True)
    if found is None:
        waiting = partial(read, *arguments, only_cached=False)
        found = await run_in_worker(waiting)
    assert found is not None, "only what is not cached can be missing"
    return found


def takes_long(places: Iterable[Place]) -> bool:
    """Return whether reading messages takes too long for the trio thread, even from memory."""
    return sum(place.size_bytes for place in places) > AT_ONCE_BYTES_MAX


def read_places(
    store: StoreReader,
    topic: str,
    queue_id: int,
    offsets: Iterable[int],
    *,
    only_cached: bool,
) -> dict[int, Place | None] | None:
    """Return where messages of a queue lie, by their offsets; None for one that was deleted."""
    fetch = store.fetch_cached if only_cached else store.fetch
    found: dict[int, Place | None] = {}
    for some in _runs(sorted(offsets)):
        first, count = QueueOffset(some[0]), some[-1] + 1 - some[0]
        try:
            fetched = fetch(topic, queue_id, first, count)
        except ReadFailedError as error:
            if len(some) == 1:
                found[first] = Unreadable(first, error)
                continue
            middle = len(some) // 2
            for half in some[:middle], some[middle:]:
                part = read_places(store, topic, queue_id, half, only_cached=only_cached)
                if part is None:
                    return None
                found |= part
            continue
        if fetched is None:
            return None
        # Below its first stored message a queue answers with that one.
        by_offset = {unit.queue_offset: unit for unit in fetched.units}
        for offset in some:
            found[offset] = by_offset.get(QueueOffset(offset))
    return found


def _runs(offsets: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the offsets that are fetched together."""
    first = 0
    for end in range(1, len(offsets) + 1):
        if end == len(offsets) or offsets[end] - offsets[end - 1] > GAP_UNITS_MAX:
            yield offsets[first:end]
            first = end


def read_records(
    store: StoreReader, places: Sequence[Place], *, only_cached: bool
) -> Iterator[memoryview | NotRead | None]:
    """Yield the bytes of each record, or why they cannot be read.

    None is the last: a disk would have to be waited for.
    """
    read = store.read_cached if only_cached else store.read_bytes
    first, count = 0, len(places)
    while first < count:
        place = places[first]
        begin = place.physical_offset
        end = begin + place.size_bytes
        last = first + 1
        while last < count:
            following = places[last]
            offset = following.physical_offset
            if (
                not end <= offset <= end + GAP_BYTES_MAX
                or offset + following.size_bytes - begin > SPAN_BYTES_MAX
            ):
                break
            end = offset + following.size_bytes
            last += 1
        span = places[first:last]
        first = last
        try:
            if isinstance(place, Unreadable):
                raise place.error
            data = read(begin, end - begin)
        except (OffsetOutOfRangeError, ReadFailedError) as error:
            # Nearly always a span lies in one file. Else, or if a part cannot be read, each alone.
            if len(span) == 1:
                yield error
            for alone in span if len(span) > 1 else ():
                yield from read_records(store, (alone,), only_cached=only_cached)
            continue
        if data is None:
            yield None
            return
        view = memoryview(data)
        for each in span:
            start = each.physical_offset - begin
            yield view[start : start + each.size_bytes]


def read_properties(
    store: StoreReader, places: Sequence[Place], *, only_cached: bool
) -> Iterator[memoryview | StoreError | None]:
    """Yield the encoded properties of each record, or why they cannot be read; None as above."""
    for is_long, group in groupby(places, key=lambda place: place.size_bytes > LONG_BYTES):
        some = list(group)
        records = (
            (_read_without_body(store, place, only_cached=only_cached) for place in some)
            if is_long
            else read_records(store, some, only_cached=only_cached)
        )
        for place, record in zip(some, records, strict=False):
            if not isinstance(record, memoryview):
                yield record
                if record is None:
                    return
                continue
            try:
                *_, start, end = check_record(record, 0, place.physical_offset, verify_crc=False)
            except CorruptRecordError as error:
                yield error
            else:
                yield record[start:end]


def _read_without_body(
    store: StoreReader, place: Place, *, only_cached: bool
) -> memoryview | StoreError | None:
    read = store.read_cached if only_cached else store.read_bytes
    offset, size_bytes = place.physical_offset, place.size_bytes
    try:
        head = read(offset, HEAD_BYTES)
        if head is None:
            return None
        header, body_bytes = header_without_body(head, size_bytes, offset)
        skipped = len(header) + body_bytes
        rest = read(PhysicalOffset(offset + skipped), size_bytes - skipped)
    except (CorruptRecordError, OffsetOutOfRangeError, ReadFailedError) as error:
        return error
    return None if rest is None else memoryview(header + rest)


def read_record(store: StoreReader, place: Place, *, only_cached: bool) -> Record | None:
    """Return a whole record.

    Raises:
        CorruptRecordError: It is not intact.
        OffsetOutOfRangeError: Retention has deleted it.
        ReadFailedError: The disk does not give it or its unit back.
    """
    (found,) = read_records(store, (place,), only_cached=only_cached)
    if isinstance(found, NotRead):
        raise found
    return None if found is None else decode_record(found, place.physical_offset)
