"""A store on a disk with blocks that cannot be read, and on one without room: real ones.

Everything that touches the store is a process of its own: what maps a file is ended by SIGBUS.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.real_disks import PAGE_BYTES, Disk, make_disk

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[3]
LOG_FILE_BYTES = 1 << 16
FIRST_LOG_FILE = f"commitlog/{0:020}"
LAST_LOG_FILE = f"commitlog/{3 * LOG_FILE_BYTES:020}"
FILES = {
    "last log file": LAST_LOG_FILE,
    "queue": "consumequeue/TopicA/0/*",
    "index": "index/*",
    "checkpoint": "checkpoint",
    "watermark": "commitbus/watermark",
    "deleted topics": "commitbus/deleted_topics.json",
}
STATE_FILES = ["metadata.db", "progress.db", "progress.journal"]
MESSAGE_BYTES = 1000


def run(command: str, directory: Path, argument: object = "") -> Any:
    """Run a command of `fault_process`; return what it found."""
    text = str(argument) if isinstance(argument, str | Path) else json.dumps(argument)
    done = subprocess.run(
        [sys.executable, "-m", "tests.broker.store.fault_process", command, str(directory), text],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout)


def is_error(found: Any, path: Path) -> bool:
    """Tell whether an error was found that names the file."""
    return isinstance(found, dict) and str(path) in found["text"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with make_disk(tmp_path, 40 << 20) as disk:
        yield disk


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A store of four log files that was closed cleanly, and where its messages lie."""
    directory = tmp_path_factory.mktemp("filled") / "store"
    return directory, run("fill", directory)


@pytest.fixture
def offsets(filled: tuple[Path, list[int]], store_dir: Path) -> list[int]:
    """A copy of that store, to be damaged; where its messages lie."""
    shutil.copytree(filled[0], store_dir)
    return filled[1]


def make_unreadable(disk: Disk, store: Path, name: str, position: int = 0) -> Path:
    """Let a file of the store end in blocks that cannot be read."""
    (path,) = store.glob(name)
    disk.take(path)
    disk.cut(path, position)
    return path


# Blocks that cannot be read


def test_one_read_of_an_unreadable_block_fails_and_sends_go_on(
    disk: Disk, store_dir: Path, offsets: list[int]
) -> None:
    """Every message before it is read, and every one in other files."""
    bad = 8 * PAGE_BYTES
    path = make_unreadable(disk, store_dir, FIRST_LOG_FILE, bad)
    found = run("use", store_dir, offsets)
    assert found["opened"] is True
    assert found["failure"] == ""
    assert found["closed"] is None
    assert all(isinstance(sent, int) for sent in found["sends"])
    for offset, end in pairwise([*offsets, offsets[-1] + 2 * MESSAGE_BYTES]):
        read = found["reads"][str(offset)]
        if end <= bad or offset >= LOG_FILE_BYTES:
            assert read == MESSAGE_BYTES
        elif offset + MESSAGE_BYTES >= bad:
            assert read["error"] == "ReadFailedError"
            assert read["path"] == str(path)
            assert read["position"] == max(bad, offset)


def test_a_start_that_has_to_read_an_unreadable_block_names_it(
    disk: Disk, store_dir: Path, offsets: list[int]
) -> None:
    """After a kill, with the first log file among those that recovery checks."""
    assert offsets
    path = make_unreadable(disk, store_dir, FIRST_LOG_FILE, 8 * PAGE_BYTES)
    (store_dir / "abort").touch()
    (store_dir / "checkpoint").unlink()
    (store_dir / "commitbus" / "watermark").unlink()
    found = run("use", store_dir, offsets)
    assert found["opened"]["error"] == "ReadFailedError"
    assert found["opened"]["path"] == str(path)
    assert found["opened"]["position"] == 8 * PAGE_BYTES


def test_check_reports_an_unreadable_block(disk: Disk, store_dir: Path, offsets: list[int]) -> None:
    assert offsets
    path = make_unreadable(disk, store_dir, FIRST_LOG_FILE, 8 * PAGE_BYTES)
    problems = run("check", store_dir)
    assert any(file == FIRST_LOG_FILE and "nput/output" in what for file, what in problems), path


def test_salvage_takes_what_can_be_read(
    *, disk: Disk, store_dir: Path, offsets: list[int], tmp_path: Path
) -> None:
    make_unreadable(disk, store_dir, FIRST_LOG_FILE, 8 * PAGE_BYTES)
    out = tmp_path / "out"
    assert run("salvage", store_dir, out) == []
    found = run("use", out, offsets[:20])
    assert list(found["reads"].values()) == [MESSAGE_BYTES] * 20


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_a_start_with_an_unreadable_file_works_or_names_it(
    *, disk: Disk, store_dir: Path, offsets: list[int], name: str, is_clean: bool
) -> None:
    """As do reads, sends and the closing, if it starts; and `check` names it, or refuses."""
    path = make_unreadable(disk, store_dir, FILES[name])
    if not is_clean:
        (store_dir / "abort").touch()
    problems = run("check", store_dir)
    if isinstance(problems, dict):
        assert is_error(problems, path)
    else:
        relative = path.relative_to(store_dir).as_posix()
        assert name == "deleted topics" or any(file == relative for file, _ in problems)
    found = run("use", store_dir, offsets)
    if found["opened"] is not True:
        assert is_error(found["opened"], path)
        return
    for outcome in [*found["reads"].values(), *found["sends"], *found["queues"], *found["keys"]]:
        assert isinstance(outcome, int) or is_error(outcome, path)
    assert not found["failure"] or str(path) in found["failure"]
    assert found["closed"] is None or is_error(found["closed"], path)


@pytest.mark.parametrize("name", STATE_FILES)
def test_state_that_cannot_be_read_is_named(disk: Disk, store_dir: Path, name: str) -> None:
    """Topics, groups and progress are refused, each with its file."""
    path = store_dir / "commitbus" / name
    assert run("state", store_dir) == [True, 1]
    disk.take(path)
    disk.cut(path, 0)
    found = run("state", store_dir)
    refused = found[0] if name == "metadata.db" else found[1]
    assert is_error(refused, path)
    assert refused["error"] == "StateFileError"


# No room


@pytest.mark.parametrize("how", ["clean stop", "kill", "sparse copy"])
def test_a_store_on_a_full_disk_refuses_and_goes_on_when_there_is_room(
    *, disk: Disk, store_dir: Path, offsets: list[int], how: str
) -> None:
    """The start and each send work, or fail with an error that names a file."""
    store = disk.path / "store"
    if how == "sparse copy":
        subprocess.run(["cp", "-r", "--sparse=always", store_dir, store], check=True)
    else:
        shutil.copytree(store_dir, store)
    if how == "kill":
        (store / "abort").touch()
    filler = disk.fill()
    found = run("refuse", store, filler)
    if found["opened"] is not True:
        assert is_error(found["opened"], store), found["opened"]
        filler.unlink(missing_ok=True)
    else:
        assert any(isinstance(sent, dict) for sent in found["full"])
        assert all(isinstance(sent, int) or is_error(sent, store) for sent in found["full"])
        assert isinstance(found["after"], int), found["after"]
        assert found["failure"] == ""
        assert found["closed"] is None
    again = run("use", store, offsets)
    assert list(again["reads"].values()) == [MESSAGE_BYTES] * len(offsets)
    assert all(isinstance(sent, int) for sent in again["sends"])
    assert run("check", store) == []
