"""The whole table under random changes, kills, saves and cuts of the log, beside a dict.

The model is the oracle: what was answered is in it, and after every reopening the table must
say exactly what it says.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from commitbus.broker.progress.journal import JOURNAL_BYTES_MIN
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.queue_progress import Lease, QueueProgress
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.file_system import RealFileSystem
from tests.running_copies import copy_running

Key = tuple[str, str, int]
KEYS = st.sampled_from([("g", "t", 0), ("g", "t", 1), ("h", "t", 0), ("g", "u", 0)])


@dataclass
class Entry:
    """What the model knows of a message in flight."""

    pop_time_ms: int
    until_ms: int
    attempt: int = 1
    suspended: bool = False
    client_id: str = "c"
    auto_renew: bool = False


@dataclass
class Model:
    """One group in one queue."""

    next_offset: int
    in_flight: dict[int, Entry]
    acknowledged: set[int]


class ProgressTableMachine(RuleBasedStateMachine):
    """Drives a table and its model; `kill` is a copy of the files that is opened in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.generation = 0
        self.now = 0
        self.models: dict[Key, Model] = {}
        self.table = self._open()

    def _store(self) -> Path:
        return Path(self.directory.name) / str(self.generation)

    def _open(self) -> ProgressTable:
        files = RealFileSystem()
        table = ProgressTable(
            self._store(),
            SqliteRows(self._store(), files),
            clock=SystemClock(),
            file_system=files,
            save_interval_ms=3_600_000,
            journal_bytes=JOURNAL_BYTES_MIN,
        )
        table.open()
        return table

    def _progress(self, key: Key) -> QueueProgress:
        model = self.models.setdefault(key, Model(0, {}, set()))
        return self.table.create(*key, model.next_offset)

    def teardown(self) -> None:
        self.table.close()
        self.directory.cleanup()

    @rule(
        key=KEYS,
        gaps=st.lists(st.integers(0, 1), max_size=5),
        duration=st.integers(0, 9),
        renew=st.booleans(),
    )
    def deliver(self, key: Key, gaps: list[int], *, duration: int, renew: bool) -> None:
        progress, model = self._progress(key), self.models[key]
        offsets, at = [], model.next_offset
        for gap in gaps:
            model.acknowledged |= set(range(at, at + gap))
            offsets.append(at + gap)
            at += gap + 1
        self.table.deliver(
            progress,
            offsets,
            Lease(self.now, self.now + duration, "c", auto_renew=renew),
            next_offset=at,
        )
        model.next_offset = at
        model.in_flight |= {
            o: Entry(self.now, self.now + duration, auto_renew=renew) for o in offsets
        }

    @rule(key=KEYS, picks=st.sets(st.integers(0, 60), min_size=1), duration=st.integers(0, 9))
    def extend(self, key: Key, picks: set[int], duration: int) -> None:
        progress, model = self._progress(key), self.models[key]
        renewed = [o for o, e in model.in_flight.items() if e.auto_renew and o in picks]
        for client_id in ("c", "another"):
            offsets = sorted(o for o in renewed if model.in_flight[o].client_id == client_id)
            if offsets:
                self.table.extend(progress, offsets, self.now + duration)
                for offset in offsets:
                    model.in_flight[offset].until_ms = self.now + duration

    @rule(key=KEYS, gaps=st.lists(st.integers(0, 1), max_size=5))
    def hold(self, key: Key, gaps: list[int]) -> None:
        progress, model = self._progress(key), self.models[key]
        offsets, at = [], model.next_offset
        for gap in gaps:
            model.acknowledged |= set(range(at, at + gap))
            offsets.append(at + gap)
            at += gap + 1
        self.table.hold(progress, offsets, next_offset=at)
        model.next_offset = at
        model.in_flight |= {o: Entry(0, 0, attempt=0, client_id="") for o in offsets}

    @rule(key=KEYS, offsets=st.lists(st.integers(0, 60), max_size=8))
    def acknowledge(self, key: Key, offsets: list[int]) -> None:
        progress, model = self._progress(key), self.models[key]
        done = model.in_flight.keys() & offsets
        assert self.table.acknowledge(progress, *offsets) == len(done)
        for offset in done:
            del model.in_flight[offset]
        model.acknowledged |= done

    @rule(key=KEYS, pick=st.integers(0, 60), duration=st.integers(0, 9), suspend=st.booleans())
    def change(self, key: Key, pick: int, *, duration: int, suspend: bool) -> None:
        progress, model = self._progress(key), self.models[key]
        if not model.in_flight:
            return
        offset = sorted(model.in_flight)[pick % len(model.in_flight)]
        until = self.now + duration
        self.table.change_invisible(
            progress, offset, pop_time_ms=self.now, invisible_until_ms=until, suspend=suspend
        )
        entry = model.in_flight[offset]
        entry.auto_renew = entry.auto_renew and entry.pop_time_ms == self.now
        entry.pop_time_ms, entry.until_ms, entry.suspended = self.now, until, suspend

    @rule(key=KEYS, passed=st.integers(0, 9), duration=st.integers(0, 9), counts=st.booleans())
    def redeliver_what_expired(self, key: Key, passed: int, duration: int, *, counts: bool) -> None:
        self.now += passed
        progress, model = self._progress(key), self.models[key]
        for found in progress.expired(self.now, 3):
            entry = model.in_flight[found.offset]
            assert entry.until_ms <= self.now
            entry.attempt += counts and not entry.suspended
            entry.suspended = False
            entry.pop_time_ms, entry.until_ms = self.now, self.now + duration
            entry.client_id, entry.auto_renew = "another", True
            attempt = self.table.redeliver(
                progress,
                found.offset,
                Lease(self.now, self.now + duration, "another", auto_renew=True),
                counts=counts,
            )
            assert attempt == entry.attempt

    @rule(key=KEYS, offset=st.integers(0, 20))
    def reset(self, key: Key, offset: int) -> None:
        self.table.reset(*key, offset)
        self.models[key] = Model(offset, {}, set())

    @rule(group=st.sampled_from(["g", "h"]))
    def delete_group(self, group: str) -> None:
        self.table.delete_group(group)
        self.models = {key: m for key, m in self.models.items() if key[0] != group}

    @rule(topic=st.sampled_from(["t", "u"]))
    def delete_topic(self, topic: str) -> None:
        self.table.delete_topic(topic)
        self.models = {key: m for key, m in self.models.items() if key[1] != topic}

    @rule(end=st.integers(0, 40))
    def cut_the_log(self, end: int) -> None:
        self.table.clamp(lambda _topic, queue_id: end + queue_id)
        for (_, _, queue_id), model in self.models.items():
            model.next_offset = min(model.next_offset, end + queue_id)
            kept = {o: e for o, e in model.in_flight.items() if o < end + queue_id}
            model.in_flight = kept
            model.acknowledged = {o for o in model.acknowledged if o < end + queue_id}

    @precondition(lambda self: any(model.in_flight for model in self.models.values()))
    @rule(count=st.integers(500, 1500))
    def run_around_the_ring(self, count: int) -> None:
        key, model = next((k, m) for k, m in self.models.items() if m.in_flight)
        offset = min(model.in_flight)
        attempt = model.in_flight[offset].attempt
        for n in range(count):
            self.change(key, 0, duration=n % 10, suspend=False)
        assert model.in_flight[offset].attempt == attempt

    @rule()
    def save(self) -> None:
        self.table.save()

    @rule()
    def kill(self) -> None:
        killed, old = self._store(), self.table
        self.generation += 1
        copy_running(killed, self._store())
        old.close()
        shutil.rmtree(killed)
        self.table = self._open()

    @rule()
    def stop_and_start(self) -> None:
        self.table.close()
        self.table = self._open()

    @invariant()
    def holds_what_is_renewed(self) -> None:
        """Each message with automatic renewal is in one holding, in its second."""
        holdings, found = self.table.holdings, list[tuple[int, int]]()
        for second, due in holdings._by_second.items():
            for holding in due:
                assert holding in holding.owner
                entries = list(holding.entries())
                assert all(entry.invisible_until_ms // 1000 == second for entry in entries)
                found += [(holding.progress.key_id, entry.offset) for entry in entries]
        renewed = [
            (progress.key_id, entry.offset)
            for _, progress in self.table.items()
            for entry in progress.in_flight.values()
            if entry.auto_renew
        ]
        assert sorted(held for held in found if self._is_kept(held[0])) == sorted(renewed)

    def _is_kept(self, key_id: int) -> bool:
        return any(progress.key_id == key_id for _, progress in self.table.items())

    @invariant()
    def equals_the_model(self) -> None:
        assert {key for key, _ in self.table.items()} == set(self.models)
        for key, model in self.models.items():
            progress = self.table.get(*key)
            assert progress is not None
            assert progress.next_offset == model.next_offset
            assert progress.committed_offset == min(model.in_flight, default=model.next_offset)
            assert not model.acknowledged & set(progress.in_flight)
            assert {
                o: Entry(
                    e.pop_time_ms,
                    e.invisible_until_ms,
                    e.delivery_attempt,
                    e.suspended,
                    e.client_id,
                    e.auto_renew,
                )
                for o, e in progress.in_flight.items()
            } == model.in_flight
            waiting = progress.expired(10**15, 10**6)
            assert {entry.offset for entry in waiting} == set(model.in_flight), (
                "what was not acknowledged can come back, and nothing else"
            )


TestProgressTableMachine = ProgressTableMachine.TestCase
TestProgressTableMachine.settings = settings(
    max_examples=15, stateful_step_count=30, deadline=None, derandomize=True
)
