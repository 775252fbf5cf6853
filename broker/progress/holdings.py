"""Messages in flight with automatic renewal: by the client that holds them, and by their time.

What was delivered or renewed together is one holding. Each message in flight names its holding, so
that an acknowledgement takes it out at once: nothing has to be looked through for what a client
holds or for what is due. A holding costs 300 bytes, a message in it 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from commitbus.broker.progress.queue_progress import InFlight, QueueProgress


@final
class Holding:
    """Messages of one queue that one client holds until the same time."""

    __slots__ = ("client_id", "count", "offsets", "owner", "progress", "second")

    def __init__(
        self,
        progress: QueueProgress,
        client_id: str,
        offsets: tuple[int, ...],
        owner: dict[Holding, None],
        second: int,
    ) -> None:
        self.progress, self.client_id, self.offsets = progress, client_id, offsets
        self.owner, self.second = owner, second
        """The client's holdings, and the second in which the messages become visible."""
        self.count = len(offsets)
        """The number of offsets that still belong to it."""

    def entries(self) -> Iterator[InFlight]:
        """Yield the messages that still belong to it."""
        in_flight = self.progress.in_flight
        for offset in self.offsets:
            entry = in_flight.get(offset)
            if entry is not None and entry.holding is self:
                yield entry


@final
class Holdings:
    """All holdings of a store. For one thread."""

    __slots__ = ("_by_client", "_by_second", "_seconds")

    def __init__(self) -> None:
        self._by_client: dict[str, dict[Holding, None]] = {}
        self._by_second: dict[int, dict[Holding, None]] = {}
        self._seconds: list[int] = []
        """A heap of the keys of `_by_second`, each once."""

    def __len__(self) -> int:
        """Return how many holdings there are."""
        return sum(map(len, self._by_second.values()))

    def add(
        self, progress: QueueProgress, client_id: str, offsets: tuple[int, ...], until_ms: int
    ) -> Holding:
        """Return a new holding, which the messages have to name.

        Args:
            progress: Their queue.
            client_id: The client that holds them.
            offsets: The messages, at least one.
            until_ms: When they become visible.
        """
        owner = self._by_client.get(client_id)
        if owner is None:
            owner = self._by_client[client_id] = {}
        second = until_ms // 1000
        holding = Holding(progress, client_id, offsets, owner, second)
        owner[holding] = None
        due = self._by_second.get(second)
        if due is None:
            due = self._by_second[second] = {}
            heappush(self._seconds, second)
        due[holding] = None
        return holding

    def leave(self, holding: Holding) -> None:
        """Note that a message does not belong to its holding any more."""
        holding.count -= 1
        if not holding.count:
            self.drop(holding)

    def drop(self, holding: Holding) -> None:
        """Forget a holding: nothing in it is renewed or released any more."""
        due = self._by_second.get(holding.second)
        if due is not None:
            due.pop(holding, None)
        holding.owner.pop(holding, None)
        if not holding.owner and self._by_client.get(holding.client_id) is holding.owner:
            del self._by_client[holding.client_id]

    def due(self, until_ms: int) -> Iterator[Holding]:
        """Yield the holdings whose messages become visible by a time, to the second.

        They may change between two of them; what was dropped meanwhile is not yielded. Those of
        the past go when nothing is left in them.
        """
        for second in sorted(s for s in self._seconds if s <= until_ms // 1000):
            holdings = self._by_second[second]
            for holding in list(holdings):
                if holding in holdings:
                    yield holding
        while self._seconds and not self._by_second[self._seconds[0]]:
            del self._by_second[heappop(self._seconds)]

    def taken_from(self, client_id: str) -> dict[Holding, None]:
        """Return what a client holds now; what it gets later is not in it."""
        return self._by_client.pop(client_id, {})
