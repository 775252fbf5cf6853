"""The manifest of a sealed segment: a log file that is full and durable, and never changes again.

```
STORE/commitbus/sealed/<20 digits of the file's name>.json
{
  "format": 1,
  "base_offset": 0,                       first physical offset of the file
  "end_offset": 1073741824,               first one behind it: the next file's
  "records_end": 1073741700,              where its blank record begins
  "record_count": 951432,
  "min_store_timestamp": 1700000000000,   0, like the maximum, in a file without records
  "max_store_timestamp": 1700000086400,
  "topics": {"orders": 951432},           records of each topic
  "crc32": "1c291ca3",                    of all bytes of the file
  "boundaries": [[0, 1700000000000], ...]
}
```
A boundary is the physical offset of the first record at or behind each MiB of the file, and the
smallest store timestamp from it to the next one: where a reader may begin, and what it may skip.
The CRC covers what no record's own does: headers and properties.

A manifest appears in one step, after its log file is durable. One that is lost is made again, in
the next round of housekeeping.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from isal.isal_zlib import crc32

from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.file_system import TEMPORARY_SUFFIX, FileSystem, read_at, replace_file
from commitbus.commitlog.mapped_file import FILE_NAME_DIGITS, MappedFile, file_name
from commitbus.commitlog.record_scanner import FileScanner, StopKind

SEALED_PATH: Final = Path("commitbus", "sealed")
"""Relative to the store."""
BOUNDARY_BYTES: Final = 1 << 20
FORMAT: Final = 1
SUFFIX: Final = ".json"


class ManifestError(ValueError):
    """The bytes are no manifest."""


@final
class Boundary(NamedTuple):
    """A place where a reader may begin."""

    physical_offset: int
    min_store_timestamp: int
    """Of the records from here to the next boundary."""


@final
@dataclass(frozen=True, slots=True)
class SealedSegment:
    """What a sealed log file holds; the module's docstring has the fields."""

    base_offset: int
    end_offset: int
    records_end: int
    record_count: int
    min_store_timestamp: int
    max_store_timestamp: int
    topics: Mapping[str, int]
    crc32: int
    boundaries: tuple[Boundary, ...]

    def encode(self) -> bytes:
        """Return the bytes of the manifest."""
        document = {"format": FORMAT, **asdict(self), "crc32": f"{self.crc32:08x}"}
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def decode_manifest(data: bytes) -> SealedSegment:
    """Return what a manifest says.

    Raises:
        ManifestError: It is none, or of a later format.
    """
    try:
        document = json.loads(data)
        if document.pop("format") != FORMAT:
            raise ManifestError("its format is unknown")
        document["crc32"] = int(document["crc32"], 16)
        document["boundaries"] = tuple(Boundary(*map(_whole, b)) for b in document["boundaries"])
        document["topics"] = {str(k): _whole(v) for k, v in document["topics"].items()}
        for name in document.keys() - {"topics", "boundaries"}:
            _whole(document[name])
        return SealedSegment(**document)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ManifestError(f"it is no manifest: {error}") from error


def _whole(value: Any) -> int:  # noqa: ANN401 - whatever JSON holds
    if type(value) is not int:
        raise ManifestError(f"{value!r} is no whole number")
    return value


@final
class SegmentSummary:
    """Sums up the records of one file, in order."""

    __slots__ = ("_base_offset", "_boundaries", "_max", "_min", "_next_boundary", "_topics")

    def __init__(self, base_offset: int) -> None:
        self._base_offset, self._next_boundary = base_offset, 0
        self._boundaries: list[Boundary] = []
        self._topics: Counter[str] = Counter()
        self._min = self._max = 0

    def add(self, position: int, topic: str, store_timestamp: int) -> bool:
        """Add the record at a position of the file; return whether a boundary was passed."""
        first = not self._boundaries
        self._topics[topic] += 1
        self._min = store_timestamp if first else min(self._min, store_timestamp)
        self._max = store_timestamp if first else max(self._max, store_timestamp)
        if position >= self._next_boundary:
            self._boundaries.append(Boundary(self._base_offset + position, store_timestamp))
            self._next_boundary = position - position % BOUNDARY_BYTES + BOUNDARY_BYTES
            return True
        last = self._boundaries[-1]
        if store_timestamp < last.min_store_timestamp:
            self._boundaries[-1] = last._replace(min_store_timestamp=store_timestamp)
        return False

    def finish(self, *, size_bytes: int, records_end: int, checksum: int) -> SealedSegment:
        """Return the segment, given its size, the position of its blank record, and its CRC-32."""
        return SealedSegment(
            base_offset=self._base_offset,
            end_offset=self._base_offset + size_bytes,
            records_end=self._base_offset + records_end,
            record_count=self._topics.total(),
            min_store_timestamp=self._min,
            max_store_timestamp=self._max,
            topics=dict(self._topics),
            crc32=checksum,
            boundaries=tuple(self._boundaries),
        )


def checksum_of(
    path: Path, file_system: FileSystem, go_on: Callable[[], bool] = lambda: True
) -> int | None:
    """Return the CRC-32 of a file's bytes, None if `go_on` ended the work.

    Read, not mapped: looking at a hole through a mapping takes memory.
    """
    value = 0
    file = file_system.open(path, writable=False)
    try:
        for position in range(0, file.size(), BOUNDARY_BYTES):
            if not go_on():
                return None
            value = crc32(read_at(file, BOUNDARY_BYTES, position), value)
    finally:
        file.close()
    return value


