"""Which log files go, and whether there is room for more messages: decisions without a disk.

```
   disk used  0 %          75 %            85 %           90 %        100 %
              |  in the     |  expired      |  the oldest   |  the same, |
              |  hours of   |  files, at    |  files, also  |  and no    |
              |  deleteWhen |  any hour     |  unexpired    |  sends     |
```

Only a log file as a whole goes, the oldest first, never the one that is written. How old it is, is
told by `FileAges`. (RocketMQ takes the file's modification time, which a copy of the store, a
restored backup or a wrong clock changes.) Source of hours and percentages: RocketMQ's
`fileReservedTime`, `deleteWhen`, `diskMaxUsedSpaceRatio`, `diskSpaceCleanForciblyRatio` and
`diskSpaceWarningLevelRatio`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from commitbus.commitlog.types import PhysicalOffset

HOUR_MS: Final = 3_600_000
NEVER_PERCENT: Final = 100
"""A limit that is switched off: a disk that is this full refuses by itself."""


@final
@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long messages are kept, and what a full disk changes about it."""

    reserved_hours: int = 48
    """`fileReservedTime`: a file that was ended longer ago has expired."""
    delete_hours: frozenset[int] = frozenset({4})
    """`deleteWhen`: the hours of the day, local time, in which expired files go."""
    delete_percent: int = 75
    """From this much of the disk used on, expired files go at any hour."""
    force_percent: int = 85
    """From here on the oldest files go, expired or not, until less is used."""
    refuse_percent: int = 90
    """From here on messages are refused, until less is used."""


@final
class StoredFile(NamedTuple):
    """A log file that may go."""

    base_offset: PhysicalOffset
    size_bytes: int
    age_ms: int | None
    """How long ago it was ended, in milliseconds; None if that is not known yet: it does not
    expire."""


@final
class DiskUsage(NamedTuple):
    """How full the disk is."""

    total_bytes: int
    free_bytes: int

    @property
    def used_percent(self) -> float:
        """Used share, 0 to 100, of what the store may use."""
        if self.total_bytes <= 0:
            return 0.0
        return 100 * (self.total_bytes - self.free_bytes) / self.total_bytes


def parse_delete_hours(text: str) -> frozenset[int]:
    """Return the hours of `deleteWhen`: 00 to 23, separated by semicolons.

    Raises:
        ValueError: `text` is something else.
    """
    hours = text.split(";")
    for hour in hours:
        if not (hour.isascii() and hour.isdigit() and len(hour) <= 2 and int(hour) < 24):
            raise ValueError(f"{hour!r} is not an hour, 00 to 23 (several: 04;16)")
    return frozenset(map(int, hours))


def files_to_delete(
    policy: RetentionPolicy,
    files: Sequence[StoredFile],
    usage: DiskUsage,
    *,
    local_hour: int,
) -> int:
    """Return how many of the files go, counted from the first.

    Args:
        policy: What is configured.
        files: What may go: every file but the one that is written, oldest first.
        usage: Of the disk that holds them.
        local_hour: The hour of the day, 0 to 23, in the operator's time zone.
    """
    used_percent = usage.used_percent
    expired = 0
    if local_hour in policy.delete_hours or used_percent >= policy.delete_percent:
        expired = _count_expired(files, policy.reserved_hours * HOUR_MS)
    if policy.force_percent >= NEVER_PERCENT or used_percent < policy.force_percent:
        return expired
    count, free_bytes = 0, usage.free_bytes
    for file in files:
        if DiskUsage(usage.total_bytes, free_bytes).used_percent < policy.force_percent:
            break
        count, free_bytes = count + 1, free_bytes + file.size_bytes
    return max(count, expired)


def is_too_full(policy: RetentionPolicy, usage: DiskUsage) -> bool:
    """Return whether messages must be refused."""
    return policy.refuse_percent < NEVER_PERCENT and usage.used_percent >= policy.refuse_percent


def _count_expired(files: Sequence[StoredFile], reserved_ms: int) -> int:
    for count, file in enumerate(files):
        # The oldest go first, so one that must stay keeps all behind it.
        if file.age_ms is None or file.age_ms <= reserved_ms:
            return count
    return len(files)
