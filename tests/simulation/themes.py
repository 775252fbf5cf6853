"""What may go wrong in a seed besides kills, power cuts, full disks and failed syncs.

Each seed has some of the themes, drawn from it, so that in many seeds two or three of them meet.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import Final, final


@final
class Theme(Enum):
    """A class of faults, or of things that operators do."""

    DELETED_TOPICS = "topics are deleted, and sent to again, at any moment"
    KILLED_STARTS = "queues and index are removed, and start after start is killed"
    RETENTION = "log files expire, down to the last one"
    FAILING_READS = "pages of files cannot be read, for a while or for ever"
    SHORTAGES = "descriptors and memory run out"
    CLOCK_YEARS = "the clock jumps a year ahead, and back"
    DYING_THREADS = "a thread of the store gets a MemoryError"
    FULL_DISK_STARTS = "the disk is full when the store is opened"
    SALVAGE = "`commitbus salvage` copies the store, and is killed"


DRAWN: Final = frozenset(Theme)
"""The themes that seeds draw."""
_PROBABILITY: Final = 0.25


def draw_themes(rng: random.Random) -> frozenset[Theme]:
    """Return the themes of a seed."""
    return frozenset(theme for theme in Theme if rng.random() < _PROBABILITY) & DRAWN