def describe(
    file: MappedFile, file_system: FileSystem, go_on: Callable[[], bool]
) -> SealedSegment | None:
    """Return what a full log file holds, its records and their checksums verified.

    Args:
        file: A log file.
        file_system: What holds it.
        go_on: Called at each boundary; False ends the work, and None is returned. A place to let
            other threads have their turn: a file may hold a million records.

    Raises:
        CorruptRecordError: A record is not intact, or the file is not full.
        ReadFailedError: The disk does not give back a block.
        OSError: The file cannot be read, or was deleted meanwhile.
    """
    summary = SegmentSummary(file.base_offset)
    scanner = FileScanner(file)
    for _, position, checked in scanner:
        passed = summary.add(position, topic=checked[5], store_timestamp=checked[4])
        if passed and not go_on():
            return None
    stop = scanner.stop
    assert stop is not None, "the scanner ran to its end"
    if stop.kind not in (StopKind.BLANK, StopKind.FILE_END):
        raise CorruptRecordError(file.base_offset + stop.position, stop.reason)
    checksum = checksum_of(file.path, file_system, go_on)
    if checksum is None:
        return None
    return summary.finish(size_bytes=file.size_bytes, records_end=stop.position, checksum=checksum)


# Files


def manifest_path(store: Path, base_offset: int) -> Path:
    """Return where the manifest of a log file lies."""
    return store / SEALED_PATH / f"{file_name(base_offset)}{SUFFIX}"


def base_offset_of(name: str) -> int | None:
    """Return the base offset that the name of a manifest tells, None if it is another name."""
    digits = name.removesuffix(SUFFIX)
    if len(digits) != FILE_NAME_DIGITS or not digits.isascii() or not digits.isdecimal():
        return None
    return int(digits) if name != digits else None


def read_manifest(store: Path, base_offset: int, file_system: FileSystem) -> SealedSegment | None:
    """Return the manifest of a log file, None if there is none that can be used.

    Raises:
        OSError: It is there and cannot be read.
    """
    path = manifest_path(store, base_offset)
    if not file_system.exists(path) or file_system.is_directory(path):
        return None
    file = file_system.open(path, writable=False)
    try:
        segment = decode_manifest(file.pread(file.size(), 0))
    except ManifestError:
        return None
    finally:
        file.close()
    return segment if segment.base_offset == base_offset else None


@final
class SealedSegments:
    """The manifests of a store that is written to. One thread at a time.

    Only what retention asks for is held in memory: the boundaries of a terabyte take 100 MB.
    """

    __slots__ = ("_file_system", "_max_store_timestamps", "_store")

    def __init__(self, store: Path, file_system: FileSystem) -> None:
        """Name the store; nothing is touched before `load`."""
        self._store, self._file_system = store, file_system
        self._max_store_timestamps: dict[int, int] = {}

    def load(self, log_file_bytes: int, base_offsets: frozenset[int]) -> None:
        """Read the manifests of these log files, and remove what is none of them.

        A manifest that cannot be used, or tells of another file size, is as good as lost.

        Raises:
            OSError: One cannot be read or removed.
        """
        directory = self._store / SEALED_PATH
        for name in self._file_system.list_names(directory):
            base_offset = base_offset_of(name)
            segment = None
            if base_offset in base_offsets:
                assert base_offset is not None
                segment = read_manifest(self._store, base_offset, self._file_system)
            if segment is not None and segment.end_offset - segment.base_offset == log_file_bytes:
                self._max_store_timestamps[segment.base_offset] = segment.max_store_timestamp
            elif base_offset is not None or name.endswith(TEMPORARY_SUFFIX):
                self._file_system.remove(directory / name)

    def max_store_timestamp(self, base_offset: int) -> int | None:
        """Return the newest store timestamp of a sealed file, None for one that is not sealed."""
        return self._max_store_timestamps.get(base_offset)

    def write(self, segment: SealedSegment) -> None:
        """Keep a manifest; durable on return.

        Raises:
            OSError: It could not be written; what was there before still is.
        """
        path = manifest_path(self._store, segment.base_offset)
        replace_file(path, segment.encode(), self._file_system)
        self._max_store_timestamps[segment.base_offset] = segment.max_store_timestamp

    def delete_before(self, physical_offset: int) -> None:
        """Remove the manifests of log files that begin before an offset, durably.

        Raises:
            OSError: One could not be removed; the others before it are gone.
        """
        gone = [base for base in self._max_store_timestamps if base < physical_offset]
        for base_offset in sorted(gone):
            # It may have been removed already.
            with suppress(FileNotFoundError):
                self._file_system.remove(manifest_path(self._store, base_offset))
            del self._max_store_timestamps[base_offset]
        if gone:
            # Before the log files: a power cut must not leave a manifest of a missing file.
            with suppress(FileNotFoundError):
                self._file_system.sync_directory(self._store / SEALED_PATH)

    def forget_lost(self) -> None:
        """Treat files as not sealed whose manifests were removed.

        Raises:
            OSError: The directory cannot be read.
        """
        names = self._file_system.list_names(self._store / SEALED_PATH)
        there = set(map(base_offset_of, names))
        for base_offset in self._max_store_timestamps.keys() - there:
            del self._max_store_timestamps[base_offset]
