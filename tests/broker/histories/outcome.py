"""Figures of a history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass
class Outcome:
    """What a history was made of."""

    steps: int = 0
    sent: int = 0
    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    dead: int = 0
    restarts: int = 0
    kills: int = 0
    new_waited: int = 0
    """The most receives that a new message waited for, while it was there and others were given."""
    retries_waited: int = 0
    """The same of messages that were visible again."""

    def add(self, other: Outcome) -> None:
        """Count another history, too."""
        for name, count in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, count) if name.endswith("waited") else mine + count)

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in vars(self).items())
