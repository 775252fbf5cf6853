"""Finds single properties in the encoded text of a record without decoding the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, final

_NAME_END, _VALUE_END = b"\x01", b"\x02"


@final
class PropertyFinder:
    """Picks a fixed choice of properties out of any number of records.

    Format: `broker/messaging` and RocketMQ store `name 0x01 value 0x02`, repeated, UTF-8; the last
    separator may be missing, and of equal names the last one counts.
    """

    __slots__ = ("_wanted",)

    def __init__(self, names: Iterable[str]) -> None:
        self._wanted: Final = tuple(
            (name, _VALUE_END + name.encode() + _NAME_END) for name in names
        )

    def find(self, encoded: bytes | memoryview) -> dict[str, str]:
        """Return those of the wanted properties that are there; bad UTF-8 becomes U+FFFD."""
        text = _VALUE_END + encoded  # so that every name has a separator before it
        found = {}
        for name, marked in self._wanted:
            start = text.rfind(marked)
            if start >= 0:
                start += len(marked)
                end = text.find(_VALUE_END, start)
                value = text[start:] if end < 0 else text[start:end]
                found[name] = value.decode("utf-8", "replace")
        return found
