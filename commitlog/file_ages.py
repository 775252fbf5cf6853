"""How long ago each log file was ended, by time that a wrong wall clock cannot change.

Store timestamps come from the wall clock and never fall along the log: after one message of a clock
that was a year ahead, all have that time for a year. So retention does not go by them. An age is
the time that the store has observed since the file was ended:

- While the store is open, the monotonic clock counts.
- For the time that it was closed, the wall clock counts: its difference since the ages were saved
  is added to them. This is decided once, `SETTLE_S` after the start, because a machine that has
  just started may not know the time yet. Until then no age is known, so no file expires.
- The last store timestamp says when exactly a file was ended, within what was observed: not before
  the last look at which it was not ended yet, not after the first look at which it was.
- Without saved ages, as in a store that RocketMQ wrote, the timestamps are used. Those that
  lie in the future or before 2020 (a clock that was never set) count as the time of the start.

```
STORE/commitbus/ages.json
{"format": 1, "wall_ms": 1700000000000, "ages_ms": {"<base offset>": 86400000, ...}}
```
`ages_ms` holds for the moment when the wall clock said `wall_ms`. The file is written every hour,
when a file was ended or deleted, and when the wall clock was set. It may be lost: see above.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, final

from commitbus.commitlog.clock import Clock
from commitbus.commitlog.file_system import FileSystem, replace_file

AGES_PATH: Final = Path("commitbus", "ages.json")
"""Relative to the store."""
SETTLE_S: Final = 600.0
"""After the start of a machine its clock is set within seconds to minutes of the network's."""
CLOCK_STEP_MS: Final = 60_000
"""The wall clock was set if it went on by this much more or less than the monotonic one."""
SAVE_INTERVAL_MS: Final = 3_600_000
"""A store that is killed while the clock is wrong loses at most so much of its ages."""
PLAUSIBLE_MS: Final = 1_577_836_800_000
"""2020-01-01: a clock that says less was never set."""
FORMAT: Final = 1

_logger = logging.getLogger(__name__)


@final
class _Saved(NamedTuple):
    wall_ms: int
    ages_ms: Mapping[int, int]


@final
class _Span(NamedTuple):
    """When a file was ended, as far as it was observed, on the time of this run."""

    after_ms: int | None
    """The last look at which it was not; None: before the first look."""
    until_ms: int


