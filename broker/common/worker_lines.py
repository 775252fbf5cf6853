"""Work of handlers that must not run on the trio thread: in worker threads, a fair share for each.

What a caller makes the broker do waits in a line of its own. A caller is a connection; the
connections of one address share the turns of that address, so neither many calls nor many
connections of one host keep others waiting for longer than one piece of work takes. Callers of the
operators' services have threads of their own.

The caller is known from the context of the task: a transport sets it for each handler by
`serve_caller`, so that no handler has to pass it on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, final

import trio

from commitbus.broker.common.address import share_address
from commitbus.broker.common.errors import TooManyRequestsError

WAITING_MAX: Final = 1000
"""Pieces of work in the line of one caller."""

_T = TypeVar("_T")


@final
@dataclass(frozen=True, slots=True)
class Share:
    """How many threads there are, and how many of them one address and one caller have at most."""

    threads: int
    per_address: int
    per_caller: int


READS: Final = Share(8, 6, 3)
"""They wait for disks, so there are more of them than processors."""
COMPUTATIONS: Final = Share(2, 2, 1)
"""Any number of them would keep the interpreter from the thread that serves everybody."""
OPERATORS: Final = Share(4, 3, 2)


@final
@dataclass(slots=True, eq=False)
class _Address:
    """The callers of one address."""

    name: str
    running: int = 0
    callers: dict[str, _Caller] = field(default_factory=dict)
    """Those with work that runs or waits."""
    turns: dict[_Caller, None] = field(default_factory=dict)
    """Those whose next work may begin as soon as a thread is free, in the order of their turns."""


@final
@dataclass(slots=True, eq=False)
class _Caller:
    """The line of one caller."""

    name: str
    address: _Address
    limit: int
    running: int = 0
    waiting: dict[trio.Event, None] = field(default_factory=dict)
    """An event for each piece of work, set when it may begin."""


@final
class WorkerLines:
    """Threads for one kind of work. Lives on the trio thread; each step takes constant time."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._free = share.threads
        self._limiter = trio.CapacityLimiter(share.threads)
        self._addresses: dict[str, _Address] = {}
        # Those of which work may begin as soon as a thread is free. None if one is free.
        self._turns: dict[_Address, None] = {}

    def __len__(self) -> int:
        """Return how many callers have work here, for tests."""
        return sum(len(address.callers) for address in self._addresses.values())

    async def run(self, name: str, work: Callable[..., _T], *arguments: Any) -> _T:  # noqa: ANN401 - those of `work`
        """Return what `work` returns in a thread, once it is the caller's turn.

        Cancelled, it gives up its place in the line; work that has begun is waited for.

        Args:
            name: the caller: host and port of its connection. One without a port counts as a whole
                address.
            work: must not use trio.
            arguments: of `work`.

        Raises:
            TooManyRequestsError: the caller's line is full.
        """
        caller = self._caller(name)
        if self._free and self._may_begin(caller):
            self._begin(caller)
        else:
            await self._wait(caller)
        try:
            return await trio.to_thread.run_sync(work, *arguments, limiter=self._limiter)
        finally:
            self._end(caller)

    def _caller(self, name: str) -> _Caller:
        host = _address_of(name)
        address = self._addresses.get(host)
        if address is None:
            address = self._addresses[host] = _Address(host)
        caller = address.callers.get(name)
        if caller is None:
            limit = self._share.per_address if host == name else self._share.per_caller
            caller = address.callers[name] = _Caller(name, address, limit)
        return caller

    async def _wait(self, caller: _Caller) -> None:
        if len(caller.waiting) >= WAITING_MAX:
            raise TooManyRequestsError(
                f"{len(caller.waiting)} calls of this connection wait for a worker already"
            )
        turn = trio.Event()
        caller.waiting[turn] = None
        self._update(caller)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._end(caller)
            else:
                del caller.waiting[turn]
                self._update(caller)
            raise

    def _may_begin(self, caller: _Caller) -> bool:
        address = caller.address
        return caller.running < caller.limit and address.running < self._share.per_address

    def _begin(self, caller: _Caller) -> None:
        self._free -= 1
        caller.running += 1
        caller.address.running += 1

    def _end(self, caller: _Caller) -> None:
        """Note the end of a piece of work, and let the next ones begin."""
        self._free += 1
        caller.running -= 1
        caller.address.running -= 1
        self._update(caller)
        while self._free and self._turns:
            address = next(iter(self._turns))
            following = next(iter(address.turns))
            turn = next(iter(following.waiting))
            # Both go to the end of their lines.
            del following.waiting[turn], address.turns[following], self._turns[address]
            self._begin(following)
            self._update(following)
            turn.set()

    def _update(self, caller: _Caller) -> None:
        """Bring the turns up to date with a change of a caller, and forget who has no work."""
        address = caller.address
        if caller.waiting and caller.running < caller.limit:
            address.turns.setdefault(caller)
        else:
            address.turns.pop(caller, None)
        if address.turns and address.running < self._share.per_address:
            self._turns.setdefault(address)
        else:
            self._turns.pop(address, None)
        if not caller.waiting and not caller.running:
            del address.callers[caller.name]
            if not address.callers:
                del self._addresses[address.name]


@final
class _Lines:
    """All lines of a broker."""

    def __init__(self) -> None:
        self.reads = WorkerLines(READS)
        self.computations = WorkerLines(COMPUTATIONS)
        self.operators = WorkerLines(OPERATORS)


_lines: Final = trio.lowlevel.RunVar[_Lines]("worker lines")
_caller: Final = ContextVar[str]("the caller that a task serves", default="")
_is_operator: Final = ContextVar[bool]("whether it calls a service of the operators", default=False)


def serve_caller(peer: str) -> None:
    """Note for the present task, and those that it starts, on whose behalf it works."""
    _caller.set(peer)


def address_served() -> str:
    """Return the address of the caller that the present task works for; empty without one."""
    return _address_of(_caller.get())


def _address_of(name: str) -> str:
    """Return the address of a connection, as shares of calls have it; of what has no port, all."""
    return share_address(name) if name.rpartition(":")[2] else name


async def as_operator(answer: Awaitable[_T]) -> _T:
    """Return what `answer` returns; its work is done by the operators' threads."""
    mark = _is_operator.set(True)
    try:
        return await answer
    finally:
        _is_operator.reset(mark)


async def run_in_worker(work: Callable[..., _T], *arguments: Any) -> _T:  # noqa: ANN401 - those of `work`
    """Return what `work` returns, in a thread: for work that mostly waits for a disk.

    Raises:
        TooManyRequestsError: the caller's line is full.
    """
    lines = _of_this_run()
    chosen = lines.operators if _is_operator.get() else lines.reads
    return await chosen.run(_caller.get(), work, *arguments)


async def compute_in_worker(work: Callable[..., _T], *arguments: Any) -> _T:  # noqa: ANN401 - those of `work`
    """Return what `work` returns, in one of few threads: for work that mostly computes.

    Raises:
        TooManyRequestsError: the caller's line is full.
    """
    return await _of_this_run().computations.run(_caller.get(), work, *arguments)


def _of_this_run() -> _Lines:
    try:
        return _lines.get()
    except LookupError:
        lines = _Lines()
        _lines.set(lines)
        return lines
