"""How many messages, and bytes of them, one answer may hold, for receives and pulls alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from commitbus.broker.common.errors import TooManyRequestsError
from commitbus.broker.consuming.delivering import Delivering, Recipient
from commitbus.broker.consuming.store_reads import Place

BATCH_MAX: Final = 32
"""Messages of one answer."""
BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one answer, so that 32 bodies of 4 MiB do not stand in memory at once."""
_TOO_SLOW: Final = "too many bytes are on their way to this client or its group: read faster"


@final
class Allowance:
    """What one answer holds, out of its recipient's share of the bytes of all answers."""

    __slots__ = (
        *("_batch_size", "_count", "_delivering"),
        *("_lacks_share", "_size_bytes", "_to", "room"),
    )

    def __init__(self, delivering: Delivering, to: Recipient, batch_size: int) -> None:
        self._delivering, self._to, self._batch_size = delivering, to, batch_size
        self.room = batch_size
        """How many messages more it may hold."""
        self._count = self._size_bytes = 0
        # Whether a message did not fit because the recipient's share is used up.
        self._lacks_share = False

    def check_before(self) -> None:
        """Check that the recipient's share has room for any message at all.

        Raises:
            TooManyRequestsError: it has none.
        """
        delivering, to = self._delivering, self._to
        if delivering.free_bytes(to) <= 0 and not delivering.may_take_one(to):
            raise TooManyRequestsError(_TOO_SLOW)

    def check_after(self) -> None:
        """Check that an answer without a message is not empty for lack of a share.

        Raises:
            TooManyRequestsError: it is.
        """
        if self._lacks_share and not self._count:
            raise TooManyRequestsError(_TOO_SLOW)

    def fitting(self, places: Sequence[Place]) -> Sequence[Place]:
        """Return as many of the first messages as still fit.

        The first message of an answer fits, unless the recipient's share is used up.
        """
        in_answer, delivering = BATCH_BYTES_MAX - self._size_bytes, self._delivering
        share = delivering.free_bytes(self._to)
        limit, size_bytes = min(in_answer, share), 0
        for count, place in enumerate(places):
            size_bytes += place.size_bytes
            if size_bytes > limit:
                is_first = not self._size_bytes and not count
                if is_first and (size_bytes <= share or delivering.may_take_one(self._to)):
                    return places[:1]
                self.room, self._lacks_share = 0, is_first or share < in_answer
                return places[:count]
        return places

    def take(self, places: Sequence[Place]) -> None:
        """Hold messages."""
        if not places:
            return
        size_bytes = sum([place.size_bytes for place in places])
        self._count += len(places)
        # Where a message did not fit, nothing more does.
        self.room = max(self.room - len(places), 0)
        self._size_bytes += size_bytes
        self._delivering.take(self._to, size_bytes)

    def give_back(self) -> None:
        """Hold nothing any more: the messages were handed over, released or dropped."""
        if self._size_bytes:
            self._delivering.give_back(self._to, self._size_bytes)
        self.room, self._count, self._size_bytes = self._batch_size, 0, 0
        self._lacks_share = False
