"""Places for connections: a share for every address, and a reserve for operators.

A connection over TCP cannot be told to be an operator's before it makes a call. So the reserve
takes anyone, but serves only operators' calls: whoever is idle in it makes room for the next, and
then one of the address that has most of it. A connection over the Unix socket is one of this
machine, and the file's mode says whose; from its own reserve it may make any call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, final

import trio

_SHARE: Final = 4
"""An address may have so many times as many connections as are free."""


@final
@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Connections at the same time."""

    connections_max: int
    strangers_max: int
    """Of them, those that have not begun to speak HTTP/2."""
    reserve: int
    """Beyond `connections_max`, for operators; and as many again over the Unix socket."""


@final
class _Kind(Enum):
    """Where a connection is counted."""

    NONE = "none"
    ORDINARY = "ordinary"
    RESERVE = "reserve"
    LOCAL_RESERVE = "local reserve"


@final
class _Address:
    """The connections of one address."""

    __slots__ = ("connections", "strangers")

    def __init__(self) -> None:
        self.connections = 0
        self.strangers: dict[ConnectionPlace, None] = {}


def _is_idle() -> bool:
    return True


@final
class ConnectionPlace:
    """The place of one connection, from its acceptance to its end."""

    __slots__ = ("_places", "address", "is_idle", "is_local", "kind", "scope")

    def __init__(self, places: ConnectionPlaces, address: str, *, is_local: bool) -> None:
        self._places, self.address, self.is_local = places, address, is_local
        self.kind = _Kind.NONE
        self.scope = trio.CancelScope()
        """Around all that serves the connection; cancelled when others need its place more."""
        self.is_idle: Callable[[], bool] = _is_idle
        """Returns whether it makes no call."""

    @property
    def is_restricted(self) -> bool:
        """Return whether only operators' calls are served."""
        return self.kind is _Kind.RESERVE

    def move(self, address: str) -> bool:
        """Note whose connection it is, as a proxy says; return False: there is no place for it."""
        if address == self.address:
            return True
        self._places.remove(self)
        self.address = address
        return self._places.add(self)

    def is_known(self) -> None:
        """Note that the client speaks HTTP/2."""
        self._places.is_known(self)

    def promote(self) -> None:
        """Leave the reserve if there is room by now."""
        self._places.promote(self)

    def leave(self) -> None:
        """Give the place back; no harm if that was done."""
        self._places.remove(self)


@final
class ConnectionPlaces:
    """The places of all connections. One trio thread; nothing here is locked."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._addresses: dict[str, _Address] = {}
        self._strangers = 0
        self._counts = dict.fromkeys(_Kind, 0)
        self._reserved: dict[ConnectionPlace, None] = {}

    @property
    def count(self) -> int:
        """Return how many connections there are, those in reserves included."""
        return sum(self._counts.values())

    def enter(self, address: str, *, is_local: bool = False) -> ConnectionPlace | None:
        """Return a place for a new connection, a stranger's; None if there is none.

        `is_local`: it came over the Unix socket.
        """
        place = ConnectionPlace(self, address, is_local=is_local)
        return place if self.add(place) else None

    def add(self, place: ConnectionPlace) -> bool:
        """Count a connection; return False if there is no room: it is to be closed."""
        address = self._addresses.get(place.address) or _Address()
        kind = self._kind_for(place, address)
        if kind is _Kind.NONE or not self._make_room_for_stranger(address):
            return False
        self._addresses[place.address] = address
        address.strangers[place] = None
        address.connections += 1
        self._strangers += 1
        self._count(place, kind)
        return True

    def remove(self, place: ConnectionPlace) -> None:
        """Count a connection no more; no harm if it was not counted."""
        if place.kind is _Kind.NONE:
            return
        self.is_known(place)
        self._count(place, _Kind.NONE)
        address = self._addresses[place.address]
        address.connections -= 1
        if not address.connections:
            del self._addresses[place.address]

    def is_known(self, place: ConnectionPlace) -> None:
        """Count a connection as a stranger's no more; no harm if it was none."""
        address = self._addresses.get(place.address)
        if address is not None and place in address.strangers:
            del address.strangers[place]
            self._strangers -= 1

    def promote(self, place: ConnectionPlace) -> None:
        """Count a connection in the reserve as one of the others, if there is room."""
        if place.kind is _Kind.RESERVE and self._fits(self._addresses[place.address]):
            self._count(place, _Kind.ORDINARY)

    def _count(self, place: ConnectionPlace, kind: _Kind) -> None:
        self._counts[place.kind] -= place.kind is not _Kind.NONE
        self._counts[kind] += kind is not _Kind.NONE
        if place.kind is _Kind.RESERVE:
            del self._reserved[place]
        if kind is _Kind.RESERVE:
            self._reserved[place] = None
        place.kind = kind

    def _fits(self, address: _Address) -> bool:
        free = self._limits.connections_max - self._counts[_Kind.ORDINARY]
        return address.connections < _SHARE * free

    def _kind_for(self, place: ConnectionPlace, address: _Address) -> _Kind:
        reserve = self._limits.reserve
        if self._fits(address):
            return _Kind.ORDINARY
        if place.is_local:
            has_room = self._counts[_Kind.LOCAL_RESERVE] < reserve
            return _Kind.LOCAL_RESERVE if has_room else _Kind.NONE
        if len(self._reserved) >= reserve:
            other = self._least_needed(place.address)
            if other is None:
                return _Kind.NONE
            self._give_up(other)
        return _Kind.RESERVE

    def _least_needed(self, address: str) -> ConnectionPlace | None:
        """Return whose place in the reserve is for the next one: an idle one's, the oldest first.

        Without any, one of the address that has most, if that is more than the newcomer's: else
        calls that never end would keep the reserve for those who came first.
        """
        idle = next((place for place in self._reserved if place.is_idle()), None)
        if idle is not None:
            return idle
        counts = Counter(place.address for place in self._reserved)
        (most, count) = counts.most_common(1)[0] if counts else ("", 0)
        if count <= counts[address] + 1:
            return None
        return next(place for place in self._reserved if place.address == most)

    def _make_room_for_stranger(self, address: _Address) -> bool:
        free = self._limits.strangers_max - self._strangers
        if len(address.strangers) < _SHARE * free:
            return True
        # The next one is as likely to be a client as the one that has been silent for longest.
        oldest = next(iter(address.strangers), None)
        if oldest is None:
            return False
        self._give_up(oldest)
        return True

    def _give_up(self, place: ConnectionPlace) -> None:
        self.remove(place)
        place.scope.cancel()
