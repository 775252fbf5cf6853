"""Calls from other threads to the trio thread."""

from __future__ import annotations

from collections.abc import Mapping

import trio
import trio.testing

from commitbus.broker.common.trio_thread import ArrivedKeys, TrioThread


def test_requests_add_up_to_one_call_while_a_run_is_attached() -> None:
    """Before and after the run nothing is called, and nobody is told an error."""
    calls: list[str] = []
    trio_thread = TrioThread()

    def note() -> None:
        calls.append("called")

    async def main() -> None:
        trio_thread.attach()
        for _ in range(3):
            await trio.to_thread.run_sync(trio_thread.call_soon, note)
            trio_thread.call_soon(note)
            trio_thread.call_soon(note)
            await trio.testing.wait_all_tasks_blocked()
        trio_thread.detach()
        trio_thread.call_soon(note)
        await trio.testing.wait_all_tasks_blocked()

    trio_thread.call_soon(note)
    trio.run(main)
    trio_thread.call_soon(note)
    assert 3 <= len(calls) <= 6


def test_arrived_keys_are_handed_over_together_with_their_counts() -> None:
    """Without a key nobody is woken."""
    taken: list[Mapping[str, int]] = []

    async def main() -> None:
        trio_thread = TrioThread()
        trio_thread.attach()
        arrived = ArrivedKeys[str](trio_thread, taken.append)
        arrived.add([])
        await trio.testing.wait_all_tasks_blocked()
        assert taken == []
        arrived.add(["a", "b", "a"])
        arrived.add({"b": 5})
        await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert taken == [{"a": 2, "b": 6}]
