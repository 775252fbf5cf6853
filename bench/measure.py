"""What every benchmark shares: interleaved rounds, medians, ratios, a table and JSON."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

OURS: Final = "commitbus"
HIGHER_IS_BETTER: Final = frozenset({"msg/s", "calls/s"})
"""Units; of all others less is better."""

Row = tuple[str, str, float, str]
"""Name, unit, value, note."""
Benchmark = Callable[[], Sequence[Row]]
"""Runs once and returns rows; those of two contenders that have the same name are compared."""
Contest = Mapping[str, Benchmark]
"""The benchmark of each contender, by the contender's name."""


@dataclass(slots=True)
class Figure:
    """One measured quantity, the values of all rounds by contender."""

    name: str
    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def median(self, contender: str) -> float | None:
        """The value to quote, or None if the contender has none."""
        values = self.values.get(contender)
        return statistics.median(values) if values else None

    def ratio(self, contender: str) -> float | None:
        """How many times ahead we are of a contender: the median of the rounds' own ratios.

        Neighbours in time share their noise, so each round is a comparison of its own. Of an even
        number the two in the middle are averaged as logarithms: 2x and 0.5x make 1x, not 1.25x,
        whoever is ahead.
        """
        pairs = zip(self.values.get(OURS, ()), self.values.get(contender, ()), strict=False)
        ratios = [
            ours / theirs if self.unit in HIGHER_IS_BETTER else theirs / ours
            for ours, theirs in pairs
            if ours and theirs
        ]
        return math.exp(statistics.median(map(math.log, ratios))) if ratios else None


def clean_up_when_terminated() -> None:
    """Let SIGTERM end the run as an exception does: servers are stopped, directories removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def run_rounds(contests: Sequence[Contest], rounds: int) -> list[Figure]:
    """Run all contests in turn, `rounds` times over, so that a noisy minute hits all alike.

    Who begins a contest changes from round to round.
    """
    figures: dict[str, Figure] = {}
    for number in range(rounds):
        for contest in contests:
            contenders = list(contest.items())
            for contender, benchmark in contenders if number % 2 == 0 else contenders[::-1]:
                what = f"{name_of(benchmark)} of {contender}"
                print(f"round {number + 1} of {rounds}: {what}", file=sys.stderr)
                for name, unit, value, note in benchmark():
                    figure = figures.setdefault(name, Figure(name, unit))
                    figure.values.setdefault(contender, []).append(value)
                    figure.notes[contender] = note
    return list(figures.values())


def name_of(benchmark: Benchmark) -> str:
    """Return the name of the function, also of one with arguments filled in."""
    name: str = getattr(getattr(benchmark, "func", benchmark), "__name__", "benchmark")
    return name


def machine() -> dict[str, object]:
    """Describe where the figures come from."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 1),
    }


def report(figures: Sequence[Figure], remarks: Sequence[str] = (), *, as_json: bool) -> str:
    """Return the figures as a Markdown table, or as JSON with every round's value.

    Args:
        figures: What was measured.
        remarks: What holds for the whole run: what was skipped and why, how a peer was set up.
        as_json: JSON instead of a table.
    """
    contenders = list(dict.fromkeys(name for figure in figures for name in figure.values))
    peers = [name for name in contenders if name != OURS]
    if as_json:
        return json.dumps(
            {
                "machine": machine(),
                "remarks": list(remarks),
                "figures": [_as_dict(figure, peers) for figure in figures],
            },
            indent=2,
        )
    columns = [name for name in (OURS, *peers) if name in contenders]
    heads = ["figure", "unit", *columns, *(f"ahead of {peer}" for peer in peers), "note"]
    lines = [
        ", ".join(f"{name}: {value}" for name, value in machine().items()),
        *remarks,
        "Median (lowest to highest); ahead: the median of the rounds' ratios, over 1 we are better."
        if peers
        else "Median (lowest to highest).",
        "",
        _line(heads),
        _line(["---"] * len(heads)),
    ]
    for figure in figures:
        cells = [figure.name, figure.unit]
        cells += [_spread(figure.values.get(name)) for name in columns]
        cells += [_ratio(figure.ratio(peer)) for peer in peers]
        lines.append(_line([*cells, _notes(figure.notes)]))
    return "\n".join(lines)


def _as_dict(figure: Figure, peers: Sequence[str]) -> dict[str, object]:
    return {
        "name": figure.name,
        "unit": figure.unit,
        "values": figure.values,
        "medians": {name: figure.median(name) for name in figure.values},
        "ahead_of": {peer: ratio for peer in peers if (ratio := figure.ratio(peer)) is not None},
        "notes": figure.notes,
    }


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float] | None) -> str:
    if not values:
        return ""
    median, lowest, highest = statistics.median(values), min(values), max(values)
    if len(values) == 1:
        return _short(median)
    return f"{_short(median)} ({_short(lowest)} to {_short(highest)})"


def _short(value: float) -> str:
    """Three digits; a fourth would be noise."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2g}x"


def _notes(notes: Mapping[str, str]) -> str:
    """Return our note, then what the peers add to it."""
    ours = [notes[OURS]] if notes.get(OURS) else []
    return "; ".join(ours + [f"{name}: {text}" for name, text in notes.items()
                             if name != OURS and text])  # fmt: skip
