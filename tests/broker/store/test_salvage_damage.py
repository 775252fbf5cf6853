"""Randomly damaged stores: nothing crashes, and no intact record is lost.

A record is intact if and only if its bytes are untouched. 50 stores are tried; set
COMMITBUS_DAMAGED_STORES to 1000, or any other number, for a longer run.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, final

import pytest

from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.salvage import salvage_store
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.record_format import encode_properties
from commitbus.commitlog.types import Host, OutgoingMessage
from commitbus.consumequeue.unit_format import UNIT_BYTES

FILE: Final = 1 << 16
PAGE: Final = 4096
OFFSETS: Final = (slice(20, 28), slice(28, 36))
"""Where a record has its queue offset and its physical offset, which salvage may change."""


@final
@dataclass(frozen=True, slots=True)
class Stored:
    """A record of the undamaged store."""

    queue: tuple[str, int]
    physical_offset: int
    data: bytes

    @property
    def file(self) -> str:
        """The name of its log file."""
        return f"{self.physical_offset - self.physical_offset % FILE:020}"


def without_offsets(data: bytes) -> bytes:
    """What salvage must not change."""
    kept = bytearray(data)
    for place in OFFSETS:
        kept[place] = bytes(8)
    return bytes(kept)


def records_of(store: Path) -> list[Stored]:
    """Every record, as its consume queue names it, in log order."""
    found: list[Stored] = []
    with MessageStore.open_read_only(store) as reader:
        for queue in reader.queues():
            begin = reader.min_offset(*queue)
            for unit in reader.fetch(*queue, begin, 1 << 20).units:
                data = reader.read_bytes(unit.physical_offset, unit.size_bytes)
                found.append(Stored(queue, unit.physical_offset, data))
    return sorted(found, key=lambda record: record.physical_offset)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Stored], StoreConfig]:
    """A closed store of four log files, its records, and the sizes of its files."""
    directory = tmp_path_factory.mktemp("sound") / "store"
    config = StoreConfig(
        log_file_bytes=FILE,
        queue_file_bytes=100 * UNIT_BYTES,
        index_slots=100,
        index_entries=400,
        max_body_bytes=1 << 15,
    )
    source = random.Random(4)  # noqa: S311 - repeatable, not secret
    with MessageStore.open(directory, config) as store:
        number = 0
        while store.end_offset < 3.5 * FILE:
            number += 1
            body = source.randbytes(source.choice((0, 1, 200, 1000, 3000, 9000)))
            if number % 40 == 0:
                body = bytes(6000)
            topic = source.choice(("A", "B", "T" * 200))
            store.put(build(topic, source.randrange(2), body, number))
        store.durable_watermark.wait(store.end_offset)
        store.keep_house()
    return directory, records_of(directory), config


def build(topic: str, queue_id: int, body: bytes, number: int) -> OutgoingMessage:
    """A message with a key."""
    properties = encode_properties({"UNIQ_KEY": f"u{number}", "KEYS": f"k{number} all"})
    return OutgoingMessage(topic, queue_id, body, properties, 1, Host.parse("10.0.0.1", 9))


@pytest.fixture(autouse=True)
def without_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody cuts the power here, and syncs are what would take most of the time."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)


def flip_bits(path: Path, source: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(source.choice((1, 1, 3, 20))):
        if data:
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)


def zero_page(path: Path, source: random.Random) -> None:
    data = bytearray(path.read_bytes())
    start = source.randrange(0, max(len(data), 1), PAGE)
    data[start : start + PAGE] = bytes(len(data[start : start + PAGE]))
    path.write_bytes(data)


def scribble(path: Path, source: random.Random) -> None:
    data = bytearray(path.read_bytes())
    start = source.randrange(max(len(data), 1))
    rubbish = source.randbytes(min(source.randrange(1, 5000), len(data) - start))
    data[start : start + len(rubbish)] = rubbish
    path.write_bytes(data)


def move_page(path: Path, source: random.Random) -> None:
    data = bytearray(path.read_bytes())
    pages = max(len(data) // PAGE, 1)
    here, there = source.randrange(pages) * PAGE, source.randrange(pages) * PAGE
    data[here : here + PAGE] = data[there : there + PAGE]
    path.write_bytes(data)


def cut_short(path: Path, source: random.Random) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(source.choice((0, source.randrange(size + 1), size // PAGE * PAGE // 2)))


def remove(path: Path, _: random.Random) -> None:
    path.unlink()


Damage: TypeAlias = Callable[[Path, random.Random], None]
DAMAGES: Final[tuple[Damage, ...]] = (
    flip_bits,
    flip_bits,
    zero_page,
    scribble,
    move_page,
    cut_short,
    remove,
)


def damage(store: Path, source: random.Random) -> None:
    """Break up to four things, mostly of the log."""
    for _ in range(source.randrange(1, 5)):
        files = [path for path in sorted(store.rglob("*")) if path.is_file()]
        log_files = [path for path in files if path.parent.name == "commitlog"]
        chosen = log_files if log_files and source.random() < 0.7 else files
        if chosen:
            source.choice(DAMAGES)(source.choice(chosen), source)


def untouched(store: Path, records: list[Stored]) -> list[Stored]:
    """The records whose bytes are as they were."""
    logs = {path.name: path.read_bytes() for path in (store / "commitlog").iterdir()}
    kept = []
    for record in records:
        position = record.physical_offset % FILE
        data = logs.get(record.file, b"")[position : position + len(record.data)]
        if data == record.data:
            kept.append(record)
    return kept


def assert_all_there(expected: list[Stored], found: list[Stored]) -> None:
    """Each intact record is found, in the same order within its queue."""
    queues = {record.queue for record in expected}
    for queue in queues:
        wanted = [without_offsets(r.data) for r in expected if r.queue == queue]
        have = iter([without_offsets(r.data) for r in found if r.queue == queue])
        assert all(data in have for data in wanted), queue


@pytest.mark.parametrize("seed", range(int(os.environ.get("COMMITBUS_DAMAGED_STORES", "50"))))
def test_no_intact_record_is_lost(
    seed: int, sound: tuple[Path, list[Stored], StoreConfig], tmp_path: Path
) -> None:
    """Whatever else is broken; the result is a sound store."""
    original, records, config = sound
    store, out = tmp_path / "damaged", tmp_path / "out"
    shutil.copytree(original, store)
    damage(store, random.Random(seed))  # noqa: S311 - repeatable, not secret
    expected = untouched(store, records)
    check_store(store, config=config)
    salvage = salvage_store(
        store, out, config=config, clock=SystemClock(), file_system=RealFileSystem()
    )
    assert salvage.report.records >= len(expected)
    if salvage.report.records == 0:
        assert not out.exists()
        return
    report = check_store(out, config=config)
    assert report.problems == []
    assert report.was_closed_cleanly
    assert report.messages == salvage.report.records
    assert_all_there(expected, records_of(out))
    shutil.rmtree(tmp_path)
