"""An export is the log, whole files only, and the same bytes each time."""

from __future__ import annotations

import resource
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped] # pyarrow ships no types
import pytest

from commitbus.commitlog.errors import CorruptRecordError, NotAStoreError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.flush.spark import export
from commitbus.flush.spark.columns import arrow_schema
from commitbus.flush.spark.export import (
    ExportFailedError,
    ExportRefusedError,
    ExportSummary,
    export_store,
)


def silent(what: str, done: int, total: int) -> None:
    """No progress bar."""


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.glob("*.parquet")}


def rows_in(out: Path, rows_of: Callable[..., Any]) -> Any:
    return rows_of(pq.read_table(out).to_batches())


def test_the_rows_of_an_export_are_the_messages(
    small_store: Any, tmp_path: Path, expected_rows: Any, rows_of: Any
) -> None:
    """One file per log file, in order, with Spark's types."""
    out = tmp_path / "deep" / "out"
    summary = export_store(small_store.path, out, on_progress=silent)
    logs = sorted(path.name for path in (small_store.path / "commitlog").iterdir())
    assert sorted(contents(out)) == [f"{name}.parquet" for name in logs]
    assert rows_in(out, rows_of) == expected_rows(small_store.records)
    file = pq.ParquetFile(out / f"{logs[0]}.parquet")
    assert file.schema_arrow.equals(arrow_schema())
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    size = sum(len(data) for data in contents(out).values())
    assert summary == ExportSummary(len(logs), 0, len(small_store.records), size)


