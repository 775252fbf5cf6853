"""Reading one range of the log as Arrow batches: what a Spark task, or the export, does."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final, final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types
from isal.isal_zlib import crc32

from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.record_format import (
    BLANK_MAGIC_CODE,
    BLANK_RECORD_BYTES,
    CRC_MASK,
    SIZE_AND_MAGIC,
    check_record,
)
from commitbus.flush.spark.columns import ALL_COLUMNS
from commitbus.flush.spark.log_ranges import LogRange, RangeEnd, named_records
from commitbus.flush.spark.message_batch import MessageBatch, TooManyBytesError
from commitbus.flush.spark.read_options import OnDamage, ReadOptions
from commitbus.flush.spark.record_fields import (
    Booleans,
    DamagedRecordsError,
    Int64s,
    RecordFields,
    examine,
    follow_chain,
    locate,
)

_LOG: Final = logging.getLogger(__name__)


def read_range(
    log_range: LogRange,
    file_system: FileSystem,
    options: ReadOptions,
    columns: Sequence[str] = ALL_COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range in the log's order, in batches of bounded size.

    Raises:
        CorruptRecordError: A record is not intact, and the options do not say to drop it.
        OSError: The log file cannot be read; retention may have deleted it since the planning.
    """
    file = file_system.open(log_range.path, writable=False)
    try:
        size_bytes = file.size()
        if size_bytes < log_range.end - log_range.base_offset:
            raise CorruptRecordError(
                log_range.base_offset + size_bytes, f"{log_range.path} has become shorter"
            )
        mapping = file.map(size_bytes)
    finally:
        file.close()
    # Never closed by hand: a batch that a consumer still holds may refer to the mapped bytes.
    yield from _RangeReader(log_range, file_system, options, columns, mapping.buffer).batches()


@final
class _RangeReader:
    def __init__(
        self,
        log_range: LogRange,
        file_system: FileSystem,
        options: ReadOptions,
        columns: Sequence[str],
        view: memoryview,
    ) -> None:
        self._range, self._file_system, self._options = log_range, file_system, options
        self._columns, self._view = columns, view
        self._base_offset = log_range.base_offset
        self._stop = log_range.end - self._base_offset

    def batches(self) -> Iterator[pa.RecordBatch]:
        position = self._range.start - self._base_offset
        while position < self._stop:
            chain = follow_chain(self._view, position, self._stop, self._base_offset)
            if chain.size:
                last = int(chain[-1])
                position = last + SIZE_AND_MAGIC.unpack_from(self._view, last)[0]
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
                    self._end_at(first, damage.first)
                else:
                    self._damaged(first, damage.first.reason)
                    chain = chain[~np.isin(chain, damage.positions)]

    def _checked(self, chain: Int64s) -> MessageBatch | None:
        fields = locate(self._view, chain, self._base_offset)
        fields = fields.at(self._is_asked_for(fields))
        if not fields.position.size:
            return None
        batch = MessageBatch(self._view, fields)
        names = batch.topics.dictionary.to_pylist()
        codes = batch.topics.indices.to_numpy()
        odd = np.array([not _is_topic(name) for name in names])
        if odd.any():
            examine(self._view, fields.position[odd[codes]], self._base_offset, verify=False)
        if self._options.topics is not None:
            wanted = {name.encode() for name in self._options.topics}
            chosen = batch.at(np.array([name in wanted for name in names])[codes])
            if chosen is None:
                return None
            batch = chosen
        if self._options.verify:
            self._verify_bodies(batch.fields)
        return batch

    def _is_asked_for(self, fields: RecordFields) -> Booleans:
        options = self._options
        asked = np.ones(fields.position.size, bool)
        if options.starting_offset is not None:
            asked &= fields.position >= options.starting_offset - self._base_offset
        if options.ending_offset is not None:
            asked &= fields.position < options.ending_offset - self._base_offset
        if options.starting_timestamp is not None:
            asked &= fields.store_timestamp >= options.starting_timestamp
        if options.ending_timestamp is not None:
            asked &= fields.store_timestamp < options.ending_timestamp
        return asked

    def _verify_bodies(self, fields: RecordFields) -> None:
        view = self._view
        bounds = zip(fields.body_start.tolist(), fields.body_end.tolist(), strict=True)
        found = np.array([crc32(view[start:end]) for start, end in bounds], np.uint32) & CRC_MASK
        wrong = found != fields.prefix["body_crc"]
        if wrong.any():
            examine(view, fields.position[wrong], self._base_offset, verify=True)

    def _behind_the_chain(self, position: int) -> int:
        """Return where to go on when no record lies at `position`."""
        is_file_end = self._stop == len(self._view)
        rest = self._stop - position
        if rest >= BLANK_RECORD_BYTES:
            start = SIZE_AND_MAGIC.unpack_from(self._view, position)
            if is_file_end and start == (rest, BLANK_MAGIC_CODE):
                return self._stop
        else:
            start = (0, 0) if not any(self._view[position : self._stop]) else (-1, -1)
        if self._range.end_is is RangeEnd.ZEROS and start == (0, 0):
            return self._stop
        reason = self._why_no_record(position)
        if self._range.end_is is RangeEnd.TORN:
            self._end_at(position, CorruptRecordError(self._base_offset + position, reason))
            return self._stop
        self._damaged(position, reason)
        return self._next_named(position)

    def _why_no_record(self, position: int) -> str:
        offset = self._base_offset + position
        try:
            check_record(self._view, position, offset, verify_crc=False)
        except CorruptRecordError as error:
            return error.reason
        return f"it reaches beyond {self._range.end}, where a record begins or the log ends"

    def _next_named(self, position: int) -> int:
        """Return the next position that a consume queue names: forged records are not in it."""
        target = np.array([self._base_offset + position + 1], np.int64)
        named = named_records(self._range.store, self._file_system, target)
        offsets = named["physical_offset"].tolist()
        return min([self._stop, *(int(offset) - self._base_offset for offset in offsets)])

    def _end_at(self, position: int, error: CorruptRecordError) -> None:
        """Take `position` for the end of the log, as recovery would."""
        if any(self._view[position : position + BLANK_RECORD_BYTES]):
            _LOG.warning("the log has a torn end: %s", error)
        self._stop = position

    def _damaged(self, position: int, reason: str) -> None:
        offset = self._base_offset + position
        error = CorruptRecordError(offset, f"{reason} (position {position} of {self._range.path})")
        if self._options.on_damage is OnDamage.FAILFAST:
            raise error
        _LOG.warning("left out: %s", error)


def _is_topic(name: bytes) -> bool:
    try:
        return "\0" not in name.decode()
    except UnicodeDecodeError:
        return False
