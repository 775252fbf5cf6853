"""What a process holds, and whether that grows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, final

SAMPLES_MIN: Final = 8
SHARE: Final = 0.10
MEMORY_MB: Final = 6.0
"""Growth beyond a tenth: an allocator's noise, which does not come again every hour."""
STORE_FILES: Final = 24
"""Log files that were written meanwhile."""
OTHERS: Final = 12
"""So many sockets and threads more are the visitors of the moment."""


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """A process at one moment."""

    at_s: float
    memory_mb: float
    """Anonymous: what no file backs."""
    store_files: int
    """Open file descriptors in the store's directory: more with every file of a queue."""
    other_files: int
    """Sockets, pipes and the like."""
    threads: int
    processor_s: float
    """User and system time since the process began."""


def sample(pid: int, store: Path, at_s: float) -> Sample:
    """Look at a process.

    Raises:
        OSError: It is gone.
    """
    process = Path("/proc", str(pid))
    lines = (process / "status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    # The command's name, which may hold blanks, ends with the last parenthesis.
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    targets = []
    for descriptor in (process / "fd").iterdir():
        try:
            targets.append(str(descriptor.readlink()))
        except FileNotFoundError:
            continue  # Closed meanwhile.
    of_store = sum(target.startswith(f"{store}{os.sep}") for target in targets)
    return Sample(
        at_s,
        int(status["RssAnon"].split()[0]) / 1024,
        of_store,
        len(targets) - of_store,
        int(status["Threads"]),
        ticks / os.sysconf("SC_CLK_TCK"),
    )


def growth(samples: Sequence[Sample], *, of_store: bool = False) -> list[str]:
    """Return what the last quarter of a run holds more of than the second one may explain.

    The first quarter is warming up. Fewer than `SAMPLES_MIN` samples say nothing. Open files of the
    store are compared too where they should not grow `of_store` itself.
    """
    if len(samples) < SAMPLES_MIN:
        return []
    second, last = _quarters(samples)[1], _quarters(samples)[3]
    found = []
    bounds = [("memory_mb", MEMORY_MB), ("other_files", OTHERS), ("threads", OTHERS)]
    if of_store:
        bounds.append(("store_files", STORE_FILES))
    for what, allowed in bounds:
        before = median(getattr(each, what) for each in second)
        after = median(getattr(each, what) for each in last)
        if after > before * (1 + SHARE) + allowed:
            found.append(f"{what} grew from {before:g} to {after:g}")
    return found


def summary(samples: Sequence[Sample]) -> dict[str, object]:
    """Return the medians of each quarter, and the share of a core that was busy."""
    if len(samples) < SAMPLES_MIN:
        return {"samples": len(samples)}
    names = [name for name in asdict(samples[0]) if name not in {"at_s", "processor_s"}]
    quarters = [
        {name: round(median(getattr(each, name) for each in quarter), 1) for name in names}
        for quarter in _quarters(samples)
    ]
    busy_s = sum(max(0.0, b.processor_s - a.processor_s) for a, b in pairwise(samples))
    return {
        "samples": len(samples),
        "quarters": quarters,
        "core_share": round(busy_s / (samples[-1].at_s - samples[0].at_s), 3),
    }


def _quarters(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    bounds = [len(samples) * n // 4 for n in range(5)]
    return [samples[a:b] for a, b in pairwise(bounds)]
