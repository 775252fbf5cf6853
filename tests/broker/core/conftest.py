"""The broker of the tests of the handlers, for those of the core."""

from __future__ import annotations

from tests.broker.scenarios import message, run

__all__ = ["message", "run"]
