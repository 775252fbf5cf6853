"""The hop between two threads, without any thread."""

from __future__ import annotations

from collections.abc import Callable

from commitbus.broker.rpc.bridge import Hop


def test_one_wake_up_carries_a_whole_batch_in_order() -> None:
    """That is what a hop is for."""
    wakes: list[Callable[[], None]] = []
    ran: list[int] = []
    hop = Hop(wakes.append)
    for number in range(5):
        hop.put(ran.append, number)
    assert len(wakes) == 1
    wakes.pop()()
    assert ran == [0, 1, 2, 3, 4]
    hop.put(ran.append, 5)
    assert len(wakes) == 1


def test_what_is_put_while_a_batch_runs_belongs_to_the_next() -> None:
    """So that a busy sender cannot keep the receiver from everything else."""
    wakes: list[Callable[[], None]] = []
    ran: list[str] = []
    hop = Hop(wakes.append)

    def put_another() -> None:
        ran.append("first")
        hop.put(ran.append, "second")

    hop.put(put_another)
    wakes.pop()()
    assert ran == ["first"]
    wakes.pop()()
    assert ran == ["first", "second"]
