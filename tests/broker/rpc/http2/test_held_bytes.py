"""Who gives up bytes when too many are held."""

from __future__ import annotations

from typing import final

import trio
import trio.testing

from commitbus.broker.rpc.http2.held_bytes import HeldAccount, HeldBytes

MB = 1 << 20


@final
class Bench:
    """Accounts by name, on a clock that is moved, and who of them gave up."""

    def __init__(self, bytes_max: int, alone_max: int = 0) -> None:
        self.held = HeldBytes(bytes_max, alone_max)
        self.gave_up: list[str] = []

    def account(self, name: str) -> HeldAccount:
        """A new account."""
        return self.held.account(lambda: self.gave_up.append(name))


def run(main: object) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))  # type: ignore[arg-type] # any test's main


def test_the_largest_of_those_that_are_stuck_is_asked() -> None:
    """Not one that is larger and goes on, nor the one that comes last."""

    async def main() -> None:
        bench = Bench(64 * MB)
        busy, small, large = (bench.account(name) for name in ("busy", "small", "large"))
        busy.hold(40 * MB)
        small.hold(2 * MB)
        large.hold(20 * MB)
        for step in range(8):
            await trio.sleep(0.25)
            busy.hold((40 - step) * MB)
        bench.account("last").hold(20 * MB)
        assert bench.gave_up == ["large"]
        assert bench.held.total == 55 * MB

    run(main)


def test_some_more_may_be_held_while_it_goes_on() -> None:
    """Half as much again, and then the largest goes, whoever it is."""

    async def main() -> None:
        bench = Bench(10 * MB)
        for name in ("a", "b", "c"):
            bench.account(name).hold(5 * MB)
        assert not bench.gave_up
        bench.account("d").hold(8 * MB)
        assert bench.gave_up == ["d"]
        await trio.sleep(0.1)

    run(main)


def test_one_may_hold_more_than_all_may_if_it_is_alone() -> None:
    """A single message may be that large; when it is stuck, it goes like any other."""

    async def main() -> None:
        bench = Bench(10 * MB, alone_max=100 * MB)
        bench.account("huge").hold(90 * MB)
        bench.account("a").hold(4 * MB)
        assert not bench.gave_up
        await trio.sleep(1.1)
        bench.account("b").hold(MB)
        assert bench.gave_up == ["huge"]

    run(main)


def test_a_trickle_is_no_progress() -> None:
    """A 64th of what is held must go within the time that others wait for."""

    async def main() -> None:
        bench = Bench(100 * MB)
        account = bench.account("a")
        account.hold(64 * MB)
        began_s = account.moved_s
        for count in range(1, 10):
            await trio.sleep(1)
            account.hold(64 * MB - count)
        assert account.moved_s == began_s
        account.hold(62 * MB)
        assert account.moved_s > began_s
        account.close()
        account.hold(MB)
        assert bench.held.total == 0

    run(main)
