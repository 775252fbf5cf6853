"""One seed: a store that lives, dies and recovers a few times under a random workload.

Everything is drawn from the seed: sizes, flush mode, themes, who runs when, what goes wrong and
when the process dies. `simulate(seed)` returns what it did, or raises what went wrong.
"""

from __future__ import annotations

import gc
import inspect
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Final, final

from commitbus.broker.store import (
    checkpoint_service,
    housekeeping,
    message_store,
    ownership,
    reput,
    start,
)
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog import commit_log, file_preparer, mapped_file_queue
from commitbus.commitlog.errors import ReadFailedError, StoreDamagedError
from commitbus.commitlog.retention import NEVER_PERCENT, RetentionPolicy
from commitbus.consumequeue import consume_queue_store
from commitbus.flush import doorbell, flush_service
from commitbus.flush.policy import FlushMode, FlushPolicy
from tests.simulation.disk import Disk
from tests.simulation.files import Faults
from tests.simulation.images import rebuild
from tests.simulation.life import AGES_KNOWN_S, Life
from tests.simulation.oracle import Oracle
from tests.simulation.process import Process, message, store_config
from tests.simulation.salvaging import kill_salvages
from tests.simulation.scheduler import START_MS, Scheduler, SimulationError, repeatable
from tests.simulation.themes import Theme, draw_themes
from tests.simulation.world import YEAR_MS, make_readable

_TRACED_MODULES: Final[tuple[ModuleType, ...]] = (
    doorbell, flush_service, reput, checkpoint_service, message_store, commit_log, file_preparer,
    start, ownership, housekeeping, consume_queue_store, mapped_file_queue,
)  # fmt: skip
TRACED_FILES: Final = frozenset(inspect.getfile(module) for module in _TRACED_MODULES)
"""Where, in every fourth seed, threads may be switched between any two lines."""
_HOUR_MS: Final = 3_600_000
_HOUR_S: Final = 3_600.0


@final
@dataclass
class Outcome:
    """What a seed did: the same each time."""

    seed: int
    themes: list[str] = field(default_factory=list)
    lives: int = 0
    points: int = 0
    digest: int = 0
    messages: int = 0
    ends: list[str] = field(default_factory=list)
    """Of each life: closed, died, failed, killed at its start; and power cuts."""


def simulate(seed: int, themes: frozenset[Theme] | None = None) -> Outcome:
    """Run a seed, with themes that it draws or with these.

    Raises:
        SimulationError: A promise was broken, with the seed in its text.
    """
    simulation = Simulation(seed, themes)
    # A file to which nobody refers is closed: at the same point each time only without a collector.
    gc.disable()
    try:
        simulation.run()
    except Exception as error:
        trail = "\n  ".join(simulation.trail())
        outcome = simulation.outcome
        raise SimulationError(
            f"seed {seed}, life {outcome.lives} ({simulation.config.flush.mode}, "
            f"{', '.join(outcome.themes) or 'no theme'}, {outcome.ends}): {error!r}\n  {trail}"
        ) from error
    finally:
        gc.enable()
    return simulation.outcome


