"""How many calls and connections one client may have: shares by address, reserves for operators.

A share follows what is free: an address may hold twice as many calls as are free, and four times as
many connections. So a single address gets most of a server that nobody else uses, the next one
gets most of the rest, and whoever comes later finds room, however many the first ones try to take.
Clients behind one NAT or one proxy count as one address; with the PROXY protocol, each counts by
its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.method import Method

_FIRST_CALLS: Final = 16
"""A connection with fewer calls is refused later than others of its address: what one client needs
that works by itself."""
_TIGHT_PART: Final = 8
"""Places are scarce when one in so many is taken: far from any share, and few enough that what is
not looked at until then (headers of up to 16 KB) matters little."""

_FULL: Final = "too many calls at the same time"
_SHARE: Final = "too many calls at the same time from this client's address"
_LASTING: Final = "too many streams without an end from this connection or address"


@final
@dataclass(frozen=True, slots=True)
class CallLimits:
    """Calls at the same time, parked ones and those whose answers are unread counted."""

    calls_max: int
    """Of all clients."""
    reserve: int = 200
    """Beyond them, for operators: the admin services and health."""
    reserve_of_address: int = 50
    reserve_of_connection: int = 10
    lasting_of_connection: int = 1_000
    """Streams without an end of their own, such as Telemetry: a client has one."""


@final
class _AddressCalls:
    """What the connections of one address have together."""

    __slots__ = ("calls", "connections", "lasting", "reserved")

    def __init__(self) -> None:
        self.connections = self.calls = self.lasting = self.reserved = 0


@final
class CallShares:
    """The calls of all connections. One thread; nothing here is locked."""

    __slots__ = ("_addresses", "calls", "is_tight", "limits", "reserved", "unasked")

    def __init__(self, limits: CallLimits) -> None:
        self.limits = limits
        self.calls = self.reserved = 0
        self.is_tight = limits.calls_max <= 0
        """Whether each call must ask `admit`; while most places are free, only those that last
        must."""
        self.unasked = limits.calls_max // _TIGHT_PART
        """So many more calls may a connection begin before the next `count`."""
        self._addresses: dict[str, _AddressCalls] = {}

    def connect(self, address: str) -> ConnectionCalls:
        """Return the account of a new connection; `close` it at the end."""
        of_address = self._addresses.setdefault(address, _AddressCalls())
        of_address.connections += 1
        return ConnectionCalls(self, address, of_address)

    def disconnected(self, address: str) -> None:
        """Forget a connection that is closed, with its address if it was the last."""
        of_address = self._addresses[address]
        of_address.connections -= 1
        if not of_address.connections:
            del self._addresses[address]

    def add(self, count: int) -> None:
        """Note that this many calls have begun, or ended if it is negative."""
        self.calls += count
        self.is_tight = self.calls * _TIGHT_PART >= self.limits.calls_max


@final
class ConnectionCalls:
    """The calls of one connection, by ids that are its own.

    Most calls are only counted, and by whoever has the connection: `count` once for many of them.
    """

    __slots__ = ("_address", "_lasting", "_name", "_reserved", "calls", "marked", "shares")

    def __init__(self, shares: CallShares, name: str, address: _AddressCalls) -> None:
        self.shares, self._name, self._address = shares, name, address
        self.calls = 0
        """Those counted, without the reserve's."""
        self.marked: dict[int, bool] = {}
        """Calls to `unmark` at their end: True, it is in the reserve; False, it lasts."""
        self._lasting = self._reserved = 0

    def count(self, calls: int) -> None:
        """Note how many calls the connection has now, without the reserve's."""
        change = calls - self.calls
        self.calls = calls
        self._address.calls += change
        self.shares.add(change)

    def admit(self, method: Method, call_id: int) -> bool:
        """Return whether a call is to be counted; False: it is in the reserve. `count` comes first.

        Raises:
            RpcError: RESOURCE_EXHAUSTED, there is no place for the call.
        """
        shares, address, limits = self.shares, self._address, self.shares.limits
        free = limits.calls_max - shares.calls
        if method.lasts and not (
            self._lasting < limits.lasting_of_connection and address.lasting < free
        ):
            raise RpcError(StatusCode.RESOURCE_EXHAUSTED, _LASTING)
        if address.calls + self.calls < 2 * free or (
            self.calls < _FIRST_CALLS and address.calls < 4 * free
        ):
            if method.lasts:
                self.marked[call_id] = False
                self._lasting += 1
                address.lasting += 1
            return True
        if not method.is_for_operators or (
            shares.reserved >= limits.reserve
            or address.reserved >= min(limits.reserve_of_address, limits.reserve - shares.reserved)
            or self._reserved >= limits.reserve_of_connection
        ):
            raise RpcError(StatusCode.RESOURCE_EXHAUSTED, _FULL if free <= 0 else _SHARE)
        self.marked[call_id] = True
        self._reserved += 1
        address.reserved += 1
        shares.reserved += 1
        return False

    def unmark(self, call_id: int) -> bool:
        """Note the end of a call that is marked; return whether it was one of those counted."""
        is_reserved = self.marked.pop(call_id)
        if is_reserved:
            self._reserved -= 1
            self._address.reserved -= 1
            self.shares.reserved -= 1
        else:
            self._lasting -= 1
            self._address.lasting -= 1
        return not is_reserved

    def close(self) -> None:
        """Give back everything, at the end of the connection and of all its calls."""
        for call_id in list(self.marked):
            self.unmark(call_id)
        self.count(0)
        self.shares.disconnected(self._name)
