"""Bytes that clients make the server hold, in all, and which client gives them up when it is full.

Two things are counted this way: answers that their clients do not read, and requests that are
incomplete or that no handler takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import trio

PATIENCE_S: Final = 1.0
"""Whoever has held bytes for so long, and none of them went away, is asked first."""
_PROGRESS_PART: Final = 64
"""Of what an account holds, one part in so many must go for the rest to be on its way. So a client
cannot keep 64 MB alive by reading a byte now and then."""
_SHARE_PART: Final = 16
"""An account may hold one part in so many, however little room there is."""
_SMALL_BITS: Final = 15
"""Accounts of up to 32 KB are alike."""
_SIZES: Final = 32


@final
class HeldBytes:
    """The bytes of all connections. One trio thread; nothing here is locked."""

    __slots__ = ("_alone_max", "_by_size", "bytes_max", "total")

    def __init__(self, bytes_max: int, alone_max: int = 0) -> None:
        """Beyond `bytes_max` those who are stuck give up theirs, beyond half as much more anyone.

        But one account may hold `alone_max` while the others hold little: a message is as large as
        it is.
        """
        self.bytes_max, self._alone_max = bytes_max, alone_max
        self.total = 0
        # By power of two, each with the one that has not moved for longest first.
        self._by_size: list[dict[HeldAccount, None]] = [{} for _ in range(_SIZES)]

    def account(self, give_up: Callable[[], None]) -> HeldAccount:
        """Return a connection's account; `give_up` is to let its bytes go, at once or soon."""
        return HeldAccount(self, give_up)

    @property
    def room(self) -> int:
        """Return how many bytes more may be held."""
        return self.bytes_max - self.total

    @property
    def share(self) -> int:
        """Return how many bytes an account may hold that is not to be asked for any.

        What others hold leaves it a little: they are the ones that give up theirs.
        """
        return max(self.room, self.bytes_max // _SHARE_PART)

    def enter(self, account: HeldAccount, size: int) -> None:
        """List an account by its size, as the one that has moved last."""
        self._by_size[size].pop(account, None)
        self._by_size[size][account] = None

    def leave(self, account: HeldAccount, size: int) -> None:
        """List an account no more."""
        self._by_size[size].pop(account, None)

    def relieve(self) -> None:
        """Have accounts give up their bytes until what is held is within the limit.

        The largest is asked first, of those that are stuck: what one connection too many costs,
        it costs the one that holds most.
        """
        while self.total > self.bytes_max:
            account = self._stuck()
            if account is None and self.total > self.bytes_max * 3 // 2:
                account = self._largest()
            if account is None:
                return
            before = self.total
            account.give_up()
            if self.total >= before:
                # Its bytes go later, and must not count until then.
                account.close()

    def _stuck(self) -> HeldAccount | None:
        before_s = trio.current_time() - PATIENCE_S
        for accounts in reversed(self._by_size):
            for account in accounts:
                if account.listed_s <= before_s:
                    return account
                break
        return None

    def _largest(self) -> HeldAccount | None:
        for accounts in reversed(self._by_size):
            for account in accounts:
                others_bytes = self.total - account.bytes
                is_alone = others_bytes <= self.bytes_max // 2
                return None if is_alone and account.bytes <= self._alone_max else account
        return None


@final
class HeldAccount:
    """What one connection makes the server hold."""

    __slots__ = ("_gone", "_held", "_size", "bytes", "give_up", "is_closed", "listed_s", "moved_s")

    def __init__(self, held: HeldBytes, give_up: Callable[[], None]) -> None:
        self._held, self.give_up = held, give_up
        self.bytes = self._gone = self._size = 0
        self.is_closed = False
        self.moved_s = self.listed_s = 0.0
        """When the bytes were last on their way, on the scale of `trio.current_time()`; and the
        same, or when they came to be of another size."""

    def hold(self, count: int) -> None:
        """Note how many bytes are held now."""
        before = self.bytes
        if count == before or self.is_closed:
            return
        self.bytes = count
        self._held.total += count - before
        if not count:
            self._held.leave(self, self._size)
            self._gone = 0
            return
        if count < before:
            self._gone += before - count
        has_moved = not before or self._gone * _PROGRESS_PART >= count + self._gone
        size = min(max(count.bit_length() - _SMALL_BITS, 0), _SIZES - 1)
        if has_moved or size != self._size:
            self._list_anew(size, has_moved=has_moved)
        if count > before and self._held.total > self._held.bytes_max:
            self._held.relieve()

    def _list_anew(self, size: int, *, has_moved: bool) -> None:
        self._held.leave(self, self._size)
        self._size = size
        self._held.enter(self, size)
        self.listed_s = trio.current_time()
        if has_moved:
            self.moved_s, self._gone = self.listed_s, 0

    def close(self) -> None:
        """Hold nothing any more, whatever is noted later."""
        self.hold(0)
        self.is_closed = True
        # It belongs to a connection that has this account: memory is free at once without a cycle.
        self.give_up = _nothing


def _nothing() -> None: ...
