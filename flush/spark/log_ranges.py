"""Cutting a log into ranges of whole records, one for each task of a read.

Where to cut is the question. The bytes alone cannot say: a producer may send a body that holds
a record, forged down to the physical offset at which it comes to lie, so a scan for record headers
can be led into a body. Two things can be trusted: the size chain from a file's first record, and
the consume queues, which the broker wrote while it followed that chain. So

1. a range begins at a file's first record, or at a record that the manifest of a sealed file, or
   else a consume queue, names and whose header says the same;
2. whoever reads a range follows the chain from its start and must meet its end exactly
   (`range_reader`). By induction over the ranges of a file, every cut is then proven to lie on
   the chain: wrong names make a read fail, they do not make it return wrong rows. (A read that
   starts at an offset leaves out ranges, and trusts the names for its first cut.)

A manifest costs 50 KB to read, the consume queues 20 bytes per message, and a walk along the log
would read all of it. Where nothing is named, a file is one range. That is slower, not wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias, final

import numpy as np

from commitbus.commitlog.errors import CorruptRecordError, NotAStoreError, ReadFailedError
from commitbus.commitlog.file_system import FileSystem, read_at
from commitbus.commitlog.record_format import (
    MESSAGE_MAGIC_CODE_V1,
    MESSAGE_MAGIC_CODE_V2,
    MIN_RECORD_BYTES,
)
from commitbus.flush.sealed import read_manifest
from commitbus.flush.watermark_file import read_durable_watermark

Units: TypeAlias = np.ndarray[Any, np.dtype[np.void]]
Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_LOG: Final = logging.getLogger(__name__)

NAME_DIGITS: Final = 20
_NOWHERE: Final = np.iinfo(np.int64).max

# A consume queue is a row of these (consumequeue/ has the diagram).
_UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
# The start of a record, as far as it must agree with the unit that names it.
_RECORD_START: Final = np.dtype(
    {
        "names": ["size", "magic", "physical_offset"],
        "formats": [">u4", ">u4", ">i8"],
        "offsets": [0, 4, 28],
        "itemsize": 36,
    }
)


@final
class RangeEnd(Enum):
    """What lies at the end of a range, and so what its reader must find there."""

    EXACT = "exact"
    """The next range's first record, the durable watermark, or the file's end."""
    ZEROS = "zeros"
    """The log ends somewhere before; zeros follow. A store that was stopped cleanly."""
    TORN = "torn"
    """The log ends at the first record that is not intact: its writer runs, or was killed."""


@final
@dataclass(frozen=True, slots=True)
class LogRange:
    """Whole records of one log file. Small and picklable: it travels to a task."""

    store: Path
    path: Path
    """Of the log file."""
    base_offset: int
    """Physical offset of the file's first byte."""
    start: int
    """Physical offset of the first record."""
    end: int
    """Physical offset of the first byte behind the range, which may be the file's end."""
    end_is: RangeEnd


@final
@dataclass(frozen=True, slots=True)
class _LogFile:
    path: Path
    base_offset: int
    size_bytes: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size_bytes


def plan_ranges(
    store: Path,
    file_system: FileSystem,
    *,
    split_bytes: int | None,
    starting_offset: int | None = None,
    ending_offset: int | None = None,
) -> list[LogRange]:
    """Return ranges that together hold every message that may be read, in the log's order.

    That is every message below the durable watermark, and in a store without one (RocketMQ's have
    none) the whole intact log.

    Args:
        store: The store's directory.
        file_system: Where it lies.
        split_bytes: How long a range should be; None for one range per log file.
        starting_offset: Ranges that end at or before it are left out.
        ending_offset: Ranges that begin at or behind it are left out.

    Raises:
        NotAStoreError: The directory holds no log.
        CorruptRecordError: A log file is missing, or the log ends before its durable watermark.
        ReadFailedError: The disk does not give back the watermark, or where a log file begins.
    """
    ranges = _whole_files(store, file_system)
    if split_bytes is not None:
        ranges = _cut(store, file_system, ranges, split_bytes)
    first = 0 if starting_offset is None else starting_offset
    behind = _NOWHERE if ending_offset is None else ending_offset
    return [part for part in ranges if part.end > first and part.start < behind]


def _whole_files(store: Path, file_system: FileSystem) -> list[LogRange]:
    files = _log_files(store, file_system)
    watermark = read_durable_watermark(store, file_system)
    if watermark is None:
        last_end = RangeEnd.TORN if file_system.exists(store / "abort") else RangeEnd.ZEROS
        while files and _is_unused(files[-1], file_system):
            del files[-1]
    else:
        last_end = RangeEnd.EXACT
        files = [file for file in files if file.base_offset < watermark]
        end = files[-1].end_offset if files else watermark
        if end < watermark:
            raise CorruptRecordError(
                end, f"the log in {store} ends here, before its durable watermark {watermark}"
            )
    for before, file in pairwise(files):
        if before.end_offset != file.base_offset:
            raise CorruptRecordError(
                before.end_offset, f"no log file begins here, the next one is {file.path}"
            )
    ranges = []
    for file in files:
        is_last = file is files[-1]
        end = min(file.end_offset, watermark) if watermark is not None else file.end_offset
        end_is = last_end if is_last else RangeEnd.EXACT
        ranges.append(LogRange(store, file.path, file.base_offset, file.base_offset, end, end_is))
    return ranges