def test_progress_ends_at_the_whole(
    small_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes of the log, never backwards, also with many row groups."""
    monkeypatch.setattr(export, "ROW_GROUP_BYTES", 1)
    steps: list[tuple[str, int, int]] = []
    export_store(small_store.path, tmp_path / "out", on_progress=lambda *step: steps.append(step))
    assert {(what, total) for what, _, total in steps} == {("export", small_store.end)}
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    assert steps[-1][1] == small_store.end


def test_an_export_repeated_changes_nothing(small_store: Any, tmp_path: Path) -> None:
    """Complete files are kept; written elsewhere they come out the same, byte for byte."""
    export_store(small_store.path, tmp_path / "a", on_progress=silent)
    before = contents(tmp_path / "a")
    again = export_store(small_store.path, tmp_path / "a", on_progress=silent)
    export_store(small_store.path, tmp_path / "b", on_progress=silent)
    assert (again.files_written, again.files_kept) == (0, len(before))
    assert again.messages == len(small_store.records)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == before


def test_an_export_follows_a_log_that_grows(
    small_store: Any, tmp_path: Path, expected_rows: Any, rows_of: Any
) -> None:
    """The last file is written anew, those before it are kept, new ones are added."""
    out = tmp_path / "out"
    first = export_store(small_store.path, out, on_progress=silent)
    for _ in range(20):
        small_store.append(body=bytes(1000))
    small_store.set_watermark(small_store.end)
    second = export_store(small_store.path, out, on_progress=silent)
    assert second.files_kept == first.files_written - 1
    assert second.files_written > 1
    assert rows_in(out, rows_of) == expected_rows(small_store.records)


def test_a_log_without_a_watermark_is_looked_at_again(
    make_store: Any, tmp_path: Path, expected_rows: Any, rows_of: Any
) -> None:
    """Where it ends is not written down anywhere, so its last file may have grown."""
    store = make_store()
    out = tmp_path / "out"
    for _ in range(3):
        store.append()
        export_store(store.path, out, on_progress=silent)
        assert rows_in(out, rows_of) == expected_rows(store.records)


def test_files_whose_log_was_deleted_stay(small_store: Any, tmp_path: Path) -> None:
    """Retention in the store is no retention in the archive."""
    out = tmp_path / "out"
    export_store(small_store.path, out, on_progress=silent)
    before = contents(out)
    min((small_store.path / "commitlog").iterdir()).unlink()
    export_store(small_store.path, out, on_progress=silent)
    assert contents(out) == before


def test_an_empty_log_is_exported_to_nothing(make_store: Any, tmp_path: Path) -> None:
    """That is no error."""
    summary = export_store(make_store().path, tmp_path / "out", on_progress=silent)
    assert summary == ExportSummary(0, 0, 0, 0)
    assert contents(tmp_path / "out") == {}


def test_compressed_bodies_are_exported_plain(make_store: Any, tmp_path: Path) -> None:
    """As Spark reads them."""
    store = make_store()
    store.append(body=zlib.compress(b"plain"), sys_flag=1)
    export_store(store.path, tmp_path / "out", on_progress=silent)
    assert pq.read_table(tmp_path / "out")["body"].to_pylist() == [b"plain"]


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    """And nothing is created."""
    with pytest.raises(NotAStoreError):
        export_store(tmp_path, tmp_path / "out", on_progress=silent)
    assert not (tmp_path / "out").exists()


def test_other_content_is_never_touched(small_store: Any, make_store: Any, tmp_path: Path) -> None:
    """A file, foreign files, another store's export, a Parquet file of no export."""
    other = make_store()
    other.append(body=b"of another store")
    other_out = tmp_path / "other"
    export_store(other.path, other_out, on_progress=silent)
    file = tmp_path / "file"
    file.write_text("a file")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("my only copy")
    parquet = tmp_path / "parquet"
    parquet.mkdir()
    pq.write_table(pa.table({"a": [1]}), parquet / f"{0:020}.parquet")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / f"{0:020}.parquet").write_bytes(b"PAR1")
    later = tmp_path / "later"
    later.mkdir()
    (later / f"{1 << 40:020}.parquet").write_bytes((other_out / f"{0:020}.parquet").read_bytes())
    for out in (file, foreign, parquet, broken, later, other_out, small_store.path):
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        with pytest.raises(ExportRefusedError, match=out.name):
            export_store(small_store.path, out, on_progress=silent)
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_two_exports_to_one_place_are_refused(
    small_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the first is what the second finds."""
    monkeypatch.setattr(RealFileSystem, "lock", lambda *_: None)
    with pytest.raises(ExportRefusedError, match="another export"):
        export_store(small_store.path, tmp_path / "out", on_progress=silent)


def test_a_killed_export_leaves_no_half_file(
    small_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any row group: what has its final name is whole; a rerun completes it."""
    whole = tmp_path / "whole"
    export_store(small_store.path, whole, on_progress=silent)
    expected = contents(whole)
    monkeypatch.setattr(export, "ROW_GROUP_BYTES", 1)
    many_groups = tmp_path / "many"
    steps: list[int] = []
    export_store(small_store.path, many_groups, on_progress=lambda *_: steps.append(1))
    for killed_at in range(len(steps)):
        out = tmp_path / f"killed{killed_at}"
        left = killed_at

        def kill(what: str, done: int, total: int) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1

        with pytest.raises(KeyboardInterrupt):
            export_store(small_store.path, out, on_progress=kill)
        finished = contents(out)
        assert finished.items() <= contents(many_groups).items()
        assert {path.name for path in out.iterdir()} == {*finished, ".export.lock"}
        # A real kill leaves the temporary file behind as well.
        (out / f".{0:020}.parquet.tmp").write_bytes(b"half")
        export_store(small_store.path, out, on_progress=silent)
        assert contents(out) == contents(many_groups)
        assert not list(out.glob(".*.tmp"))
    assert sorted(expected) == sorted(contents(many_groups))


def test_damage_stops_the_export_and_names_the_place(small_store: Any, tmp_path: Path) -> None:
    """The files before it are complete, that of the damage does not appear."""
    damaged = next(
        r for r in small_store.records if r.physical_offset > small_store.file_bytes and r.body
    )
    end = damaged.physical_offset + damaged.size_bytes
    small_store.overwrite(
        damaged.physical_offset + 88, b"\0" * (end - damaged.physical_offset - 88)
    )
    out = tmp_path / "out"
    with pytest.raises(CorruptRecordError) as damage:
        export_store(small_store.path, out, on_progress=silent)
    assert damage.value.physical_offset == damaged.physical_offset
    assert sorted(contents(out)) == [f"{0:020}.parquet"]
    assert not list(out.glob(".*.tmp"))


def test_a_file_that_cannot_be_written_is_named(small_store: Any, tmp_path: Path) -> None:
    """As on a full disk; the next try writes it."""
    out = tmp_path / "out"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(ExportFailedError, match=r"\.parquet failed: ") as caught:
            export_store(small_store.path, out, on_progress=silent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.path.parent == out
    assert contents(out) == {}
    assert [path.name for path in out.iterdir()] == [".export.lock"]
    export_store(small_store.path, out, on_progress=silent)
