"""Everything that a log lets one derive, made for a store that has nothing but its log."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.start import open_parts, recover
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.recovery import Progress
from commitbus.commitlog.threads import Threads
from commitbus.flush.checkpoint import CheckpointFile

_INDEX_BATCH: Final = 4096


def derive(
    out: Path,
    config: StoreConfig,
    on_progress: Progress,
    *,
    clock: Clock,
    file_system: FileSystem,
    threads: Threads,
) -> None:
    """Make queues, index, watermark and checkpoint from a log.

    Raises:
        StoreError: They cannot be made.
        OSError: They cannot be written.
    """
    with ExitStack() as undo:
        parts = open_parts(
            out,
            config,
            clock=clock,
            file_system=file_system,
            threads=threads,
            clean=True,
            undo=undo,
        )
        checkpoint_file = CheckpointFile(out, file_system)
        undo.callback(checkpoint_file.close)
        recover(
            parts,
            out,
            checkpoint_file,
            is_clean=True,
            clock=clock,
            file_system=file_system,
            on_progress=on_progress,
        )
        position, end = parts.log.min_offset, parts.log.end_offset
        while position < end:
            requests, position = parts.log.dispatch_requests(position, end, _INDEX_BATCH)
            parts.index.put(requests)
            on_progress("index", position, end)
        parts.queues.flush()
        parts.index.flush()
    # A whole start and a clean stop: what they leave is what every store is left as.
    MessageStore.open(
        out,
        config,
        clock=clock,
        file_system=file_system,
        threads=threads,
        on_progress=on_progress,
    ).close()
