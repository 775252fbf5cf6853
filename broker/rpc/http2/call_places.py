"""The places that one connection's streams take, among those of all connections."""

from __future__ import annotations

from typing import Final, final

from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.http2.connection_places import ConnectionPlace
from commitbus.broker.rpc.http2.server_call import ServerCall
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.shares import CallShares

_RESERVED: Final = "too many connections: this one serves operators' calls only"
_ALWAYS: Final = 1 << 60


@final
class CallPlaces:
    """A stream has its place until it is closed and its handler has ended.

    Streams are counted in `open` by the connection; the shares learn of it at the end of a read or
    a write, for all streams at once. Only when places are scarce is each one asked for.
    """

    __slots__ = (
        "_account",
        "_is_closing",
        "_orphans",
        "_place",
        "_unasked",
        "ask_from",
        "counted",
        "open",
    )

    def __init__(self, shares: CallShares, address: str, place: ConnectionPlace | None) -> None:
        self._account = shares.connect(address)
        self._place = place
        self._orphans: set[ServerCall] = set()
        self._is_closing = False
        is_restricted = place is not None and place.is_restricted
        self._unasked = -_ALWAYS if is_restricted else shares.unasked
        self.counted = 0
        """Of those open, what the shares know of: `settle` if it differs."""
        self.ask_from = self._unasked
        """With more streams, `take` is to be called, even if places are not scarce."""
        self.open = 0
        """Streams without those in the operators' reserve; and orphans: calls whose handlers go on
        although their streams are closed."""
        if place is not None:
            place.is_idle = self._is_idle

    def _count(self, calls: int) -> None:
        self.counted = calls
        self._account.count(calls)
        self.ask_from = calls + self._unasked

    def is_known(self) -> None:
        """Note that the client speaks HTTP/2."""
        if self._place is not None:
            self._place.is_known()

    def take(self, method: Method, stream_id: int) -> None:
        """Ask for the place of a stream that is in `open` already.

        Raises:
            RpcError: RESOURCE_EXHAUSTED, there is none.
        """
        if self._place is not None and self._place.is_restricted:
            self._place.promote()
            if self._place.is_restricted and not method.is_for_operators:
                raise RpcError(StatusCode.RESOURCE_EXHAUSTED, _RESERVED)
        if method.lasts or self._account.shares.is_tight or self.open > self.ask_from:
            self._count(self.open - 1)
            self.open -= not self._account.admit(method, stream_id)

    def leave(self, stream_id: int) -> None:
        """Give the place of a stream back."""
        marked = self._account.marked
        if stream_id not in marked or self._account.unmark(stream_id):
            self.open -= 1

    def settle(self) -> None:
        """Have the shares know how many are open."""
        if not self._is_closing:
            self._count(self.open)

    def client_is_gone(self, call: ServerCall) -> None:
        """End a call whose stream is closed, and give its place back once its handler has ended."""
        if call.client_is_gone():
            self.leave(call.stream_id)
        else:
            self._orphans.add(call)

    def orphan_ended(self, call: ServerCall) -> None:
        """Note that the handler of a call has ended whose client was gone already."""
        if call in self._orphans:
            self._orphans.remove(call)
            self.leave(call.stream_id)
            self._count(self.open)
            self._close()

    def close(self) -> None:
        """Give everything back, at the end of the connection, but the places of orphans."""
        marked = self._account.marked
        self.open = sum(not marked.get(call.stream_id, False) for call in self._orphans)
        self._account.count(self.open)
        self._is_closing = True
        self._close()

    def _close(self) -> None:
        if self._is_closing and not self._orphans:
            self._account.close()

    def _is_idle(self) -> bool:
        return not self.open and not self._account.marked
