"""Unpacking the stores that the tests bring with them."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path


def unpack(archive: Path, target: Path, *, only: str = "") -> None:
    """Write the files of a tar archive below `target`; with `only`, those whose name has it.

    `tarfile` has its safe way, `extractall(filter="data")`, from Python 3.11.4 on only, and warns
    of the unsafe one from 3.12 on.

    Raises:
        ValueError: a member lies outside `target`, or is neither a file nor a directory.
    """
    root = target.resolve()
    with tarfile.open(archive) as members:
        for member in members:
            if only not in member.name:
                continue
            path = (root / member.name).resolve()
            if not path.is_relative_to(root):
                raise ValueError(f"{member.name} lies outside of the directory to unpack to")
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            data = members.extractfile(member) if member.isfile() else None
            if data is None:
                raise ValueError(f"{member.name} is neither a file nor a directory")
            path.parent.mkdir(parents=True, exist_ok=True)
            with data, path.open("wb") as file:
                shutil.copyfileobj(data, file)
