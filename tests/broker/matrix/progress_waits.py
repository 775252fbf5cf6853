"""RPCs that change progress, where their answers wait for the disk."""

from __future__ import annotations

from typing import Any, final

from commitbus.broker.messaging import progress_durability
from commitbus.broker.messaging.methods import messaging_methods
from commitbus.broker.messaging.progress_durability import ProgressDurability
from commitbus.broker.progress.journal_flush import FlushListener
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.matrix.handles import ALL
from tests.broker.matrix.offsets import UPDATE
from tests.broker.matrix.registry import cells, good_request
from tests.broker.matrix.stage import NOT_SAVED, Stage

CHANGED = dict.fromkeys((*ALL, UPDATE), ("progress",)) | {ALL[2]: ("log", "topics", "progress")}


@final
class FailingFlush:
    """A disk that takes no change of progress."""

    durable_sequence = -1

    def listen(self, listener: FlushListener) -> None:
        self._listener = listener

    def request(self) -> None:
        self._listener(1 << 62, NOT_SAVED)


def wait_for_progress(stage: Stage) -> None:
    """Have the answers wait for a disk, in vain, as with `progress_sync`."""
    flush: Any = FailingFlush()
    progress, trio_thread = stage.context.progress, stage.context.broker.trio_thread
    waiting = ProgressDurability(flush, lambda: progress.sequence, trio_thread)
    stage.patch.setattr(stage.context, "progress_durability", waiting)
    stage.methods |= {method.path: method for method in messaging_methods(stage.context)}


@cells((*ALL, UPDATE), pb.TOO_MANY_REQUESTS)
async def too_many_wait_for_the_disk(stage: Stage, path: str) -> Any:
    """With `progress_sync`: too many calls wait for the disk already."""
    request = await good_request(stage, path)
    wait_for_progress(stage)
    stage.patch.setattr(progress_durability, "WAITING_MAX", 0)
    return request


@cells((*ALL, UPDATE), pb.INTERNAL_SERVER_ERROR, CHANGED)
async def not_durable(stage: Stage, path: str) -> Any:
    """With `progress_sync`: whether the change survives a power cut is unknown."""
    request = await good_request(stage, path)
    wait_for_progress(stage)
    return request
