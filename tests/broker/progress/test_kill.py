"""A real `kill -9`, at any moment, while saves, ring and mirror are all busy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commitbus.broker.progress.progress_table import ProgressTable

# Says each answer on its standard output, as a broker says it to a client, only after the call.
CHILD = """
import os, sys
from pathlib import Path
from commitbus.broker.progress.queue_progress import Lease
from commitbus.broker.progress.journal import JOURNAL_BYTES_MIN
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.file_system import RealFileSystem

store, files = Path(sys.argv[1]), RealFileSystem()
table = ProgressTable(
    store, SqliteRows(store, files), clock=SystemClock(), file_system=files,
    save_interval_ms=1, mirror_interval_ms=3, journal_bytes=JOURNAL_BYTES_MIN,
)
table.open()
queues = [table.create("g", "t", queue_id, 0) for queue_id in range(3)]
while True:
    for queue_id, progress in enumerate(queues):
        start = progress.next_offset
        lease = Lease(start, start + 60_000, "client", auto_renew=False)
        table.deliver(progress, range(start, start + 8), lease, next_offset=start + 8)
        for offset in range(start, start + 7):
            table.acknowledge(progress, offset)
            os.write(1, b"%d %d\\n" % (queue_id, offset))
"""


@pytest.mark.slow
def test_a_killed_process_answered_nothing_that_is_forgotten(
    tmp_path: Path, open_table: Callable[..., ProgressTable]
) -> None:
    acknowledged: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for answers in (1, 700, 5_000):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, bufsize=0
        ) as child:
            assert child.stdout is not None
            output = b""
            while output.count(b"\n") < answers:
                answered = child.stdout.read(65_536)
                assert answered, "it ended by itself"
                output += answered
            child.kill()
            output += child.stdout.read()
        for line in output.splitlines(keepends=True):
            if line.endswith(b"\n"):
                queue_id, offset = map(int, line.split())
                assert offset not in acknowledged[queue_id], "it was delivered again after its ack"
                acknowledged[queue_id].add(offset)
    table = open_table(tmp_path)
    for queue_id, offsets in acknowledged.items():
        progress = table.get("g", "t", queue_id)
        assert progress is not None
        assert not offsets & set(progress.in_flight)
        assert max(offsets, default=-1) < progress.next_offset
        lost = set(range(progress.next_offset)) - offsets - set(progress.in_flight)
        # Acknowledged in the journal, killed before the answer: one for each of the three kills.
        assert len(lost) <= 3
