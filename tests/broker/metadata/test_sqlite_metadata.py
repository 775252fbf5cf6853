"""Topics and groups: durable, imported from RocketMQ, mirrored back to it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from commitbus.broker.metadata import rocketmq_config
from commitbus.broker.metadata.documents import format_document, parse_document, table
from commitbus.broker.metadata.errors import StateFileError, StateWriteError
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.sqlite_metadata import SqliteMetadata
from commitbus.broker.metadata.topics import MessageType, TopicConfig
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.file_system import RealFileSystem

Open = Callable[[Path], SqliteMetadata]
FIFO = TopicConfig("orders", 4, 4, attributes={"message.type": "FIFO"})
SLOW = GroupConfig("slow", retry_max_times=3, consume_message_orderly=True)


@pytest.fixture
def open_store(clock: Clock) -> Iterator[Open]:
    stores: list[SqliteMetadata] = []

    def open_(store: Path) -> SqliteMetadata:
        stores.append(SqliteMetadata(store, clock=clock, file_system=RealFileSystem()))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


async def _delete_topic(metadata: SqliteMetadata, name: str) -> None:
    async with metadata.topic_deleted(name):
        assert metadata.topic(name) is None


def test_what_was_put_is_visible_at_once_and_after_a_kill(
    open_store: Open, tmp_path: Path, killed: Callable[[Path, Path], Path]
) -> None:
    metadata = open_store(tmp_path / "a")

    async def main() -> None:
        await metadata.put_topic(FIFO)
        await metadata.put_group(SLOW)
        await metadata.put_topic(TopicConfig("gone"))
        await _delete_topic(metadata, "gone")

    trio.run(main)
    assert metadata.topic("orders") == FIFO
    after_kill = open_store(killed(tmp_path / "a", tmp_path / "b"))
    for opened in (metadata, after_kill):
        assert opened.topics() == [FIFO]
        assert opened.groups() == [SLOW]


def test_a_write_that_fails_changes_nothing(open_store: Open, tmp_path: Path) -> None:
    metadata = open_store(tmp_path)
    metadata._thread.run_sync(lambda database: database.execute("PRAGMA query_only = 1"))
    with pytest.raises(StateWriteError):
        trio.run(metadata.put_topic, FIFO)
    assert metadata.topics() == []


@pytest.mark.shared
def test_the_first_opening_imports_what_rocketmq_wrote(
    open_store: Open, rocketmq_store: Path
) -> None:
    metadata = open_store(rocketmq_store)
    assert len(metadata.topics()) == 20
    tx = metadata.topic("FixTx")
    assert tx is not None
    assert tx.message_type is MessageType.TRANSACTION
    delays = metadata.topic("SCHEDULE_TOPIC_XXXX")
    assert delays is not None
    assert delays.read_queue_nums == 18
    assert metadata.group("CID_RMQ_SYS_TRANS") == GroupConfig("CID_RMQ_SYS_TRANS")


@pytest.mark.shared
def test_the_mirror_is_rocketmqs_file_and_the_change(
    open_store: Open, rocketmq_store: Path, clock: Clock
) -> None:
    file = rocketmq_store / "config" / "topics.json"
    before = parse_document(file.read_bytes())
    metadata = open_store(rocketmq_store)
    trio.run(metadata.put_topic, FIFO)
    metadata.close()
    after = parse_document(file.read_bytes())
    assert format_document(after) == file.read_bytes()
    assert after["writtenBy"] == "commitbus"
    assert table(after, "dataVersion")["timestamp"] == clock.now_ms()
    assert table(after, "dataVersion")["counter"] == 7, "5, the import, the change"
    topics = table(after, "topicConfigTable")
    assert table(topics, "orders") == {
        "attributes": {"message.type": "FIFO"},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    del topics["orders"]
    assert topics == before["topicConfigTable"]


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text(text)


def test_what_only_rocketmq_knows_is_kept(open_store: Open, tmp_path: Path) -> None:
    file = tmp_path / "config" / "topics.json"
    _write(file, '{"new":[{0:1}],"topicConfigTable":{"orders":{"perm":4,"future":{1:2}}}}')
    metadata = open_store(tmp_path)
    trio.run(metadata.put_topic, FIFO)
    metadata.close()
    open_store(tmp_path).close()
    document = parse_document(file.read_bytes())
    assert document["new"] == [{0: 1}]
    orders = table(table(document, "topicConfigTable"), "orders")
    assert orders["future"] == {1: 2}
    assert orders["perm"] == 6


def test_what_rocketmq_changed_after_us_counts(open_store: Open, tmp_path: Path) -> None:
    metadata = open_store(tmp_path)
    trio.run(metadata.put_topic, FIFO)
    metadata.close()
    # RocketMQ knows nothing of our mark and writes the file without it.
    _write(tmp_path / "config" / "topics.json", '{"topicConfigTable":{"theirs":{"perm":2}}}')
    metadata = open_store(tmp_path)
    assert metadata.topics() == [TopicConfig("theirs", perm=2)]
    trio.run(metadata.put_topic, FIFO)
    metadata.close()
    assert [topic.name for topic in open_store(tmp_path).topics()] == ["orders", "theirs"]


def test_a_mirror_that_a_kill_left_behind_does_not_undo_a_change(
    open_store: Open, tmp_path: Path, killed: Callable[[Path, Path], Path]
) -> None:
    metadata = open_store(tmp_path / "a")
    trio.run(metadata.put_topic, FIFO)
    metadata.close()
    metadata = open_store(tmp_path / "a")
    trio.run(_delete_topic, metadata, "orders")
    again = open_store(killed(tmp_path / "a", tmp_path / "b"))
    assert again.topics() == []
    again.close()
    document = parse_document((tmp_path / "b" / "config" / "topics.json").read_bytes())
    assert document["topicConfigTable"] == {}


def test_the_backup_counts_while_rocketmq_replaces_the_file(
    open_store: Open, tmp_path: Path
) -> None:
    _write(tmp_path / "config" / "topics.json", "")
    _write(tmp_path / "config" / "topics.json.bak", '{"topicConfigTable":{"orders":{}}}')
    assert open_store(tmp_path).topics() == [TopicConfig("orders")]


def test_an_old_backup_does_not_replace_what_we_have(open_store: Open, tmp_path: Path) -> None:
    metadata = open_store(tmp_path)
    trio.run(metadata.put_topic, FIFO)
    metadata.close()
    (tmp_path / "config" / "topics.json").unlink()
    _write(tmp_path / "config" / "topics.json.bak", '{"topicConfigTable":{"old":{}}}')
    metadata = open_store(tmp_path)
    assert metadata.topics() == [FIFO]
    metadata.close()
    assert b'"orders"' in (tmp_path / "config" / "topics.json").read_bytes()


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        '{"topicConfigTable":[]}',
        '{"topicConfigTable":{"a":{"perm":"x"}}}',
        '{"topicConfigTable":{"..":{}}}',
        '{"topicConfigTable":{"a/b":{}}}',
        '{"topicConfigTable":{7:{}},"dataVersion":{"counter":"x"}}',
        '{"topicConfigTable":{"a":{"new":1e999}}}',
        '{"topicConfigTable":{"a":{"new":"\\ud800"}}}',
    ],
)
def test_a_damaged_file_of_rocketmq_stops_the_opening(
    open_store: Open, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "config" / "topics.json"
    _write(file, text)
    with pytest.raises(StateFileError) as caught:
        open_store(tmp_path)
    assert caught.value.path == file
    assert file.read_text() == text


def test_a_file_where_a_directory_should_be_stops_the_opening(
    open_store: Open, tmp_path: Path
) -> None:
    (tmp_path / "commitbus").write_bytes(b"")
    with pytest.raises(StateFileError):
        open_store(tmp_path)
    (tmp_path / "other" / "config" / "topics.json").mkdir(parents=True)
    with pytest.raises(StateFileError):
        open_store(tmp_path / "other")


def test_a_damaged_row_stops_the_opening(open_store: Open, tmp_path: Path) -> None:
    metadata = open_store(tmp_path)
    trio.run(metadata.put_topic, FIFO)
    metadata._thread.run_sync(lambda database: database.execute("UPDATE topics SET config = 'x'"))
    metadata.close()
    with pytest.raises(StateFileError, match="damaged"):
        open_store(tmp_path)


def _refuse_to_replace(_source: Path, _target: Path) -> Path:
    raise OSError(errno.EROFS, "read-only")


def test_an_import_that_cannot_be_marked_does_not_open(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "config" / "topics.json", '{"topicConfigTable":{"orders":{}}}')
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", _refuse_to_replace)
        with pytest.raises(StateWriteError, match="read-only"):
            open_store(tmp_path)
    assert open_store(tmp_path).topics() == [TopicConfig("orders")]


def test_a_mirror_that_cannot_be_written_costs_nothing_but_a_warning(
    open_store: Open,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metadata = open_store(tmp_path)
    metadata._thread.run_sync(metadata._write_mirrors)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(Path, "replace", _refuse_to_replace)
        trio.run(metadata.put_topic, FIFO)
        metadata._thread.run_sync(metadata._write_mirrors)
        metadata._thread.run_sync(metadata._write_mirrors)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["mirror not written"], "once, not at each try"
    metadata.close()
    assert b'"orders"' in (tmp_path / "config" / "topics.json").read_bytes()


def test_a_mirror_that_could_not_be_read_back_is_left_out(
    open_store: Open,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is logged once, and the store opens again."""
    metadata = open_store(tmp_path)
    trio.run(metadata.put_topic, FIFO)
    metadata.close()
    small = (tmp_path / "config" / "topics.json").read_bytes()
    monkeypatch.setattr(rocketmq_config, "FILE_BYTES_MAX", len(small) + 10)
    metadata = open_store(tmp_path)
    with caplog.at_level(logging.WARNING):
        for n in range(3):
            trio.run(metadata.put_topic, TopicConfig(f"t{n}"))
            metadata._thread.run_sync(metadata._write_mirrors)
        metadata.close()
    assert [record.getMessage() for record in caplog.records] == ["mirror not written"]
    assert b'"t0"' not in (tmp_path / "config" / "topics.json").read_bytes()
    assert len(open_store(tmp_path).topics()) == 4


def test_nothing_is_left_beside_the_mirror(open_store: Open, tmp_path: Path) -> None:
    metadata = open_store(tmp_path)
    trio.run(metadata.put_topic, FIFO)
    metadata.close()
    names = {path.name for path in (tmp_path / "config").iterdir()}
    assert names == {"topics.json", "subscriptionGroup.json"}
    assert {path.name for path in (tmp_path / "commitbus").iterdir()} == {"metadata.db"}
