"""The process that writes to a store for `test_rocketmq_store.py`, stopped or killed by it.

Arguments: store directory, name. Prints a JSON line per acknowledged message, as the test expects
RocketMQ to see it, then one that says how the start went. Then it waits: at the end of its input
it creates a topic, a group and an offset, and stops cleanly.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import zlib
from pathlib import Path

import trio

from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.sqlite_metadata import SqliteMetadata
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.record_format import encode_properties
from commitbus.commitlog.types import AppendResult, Host, OutgoingMessage

CONFIG = StoreConfig(
    log_file_bytes=1 << 16,
    queue_file_bytes=2000,
    index_slots=100,
    index_entries=400,
    store_host=Host.parse("fd00::9", 10911),
)
HOSTS = (Host.parse("10.9.8.7", 65535), Host.parse("2001:db8::1", 1))
MESSAGES = 300
BORN_IPV6, STORE_IPV6 = 0x10, 0x20


def properties_of(name: str, number: int) -> dict[str, str]:
    """Return properties of all kinds: indexed or not, present or not, beyond ASCII."""
    properties = {"UNIQ_KEY": f"{name}-{number}"}
    if number % 3:
        properties["TAGS"] = f"tag{number % 4}"
    if number % 5 == 0:
        properties["KEYS"] = f"key{number % 7} {name}-{number}-key"
    if number % 4 == 0:
        properties["Größe"] = "中" * (1 + number % 9)  # RocketMQ reads no empty values
    return properties


def message_of(name: str, number: int) -> OutgoingMessage:
    """Return a message whose topic RocketMQ's runs write to as well, or a very long one."""
    topic = "Long" + "x" * 124 if number % 20 == 0 else f"Shared{number % 2}"
    body = random.Random(number).randbytes(number * 37 % 1500)  # noqa: S311 - repeatable, not secret
    return OutgoingMessage(
        topic=topic,
        queue_id=number % 4,
        body=body,
        properties=encode_properties(properties_of(name, number)),
        born_timestamp=1_700_000_000_000 + number,
        born_host=HOSTS[number % 2],
        flag=number,
        reconsume_times=number % 3,
    )


def say(name: str, number: int, message: OutgoingMessage, result: AppendResult) -> None:
    """Print an acknowledged message."""
    line = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": result.queue_offset,
        "physicalOffset": result.physical_offset,
        "size": result.size_bytes,
        "properties": properties_of(name, number),
        "flag": message.flag,
        "sysFlag": STORE_IPV6 | (BORN_IPV6 if message.born_host.is_ipv6 else 0),
        "bodyCrc": zlib.crc32(message.body) & 0x7FFFFFFF,
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "bornTimestamp": message.born_timestamp,
        "bornHost": f"{message.born_host.address.hex()}:{message.born_host.port}",
        "storeTimestamp": result.store_timestamp,
        "storeHost": f"{CONFIG.store_host.address.hex()}:{CONFIG.store_host.port}",
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": 0,
    }
    sys.stdout.write(json.dumps({"kind": "written", **line}) + "\n")


def write_metadata(directory: Path, name: str) -> None:
    """Create a topic, a group, and an offset of theirs."""
    clock, file_system = SystemClock(), RealFileSystem()
    metadata = SqliteMetadata(directory, clock=clock, file_system=file_system)
    attributes = {"message.type": "DELAY"}
    trio.run(metadata.put_topic, TopicConfig(f"Topic{name}", 2, 4, attributes=attributes))
    trio.run(metadata.put_group, GroupConfig(f"Group{name}", retry_max_times=3))
    metadata.close()
    progress = ProgressTable(
        directory, SqliteRows(directory, file_system), clock=clock, file_system=file_system
    )
    progress.open()
    progress.create(f"Group{name}", "Shared1", 3, 11)
    progress.close()


def main() -> None:
    """Write until told to stop, or killed."""
    directory, name = Path(sys.argv[1]), sys.argv[2]
    with MessageStore.open(directory, CONFIG) as store:
        messages = [message_of(name, number) for number in range(MESSAGES)]
        results = [store.put(message) for message in messages[:-20]]
        results += store.put_batch(messages[-20:])
        for number, message in enumerate(messages):
            say(name, number, message, results[number])
        sys.stdout.write(json.dumps({"kind": "opened", "how": store.recovery_summary}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
        write_metadata(directory, name)


if __name__ == "__main__":
    main()
