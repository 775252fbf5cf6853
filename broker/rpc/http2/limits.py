"""What a server grants its clients, and when it gives up on one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import final

from commitbus.broker.rpc.http2.engine import EngineLimits


@final
@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Together they bound the memory of the server, whatever its clients do."""

    max_message_bytes: int
    """A request message beyond it is answered with RESOURCE_EXHAUSTED."""
    calls_max: int
    """Calls beyond it, long polls and telemetry counted, are answered with RESOURCE_EXHAUSTED."""
    connections_max: int = 10_000
    """Beyond it a connection is closed at once."""
    strangers_max: int = 1_000
    """The same for those that have not begun to speak HTTP/2."""
    held_request_bytes: int = 512 * 1024 * 1024
    """Of requests that are incomplete, or that their handlers have not taken. Whoever adds to them
    beyond that is answered with RESOURCE_EXHAUSTED."""
    unsent_response_bytes: int = 64 * 1024 * 1024
    """Of one connection: while more wait for a client to read, its new calls are refused."""
    preface_s: float = 10.0
    """For the first frame of a client."""
    keepalive_s: float = 60.0
    """Of silence, after which a client is asked whether it is still there."""
    keepalive_timeout_s: float = 20.0
    """For its answer."""
    write_s: float = 60.0
    """For the network to take something, of TLS 64 KB, where a client does not read."""
    engine: EngineLimits = field(default_factory=EngineLimits)
    """Of one connection."""

    def without_time_limits(self) -> ServerLimits:
        """Return the same for clients that may take as long as they want."""
        return replace(self, preface_s=inf, keepalive_s=inf, keepalive_timeout_s=inf, write_s=inf)
