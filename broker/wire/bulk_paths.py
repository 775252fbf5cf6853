"""The names of the methods of the bulk service."""

from __future__ import annotations

from typing import Final

SERVICE: Final = "/commitbus.bulk.v1.Bulk/"
APPEND: Final = SERVICE + "Append"
FETCH: Final = SERVICE + "Fetch"
