"""A store of more files than its process may open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from commitbus.broker.store.check import check_store
from commitbus.broker.store.message_store import MessageStore
from tests.broker.store.conftest import message, small_config

DESCRIPTORS: Final = 96
MESSAGES: Final = 400
PROGRAM: Final = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
from commitbus.broker.store.check import check_store
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.types import QueueOffset

store = Path(sys.argv[1])
report = check_store(store)
assert report.is_sound and report.log_files > {limit}, report
with MessageStore.open(store) as opened:
    for queue_id in range({messages}):
        (unit,) = opened.fetch("TopicA", queue_id, QueueOffset(0), 9).units
        assert opened.read(unit.physical_offset).queue_id == queue_id
"""


def test_a_store_of_more_files_than_descriptors_is_checked_opened_and_read(tmp_path: Path) -> None:
    """Log and queues each took descriptors for every file; a terabyte of log has a thousand."""
    store = tmp_path / "store"
    with MessageStore.open(store, small_config()) as filling:
        for queue_id in range(MESSAGES):
            filling.put(message(queue_id=queue_id, body=b"x" * (1 << 14)))
        filling.dispatched.wait(filling.end_offset)
    assert len(list((store / "commitlog").iterdir())) > DESCRIPTORS
    program = PROGRAM.format(limit=DESCRIPTORS, messages=MESSAGES)
    subprocess.run([sys.executable, "-c", program, str(store)], check=True)
    assert check_store(store).is_sound
