"""What every benchmark shares: rounds, medians, the machine, a table and JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Figure:
    """One measured quantity over all rounds."""

    name: str
    unit: str
    values: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float:
        """The value to quote."""
        return statistics.median(self.values)


Benchmark = Callable[[], Sequence[tuple[str, str, float, str]]]
"""Runs once and returns rows of (name, unit, value, note)."""


def run_rounds(benchmarks: Sequence[Benchmark], rounds: int) -> list[Figure]:
    """Run all benchmarks in turn, `rounds` times over, so that a noisy minute hits all alike."""
    figures: dict[str, Figure] = {}
    for number in range(1, rounds + 1):
        for benchmark in benchmarks:
            print(f"round {number} of {rounds}: {benchmark.__name__}", file=sys.stderr)
            for name, unit, value, note in benchmark():
                figures.setdefault(name, Figure(name, unit, note=note)).values.append(value)
    return list(figures.values())


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
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def report(figures: Sequence[Figure], *, as_json: bool) -> str:
    """Return the figures as a Markdown table, or as JSON with every round's value."""
    if as_json:
        rows = [{**asdict(figure), "median": figure.median} for figure in figures]
        return json.dumps({"machine": machine(), "figures": rows}, indent=2)
    where = ", ".join(f"{name}: {value}" for name, value in machine().items())
    lines = [
        where,
        "",
        "| figure | median | lowest | highest | unit | |",
        "|---|---|---|---|---|---|",
    ]
    for figure in figures:
        lowest, highest = min(figure.values), max(figure.values)
        lines.append(
            f"| {figure.name} | {figure.median:,.6g} | {lowest:,.6g} | {highest:,.6g} "
            f"| {figure.unit} | {figure.note} |"
        )
    return "\n".join(lines)
