"""Threads as a parameter."""

from __future__ import annotations

import ast
from pathlib import Path

from commitbus.commitlog.threads import SYSTEM_THREADS

REPOSITORY = Path(__file__).parents[2]
STORAGE = ("commitlog", "consumequeue", "indexfile", "flush", "broker/store")
MAY_IMPORT = {"commitlog/threads.py", "commitlog/kernels/choice.py"}
"""The second loads the compiled kernels once for a process, whatever store is open."""


def test_the_storage_packages_make_no_thread_and_no_lock_by_themselves() -> None:
    """Else the simulation could not run them one step at a time."""
    found = {
        str(path.relative_to(REPOSITORY))
        for package in STORAGE
        for path in (REPOSITORY / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(name.name == "threading" for name in node.names)
    }
    assert found == MAY_IMPORT


def test_the_system_makes_what_threads_need() -> None:
    """A thread takes a lock, notifies a condition and sets an event."""
    lock, event = SYSTEM_THREADS.lock(), SYSTEM_THREADS.event()
    condition = SYSTEM_THREADS.condition()
    done: list[str] = []

    def work() -> None:
        SYSTEM_THREADS.sleep(0)
        with lock, condition:
            done.append("worked")
            condition.notify_all()
        event.set()

    thread = SYSTEM_THREADS.thread(work, "worker")
    assert not thread.is_alive()
    thread.start()
    with condition:
        assert condition.wait_for(lambda: done, 20)
    assert event.wait(20)
    thread.join()
    event.clear()
    assert not event.wait(0)
