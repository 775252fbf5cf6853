"""A store where numba is not installed, which it need not be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from commitbus.broker.store.check import check_store

PROGRAM = """
import shutil
import sys
from pathlib import Path

sys.modules.update({"numba": None, "llvmlite": None})  # Importing them fails from here on.

from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.kernels import KernelChoice, UnknownKernelsError, choice, ready_kernels
from commitbus.commitlog.types import Host, OutgoingMessage, QueueOffset

path, host = Path(sys.argv[1]), Host.parse("127.0.0.1", 1)
choice.WORTH_LOADING_RECORDS = 100
with MessageStore.open(path) as store:
    for start in range(0, 2000, 50):
        store.put_batch([
            OutgoingMessage("T", n % 4, b"x" * 100, b"KEYS\\x01k%d\\x02" % n, 1, host)
            for n in range(start, start + 50)
        ])
    store.dispatched.wait(store.end_offset, 60)
shutil.rmtree(path / "consumequeue")
(path / "abort").touch()
with MessageStore.open(path) as store:
    assert len(store.fetch("T", 3, QueueOffset(0), 1000).units) == 500
    store.dispatched.wait(store.end_offset, 60)
    (found,) = store.query_by_key("T", "k1234", 0, 1 << 62, 2)
    assert found.queue_offset == 1234 // 4
assert ready_kernels().name == "python"
try:
    KernelChoice("numba")
except UnknownKernelsError as error:
    assert "not installed" in str(error)
else:
    raise AssertionError("what is not there was not refused")
"""


def test_all_works_without_numba_and_nothing_warns(tmp_path: Path) -> None:
    """Appending, a start that checks the log and derives the queues, reading; in Python alone."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path / "store")],
        env={name: value for name, value in os.environ.items() if name != "COMMITBUS_KERNELS"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert check_store(tmp_path / "store").problems == []
