"""Files that are read as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commitbus.broker.common.small_file import SmallFileError, read_small_file


def test_a_small_file_is_read(tmp_path: Path) -> None:
    """Up to the limit, and through a link."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    (tmp_path / "link").symlink_to(path)
    assert read_small_file(path, 10) == b"x" * 10
    assert read_small_file(tmp_path / "link") == b"x" * 10


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "No such file or directory"),
        (".", "Is a directory"),
        ("pipe", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("large", "11 bytes, at most 10 are"),
        ("/proc/self/status", "more than 10 bytes"),
        ("a\0b", "null byte"),
        ("x" * 300, "File name too long"),
    ],
)
def test_everything_else_is_refused_at_once(name: str, reason: str, tmp_path: Path) -> None:
    """Without waiting for a writer, or for the end of what has none."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 11)
    with pytest.raises(SmallFileError, match=reason) as caught:
        read_small_file(tmp_path / name, 10)
    assert caught.value.path == tmp_path / name
