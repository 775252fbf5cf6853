"""What a trio run does between two moments at which others may go on."""

from __future__ import annotations

from typing import final

import trio


@final
class Steps(trio.abc.Instrument):
    """Counts in which step of a task something happened."""

    def __init__(self) -> None:
        self._now = 0
        self.longest = 0
        """The most that was counted in one step."""
        self.total = 0

    def count(self, number: int = 1) -> None:
        """Count something that happens now."""
        self._now += number
        self.total += number
        self.longest = max(self.longest, self._now)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._now = 0
