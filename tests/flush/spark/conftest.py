"""Stores made by hand, byte by byte, and RocketMQ's own."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.record_format import (
    BLANK_MAGIC_CODE,
    BLANK_RECORD_BYTES,
    decode_record,
    encode_properties,
    offset_message_id,
)
from commitbus.commitlog.types import Host, PhysicalOffset, Record
from commitbus.flush.watermark_file import WatermarkFile
from tests.archives import unpack
from tests.records import encode_record

IPV4 = Host.parse("10.1.2.3", 10911)
FILE_BYTES = 8192


@dataclass
class HandMadeStore:
    """A store directory, and what should be read from it."""

    path: Path
    file_bytes: int = FILE_BYTES
    records: list[Record] = field(default_factory=list)
    queue_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    end: int = 0

    @property
    def log(self) -> bytearray:
        """The whole log, its files joined."""
        files = sorted((self.path / "commitlog").iterdir())
        return bytearray().join(file.read_bytes() for file in files)

    def overwrite(self, offset: int, data: bytes) -> None:
        """Change bytes of the log."""
        base = offset // self.file_bytes * self.file_bytes
        with (self.path / "commitlog" / f"{base:020}").open("r+b") as file:
            file.seek(offset - base)
            file.write(data)

    def append(self, *, queued: bool = True, **message: Any) -> Record:
        """Append a message to the log and to its consume queue."""
        defaults: dict[str, Any] = {
            "topic": "Topic",
            "body": b"body",
            "properties": {},
            "queue_id": 0,
            "born_timestamp": 1_700_000_000_000,
            "born_host": IPV4,
            "store_timestamp": 1_700_000_000_000 + len(self.records),
            "store_host": IPV4,
        }
        message = defaults | message
        properties = message["properties"]
        if isinstance(properties, dict):
            message["properties"] = encode_properties(properties)
        queue = (message["topic"], message["queue_id"])
        message["queue_offset"] = self.queue_ends.get(queue, 0)
        record = encode_record(physical_offset=self.end, **message)
        room = -self.end % self.file_bytes or self.file_bytes
        if len(record) + BLANK_RECORD_BYTES > room:
            if self.end % self.file_bytes:
                self.overwrite(self.end, struct.pack(">II", room, BLANK_MAGIC_CODE))
                self.end += room
            record = encode_record(physical_offset=self.end, **message)
        if self.end % self.file_bytes == 0:
            (self.path / "commitlog" / f"{self.end:020}").write_bytes(bytes(self.file_bytes))
        self.overwrite(self.end, record)
        if queued:
            folder = self.path / "consumequeue" / message["topic"] / str(message["queue_id"])
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"{0:020}").open("ab") as file:
                file.write(struct.pack(">qiq", self.end, len(record), 0))
        decoded = decode_record(memoryview(record), PhysicalOffset(self.end))
        self.records.append(decoded)
        self.queue_ends[queue] = message["queue_offset"] + 1
        self.end += len(record)
        return decoded

    def set_watermark(self, watermark: int) -> None:
        """Say up to where the log is durable."""
        file = WatermarkFile(self.path, RealFileSystem())
        file.publish(PhysicalOffset(watermark))
        file.close()


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., HandMadeStore]:
    """Make an empty store, in a folder of its own."""
    count = 0

    def make(file_bytes: int = FILE_BYTES) -> HandMadeStore:
        nonlocal count
        count += 1
        path = tmp_path / f"store{count}"
        (path / "commitlog").mkdir(parents=True)
        return HandMadeStore(path, file_bytes)

    return make


@pytest.fixture
def small_store(make_store: Callable[..., HandMadeStore]) -> HandMadeStore:
    """Forty messages of three topics in several files, all durable."""
    store = make_store()
    for i in range(40):
        store.append(
            topic=("Orders", "Payments", "T" * 200)[i % 3],
            queue_id=i % 2,
            body=bytes([i]) * (i * 20),
            properties={"TAGS": f"tag{i % 4}", "KEYS": f"k{i} shared", "n": str(i)},
        )
    store.set_watermark(store.end)
    return store


@pytest.fixture(scope="session")
def fixture_stores(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directories that RocketMQ wrote, unpacked."""
    stores = {}
    for name, inner in (("broker", "store"), ("directA", ".")):
        target = tmp_path_factory.mktemp(name)
        unpack(shared_dir / "fixtures" / f"{name}-store.tar.gz", target)
        stores[name] = target / inner
    return stores


def time_of(timestamp: int) -> int | None:
    """A time in milliseconds, None outside the years that Spark knows."""
    return timestamp if -62_135_596_800_000 <= timestamp < 253_402_300_800_000 else None


def row_of(record: Record) -> dict[str, Any]:
    """What a message looks like as a row."""
    properties = dict(record.properties)
    keys = properties.get("KEYS")
    unique_key = properties.get("UNIQ_KEY")
    return {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "store_timestamp": time_of(record.store_timestamp),
        "born_timestamp": time_of(record.born_timestamp),
        "store_host": str(record.store_host),
        "born_host": str(record.born_host),
        "tags": properties.get("TAGS"),
        "keys": None if keys is None else [key for key in keys.split(" ") if key],
        "message_id": offset_message_id(record.store_host, record.physical_offset)
        if unique_key is None
        else unique_key,
        "properties": properties,
        "body": record.body,
        "reconsume_times": record.reconsume_times,
        "sys_flag": record.sys_flag,
    }


@pytest.fixture(scope="session")
def expected_rows() -> Callable[[Sequence[Record]], list[dict[str, Any]]]:
    """Turn records, decoded by the struct decoder, into rows."""
    return lambda records: [row_of(record) for record in records]


@pytest.fixture(scope="session")
def rows_of() -> Callable[..., list[dict[str, Any]]]:
    """Turn Arrow batches into rows, timestamps in milliseconds."""

    def rows(batches: Any) -> list[dict[str, Any]]:
        found = []
        for batch in batches:
            for row in batch.to_pylist():
                for name in ("store_timestamp", "born_timestamp"):
                    if row.get(name) is not None:
                        row[name] = round(row[name].timestamp() * 1000)
                row["properties"] = dict(row["properties"])
                found.append(row)
        return found

    return rows
