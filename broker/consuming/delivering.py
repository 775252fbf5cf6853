"""Bytes of answers on their way to consumers: how many there are, and whose share they are.

A client that reads slowly holds its batch in the broker's memory for up to a minute. All of them
together may hold `DELIVERING_BYTES_MAX`. A client, and a connection, may hold a quarter of what
they leave free, and a group half of it. So the first slow client gets a fifth of the total, the
next one a fifth of the rest, and so on: slow readers leave something for the others, if only
smaller batches.

A client that holds nothing gets one message even where its share says no. While the total is used
up, that takes from a reserve and is for groups that hold nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from commitbus.broker.common.address import UNIX_PREFIX

DELIVERING_BYTES_MAX: Final = 64 * 1024 * 1024
"""All answers together."""
RESERVE_BYTES: Final = 32 * 1024 * 1024
"""Beyond it, for single messages to groups that hold nothing."""


@final
class Recipient(NamedTuple):
    """A receiver of messages, by everything that has a share of its own."""

    group: str
    client_id: str
    connection: str
    """The peer's address with its port."""


@final
class Delivering:
    """The bytes on their way. Lives on the trio thread."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._groups: dict[str, int] = {}
        self._clients: dict[str, int] = {}
        self._connections: dict[str, int] = {}

    def free_bytes(self, to: Recipient) -> int:
        """Return how many bytes more a recipient may be sent now; 0 or less: none."""
        if not self.total_bytes:
            return DELIVERING_BYTES_MAX // 5
        free = DELIVERING_BYTES_MAX - self.total_bytes
        in_group = self._groups.get(to.group, 0)
        # Those of a client are most often those of its connection.
        by_one = max(self._clients.get(to.client_id, 0), self._connections.get(to.connection, 0))
        # What they hold then is a half and a quarter of what is free then.
        return min((free - 2 * in_group) // 3, (free - 4 * by_one) // 5)

    def may_take_one(self, to: Recipient) -> bool:
        """Return whether a recipient may be sent one message, of any size, beyond its share."""
        if self.holds_any(to):
            return False
        if self.total_bytes < DELIVERING_BYTES_MAX:
            return True
        limit = DELIVERING_BYTES_MAX + RESERVE_BYTES
        return to.group not in self._groups and self.total_bytes < limit

    def holds_any(self, to: Recipient) -> bool:
        """Return whether anything is on its way to a client or its connection."""
        return to.client_id in self._clients or to.connection in self._connections

    def take(self, to: Recipient, size_bytes: int) -> None:
        """Note bytes that are being sent from now on, at least one."""
        group, client_id, connection = to
        self.total_bytes += size_bytes
        self._groups[group] = self._groups.get(group, 0) + size_bytes
        self._clients[client_id] = self._clients.get(client_id, 0) + size_bytes
        # All connections to a Unix socket have the same name.
        if connection != UNIX_PREFIX:
            self._connections[connection] = self._connections.get(connection, 0) + size_bytes

    def give_back(self, to: Recipient, size_bytes: int) -> None:
        """Note that bytes of `take` were sent, or will not be."""
        group, client_id, connection = to
        self.total_bytes -= size_bytes
        _subtract(self._groups, group, size_bytes)
        _subtract(self._clients, client_id, size_bytes)
        if connection != UNIX_PREFIX:
            _subtract(self._connections, connection, size_bytes)


def _subtract(held: dict[str, int], key: str, size_bytes: int) -> None:
    if held[key] == size_bytes:
        del held[key]
    else:
        held[key] -= size_bytes
