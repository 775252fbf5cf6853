"""The lock that keeps a store to one writer, against other processes and other kinds of lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import StoreLockedError
from commitbus.commitlog.file_system import RealFileSystem
from tests.running_copies import copy_running

OpenStore = Callable[..., MessageStore]
FILES = RealFileSystem()
PATIENCE_S = 60

ANOTHER_STORE = """
import sys
from pathlib import Path
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import StoreLockedError
try:
    MessageStore.open(Path(sys.argv[1])).close()
    print("opened")
except StoreLockedError:
    print("refused")
"""
POSIX_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("refused", flush=True)
    else:
        print("locked", flush=True)
        sys.stdin.read()
"""
JAVA_LOCK = """
public class Lock {
    public static void main(String[] names) throws Exception {
        var channel = new java.io.RandomAccessFile(names[0], "rw").getChannel();
        var lock = channel.tryLock(0, 1, false);
        System.out.println(lock == null ? "refused" : "locked");
        System.in.read();
    }
}
"""


def open_elsewhere(store: Path) -> str:
    """Open a store in another process; return what came of it."""
    command = [sys.executable, "-c", ANOTHER_STORE, str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    return done.stdout.strip()


def test_a_copy_beside_an_open_store_does_not_give_it_away(
    open_store: OpenStore, store_dir: Path, tmp_path: Path
) -> None:
    """A POSIX lock dies when its process closes any descriptor of the file, as a copy does."""
    store = open_store()
    copy_running(store_dir, tmp_path / "copy")
    assert open_elsewhere(store_dir) == "refused"
    with pytest.raises(StoreLockedError):
        MessageStore.open(store_dir)
    store.close()
    assert open_elsewhere(store_dir) == "opened"


@pytest.fixture(params=["posix", "java"])
def locker(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return a command that takes a lock as RocketMQ does, and waits; or says that it could not."""
    if request.param == "posix":
        return [sys.executable, "-c", POSIX_LOCK]
    if shutil.which("java") is None or shutil.which("javac") is None:
        pytest.skip("needs a JDK")
    source = tmp_path / "Lock.java"
    source.write_text(JAVA_LOCK)
    return ["java", str(source)]


def test_locks_of_other_programs_and_ours_exclude_each_other(
    locker: list[str], tmp_path: Path
) -> None:
    """In both directions."""
    path = tmp_path / "lock"
    ours = FILES.lock(path)
    assert ours is not None
    done = subprocess.run(
        [*locker, str(path)], input="", capture_output=True, text=True, timeout=PATIENCE_S,
        check=True,
    )  # fmt: skip
    assert done.stdout == "refused\n"
    ours.release()
    with subprocess.Popen(
        [*locker, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as theirs:
        assert theirs.stdout is not None
        assert theirs.stdout.readline() == "locked\n"
        assert FILES.lock(path) is None
        theirs.communicate("\n", timeout=PATIENCE_S)
    again = FILES.lock(path)
    assert again is not None
    assert FILES.lock(path) is None, "a second one in the same process"
    again.release()
    again.release()


def test_a_forked_child_neither_keeps_the_lock_nor_gives_it_away(tmp_path: Path) -> None:
    """It shares the open file, and with it the lock; a worker may outlive the broker."""
    path = tmp_path / "lock"
    ours = FILES.lock(path)
    assert ours is not None
    may_end, end = os.pipe()
    child = os.fork()
    if child == 0:
        ours.release()
        os.close(end)
        os.read(may_end, 1)
        os._exit(0)
    try:
        assert FILES.lock(path) is None
        ours.release()
        again = FILES.lock(path)
        assert again is not None
        again.release()
    finally:
        os.close(end)
        os.close(may_end)
        os.waitpid(child, 0)
