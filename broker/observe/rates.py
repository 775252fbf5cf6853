"""Messages per second and per day, from counters that only ever grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, final

import trio

from commitbus.broker.core.counters import Counters
from commitbus.commitlog.clock import Clock

SAMPLE_INTERVAL_S: Final = 5.0
WINDOW_S: Final = 60.0
"""A rate is the mean over this time; RocketMQ's tools show the last minute as well."""


@final
@dataclass(frozen=True, slots=True)
class DayTotals:
    """Messages in and out on one day of local time, since the process started."""

    messages_in: int = 0
    messages_out: int = 0


@final
@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    messages_in: int
    """In all, up to the sample, as the next."""
    messages_out: int
    sent: Mapping[str, int]
    """By topic, since the sample before; only what moved."""
    received: Mapping[str, int]
    """By group, the same."""


@final
class Rates:
    """Samples of the counters, at most one window of them. Lives on the trio thread."""

    def __init__(self, counters: Counters, clock: Clock) -> None:
        self._counters, self._clock = counters, clock
        self._samples: deque[_Sample] = deque()
        self._day = self._today()
        self._before_today = DayTotals()
        self.yesterday = DayTotals()
        self.sample()

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await trio.sleep(SAMPLE_INTERVAL_S)
            self.sample()

    def sample(self) -> None:
        """Note what the counters say now, and forget what is older than the window."""
        now_s = self._clock.monotonic_s()
        counters = self._counters
        sent, counters.sent_lately = counters.sent_lately, {}
        received, counters.received_lately = counters.received_lately, {}
        self._samples.append(
            _Sample(now_s, counters.messages_in, counters.messages_out, sent, received)
        )
        # The newest sample that is a whole window old stays: it is where the window begins.
        while len(self._samples) > 1 and now_s - self._samples[1].at_s >= WINDOW_S:
            self._samples.popleft()
        if (today := self._today()) != self._day:
            totals = DayTotals(self._counters.messages_in, self._counters.messages_out)
            self.yesterday = _difference(totals, self._before_today)
            self._before_today, self._day = totals, today

    @property
    def today(self) -> DayTotals:
        """Messages in and out since midnight, or since the process started."""
        totals = DayTotals(self._counters.messages_in, self._counters.messages_out)
        return _difference(totals, self._before_today)

    def put_tps(self, topic: str | None = None) -> float:
        """Return messages stored per second, of one topic or of all."""
        counters, begin = self._counters, self._samples[0]
        if topic is None:
            return self._per_second(counters.messages_in - begin.messages_in)
        moved = (counters.sent_lately, *(sample.sent for sample in self._later()))
        return self._per_second(sum(counts.get(topic, 0) for counts in moved))

    def consume_tps(self, group: str | None = None) -> float:
        """Return messages handed out per second, to one group or to all."""
        counters, begin = self._counters, self._samples[0]
        if group is None:
            return self._per_second(counters.messages_out - begin.messages_out)
        moved = (counters.received_lately, *(sample.received for sample in self._later()))
        return self._per_second(sum(counts.get(group, 0) for counts in moved))

    def _later(self) -> list[_Sample]:
        """Return the samples after the one in which the window begins."""
        return list(self._samples)[1:]

    def _per_second(self, count: int) -> float:
        elapsed_s = self._clock.monotonic_s() - self._samples[0].at_s
        return count / elapsed_s if elapsed_s > 0 else 0.0

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000).astimezone().date()


def _difference(later: DayTotals, earlier: DayTotals) -> DayTotals:
    return DayTotals(
        later.messages_in - earlier.messages_in, later.messages_out - earlier.messages_out
    )
