"""The broker that each cell of the matrix is tried on."""

from __future__ import annotations

from tests.broker.scenarios import run

__all__ = ["run"]
