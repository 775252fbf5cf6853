"""Streams that are answered although their clients go on with their requests."""

from __future__ import annotations

from typing import final

from commitbus.broker.rpc.http2.engine import Engine, ErrorCode
from commitbus.broker.rpc.http2.rotation import Rotation


@final
class EarlyEnds:
    """Tells clients to stop: a stream is reset once all of its response has left."""

    __slots__ = ("_engine", "late", "new")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.new: set[int] = set()
        """Not looked at yet."""
        self.late: Rotation[int] = Rotation()
        """Those whose response has still to leave."""

    def discard(self, stream_id: int) -> None:
        """Note that a stream is closed; no harm if it is none of these."""
        self.new.discard(stream_id)
        self.late.discard(stream_id)

    def stop_new(self) -> bytes:
        """Reset the new ones, but for those whose response waits; return what is to be sent.

        Raises:
            EngineError: the connection is over.
        """
        for stream_id in self.new:
            if not self._stop(stream_id):
                self.late.add(stream_id)
        self.new.clear()
        return self._engine.take_output()

    def stop_late(self, *, have_some_left: bool) -> bool:
        """Reset some of those whose response has left by now; return whether to flush once more."""
        if have_some_left:
            self.late.start()
        count = len(self.late.items)
        return self.late.step(self._stop) or len(self.late.items) < count

    def _stop(self, stream_id: int) -> bool:
        if self._engine.unsent_bytes(stream_id):
            return False
        self._engine.reset(stream_id, ErrorCode.NO_ERROR)
        return True
