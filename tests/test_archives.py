"""Unpacking tar archives with any Python 3.11."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tests.archives import unpack


def archive_of(directory: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    path = directory / "archive.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_files_and_directories_are_written(tmp_path: Path) -> None:
    """With `only`, those whose name has it."""
    folder = tarfile.TarInfo("store/empty")
    folder.type = tarfile.DIRTYPE
    archive = archive_of(
        tmp_path, (tarfile.TarInfo("store/a"), b"a"), (folder, b""), (tarfile.TarInfo("b"), b"b")
    )
    unpack(archive, tmp_path / "all")
    assert (tmp_path / "all" / "store" / "a").read_bytes() == b"a"
    assert (tmp_path / "all" / "store" / "empty").is_dir()
    assert (tmp_path / "all" / "b").read_bytes() == b"b"
    unpack(archive, tmp_path / "some", only="store/")
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["store"]


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out"])  # noqa: S108 - refused
def test_nothing_is_written_outside(tmp_path: Path, name: str) -> None:
    archive = archive_of(tmp_path, (tarfile.TarInfo(name), b"x"))
    with pytest.raises(ValueError, match="outside"):
        unpack(archive, tmp_path / "target")


def test_links_are_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(ValueError, match="neither a file nor a directory"):
        unpack(archive_of(tmp_path, (link, b"")), tmp_path / "target")
