"""What the tests of this room share."""

from __future__ import annotations

from tests.broker.scenarios import message, run

__all__ = ["message", "run"]
