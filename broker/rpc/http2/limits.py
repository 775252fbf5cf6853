"""What a server grants its clients, and when it gives up on one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, final

from commitbus.broker.rpc.http2.engine import EngineLimits

_CHECKS_PER_TIME_LIMIT: Final = 8


@final
@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Together they bound the memory of the server, whatever its clients do."""

    max_message_bytes: int
    """A request message beyond it is answered with RESOURCE_EXHAUSTED."""
    calls_max: int
    """Calls at the same time, long polls, telemetry and unread answers counted. Of them an address
    has a share, see `shares.py`; whoever is beyond it is answered with RESOURCE_EXHAUSTED."""
    operator_calls: int = 200
    """Beyond `calls_max`, for the admin services and health."""
    lasting_calls: int = 1_000
    """Of one connection: streams that have no end of their own, such as Telemetry."""
    connections_max: int = 10_000
    """Of them an address has a share; beyond that, those that make no operators' calls are closed
    or refused."""
    operator_connections: int = 64
    """Beyond `connections_max`, for operators' calls only; and as many for the Unix socket."""
    strangers_max: int = 1_000
    """Of the connections, those that have not begun to speak HTTP/2."""
    held_request_bytes: int = 64 * 1024 * 1024
    """Of requests that are incomplete, or that their handlers have not taken, with their headers;
    they take half as much memory again. Beyond it the connection that holds most of them, and has
    not gone on for a second, has them answered with RESOURCE_EXHAUSTED."""
    unsent_response_bytes: int = 32 * 1024 * 1024
    """Answers of one connection that wait for its client to read. While there are more, or more
    than there is room for in all, its new calls are refused and its response streams wait. But up
    to a 16th of what all may hold no call is refused."""
    unsent_in_all_bytes: int = 64 * 1024 * 1024
    """The same of all connections. Beyond it the connection that holds most of them, and takes
    nothing, is closed."""
    preface_s: float = 10.0
    """For the first frame of a client."""
    keepalive_s: float = 60.0
    """Of silence, after which a client is asked whether it is still there."""
    keepalive_timeout_s: float = 20.0
    """For its answer."""
    write_s: float = 60.0
    """For a client to take a 64th of what waits for it, whether the network or HTTP/2's windows
    hold it back."""
    request_s: float = 120.0
    """For the rest of a request whose headers have come, unless its handler reads it itself."""
    engine: EngineLimits = field(default_factory=EngineLimits)
    """Of one connection."""

    def without_time_limits(self) -> ServerLimits:
        """Return the same for clients that may take as long as they want."""
        return replace(
            self,
            preface_s=inf,
            keepalive_s=inf,
            keepalive_timeout_s=inf,
            write_s=inf,
            request_s=inf,
        )

    @property
    def check_s(self) -> float:
        """Return how often a connection is looked at: so late it may learn of a time limit."""
        limits = (self.keepalive_s, self.keepalive_timeout_s, self.write_s, self.request_s)
        return min(limits) / _CHECKS_PER_TIME_LIMIT

    @property
    def preface_check_s(self) -> float:
        """Return the same for one whose client has not begun."""
        return self.preface_s / _CHECKS_PER_TIME_LIMIT
