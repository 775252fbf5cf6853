"""A guard: nothing on the trio thread reads a file in a way that may wait for a disk."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import trio

from commitbus.commitlog import file_system

STORAGE = (
    "commitbus.commitlog.",
    "commitbus.consumequeue.",
    "commitbus.indexfile.",
    "commitbus.flush.",
    "commitbus.broker.store.",
    "commitbus.broker.metadata.",
    "commitbus.broker.progress.",
)
"""Their callers decide on which thread they read."""


def reader(frame: FrameType | None) -> str:
    """The function outside of the storage layers that reads; empty if it is the writer's own look.

    Before it stores to pages that were flushed, the writer looks at them; in a process that may
    lock memory it need not.
    """
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(STORAGE):
            return f"{name}.{frame.f_code.co_name}:{frame.f_lineno}"
        if frame.f_code.co_name == "hold":
            return ""
        frame = frame.f_back
    return ""


def is_work_in_turn(frame: FrameType | None) -> bool:
    """Whether a test has the work of a worker thread done in the task, see `work_in_turn`."""
    while frame is not None:
        if frame.f_code.co_qualname.startswith("work_in_turn."):
            return True
        frame = frame.f_back
    return False


def is_trio_task() -> bool:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


@contextmanager
def noted_blocking_reads(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note which of the broker's functions read in a trio task without the way out of `cached`."""
    found: list[str] = []
    pread = file_system._RealFile.pread

    def noting(self: Any, *place: int) -> bytes:
        # Tests may wait for a disk wherever they like.
        caller = sys._getframe(1)
        if (
            is_trio_task()
            and (name := reader(caller)).startswith("commitbus.")
            and not is_work_in_turn(caller)
        ):
            found.append(name)
        return pread(self, *place)

    with patch.context() as patched:
        patched.setattr(file_system._RealFile, "pread", noting)
        yield found
