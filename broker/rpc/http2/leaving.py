"""Responses whose handlers have ended, and which the network has not taken to their ends yet.

A handler that has to know whether its response left sets `Call.when_unfinished`. The call of it is
kept here until its stream ends, and then until the socket has taken what the stream ended with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from commitbus.broker.rpc.http2.engine import ErrorCode


@final
class Leaving:
    """Those of one connection."""

    __slots__ = ("_in_output", "_is_lost", "streams")

    def __init__(self) -> None:
        self.streams: dict[int, Callable[[], None]] = {}
        """By id: those whose responses were queued and have not ended."""
        self._in_output: list[Callable[[], None]] = []
        self._is_lost = False

    def add(self, stream_id: int, when_unfinished: Callable[[], None]) -> None:
        """Note a response that was queued in full."""
        if self._is_lost:
            when_unfinished()
        else:
            self.streams[stream_id] = when_unfinished

    def stream_closed(self, stream_id: int, code: int) -> None:
        """Note the end of a stream: with an error, what was queued for it is dropped."""
        when_unfinished = self.streams.pop(stream_id, None)
        if when_unfinished is None:
            return
        if code == ErrorCode.NO_ERROR:
            self._in_output.append(when_unfinished)
        else:
            when_unfinished()

    def written(self) -> None:
        """Note that the socket has taken all output so far."""
        self._in_output.clear()

    def connection_lost(self) -> None:
        """Note that nothing more leaves."""
        self._is_lost = True
        left = [*self._in_output, *self.streams.values()]
        self._in_output.clear()
        self.streams.clear()
        for when_unfinished in left:
            when_unfinished()
