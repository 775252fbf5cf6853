"""The log as Parquet files, without Java: one file per log file, named by its base offset.

```
OUT/00000000001073741824.parquet        zstd, the columns of `columns`, in the log's order
OUT/.00000000001073741824.parquet.tmp   being written; gets its name once it is whole and durable
OUT/.export.lock                        held while an export runs
```
A Parquet file says in its own metadata which part of which log it holds. So a repeated export
knows its earlier files: it keeps those that are complete, replaces the one whose log file has
grown, and touches none of another store. The bytes are a function of the log's bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias, final

import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped] # pyarrow ships no types

from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.file_system import FileSystem, RealFileSystem, read_at
from commitbus.commitlog.record_format import MIN_RECORD_BYTES
from commitbus.flush.spark.columns import arrow_schema
from commitbus.flush.spark.log_ranges import LogRange, RangeEnd, plan_ranges
from commitbus.flush.spark.range_reader import read_range
from commitbus.flush.spark.read_options import ReadOptions

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told (what, done, total), here in bytes of the log."""

ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""Of Arrow memory. Bounds what the export holds, and what a reader of its files must."""

_FORMAT_VERSION: Final = 1
_METADATA_KEY: Final = b"commitbus.export"
_LOCK_NAME: Final = ".export.lock"
_PARQUET_NAME: Final = re.compile(r"\d{20}\.parquet")
_TEMPORARY_NAME: Final = re.compile(r"\.\d{20}\.parquet\.tmp")


@final
class ExportRefusedError(StoreError):
    """The target holds something that is no earlier export of this store, or is being written."""

    def __init__(self, out: Path, reason: str) -> None:
        self.out, self.reason = out, reason
        super().__init__(f"nothing is exported to {out}: {reason}")


@final
class ExportFailedError(StoreError):
    """A Parquet file cannot be written, as on a full disk; the ones before it are whole."""

    def __init__(self, path: Path, cause: OSError) -> None:
        self.path, self.cause = path, cause
        super().__init__(f"writing {path} failed: {cause}")


@final
@dataclass(frozen=True, slots=True)
class ExportSummary:
    """Counts of an export."""

    files_written: int
    files_kept: int
    """Files of an earlier export that were complete."""
    messages: int
    """In the files of this export, kept ones included."""
    parquet_bytes: int
    """Likewise."""


@final
@dataclass(frozen=True, slots=True)
class _Identity:
    """Contents of a Parquet file, as its metadata describe them."""

    format_version: int
    first_record: str
    """SHA-256 of the log file's first bytes: a record's header, which no two stores share."""
    end: int | None
    """Physical offset; None where the log's end was not known, and it may have grown since."""

    def encode(self) -> bytes:
        return json.dumps([self.format_version, self.first_record, self.end]).encode()


def export_store(directory: Path, out: Path, *, on_progress: Progress) -> ExportSummary:
    """Write every message below the durable watermark to Parquet files.

    Files appear whole or not at all, whenever the process is killed; then it is run again. Files of
    an earlier export stay when retention has deleted their part of the log.

    Args:
        directory: The store.
        out: Where the Parquet files go; created if missing.
        on_progress: Called after every row group and every file.

    Raises:
        NotAStoreError: `directory` holds no log.
        ExportRefusedError: `out` holds something else, or another export is writing to it.
        CorruptRecordError: A record is not intact. The files before it are complete.
        ReadFailedError: A block of the log cannot be read. Likewise.
        ExportFailedError: A Parquet file cannot be written. Likewise.
        OSError: A file cannot be opened.
    """
    file_system = RealFileSystem()
    ranges = plan_ranges(directory, file_system, split_bytes=None)
    identities = {_name(part): _identify(part, file_system) for part in ranges}
    _refuse_other_content(out, identities)
    out.mkdir(parents=True, exist_ok=True)
    lock = file_system.lock(out / _LOCK_NAME)
    if lock is None:
        raise ExportRefusedError(out, "another export is writing to it")
    try:
        return _export(ranges, identities, out, file_system, on_progress)
    finally:
        lock.release()


