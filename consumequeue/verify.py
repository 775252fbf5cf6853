"""Comparing a consume queue with the log that it is derived from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, Problem, QueueOffset
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.consumequeue.unit_format import CqUnit

_CHUNK_UNITS = 4096


def verify_queue(
    queue: ConsumeQueue,
    record_at: Callable[[PhysicalOffset], DispatchRequest | None],
    *,
    log_start: int = 0,
) -> Iterator[Problem]:
    """Yield what is wrong with the units of a queue.

    Each must name a whole message of this queue and offset, with its size and tags code, behind
    the one before; behind the last there must be nothing. Whether the log has messages that no
    unit names only a walk through the log can tell.

    Args:
        queue: Loaded.
        record_at: What the log has at a physical offset; None if no intact message begins there.
        log_start: Units of messages before it are not looked up: their log file was deleted.
    """
    last_end = 0
    for start in range(queue.min_offset, queue.max_offset, _CHUNK_UNITS):
        for queue_offset, unit in enumerate(queue.units(QueueOffset(start), _CHUNK_UNITS), start):
            what = _what_is_wrong(unit, last_end)
            if what is None and unit.physical_offset >= log_start:
                what = _difference(queue, queue_offset, unit, record_at(unit.physical_offset))
            if what is not None:
                yield Problem(*queue.place_of(queue_offset), what)
            if unit.is_written:
                last_end = unit.end_offset
    if stray := queue.stray_bytes():
        yield Problem(*stray, f"bytes behind the last unit, {queue.max_offset - 1}")


def _what_is_wrong(unit: CqUnit, last_end: int) -> str | None:
    if not unit.is_written:
        return f"{unit} is no unit, but later ones follow"
    if unit.physical_offset < last_end:
        return f"{unit} begins before the message of the unit before it ends, at {last_end}"
    return None


def _difference(
    queue: ConsumeQueue, queue_offset: int, unit: CqUnit, record: DispatchRequest | None
) -> str | None:
    if record is None:
        return f"the log has no message at physical offset {unit.physical_offset}"
    for name, got, expected in (
        ("topic", queue.topic, record.topic),
        ("queue id", queue.queue_id, record.queue_id),
        ("queue offset", queue_offset, record.queue_offset),
        ("size", unit.size_bytes, record.size_bytes),
        ("tags code", unit.tags_code, record.tags_code),
    ):
        if got != expected:
            return f"{name} is {got!r}, the log says {expected!r}"
    return None
