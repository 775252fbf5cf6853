"""The places of calls for a transport that knows the peer of a call, but not its connections."""

from __future__ import annotations

from itertools import count
from typing import final

from commitbus.broker.common.address import share_address
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.shares import CallLimits, CallShares, ConnectionCalls


@final
class PeerPlaces:
    """A peer, host and port, is a connection for as long as it makes calls. One thread."""

    def __init__(self, limits: CallLimits) -> None:
        self._shares = CallShares(limits)
        self._peers: dict[str, ConnectionCalls] = {}
        self._ids = count()

    def take(self, peer: str, method: Method) -> int:
        """Return the id of a call that begins; `leave` with it.

        Raises:
            RpcError: RESOURCE_EXHAUSTED, there is no place for it.
        """
        calls = self._peers.get(peer)
        if calls is None:
            calls = self._peers[peer] = self._shares.connect(share_address(peer))
        call_id = next(self._ids)
        try:
            if calls.admit(method, call_id):
                calls.count(calls.calls + 1)
        finally:
            self._forget_idle(peer, calls)
        return call_id

    def leave(self, peer: str, call_id: int) -> None:
        """Give the place of a call back."""
        calls = self._peers[peer]
        if call_id not in calls.marked or calls.unmark(call_id):
            calls.count(calls.calls - 1)
        self._forget_idle(peer, calls)

    def _forget_idle(self, peer: str, calls: ConnectionCalls) -> None:
        if not calls.calls and not calls.marked:
            calls.close()
            del self._peers[peer]
