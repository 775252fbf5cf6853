"""The rows of `commitbus/progress.db`: one for each group and queue, never one for each message.

What is in flight is packed into one blob, empty when nothing is. All integers big-endian:

    0        4         8             12 ...........
    | CRC-32 | count n | clients c   | c times: length u16, client id |
    |  u32   |  u32    |  u32        |                                |

    then columns, each over the n messages in the order of their offsets:
    | offset | pop time | invisible until | delivery attempt | client | flags |
    | n*i64  | n*i64    | n*i64           | n*u32            | n*u32  | n*u8  |

The CRC covers everything after itself. Flags: 1 auto renew, 2 suspended.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from struct import Struct, pack, unpack_from
from struct import error as StructError  # noqa: N812 - the standard library names it in lower case
from typing import Final, NamedTuple, final

from sqlite_utils import Database

from commitbus.broker.metadata.errors import StateFileError
from commitbus.broker.metadata.sqlite_thread import Schema
from commitbus.broker.progress.holdings import Holdings
from commitbus.broker.progress.journal import JournalMark
from commitbus.broker.progress.queue_progress import InFlight, QueueProgress

SCHEMA: Final = Schema(
    application_id=int.from_bytes(b"CBpg"),
    version=1,
    statements="""
        CREATE TABLE progress (
            key_id INTEGER PRIMARY KEY,
            consumer_group TEXT NOT NULL,
            topic TEXT NOT NULL,
            queue_id INTEGER NOT NULL,
            committed_offset INTEGER NOT NULL,
            next_offset INTEGER NOT NULL,
            sequence INTEGER NOT NULL,
            in_flight BLOB NOT NULL,
            UNIQUE (consumer_group, topic, queue_id)
        );
        CREATE TABLE journal (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            epoch INTEGER NOT NULL,
            sequence INTEGER NOT NULL,
            position INTEGER NOT NULL,
            next_key_id INTEGER NOT NULL
        );
        INSERT INTO journal VALUES (1, 0, 0, 0, 1)
    """,
)

Key = tuple[str, str, int]
"""Group, topic, queue id."""

# Most rows are there already. To replace them, names and their index included, takes twice as long.
_UPDATE: Final = """
    UPDATE progress
    SET (committed_offset, next_offset, sequence, in_flight) = (?, ?, ?, ?)
    WHERE key_id = ?
"""
_INSERT: Final = """
    INSERT INTO progress VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key_id) DO NOTHING
"""

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
@dataclass(frozen=True, slots=True)
class SavedProgress:
    """All that the database holds."""

    items: Sequence[tuple[Key, QueueProgress]]
    mark: JournalMark
    next_key_id: int


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


def save(
    database: Database,
    rows: Sequence[ProgressRow],
    deleted: Iterable[int],
    *,
    mark: JournalMark,
    next_key_id: int,
) -> None:
    """Store rows, remove others, and note up to where they cover the journal, in one transaction.

    Raises:
        sqlite3.Error: Nothing was changed.
    """
    with database.atomic():
        run = database.conn.executemany
        run("DELETE FROM progress WHERE key_id = ?", ((key_id,) for key_id in deleted))
        updated = run(_UPDATE, [(*row[4:], row.key_id) for row in rows]).rowcount
        if updated < len(rows):
            run(_INSERT, rows)
        database.execute("REPLACE INTO journal VALUES (1, ?, ?, ?, ?)", (*mark, next_key_id))


def load(database: Database, path: Path, holdings: Holdings | None = None) -> SavedProgress:
    """Return what was saved; what is in flight with automatic renewal is added to `holdings`.

    Raises:
        StateFileError: A row is damaged.
    """
    try:
        header = database.execute(
            "SELECT epoch, sequence, position, next_key_id FROM journal"
        ).fetchone()
        rows = database.execute(
            "SELECT key_id, consumer_group, topic, queue_id, committed_offset, next_offset, "
            "sequence, in_flight FROM progress ORDER BY key_id"
        ).fetchall()
    except sqlite3.Error as error:
        raise StateFileError(path, f"it is damaged: {error}") from error
    if header is None or not all(_is_count(number) for number in header):
        raise StateFileError(path, "the journal's row is damaged")
    # Each group and topic once in memory, not once for each queue.
    names: dict[str, str] = {}
    items = [_item(path, ProgressRow(*row), names, holdings) for row in rows]
    next_key_id = max([header[3], *(progress.key_id + 1 for _, progress in items)])
    return SavedProgress(items, JournalMark(*header[:3]), next_key_id)


def _item(
    path: Path, row: ProgressRow, names: dict[str, str], holdings: Holdings | None
) -> tuple[Key, QueueProgress]:
    key_id, group, topic, queue_id, _, next_offset, sequence, in_flight = row
    progress = QueueProgress(next_offset, key_id=key_id, sequence=sequence, holdings=holdings)
    try:
        _check_types(row)
        if in_flight:
            progress.restore(unpack_in_flight(in_flight, next_offset))
    except ValueError as error:
        what = f"group {group}, topic {topic}, queue {queue_id}"
        raise StateFileError(path, f"the row of {what} is damaged: {error}") from error
    return (names.setdefault(group, group), names.setdefault(topic, topic), queue_id), progress


def _check_types(row: ProgressRow) -> None:
    """Check what SQLite does not: any column may hold a value of any type."""
    key_id, group, topic, queue_id, _, next_offset, sequence, in_flight = row
    if not (isinstance(group, str) and isinstance(topic, str)):
        raise _RowError("a name is no text")
    if not (
        _is_count(key_id) and _is_count(queue_id) and _is_count(next_offset) and _is_count(sequence)
    ):
        raise _RowError("a number is none, or negative")
    if not isinstance(in_flight, bytes):
        raise _RowError("in_flight is no blob")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def pack_in_flight(entries: Sequence[InFlight]) -> bytes:
    """Return the blob of what is in flight, ascending by offset."""
    if not entries:
        return b""
    clients: dict[str, int] = {}
    indexes = [clients.setdefault(entry.client_id, len(clients)) for entry in entries]
    names = [client.encode() for client in clients]
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
        position, clients = _HEADER.size, list[str]()
        for _ in range(client_count):
            end = position + 2 + int.from_bytes(blob[position : position + 2])
            clients.append(blob[position + 2 : end].decode())
            position = end
        columns = unpack_from(f">{3 * n}q{2 * n}I{n}B", blob, position)
    except StructError as error:
        raise _RowError("wrong length") from error
    offsets, pops, untils, attempts, indexes, flags = (
        columns[i * n : (i + 1) * n] for i in range(6)
    )
    if any(a >= b for a, b in pairwise((-1, *offsets, next_offset))):
        raise _RowError("offsets out of order")
    if any(index >= len(clients) for index in indexes):
        raise _RowError("unknown client")
    return [
        InFlight(
            offset, pop, until, attempt, clients[i], bool(f & _AUTO_RENEW), bool(f & _SUSPENDED)
        )
        for offset, pop, until, attempt, i, f in zip(
            offsets, pops, untils, attempts, indexes, flags, strict=True
        )
    ]
