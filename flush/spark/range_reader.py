"""Reading one range of the log as Arrow batches: what a Spark task, or the export, does."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types
from isal.isal_zlib import crc32

from commitbus.commitlog.errors import CorruptRecordError, ReadFailedError
from commitbus.commitlog.file_system import File, FileSystem
from commitbus.commitlog.log_pieces import (
    EMPTY_PIECE,
    PIECE_BYTES,
    LogPiece,
    next_readable,
    read_piece,
)
from commitbus.commitlog.record_fields import (
    Booleans,
    DamagedRecordsError,
    Int64s,
    RecordFields,
    examine,
    follow_chain,
    locate,
)
from commitbus.commitlog.record_format import (
    BLANK_MAGIC_CODE,
    BLANK_RECORD_BYTES,
    CRC_MASK,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
    check_record,
    claimed_size,
)
from commitbus.flush.spark.columns import ALL_COLUMNS
from commitbus.flush.spark.log_ranges import LogRange, RangeEnd, named_records
from commitbus.flush.spark.message_batch import MessageBatch, TooManyBytesError
from commitbus.flush.spark.read_options import OnDamage, ReadOptions

_LOG: Final = logging.getLogger(__name__)
_HEADER_BYTES_MAX: Final = 128
"""Enough to read a header with the record's size, or to see that it is damaged."""


