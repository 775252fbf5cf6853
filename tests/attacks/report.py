"""What a run has shown, against the bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from tests.attacks.processor import Share

MEMORY_MB_MAX: Final = 400.0
RATIO_MAX: Final = 3.0
CALLS_MIN: Final = 1000
"""Fewer of a kind have no 99th percentile worth comparing."""


class Latencies(NamedTuple):
    """Of one kind of call, in milliseconds."""

    number: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


@final
@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a run has shown."""

    peak_mb: float
    undisturbed_mb: float
    afterwards_mb: float
    """Some seconds after the last attack."""
    undisturbed: Mapping[str, Latencies]
    """By kind of call, and "all" together."""
    attacked: Mapping[str, Latencies]
    failures: Sequence[tuple[str, int]]
    """Calls of the normal load that failed, how often."""
    sent: int
    lost: Sequence[int]
    """Messages that were acknowledged and never came."""
    probes: Mapping[str, tuple[int, float, Sequence[str]]]
    """By kind: how many, the longest answer in seconds, what failed."""
    outcomes: Mapping[str, Mapping[str, int]]
    """By attack, how its calls ended."""
    alarms: Sequence[str]
    log_kb: float
    processor: tuple[Share, Share]
    """Undisturbed, and attacked."""
    exit_status: int

    def ratio(self) -> float | None:
        """Return how much longer the 99th percentile of all calls took; None if too few."""
        before, under = self.undisturbed.get("all"), self.attacked.get("all")
        if before is None or under is None or min(before.number, under.number) < CALLS_MIN:
            return None
        return under.p99_ms / before.p99_ms

    def broken(self, *, with_ratio: bool = True) -> list[str]:
        """Return the bounds that were broken, each in a sentence."""
        found = []
        if self.peak_mb >= MEMORY_MB_MAX:
            found.append(f"anonymous memory {self.peak_mb:.0f} MB, allowed {MEMORY_MB_MAX:.0f}")
        ratio = self.ratio()
        if with_ratio and ratio is not None and ratio > RATIO_MAX:
            found.append(f"p99 {ratio:.1f} times the undisturbed one, allowed {RATIO_MAX:g}")
        found += [f"normal load, {times} times: {what}" for what, times in self.failures]
        if self.lost:
            found.append(f"acknowledged messages that never came: {list(self.lost)}")
        for kind, (_, _, failures) in self.probes.items():
            if failures:
                found.append(f"{kind}: {len(failures)} not answered, first: {failures[0]}")
        if self.alarms:
            found.append(f"{len(self.alarms)} errors in the log, first: {self.alarms[0][:500]}")
        if self.exit_status != 0:
            found.append(f"the server ended with {self.exit_status}")
        return found

    def text(self) -> str:
        """Return it as tables."""
        ratio, heads = self.ratio(), ": calls    p50    p99     max"
        lines = [
            f"anonymous memory, MB     peak {self.peak_mb:.0f}, before {self.undisturbed_mb:.0f}, "
            f"afterwards {self.afterwards_mb:.0f}",
            f"normal load              {self.sent} messages, {len(self.lost)} lost, "
            f"{sum(times for _, times in self.failures)} calls failed",
            f"p99, attacked/before     {'too few calls' if ratio is None else f'{ratio:.2f}'}",
            f"cores, server + others   before {_shares(self.processor[0])}, "
            f"attacked {_shares(self.processor[1])}",
            f"log                      {len(self.alarms)} errors, {self.log_kb:.0f} KB",
            "",
            f"{'ms':<11}{'undisturbed' + heads:>44}{'attacked' + heads:>40}",
        ]
        for kind, before in self.undisturbed.items():
            under = self.attacked.get(kind, Latencies(0, 0, 0, 0))
            lines.append(f"{kind:<11} {_columns(before):>43} {_columns(under):>39}")
        lines += ["", "probe          count   longest, s   failed"]
        for kind, (count, longest_s, failures) in self.probes.items():
            lines.append(f"{kind:<12} {count:>7} {longest_s:>12.2f} {len(failures):>8}")
        lines += ["", "attack               answers"]
        for name, outcomes in self.outcomes.items():
            counted = ", ".join(f"{what}: {times}" for what, times in sorted(outcomes.items()))
            lines.append(f"{name:<20} {counted}")
        return "\n".join(lines)


def latencies(
    calls: Sequence[tuple[str, float, float]], begin_s: float, end_s: float
) -> dict[str, Latencies]:
    """Return those of the calls that were to begin in an interval, by kind and of all."""
    kinds: dict[str, list[float]] = {"all": []}
    for kind, start_s, took_s in calls:
        if begin_s <= start_s < end_s:
            kinds["all"].append(took_s * 1000)
            kinds.setdefault(kind, []).append(took_s * 1000)
    return {kind: _summary(sorted(values)) for kind, values in kinds.items() if values}


def _summary(values: list[float]) -> Latencies:
    count = len(values)
    return Latencies(count, values[count // 2], values[count * 99 // 100], values[-1])


def _columns(of: Latencies) -> str:
    return f"{of.number:>9} {of.p50_ms:>6.1f} {of.p99_ms:>6.1f} {of.longest_ms:>7.1f}"


def _shares(of: Share) -> str:
    return f"{of.server:.2f} + {of.others:.2f}"