@final
class Simulation:
    """The lives of one store."""

    def __init__(self, seed: int, themes: frozenset[Theme] | None = None) -> None:
        self.seed = seed
        self.rng = rng = repeatable(f"simulation {seed}")
        mode = rng.choice((FlushMode.SYNC_FLUSH, FlushMode.ASYNC_FLUSH))
        drawn = draw_themes(rng)
        self.themes = drawn if themes is None else themes
        retention = self._retention()
        self.config = store_config(
            mode,
            log_file_bytes=rng.choice((1 << 13, 1 << 14, 1 << 15)),
            flush=FlushPolicy(mode, interval_ms=rng.choice((10, 100, 500)), pending_bytes_max=8192),
            checkpoint_interval_ms=rng.choice((10, 50, 300, 1000)),
            retention=retention,
        )
        self.is_traced = seed % 4 == 3
        self.outcome = Outcome(seed, sorted(theme.name for theme in self.themes))
        reserved_ms = None if retention is None else retention.reserved_hours * _HOUR_MS
        self.oracle = Oracle(is_sync=mode is FlushMode.SYNC_FLUSH, reserved_ms=reserved_ms)
        self.disk = Disk(rng.choice((512, 4096)))
        self.start_ms = START_MS
        self.clock_error_ms = 0
        self.body_number = 0
        self._power_cut = False
        # A topic that is made again begins beyond 0. Once retention has passed its deletion, no
        # note tells a start why, and it derives all queues anew to be sure.
        self._may_lack_units = Theme.DELETED_TOPICS in self.themes
        self._has_unread = False
        self._scheduler: Scheduler | None = None

    def _retention(self) -> RetentionPolicy | None:
        """Return a policy by which age decides alone, at any hour."""
        if not {Theme.RETENTION, Theme.CLOCK_YEARS} & self.themes:
            return None
        # Whose clock is wrong must keep what is not old; otherwise all may go at once.
        hours = 1 if Theme.CLOCK_YEARS in self.themes else 0
        never = NEVER_PERCENT
        return RetentionPolicy(hours, frozenset(range(24)), never, never, never)

    def trail(self) -> list[str]:
        """Return the last points."""
        return list(self._scheduler.trail)[-25:] if self._scheduler else []

    def run(self) -> None:
        """Let the store live, die and recover; at last close it and look at it closely."""
        for _ in range(self.rng.randint(2, 4)):
            sync_s = self.rng.choice(((0.0, 0.001), (0.0, 0.05), (0.2, 1.0)))
            self._live(Faults(sync_s=sync_s, operation_s=self.rng.choice((0.0, 0.0, 0.001))))
            if Theme.KILLED_STARTS in self.themes:
                self._kill_starts()
        self._last_life()

    def _live(self, faults: Faults) -> None:
        process = self._process(faults)
        life = Life(self, process)
        horizon = self.rng.choice((100, 500, 2000, 6000)) * (6 if self.is_traced else 1)
        if self.rng.random() < 0.8:
            process.scheduler.dies_at = self.rng.randrange(1, horizon)
        end = "closed" if process.run(life.run) else "died"
        if life.failed:
            end = "failed"
            # Who had no readable disk gets one: what the store refused must all be there still.
            make_readable(process)
        self._end(process, end)

    def _kill_starts(self) -> None:
        """Perhaps remove queues and index, or what says how far they are; then kill starts."""
        if self.rng.random() < 0.7:
            process = self._process(Faults())
            names = self.rng.choice((["consumequeue"], ["index"], ["consumequeue", "index"],
                                     ["checkpoint"]))  # fmt: skip
            process.run(partial(process.remove, names))
            self._may_lack_units |= process.may_lack_units
        for _ in range(self.rng.randint(1, 4)):
            process = self._process(Faults())
            if self.rng.random() < 0.5:
                where = self.rng.choice(("consumequeue/", "consumequeue/", "index/", "commitbus"))
                process.scheduler.dies_with = (where, self.rng.randint(1, 12))
            else:
                points = self.rng.choice((30, 100, 300)) * (6 if self.is_traced else 1)
                process.scheduler.dies_at = self.rng.randrange(1, points)
            process.run(partial(self._start_and_die, process))
            self._end(process, "killed at its start")
            process = self._process(Faults())
            process.run(partial(process.check_what_is_sound, self.config, self.oracle))

    def _start_and_die(self, process: Process) -> None:
        try:
            store = process.open(self.config)
        except (ReadFailedError, StoreDamagedError):
            if not process.files.read_failures:
                raise
            make_readable(process)
        else:
            self.check_recovered(process, store)
        process.scheduler.die()

    def _process(self, faults: Faults, *, may_be_traced: bool = True) -> Process:
        is_traced = self.is_traced and may_be_traced
        self.outcome.lives += 1
        scheduler = Scheduler(
            f"{self.seed} life {self.outcome.lives}",
            switch_probability=self.rng.choice((0.02, 0.1, 0.3)),
            traced_files=TRACED_FILES if is_traced else frozenset(),
        )
        self._scheduler = scheduler
        process = Process(self.disk, scheduler, faults, self.start_ms)
        process.clock.first_error_ms = self.clock_error_ms
        process.may_lack_units = self._may_lack_units
        process.may_lack_entries = self._has_unread
        return process

    def _end(self, process: Process, end: str) -> None:
        """Note the end of a process, and let time pass, or the power fail, before the next one."""
        outcome, scheduler = self.outcome, process.scheduler
        outcome.points += scheduler.points
        self._has_unread |= process.files.read_failures > 0
        outcome.digest = outcome.digest * 31 + scheduler.digest & 0xFFFF_FFFF
        outcome.messages = sum(map(len, self.oracle.queues.values()))
        pause_ms = self.rng.choice((5, 500, 60_000))
        if self.config.retention is not None and self.rng.random() < 0.2:
            pause_ms = self.config.retention.reserved_hours * _HOUR_MS * 3 // 2
        self.start_ms = process.clock.true_ms() + pause_ms
        # A clock that is wrong by seconds may stay so; by a year only in the seeds about that.
        error_ms = process.clock.now_ms() - process.clock.true_ms()
        stays = abs(error_ms) < YEAR_MS // 2 or self.rng.random() < 0.5
        self.clock_error_ms = error_ms if stays else 0
        # A machine may lose power after a process was closed or killed, too.
        if self.rng.random() < 0.6:
            self._power_cut = True
            self.disk = self.disk.state().sample(self.rng)
            end += ", power cut"
        outcome.ends.append(end)

    def check_recovered(self, process: Process, store: MessageStore) -> None:
        """Hold a store that was just opened against the oracle."""
        with process.everything_readable():
            self.oracle.recovered(process.look_at(store, self.oracle), power_cut=self._power_cut)
        self._power_cut = False

    def _last_life(self) -> None:
        """Recover twice, close, check, and derive queues and index anew."""
        process = self._process(Faults())
        make_readable(process)

        process.run(partial(self._start_and_die, process))
        process = self._process(Faults())

        def close() -> None:
            store = process.open(self.config)
            self.check_recovered(process, store)
            store.close()
            process.check(self.config)

        assert process.run(close)
        self.outcome.digest ^= process.scheduler.digest
        if self.config.retention is not None:
            self._expire_everything(self.config.retention)
        if Theme.SALVAGE in self.themes:
            kill_salvages(self.disk, self.config, self.rng)
        # Where retention has deleted files, queues and index keep more than the log tells; where
        # the log could not be read, the index has less.
        is_whole = self.config.retention is None and not self._has_unread
        rebuild(self.disk, self.config, compares_bytes=is_whole)

    def _expire_everything(self, policy: RetentionPolicy) -> None:
        """Let all messages expire, by a clock that is right: no file but an empty one stays.

        Whatever the clock once said. The queues go on where they were, also after kills.
        """
        self.clock_error_ms = 0
        # It takes an hour: not line by line.
        process = self._process(Faults(), may_be_traced=False)

        def expire() -> None:
            store = process.open(self.config)
            self.check_recovered(process, store)
            store.seal_segment()
            process.scheduler.sleep(AGES_KNOWN_S + policy.reserved_hours * _HOUR_S)
            store.keep_house()
            if store.min_physical_offset != store.end_offset:
                raise SimulationError(
                    f"all has expired, but the log is kept from {store.min_physical_offset} "
                    f"to {store.end_offset}"
                )
            process.scheduler.die()

        process.run(expire)
        for _ in range(2):
            self._end(process, "emptied")
            if Theme.KILLED_STARTS in self.themes and self.rng.random() < 0.5:
                process = self._process(Faults())
                process.run(partial(process.remove, ["consumequeue"]))
                self._may_lack_units = True
            process = self._process(Faults())
            process.run(partial(self._start_and_die, process))
        process = self._process(Faults())

        def go_on() -> None:
            store = process.open(self.config)
            self.check_recovered(process, store)
            for key in sorted(self.oracle.queues):
                self.body_number += 1
                body = b"%06d" % self.body_number
                sent = self.oracle.sending(key, [body], now_ms=process.clock.true_ms())
                self.oracle.appended(sent, [store.put(message(key, body, f"k{body.decode()}"))])
            store.close()
            process.check(self.config)

        process.run(go_on)
