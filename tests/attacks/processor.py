"""Who used the processor: a machine that is busy with other things makes everything slower."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Moment(NamedTuple):
    """What had been used by then, in seconds."""

    at_s: float
    """On the monotonic clock."""
    busy_s: float
    """Of all cores."""
    server_s: float


class Share(NamedTuple):
    """Cores that were busy between two moments, 1.0 being one of them all the time."""

    server: float
    others: float
    """The suite's own processes, and everything else on the machine."""


def moment(pid: int) -> Moment:
    """Return what was used until now.

    Raises:
        OSError: there is no such process.
    """
    user, nice, system, _, _, *interrupts = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    )
    # The command's name, which may hold blanks, ends with the last parenthesis.
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    server = int(fields[11]) + int(fields[12])
    busy = user + nice + system + sum(interrupts)
    return Moment(time.monotonic(), busy / _TICKS, server / _TICKS)


def share(before: Moment, after: Moment) -> Share:
    """Return what was used between two moments."""
    seconds = max(after.at_s - before.at_s, 1e-6)
    server = (after.server_s - before.server_s) / seconds
    return Share(server, max(0.0, (after.busy_s - before.busy_s) / seconds - server))