def _export(
    ranges: list[LogRange],
    identities: dict[str, _Identity],
    out: Path,
    file_system: FileSystem,
    on_progress: Progress,
) -> ExportSummary:
    for leftover in _matching(out, _TEMPORARY_NAME):
        leftover.unlink()
    total_bytes = sum(part.end - part.start for part in ranges)
    done_bytes = written = messages = parquet_bytes = 0
    for part in ranges:
        target, identity = out / _name(part), identities[_name(part)]
        if identity.end is None or _stored_identity(target) != identity:
            for offset in _write_file(part, target, identity, file_system):
                on_progress("export", done_bytes + offset - part.start, total_bytes)
            written += 1
        done_bytes += part.end - part.start
        on_progress("export", done_bytes, total_bytes)
        messages += pq.read_metadata(target).num_rows
        parquet_bytes += target.stat().st_size
    return ExportSummary(written, len(ranges) - written, messages, parquet_bytes)


def _name(part: LogRange) -> str:
    return f"{part.base_offset:020}.parquet"


def _identify(part: LogRange, file_system: FileSystem) -> _Identity:
    file = file_system.open(part.path, writable=False)
    try:
        first_record = sha256(read_at(file, MIN_RECORD_BYTES, 0)).hexdigest()
    finally:
        file.close()
    end = part.end if part.end_is is RangeEnd.EXACT else None
    return _Identity(_FORMAT_VERSION, first_record, end)


def _stored_identity(target: Path) -> _Identity | None:
    """Return what an existing Parquet file is, None if it is missing or none of ours."""
    try:
        metadata = pq.read_metadata(target).metadata or {}
        return _Identity(*json.loads(metadata[_METADATA_KEY]))
    except (FileNotFoundError, pa.ArrowInvalid, KeyError, ValueError, TypeError):
        return None


def _matching(out: Path, pattern: re.Pattern[str]) -> list[Path]:
    return sorted(path for path in out.iterdir() if pattern.fullmatch(path.name))


def _refuse_other_content(out: Path, identities: dict[str, _Identity]) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise ExportRefusedError(out, "it is a file")
    ours = {out / _LOCK_NAME, *_matching(out, _TEMPORARY_NAME)}
    parquet_files = _matching(out, _PARQUET_NAME)
    others = sorted(set(out.iterdir()) - ours - set(parquet_files))
    if others:
        raise ExportRefusedError(out, f"it holds {others[0].name}, which is no part of an export")
    for path in parquet_files:
        stored, here = _stored_identity(path), identities.get(path.name)
        if stored is None or (here is not None and stored.first_record != here.first_record):
            raise ExportRefusedError(out, f"its {path.name} was not exported from this store")
    if parquet_files and not any(path.name in identities for path in parquet_files):
        raise ExportRefusedError(out, "nothing in it shows that it was exported from this store")


def _write_file(
    part: LogRange, target: Path, identity: _Identity, file_system: FileSystem
) -> Iterator[int]:
    """Write one Parquet file; yields up to where in the log it has come, in physical offsets."""
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with pq.ParquetWriter(temporary, arrow_schema(), compression="zstd") as writer:
            for table in _row_groups(part, file_system):
                writer.write_table(table, row_group_size=table.num_rows)
                yield table["physical_offset"][-1].as_py()
            writer.add_key_value_metadata({_METADATA_KEY: identity.encode()})
        file = file_system.open(temporary)
        try:
            file.sync_data()
        finally:
            file.close()
        file_system.rename(temporary, target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # Errors of opening a file name it; errors of writing, above all pyarrow's, do not.
        if isinstance(error, OSError) and error.filename is None:
            raise ExportFailedError(target, error) from error
        raise
    file_system.sync_directory(target.parent)


def _row_groups(part: LogRange, file_system: FileSystem) -> Iterator[pa.Table]:
    batches: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in read_range(part, file_system, ReadOptions()):
        batches.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(batches)
            batches, held_bytes = [], 0
    if batches:
        yield pa.Table.from_batches(batches)
