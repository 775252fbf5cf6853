"""A file that retention removes while somebody flushes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.descriptor_cache import DescriptorCache
from commitbus.commitlog.mapped_file import FilePolicy, MappedFile, file_name


def test_a_flush_that_meets_a_deletion_has_not_failed(
    tmp_path: Path, faulty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue file is opened anew for each sync, and its name goes before it is closed."""
    file = MappedFile.create(
        tmp_path / file_name(0),
        4096,
        file_system=faulty,
        policy=FilePolicy(grow=True, descriptors=DescriptorCache(1)),
    )
    remove: Callable[[Path], None] = faulty.remove

    def remove_and_flush(path: Path) -> None:
        remove(path)
        file.flush()

    monkeypatch.setattr(faulty, "remove", remove_and_flush)
    file.delete()
    assert faulty.synced == []
    assert not file.path.exists()
