"""The server: storage wired together, spoken to over gRPC, watched and operated."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commitbus.broker.embedded.broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> object:
    # Importing gRPC, trio and numpy takes 0.4 s: every command imports this package, few need all.
    if name == "Broker":
        from commitbus.broker.embedded.broker import Broker  # noqa: PLC0415 - see above

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
