"""What RPCs that store a message refuse alike, each service by codes of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commitbus.broker.core import durability
from commitbus.broker.rpc.call import StatusCode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.wire.bulk_paths import APPEND
from commitbus.commitlog.errors import OutOfResourcesError, StoreReadOnlyError
from tests.broker.matrix import operators, operators_v2, sends
from tests.broker.matrix.registry import cells, good_request
from tests.broker.matrix.stage import DISK_FULL, Stage

BY_STATUS = (sends.SEND, operators_v2.SEND)
ADMIN = (operators.SEND, operators.SEND_BACK)


def put_fails(stage: Stage, path: str, error: Exception) -> None:
    stage.fails(stage.context.store, "put_framed" if path == APPEND else "put", error)


@cells(BY_STATUS, pb.FORBIDDEN)
@cells([operators.SEND], StatusCode.FAILED_PRECONDITION)
@cells([APPEND], StatusCode.PERMISSION_DENIED)
async def topic_is_read_only(stage: Stage, path: str) -> Any:
    """The topic has no queue that may be written to."""
    request = await good_request(stage, path)
    await stage.bus.topic(perm=4)
    return request


@cells(BY_STATUS, pb.TOO_MANY_REQUESTS)
@cells([operators.SEND, APPEND], StatusCode.RESOURCE_EXHAUSTED)
async def too_many_wait_for_the_disk(stage: Stage, path: str) -> Any:
    """Too many messages wait for the disk already."""
    request = await good_request(stage, path)
    stage.patch.setattr(durability, "WAITING_MAX", 0)
    return request


@cells(BY_STATUS, pb.INTERNAL_SERVER_ERROR)
@cells(ADMIN, StatusCode.FAILED_PRECONDITION)
@cells([APPEND], StatusCode.RESOURCE_EXHAUSTED)
async def disk_is_full(stage: Stage, path: str) -> Any:
    """The disk has no room, or is fuller than messages may make it."""
    request = await good_request(stage, path)
    put_fails(stage, path, DISK_FULL)
    return request


@cells(BY_STATUS, pb.INTERNAL_SERVER_ERROR)
@cells(ADMIN, StatusCode.FAILED_PRECONDITION)
@cells([APPEND], StatusCode.UNAVAILABLE)
async def no_descriptor(stage: Stage, path: str) -> Any:
    """The broker has no file descriptor or memory left for the next log file."""
    request = await good_request(stage, path)
    cause = OSError(24, "Too many open files")
    put_fails(stage, path, OutOfResourcesError(Path("log"), cause))
    return request


@cells(BY_STATUS, pb.INTERNAL_SERVER_ERROR)
@cells(ADMIN, StatusCode.FAILED_PRECONDITION)
@cells([APPEND], StatusCode.UNAVAILABLE)
async def store_takes_no_more(stage: Stage, path: str) -> Any:
    """The store is closed or read-only, because a flush failed before."""
    request = await good_request(stage, path)
    put_fails(stage, path, StoreReadOnlyError("a flush failed"))
    return request


STORED = dict.fromkeys((*BY_STATUS, *ADMIN, APPEND), ("log",))


@cells(BY_STATUS, pb.MASTER_PERSISTENCE_TIMEOUT, STORED)
@cells(ADMIN, StatusCode.FAILED_PRECONDITION, STORED)
@cells([APPEND], StatusCode.UNAVAILABLE, STORED)
async def flush_failed(stage: Stage, path: str) -> Any:
    """The flush that a message waited for failed: whether it survives is unknown."""
    request = await good_request(stage, path)
    stage.flush_fails()
    return request
