"""The flush policy and the bell that wakes the thread which follows it."""

from __future__ import annotations

import threading

import pytest

from commitbus.flush.doorbell import Doorbell
from commitbus.flush.policy import FlushMode, FlushPolicy


def test_the_default_is_rocketmqs() -> None:
    """ASYNC_FLUSH every 500 ms."""
    policy = FlushPolicy()
    assert policy.mode is FlushMode.ASYNC_FLUSH
    assert policy.interval_ms == 500


@pytest.mark.parametrize("arguments", [{"interval_ms": 0}, {"pending_bytes_max": 0}])
def test_a_policy_that_never_waits_is_refused(arguments: dict[str, int]) -> None:
    """An interval or a bound of nothing would be a busy loop."""
    with pytest.raises(ValueError, match="at least 1"):
        FlushPolicy(**arguments)  # type: ignore[arg-type] # the parameters are all integers


def test_rings_before_the_wait_add_up_to_one() -> None:
    """A ring is not lost when nobody waits yet, and two are taken as one."""
    bell = Doorbell()
    bell.ring()
    bell.ring()
    assert bell.wait(10)
    assert not bell.wait(0.001)


def test_no_ring_is_lost_under_contention() -> None:
    """Whatever was done before a ring is seen by the waiter, without any further ring."""
    bell, done = Doorbell(), [0] * 4
    seen: list[int] = []
    rounds = 2000

    def work(who: int) -> None:
        for _ in range(rounds):
            done[who] += 1
            bell.ring()

    threads = [threading.Thread(target=work, args=(who,)) for who in range(len(done))]
    for thread in threads:
        thread.start()
    while sum(done) < rounds * len(done) or not seen or seen[-1] < rounds * len(done):
        assert bell.wait(10), "the waiter slept although a ring was due"
        seen.append(sum(done))
    for thread in threads:
        thread.join()
    assert seen[-1] == rounds * len(done)
