"""The saved rows of progress: one for each group and queue, never one for each message.

What is in flight is packed into one blob, empty when nothing is. All integers big-endian:

    0        4         8             12 ...........
    | CRC-32 | count n | receivers r | r times: length u16, receiver  |
    |  u32   |  u32    |  u32        |                                |

    then columns, each over the n messages in the order of their offsets:
    | offset | pop time | invisible until | delivery attempt | receiver | flags |
    | n*i64  | n*i64    | n*i64           | n*u32            | n*u32    | n*u8  |

The CRC covers everything after itself. Flags: 1 auto renew, 2 suspended. The encoding of a
receiver is that of `changes`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from struct import Struct, pack, unpack_from
from struct import error as StructError  # noqa: N812 - the standard library names it in lower case
from typing import Final, NamedTuple, Protocol, TypeVar, final

from commitbus.broker.progress.changes import decode_receiver, encode_receiver
from commitbus.broker.progress.fifo_lock import Receiver
from commitbus.broker.progress.holdings import Holdings
from commitbus.broker.progress.journal import JournalMark
from commitbus.broker.progress.queue_progress import InFlight, QueueProgress
from commitbus.commitlog.errors import StoreError

T = TypeVar("T")

Key = tuple[str, str, int]
"""Group, topic, queue id."""

_HEADER: Final = Struct(">III")
_PACKED_AT_ONCE: Final = 4096
_AUTO_RENEW: Final = 1
_SUSPENDED: Final = 2


@final
class _RowError(ValueError):
    """The row is none that this module writes."""


@final
class ProgressRow(NamedTuple):
    """A row as it is stored."""

    key_id: int
    consumer_group: str
    topic: str
    queue_id: int
    committed_offset: int
    """For whoever looks into the database; it follows from the next two."""
    next_offset: int
    sequence: int
    """The last journal entry that the row knows of; it may be later than the saved mark."""
    in_flight: bytes


@final
class SavedRows(NamedTuple):
    """Everything that was saved."""

    rows: Iterable[ProgressRow]
    """Ordered by key id. A damaged column may hold a value of any type."""
    mark: JournalMark
    """The place in the journal from which on the rows do not cover it."""
    next_key_id: int


class ProgressRows(Protocol):
    """Where the rows are kept, with a thread of its own that loads and saves them.

    On one machine this is SQLite. The journal in front of it is on the machine in any case, so a
    save may take its time.
    """

    @property
    def path(self) -> Path:
        """A name of the place, for errors."""

    def start(self, tick: Callable[[], None], interval_s: float, *, sync: bool) -> None:
        """Open what is kept and call `tick` on the thread about every `interval_s` seconds.

        With `sync` a save is on stable storage when it returns; else it survives the process.

        Raises:
            StateFileError: What is kept is not what it should be.
            StateVersionError: A newer commitbus wrote it.
        """

    def run(self, work: Callable[[], T]) -> T:
        """Call `work` on the thread, wait for it, and return or raise what it does.

        Raises:
            ThreadDiedError: The thread died; whether the work was done is unknown.
            StoreClosedError: `close` was called.
        """

    def wake(self) -> None:
        """Have the thread tick now, without waiting for it."""

    def load(self) -> SavedRows:
        """Return everything that was saved. On the thread.

        Raises:
            StateFileError: It cannot be read.
        """

    def save(
        self,
        rows: Sequence[ProgressRow],
        deleted: Iterable[int],
        *,
        mark: JournalMark,
        next_key_id: int,
    ) -> None:
        """Store rows, remove those with `deleted` key ids, and note the mark, in one step.

        On the thread.

        Raises:
            StateWriteError: Nothing was changed.
        """

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """Call `listener`, once, on another thread, should the thread die."""

    def close(self, *, last: Callable[[], object] | None = None) -> None:
        """Do the `last` work on the thread and end it, whatever the work raises.

        A second call does nothing.
        """


def make_row(key: Key, progress: QueueProgress) -> ProgressRow:
    """Return the row of a progress."""
    return ProgressRow(
        progress.key_id,
        *key,
        progress.committed_offset,
        progress.next_offset,
        progress.sequence,
        pack_in_flight(progress.entries()),
    )


def read_row(row: ProgressRow, holdings: Holdings | None = None) -> QueueProgress:
    """Return the progress of a row; messages with automatic renewal are added to `holdings`.

    Raises:
        ValueError: The row is damaged.
    """
    _check_types(row)
    progress = QueueProgress(
        row.next_offset, key_id=row.key_id, sequence=row.sequence, holdings=holdings
    )
    if row.in_flight:
        progress.restore(unpack_in_flight(row.in_flight, row.next_offset))
    return progress


def _check_types(row: ProgressRow) -> None:
    """Check what SQLite does not: a column may hold a value of any type."""
    key_id, group, topic, queue_id, _, next_offset, sequence, in_flight = row
    if not (isinstance(group, str) and isinstance(topic, str)):
        raise _RowError("a name is no text")
    if not all(map(is_count, (key_id, queue_id, next_offset, sequence))):
        raise _RowError("a number is none, or negative")
    if not isinstance(in_flight, bytes):
        raise _RowError("in_flight is no blob")


def is_count(value: object) -> bool:
    """Return whether a column holds an integer that is not negative."""
    return isinstance(value, int) and value >= 0


def pack_in_flight(entries: Sequence[InFlight]) -> bytes:
    """Return the blob of what is in flight, ascending by offset."""
    if not entries:
        return b""
    receivers: dict[Receiver, int] = {}
    indexes = [
        receivers.setdefault((entry.client_id, entry.attempt_id), len(receivers))
        for entry in entries
    ]
    names = list(map(encode_receiver, receivers))
    n = len(entries)
    body = b"".join(
        (
            pack(">II", n, len(names)),
            *(len(name).to_bytes(2) + name for name in names),
            *_column("q", [entry.offset for entry in entries]),
            *_column("q", [entry.pop_time_ms for entry in entries]),
            *_column("q", [entry.invisible_until_ms for entry in entries]),
            *_column("I", [entry.delivery_attempt for entry in entries]),
            *_column("I", indexes),
            bytes(
                [entry.auto_renew * _AUTO_RENEW | entry.suspended * _SUSPENDED for entry in entries]
            ),
        )
    )
    return zlib.crc32(body).to_bytes(4) + body


def _column(code: str, values: Sequence[int]) -> Iterator[bytes]:
    # In pieces: nobody else gets the interpreter while one is packed.
    for start in range(0, len(values), _PACKED_AT_ONCE):
        piece = values[start : start + _PACKED_AT_ONCE]
        yield pack(f">{len(piece)}{code}", *piece)


def unpack_in_flight(blob: bytes, next_offset: int) -> list[InFlight]:
    """Return what is in flight.

    Raises:
        ValueError: The blob is damaged.
    """
    if not blob:
        return []
    try:
        crc, n, client_count = _HEADER.unpack_from(blob)
        if zlib.crc32(blob[4:]) != crc:
            raise _RowError("wrong CRC")
        position, receivers = _HEADER.size, list[Receiver]()
        for _ in range(client_count):
            end = position + 2 + int.from_bytes(blob[position : position + 2])
            receivers.append(decode_receiver(blob[position + 2 : end]))
            position = end
        columns = unpack_from(f">{3 * n}q{2 * n}I{n}B", blob, position)
    except StructError as error:
        raise _RowError("wrong length") from error
    offsets, pops, untils, attempts, indexes, flags = (
        columns[i * n : (i + 1) * n] for i in range(6)
    )
    if any(a >= b for a, b in pairwise((-1, *offsets, next_offset))):
        raise _RowError("offsets out of order")
    if any(index >= len(receivers) for index in indexes):
        raise _RowError("unknown client")
    return [
        InFlight(
            *(offset, pop, until, attempt, receivers[i][0]),
            *(bool(f & _AUTO_RENEW), bool(f & _SUSPENDED), receivers[i][1]),
        )
        for offset, pop, until, attempt, i, f in zip(
            offsets, pops, untils, attempts, indexes, flags, strict=True
        )
    ]