@final
class FileAges:
    """The ages of a log's ended files. One thread at a time."""

    __slots__ = (
        "_ahead_ms",
        "_clock",
        "_ended_ms",
        "_file_system",
        "_is_saved",
        "_looked_ms",
        "_path",
        "_saved",
        "_saved_at_ms",
        "_settled",
        "_spans",
        "_started_s",
        "_steady_from_ms",
        "_wall_ahead_ms",
    )

    def __init__(self, store: Path, clock: Clock, file_system: FileSystem) -> None:
        """Begin to count. The file is read at the first `look`."""
        self._path, self._clock, self._file_system = store / AGES_PATH, clock, file_system
        self._started_s = clock.monotonic_s()
        # By how much the wall clock is ahead of this run's time, and since when it is by that much.
        self._ahead_ms, self._steady_from_ms = clock.now_ms(), 0
        self._looked_ms: int | None = None
        self._saved: _Saved | None = None
        self._settled = False
        # In ms since the start of this run; negative for files that were ended before.
        self._ended_ms: dict[int, int] = {}
        self._spans: dict[int, _Span] = {}
        # When the ages were saved last, and what the wall clock then was ahead of this run's time.
        self._saved_at_ms = self._wall_ahead_ms = 0
        self._is_saved = True

    def look(
        self, base_offsets: Sequence[int], last_stored_at: Callable[[int], int | None]
    ) -> None:
        """Take note of which files are ended now.

        Args:
            base_offsets: Offsets of all files that are ended, and only of those.
            last_stored_at: Returns the store timestamp of a file's last record, None if that cannot
                be told. Asked once for each file.
        """
        if self._looked_ms is None:
            self._saved = self._load()
        now_ms = self._elapsed_ms()
        self._forget(set(base_offsets))
        known = self._ended_ms.keys() | self._spans.keys()
        if not self._settled and self._saved is not None:
            known |= self._saved.ages_ms.keys()
        for base_offset in base_offsets:
            if base_offset not in known:
                self._spans[base_offset] = _Span(self._looked_ms, now_ms)
        self._looked_ms = now_ms
        if not self._settled and self._is_clock_steady(now_ms):
            self._settle(now_ms)
        if self._settled:
            for base_offset, span in self._spans.items():
                stored_at = last_stored_at(base_offset)
                self._ended_ms[base_offset] = self._estimate(span, stored_at, now_ms)
                self._is_saved = False
            self._spans.clear()
            self._save_if_needed(now_ms)

    def age_ms(self, base_offset: int) -> int | None:
        """Return how long ago a file was ended, in milliseconds; None while that is not known."""
        ended_ms = self._ended_ms.get(base_offset)
        return None if ended_ms is None else self._elapsed_ms() - ended_ms

    def _elapsed_ms(self) -> int:
        return round((self._clock.monotonic_s() - self._started_s) * 1000)

    def _is_clock_steady(self, now_ms: int) -> bool:
        """Return whether the wall clock was not set for `SETTLE_S`."""
        ahead_ms = self._clock.now_ms() - now_ms
        if abs(ahead_ms - self._ahead_ms) > CLOCK_STEP_MS:
            self._ahead_ms, self._steady_from_ms = ahead_ms, now_ms
        return now_ms - self._steady_from_ms >= SETTLE_S * 1000

    def _forget(self, kept: set[int]) -> None:
        for base_offset in [base for base in self._ended_ms if base not in kept]:
            del self._ended_ms[base_offset]
            self._is_saved = False
        for base_offset in [base for base in self._spans if base not in kept]:
            del self._spans[base_offset]

    def _settle(self, now_ms: int) -> None:
        """Take over the saved ages, grown by the time that the store was closed."""
        self._settled = True
        if self._saved is None:
            return
        closed_ms = 0
        if self._saved.wall_ms >= PLAUSIBLE_MS:
            closed_ms = max(0, self._clock.now_ms() - self._saved.wall_ms - now_ms)
        for base_offset, age_ms in self._saved.ages_ms.items():
            self._ended_ms[base_offset] = -closed_ms - age_ms
        # A file that was still written to when the ages were saved was ended later than that.
        for base_offset, span in self._spans.items():
            if span.after_ms is None:
                self._spans[base_offset] = span._replace(after_ms=-closed_ms)
        self._saved, self._is_saved = None, False

    def _estimate(self, span: _Span, stored_at: int | None, now_ms: int) -> int:
        if stored_at is None or stored_at < PLAUSIBLE_MS:
            return span.until_ms
        ended_ms = min(now_ms - (self._clock.now_ms() - stored_at), span.until_ms)
        return ended_ms if span.after_ms is None else max(ended_ms, span.after_ms)

    # The file

    def _load(self) -> _Saved | None:
        try:
            if not self._file_system.exists(self._path):
                return None
            file = self._file_system.open(self._path, writable=False)
            try:
                return _decode(file.pread(file.size(), 0))
            finally:
                file.close()
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            _logger.warning("the ages of log files are lost", extra={"reason": str(error)})
            return None

    def _save_if_needed(self, now_ms: int) -> None:
        wall_ms = self._clock.now_ms()
        wall_ahead_ms = wall_ms - now_ms
        was_set = abs(wall_ahead_ms - self._wall_ahead_ms) > CLOCK_STEP_MS
        is_old = was_set or now_ms - self._saved_at_ms >= SAVE_INTERVAL_MS
        if self._is_saved and not (is_old and self._ended_ms):
            return
        ages_ms = {str(base): now_ms - ended_ms for base, ended_ms in self._ended_ms.items()}
        document = {"format": FORMAT, "wall_ms": wall_ms, "ages_ms": ages_ms}
        try:
            replace_file(self._path, json.dumps(document).encode() + b"\n", self._file_system)
        except OSError as error:
            # Tried again at the next look. A full disk must not keep files from being deleted.
            _logger.warning("the ages of log files are not saved", extra={"reason": str(error)})
            return
        self._is_saved = True
        self._saved_at_ms, self._wall_ahead_ms = now_ms, wall_ahead_ms


def _decode(data: bytes) -> _Saved:
    document = json.loads(data)
    if document["format"] != FORMAT:
        raise ValueError(f"the format {document['format']!r} is unknown")
    ages_ms = {int(base): max(0, int(age)) for base, age in document["ages_ms"].items()}
    return _Saved(int(document["wall_ms"]), ages_ms)