def _log_files(store: Path, file_system: FileSystem) -> list[_LogFile]:
    directory = store / "commitlog"
    if not file_system.is_directory(directory):
        raise NotAStoreError(store, "it has no directory commitlog")
    files = []
    for name in file_system.list_names(directory):
        if len(name) == NAME_DIGITS and name.isascii() and name.isdecimal():
            file = file_system.open(directory / name, writable=False)
            files.append(_LogFile(directory / name, int(name), file.size()))
            file.close()
    return files


def _is_unused(file: _LogFile, file_system: FileSystem) -> bool:
    """Tell whether nothing was written to a file: the next one is made before it is needed."""
    opened = file_system.open(file.path, writable=False)
    try:
        return not any(read_at(opened, 8, 0))
    finally:
        opened.close()


def _cut(
    store: Path, file_system: FileSystem, ranges: list[LogRange], split_bytes: int
) -> list[LogRange]:
    # A last piece of less than half a split stays with the one before it.
    wanted = [range(r.start + split_bytes, r.end - split_bytes // 2, split_bytes) for r in ranges]
    sealed = [_sealed_records(*pair, file_system) for pair in zip(ranges, wanted, strict=True)]
    unsealed = (part for part, named in zip(wanted, sealed, strict=True) if named is None)
    targets = np.array([target for part in unsealed for target in part], np.int64)
    queued = named_records(store, file_system, targets)
    named = np.concatenate([queued, *(units for units in sealed if units is not None)])
    named.sort(order="physical_offset")
    pieces: list[LogRange] = []
    for whole in ranges:
        inside = named[named["physical_offset"] > whole.start]
        inside = inside[inside["physical_offset"] < whole.end]
        cuts = [whole.start, *_confirmed(whole, file_system, inside), whole.end]
        for start, end in pairwise(cuts):
            end_is = whole.end_is if end == whole.end else RangeEnd.EXACT
            pieces.append(LogRange(store, whole.path, whole.base_offset, start, end, end_is))
    return pieces


def _sealed_records(
    whole: LogRange, targets: Sequence[int], file_system: FileSystem
) -> Units | None:
    """Return as `named_records` what the manifest of a file names; None if it has none.

    A manifest does not tell sizes: they are 0.
    """
    try:
        manifest = read_manifest(whole.store, whole.base_offset, file_system)
    except (OSError, ReadFailedError) as error:
        _LOG.warning("the manifest of %s is not looked at: %s", whole.path, error)
        return None
    if manifest is None:
        return None
    offsets = np.array([boundary.physical_offset for boundary in manifest.boundaries], np.int64)
    at = np.searchsorted(offsets, np.array(targets, np.int64))
    chosen = np.unique(offsets[at[at < offsets.size]])
    units = np.zeros(chosen.size, _UNIT)
    units["physical_offset"] = chosen
    return units


def named_records(store: Path, file_system: FileSystem, targets: Int64s) -> Units:
    """Return for each target the first record at or behind it that any consume queue names.

    Args:
        store: The store's directory.
        file_system: Where it lies.
        targets: int64, physical offsets in ascending order.

    Returns:
        Units (`physical_offset`, `size`, ...) in ascending order, each once; fewer than targets
        where nothing is named.
    """
    best = np.zeros(targets.size, _UNIT)
    if not targets.size:
        return best
    best["physical_offset"] = _NOWHERE
    for units in _queue_files(store, file_system):
        offsets = units["physical_offset"].astype(np.int64)
        at = np.searchsorted(offsets, targets)
        found = np.flatnonzero(at < offsets.size)
        nearer = found[offsets[at[found]] < best["physical_offset"][found]]
        best[nearer] = units[at[nearer]]
    _, first = np.unique(best["physical_offset"], return_index=True)
    named: Units = best[first]
    return named[named["physical_offset"] < _NOWHERE]


def _queue_files(store: Path, file_system: FileSystem) -> Iterator[Units]:
    """Yield the used units of each file of each consume queue, in ascending order."""
    for topic in _directories(store / "consumequeue", file_system):
        for queue in _directories(topic, file_system):
            for name in file_system.list_names(queue):
                file = file_system.open(queue / name, writable=False)
                try:
                    data = read_at(file, file.size(), 0)
                except ReadFailedError as error:
                    # Fewer places are known to cut at, or to go on at; nothing else is lost.
                    _LOG.warning("a consume queue is not looked at: %s", error)
                    continue
                finally:
                    file.close()
                units = np.frombuffer(data, _UNIT, len(data) // _UNIT.itemsize)
                units = units[units["size"] > 0]
                yield units[np.argsort(units["physical_offset"], kind="stable")]


def _directories(path: Path, file_system: FileSystem) -> list[Path]:
    paths = (path / name for name in file_system.list_names(path))
    return [path for path in paths if file_system.is_directory(path)]


def _confirmed(whole: LogRange, file_system: FileSystem, units: Units) -> list[int]:
    """Return the physical offsets of those units whose record is really there."""
    cuts = []
    file = file_system.open(whole.path, writable=False)
    try:
        for unit in units:
            offset = int(unit["physical_offset"])
            try:
                start = read_at(file, _RECORD_START.itemsize, offset - whole.base_offset)
            except ReadFailedError:
                continue  # the reader of the range gets the error
            if len(start) < _RECORD_START.itemsize:
                continue
            record = np.frombuffer(start, _RECORD_START)[0]
            if (
                record["physical_offset"] == offset
                and record["size"] >= MIN_RECORD_BYTES
                and unit["size"] in (0, record["size"])
                and record["magic"] in (MESSAGE_MAGIC_CODE_V1, MESSAGE_MAGIC_CODE_V2)
            ):
                cuts.append(offset)
    finally:
        file.close()
    return cuts
