"""The documentation that each setting of the broker carries."""

from __future__ import annotations

from dataclasses import Field, dataclass
from typing import Any, Final, final

PORT_ALIASES: Final = ("listenPort", "grpcServerPort")
"""RocketMQ's names for the port of `listen` alone."""


@final
@dataclass(frozen=True, slots=True)
class Doc:
    """The documentation of one setting."""

    unit: str
    reason: str
    """Why the default is what it is."""
    danger: str
    """What goes wrong when it is set badly."""
    aliases: tuple[str, ...]
    """RocketMQ's names for it."""
    allowed: tuple[int, int] | None
    """The lowest and the highest value of a number; None where other checks apply."""


def documented(
    *,
    unit: str,
    reason: str,
    danger: str,
    aliases: tuple[str, ...] = (),
    allowed: tuple[int, int] | None = None,
) -> dict[str, Doc]:
    """Return the metadata of a dataclass field that is a setting."""
    return {"doc": Doc(unit, reason, danger, aliases, allowed)}


def doc_of(entry: Field[Any]) -> Doc:
    """Return the documentation of a field that was made with `documented`."""
    doc = entry.metadata["doc"]
    assert isinstance(doc, Doc)
    return doc
