"""Manifests of sealed log files held against the files: they vouch for every byte."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import final

from commitbus.broker.store.check_report import CheckReport
from commitbus.commitlog.file_system import TEMPORARY_SUFFIX, FileSystem
from commitbus.commitlog.mapped_file import MappedFile
from commitbus.commitlog.record_format import CheckedRecord
from commitbus.commitlog.record_scanner import ScanStop, StopKind
from commitbus.flush.sealed import (
    SEALED_PATH,
    SegmentSummary,
    base_offset_of,
    checksum_of,
    manifest_path,
    read_manifest,
)


@final
class SealedCheck:
    """Checks the manifests while the log is walked, one file after the other."""

    def __init__(self, store: Path, file_system: FileSystem, report: CheckReport) -> None:
        """List the manifests; report what is none."""
        self._store, self._file_system, self._report = store, file_system, report
        self._bases: set[int] = set()
        self._summary: SegmentSummary | None = None
        self._is_intact = True
        for name in file_system.list_names(store / SEALED_PATH):
            base_offset = base_offset_of(name)
            if base_offset is not None:
                self._bases.add(base_offset)
            elif report.was_closed_cleanly and not name.endswith(TEMPORARY_SUFFIX):
                report.add(store / SEALED_PATH / name, 0, "this is no name of a manifest")
        report.manifests = len(self._bases)

    def begin(self, file: MappedFile) -> None:
        """Hear that the walk has come to a file."""
        self._summary, self._is_intact = None, True
        if file.base_offset in self._bases:
            self._summary = SegmentSummary(file.base_offset)

    def see(self, position: int, checked: CheckedRecord) -> None:
        """Take note of the next record of the file and its position there."""
        if self._summary is not None:
            self._summary.add(position, topic=checked[5], store_timestamp=checked[4])

    def see_damage(self) -> None:
        """Hear that the file is damaged, and that this is reported already."""
        self._is_intact = False

    def end(self, file: MappedFile, stop: ScanStop) -> None:
        """Compare a whole file with its manifest."""
        summary = self._summary
        self._bases.discard(file.base_offset)
        is_full = stop.kind in (StopKind.BLANK, StopKind.FILE_END)
        if summary is None or not is_full or not self._is_intact:
            return
        path = manifest_path(self._store, file.base_offset)
        said = read_manifest(self._store, file.base_offset, self._file_system)
        if said is None:
            self._report.add(path, 0, "it is no manifest of this file; the next start replaces it")
            return
        checksum = checksum_of(file.path, self._file_system)
        assert checksum is not None, "no `go_on` ends it early"
        if checksum != said.crc32:
            self._report.add(
                file.path,
                0,
                f"its bytes have CRC-32 {checksum:08x}, when it was sealed {said.crc32:08x}: "
                "something changed that no record's own checksum covers",
            )
            return
        found = summary.finish(
            size_bytes=file.size_bytes, records_end=stop.position, checksum=checksum
        )
        wrong = [f.name for f in fields(said) if getattr(said, f.name) != getattr(found, f.name)]
        if wrong:
            self._report.add(path, 0, f"{', '.join(wrong)} are not those of the log file")

    def finish(self) -> None:
        """Report the manifests of no log file. For a store that was closed cleanly."""
        for base_offset in sorted(self._bases):
            self._report.add(
                manifest_path(self._store, base_offset), 0, "there is no such log file"
            )