def read_range(
    log_range: LogRange,
    file_system: FileSystem,
    options: ReadOptions,
    columns: Sequence[str] = ALL_COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range in the log's order, in batches of bounded size.

    Raises:
        CorruptRecordError: A record is not intact, and the options do not say to drop it.
        ReadFailedError: The disk does not give back a block, and the options do not say to drop
            the records in it.
        OSError: The log file cannot be opened; retention may have deleted it since the planning.
    """
    file = file_system.open(log_range.path, writable=False)
    try:
        yield from _RangeReader(log_range, file, file_system, options, columns).batches()
    finally:
        file.close()


def _shorter(log_range: LogRange, size_bytes: int) -> CorruptRecordError:
    return CorruptRecordError(
        log_range.base_offset + size_bytes, f"{log_range.path} has become shorter"
    )


@final
class _RangeReader:
    """Positions are those in the file, apart from the ones in arrays: they count from a piece."""

    def __init__(
        self,
        log_range: LogRange,
        file: File,
        file_system: FileSystem,
        options: ReadOptions,
        columns: Sequence[str],
    ) -> None:
        self._range, self._file_system, self._options = log_range, file_system, options
        self._columns, self._file, self._size_bytes = columns, file, file.size()
        self._base_offset = log_range.base_offset
        self._stop = log_range.end - self._base_offset
        self._piece = EMPTY_PIECE

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._size_bytes < self._stop:
            raise _shorter(self._range, self._size_bytes)
        position = self._range.start - self._base_offset
        while position < self._stop:
            try:
                chain, following = self._next_chain(position)
            except ReadFailedError as error:
                position = self._behind_unreadable(position, error)
                continue
            if chain.size:
                position = following
                batch = self._intact(chain)
                if batch is not None:
                    yield from self._built(batch)
            else:
                position = self._behind_the_chain(position)

    def _built(self, batch: MessageBatch) -> Iterator[pa.RecordBatch]:
        try:
            yield batch.build(self._columns, decompress=self._options.decompress)
        except TooManyBytesError:
            middle = batch.fields.position.size // 2
            for half in (batch.at(slice(middle)), batch.at(slice(middle, None))):
                assert half is not None, "a single row is never too many"
                yield from self._built(half)

    # Reading

    def _next_chain(self, position: int) -> tuple[Int64s, int]:
        """Return the records at `position` that lie whole in a piece, and where they end.

        None if no record lies there.

        Raises:
            ReadFailedError: The record at `position` cannot be read.
            CorruptRecordError: The file has become shorter.
        """
        rest = self._stop - position
        piece = self._load(position, min(MIN_RECORD_BYTES, rest))
        chain = self._follow(piece, position)
        while not chain.size and piece.end < self._stop:
            # The piece may end within the record, or within its header.
            size = claimed_size(piece.view[position - piece.start :])
            needed = size or min(_HEADER_BYTES_MAX, rest)
            if not piece.end - position < needed <= rest:
                break
            piece = self._load(position, needed)
            chain = self._follow(piece, position)
        if not chain.size:
            return chain, position
        last = int(chain[-1])
        return chain, piece.start + last + SIZE_AND_MAGIC.unpack_from(piece.view, last)[0]

    def _follow(self, piece: LogPiece, position: int) -> Int64s:
        end = min(self._stop, piece.end)
        return follow_chain(
            piece.view, position - piece.start, end - piece.start, self._base_offset + piece.start
        )

    def _load(self, position: int, length: int) -> LogPiece:
        """Return a piece that has these bytes, and remember it.

        Raises:
            ReadFailedError: The disk does not give them back.
            CorruptRecordError: The file has become shorter.
        """
        if not self._piece.holds(position, length):
            wanted = max(length, min(PIECE_BYTES, self._stop - position))
            self._piece = read_piece(self._file, position, wanted)
            if self._piece.failure is None and len(self._piece.view) < wanted:
                raise _shorter(self._range, self._piece.end)
            if not self._piece.holds(position, length):
                assert self._piece.failure is not None
                raise self._piece.failure
        return self._piece

    def _behind_unreadable(self, position: int, error: ReadFailedError) -> int:
        """Return where to go on when the record at `position` cannot be read, if that is allowed.

        Raises:
            ReadFailedError: It is not.
        """
        if self._options.on_damage is OnDamage.FAILFAST:
            raise error
        following = self._next_named(next_readable(self._file, error.position, self._stop))
        _LOG.warning(
            "left out: physical offsets %d to %d: %s",
            *(self._base_offset + position, self._base_offset + following, error),
        )
        return following

    # Damage

    def _intact(self, chain: Int64s) -> MessageBatch | None:
        """Return the records that are intact and asked for, None if there are none."""
        while True:
            try:
                return self._checked(chain)
            except DamagedRecordsError as damage:
                first = int(damage.positions[0])
                if self._range.end_is is RangeEnd.TORN:
                    chain = chain[chain < first]
                    self._end_at(self._piece.start + first, damage.first)
                else:
                    self._damaged(self._piece.start + first, damage.first.reason)
                    chain = chain[~np.isin(chain, damage.positions)]

    def _checked(self, chain: Int64s) -> MessageBatch | None:
        view, piece_offset = self._piece.view, self._base_offset + self._piece.start
        fields = locate(view, chain, piece_offset)
        fields = fields.at(self._is_asked_for(fields, piece_offset))
        if not fields.position.size:
            return None
        batch = MessageBatch(view, fields)
        names = batch.topics.dictionary.to_pylist()
        codes = batch.topics.indices.to_numpy()
        odd = np.array([not _is_topic(name) for name in names])
        if odd.any():
            examine(view, fields.position[odd[codes]], piece_offset, verify=False)
        if self._options.topics is not None:
            wanted = {name.encode() for name in self._options.topics}
            chosen = batch.at(np.array([name in wanted for name in names])[codes])
            if chosen is None:
                return None
            batch = chosen
        if self._options.verify:
            _verify_bodies(view, batch.fields, piece_offset)
        return batch

    def _is_asked_for(self, fields: RecordFields, piece_offset: int) -> Booleans:
        options = self._options
        asked = np.ones(fields.position.size, bool)
        if options.starting_offset is not None:
            asked &= fields.position >= options.starting_offset - piece_offset
        if options.ending_offset is not None:
            asked &= fields.position < options.ending_offset - piece_offset
        if options.starting_timestamp is not None:
            asked &= fields.store_timestamp >= options.starting_timestamp
        if options.ending_timestamp is not None:
            asked &= fields.store_timestamp < options.ending_timestamp
        return asked

    def _behind_the_chain(self, position: int) -> int:
        """Return where to go on when no record lies at `position`."""
        is_file_end = self._stop == self._size_bytes
        rest = self._stop - position
        head = self._loaded(position, min(rest, BLANK_RECORD_BYTES))
        if rest >= BLANK_RECORD_BYTES:
            start = SIZE_AND_MAGIC.unpack(head)
            if is_file_end and start == (rest, BLANK_MAGIC_CODE):
                return self._stop
        else:
            start = (-1, -1) if any(head) else (0, 0)
        if self._range.end_is is RangeEnd.ZEROS and start == (0, 0):
            return self._stop
        reason = self._why_no_record(position)
        if self._range.end_is is RangeEnd.TORN:
            self._end_at(position, CorruptRecordError(self._base_offset + position, reason))
            return self._stop
        self._damaged(position, reason)
        return self._next_named(position + 1)

    def _loaded(self, position: int, length: int) -> memoryview:
        """Return bytes that were read before."""
        assert self._piece.holds(position, length)
        at = position - self._piece.start
        return self._piece.view[at : at + length]

    def _why_no_record(self, position: int) -> str:
        offset = self._base_offset + position
        # Behind the range's end as well: the record may just reach beyond it.
        rest = self._size_bytes - position
        head = read_piece(self._file, position, min(_HEADER_BYTES_MAX, rest))
        size = max(claimed_size(head.view), len(head.view))
        record = read_piece(self._file, position, min(size, rest))
        try:
            check_record(record.view, 0, offset, verify_crc=False)
        except CorruptRecordError as error:
            return error.reason
        return f"it reaches beyond {self._range.end}, where a record begins or the log ends"

    def _next_named(self, position: int) -> int:
        """Return the first position from here on that a consume queue names.

        Forged records are not in it.
        """
        target = np.array([self._base_offset + position], np.int64)
        named = named_records(self._range.store, self._file_system, target)
        offsets = named["physical_offset"].tolist()
        return min([self._stop, *(int(offset) - self._base_offset for offset in offsets)])

    def _end_at(self, position: int, error: CorruptRecordError) -> None:
        """Take `position` for the end of the log, as recovery would."""
        length = min(BLANK_RECORD_BYTES, self._piece.end - position)
        if any(self._loaded(position, length)):
            _LOG.warning("the log has a torn end: %s", error)
        self._stop = position

    def _damaged(self, position: int, reason: str) -> None:
        offset = self._base_offset + position
        error = CorruptRecordError(offset, f"{reason} (position {position} of {self._range.path})")
        if self._options.on_damage is OnDamage.FAILFAST:
            raise error
        _LOG.warning("left out: %s", error)


def _verify_bodies(view: memoryview, fields: RecordFields, piece_offset: int) -> None:
    bounds = zip(fields.body_start.tolist(), fields.body_end.tolist(), strict=True)
    found = np.array([crc32(view[start:end]) for start, end in bounds], np.uint32) & CRC_MASK
    wrong = found != fields.prefix["body_crc"]
    if wrong.any():
        examine(view, fields.position[wrong], piece_offset, verify=True)


def _is_topic(name: bytes) -> bool:
    try:
        return "\0" not in name.decode()
    except UnicodeDecodeError:
        return False
