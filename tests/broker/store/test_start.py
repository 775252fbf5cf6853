"""What a start makes of a store that was closed, killed, or cut off from power."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore, StoreReader
from commitbus.commitlog.errors import StoreDamagedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import AppendResult, OutgoingMessage, QueueOffset
from commitbus.consumequeue.unit_format import UNIT_BYTES
from commitbus.flush.checkpoint import StoreCheckpoint, read_checkpoint
from commitbus.flush.flushed_offsets import FLUSHED_PATH
from commitbus.flush.policy import FlushMode
from commitbus.flush.watermark_file import WATERMARK_PATH, read_durable_watermark

PATIENCE_S = 20
FOREVER_MS = 1 << 62
FILES = RealFileSystem()

OpenStore = Callable[..., MessageStore]
MakeMessage = Callable[..., OutgoingMessage]
CopyOf = Callable[[Path], Path]


class Written:
    """Messages in a store that is still open, as a dict from queue and offset to the bytes."""

    def __init__(self, store: MessageStore, make_message: MakeMessage, count: int) -> None:
        self.results: list[AppendResult] = []
        self.bodies: dict[tuple[int, int], bytes] = {}
        for i in range(count):
            body = b"%d." % i * 40
            result = store.put(make_message("TopicA", i % 2, body, KEYS=f"k{i}", TAGS="t"))
            self.results.append(result)
            self.bodies[i % 2, result.queue_offset] = body
        assert store.durable_watermark.wait(self.results[-1].end_offset, PATIENCE_S)
        assert store.dispatched.wait(self.results[-1].end_offset, PATIENCE_S)

    def below(self, end: int) -> dict[tuple[int, int], bytes]:
        """The messages that lie wholly below a physical offset."""
        kept = sum(result.end_offset <= end for result in self.results)
        return dict(list(self.bodies.items())[:kept])


def contents(store: StoreReader, topic: str = "TopicA") -> dict[tuple[int, int], bytes]:
    """Everything that can be fetched from a topic."""
    found = {}
    for name, queue_id in store.queues():
        if name == topic:
            units = store.fetch(topic, queue_id, QueueOffset(0), 1 << 20).units
            for unit in units:
                found[queue_id, int(unit.queue_offset)] = store.read(unit.physical_offset).body
    return found


def close_and_check(store: MessageStore) -> None:
    """Close a store; nothing may be missing in it."""
    store.close()
    report = check_store(store.directory)
    assert report.problems == []
    assert report.to_be_recovered == report.torn_bytes == 0


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Change bytes in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize("mode", FlushMode)
def test_a_killed_store_is_complete(
    mode: FlushMode,
    open_store: OpenStore,
    make_message: MakeMessage,
    store_dir: Path,
    copy_of: CopyOf,
) -> None:
    """The page cache survives the process, so the files are copied while the store is open."""
    written = Written(open_store(mode), make_message, 500)
    copy = copy_of(store_dir)
    # A checkpoint may have come last: then nothing would be left to derive anew.
    (copy / FLUSHED_PATH).unlink(missing_ok=True)
    heard: list[tuple[str, int, int]] = []
    store = MessageStore.open(copy, on_progress=lambda *what: heard.append(what))
    assert store.recovery_summary.startswith("after an unclean stop: ")
    assert "torn" not in store.recovery_summary
    assert contents(store) == written.bodies
    assert store.durable_watermark.offset == written.results[-1].end_offset
    assert {what for what, _, _ in heard} == {"recovering the log", "consume queues"}
    following = store.put(make_message("TopicA", 0))
    assert following.queue_offset == 250
    assert following.physical_offset == written.results[-1].end_offset
    close_and_check(store)


def test_a_power_cut_loses_only_what_was_not_flushed(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path, copy_of: CopyOf
) -> None:
    """Of log, queues and index any pages may be old; what the watermark covers is all there."""
    store = open_store()
    early = Written(store, make_message, 200)
    watermark = (store_dir / WATERMARK_PATH).read_bytes()
    late = Written(store, make_message, 200)
    copy = copy_of(store_dir)
    (copy / WATERMARK_PATH).write_bytes(watermark)
    durable = read_durable_watermark(copy, FILES)
    assert durable == early.results[-1].end_offset
    # A page of the log is lost, everything behind it is there; so are the units that point to it.
    torn = late.results[20]
    overwrite(
        copy / "commitlog" / f"{torn.physical_offset // 65536 * 65536:020}",
        torn.physical_offset % 65536 + 50,
        bytes(64),
    )
    # Timestamps vouch for no units of the last seconds: of one queue they are gone.
    (copy / FLUSHED_PATH).unlink()
    for file in (copy / "consumequeue" / "TopicA" / "1").iterdir():
        file.write_bytes(bytes(2000))
    for file in sorted((copy / "index").iterdir())[1:]:
        overwrite(file, 440, bytes(4000))
    store = MessageStore.open(copy)
    assert "torn bytes cut" in store.recovery_summary
    expected = {**early.bodies, **late.below(torn.physical_offset)}
    assert contents(store) == expected
    assert store.end_offset == torn.physical_offset
    cut = copy / "commitbus" / "cut" / str(torn.physical_offset)
    assert cut.stat().st_size == late.results[-1].end_offset - torn.physical_offset
    again = store.put(make_message("TopicA", 0, b"after the cut", KEYS="new"))
    assert (again.physical_offset, again.queue_offset) == (torn.physical_offset, 110)
    close_and_check(store)
    store = MessageStore.open(copy)
    assert len(store.query_by_key("TopicA", "new", 0, FOREVER_MS, 9)) == 1
    close_and_check(store)


def test_damage_below_the_watermark_is_no_torn_write(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path, copy_of: CopyOf
) -> None:
    """The store is not opened for writing, nothing is changed, the place is named."""
    store = open_store()
    written = Written(store, make_message, 50)
    copy = copy_of(store_dir)
    bad = written.results[30]
    log_file = copy / "commitlog" / ("0" * 20)
    overwrite(log_file, bad.physical_offset + 90, b"XXXX")
    before = log_file.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreDamagedError) as caught:
            MessageStore.open(copy)
        assert caught.value.physical_offset == bad.physical_offset
    assert log_file.read_bytes() == before
    with MessageStore.open_read_only(copy) as reader:
        assert reader.read(written.results[29].physical_offset).topic == "TopicA"


def test_queues_and_index_are_functions_of_the_log(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path
) -> None:
    """Deleted, they come back byte for byte, and in no later start anything is left to do."""
    store = open_store()
    Written(store, make_message, 500)
    store.close()
    queues = tree(store_dir / "consumequeue")
    index = entries(store_dir)
    shutil.rmtree(store_dir / "consumequeue")
    shutil.rmtree(store_dir / "index")
    store = open_store()
    assert "500 dispatched to queues" in store.recovery_summary
    assert store.queue_end("TopicA", 0) == 250
    close_and_check(store)
    assert tree(store_dir / "consumequeue") == queues
    assert entries(store_dir) == index
    store = open_store()
    assert "0 dispatched to queues" in store.recovery_summary


def test_the_newest_queue_files_are_read_at_the_start(
    open_store: OpenStore,
    make_message: MakeMessage,
    store_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When asked for; only what is written of them."""
    store = open_store()
    Written(store, make_message, 500)
    store.close()
    read: list[int] = []
    pread = os.pread

    def noting(fd: int, length: int, position: int) -> bytes:
        if "consumequeue" in Path(f"/proc/self/fd/{fd}").readlink().parts:
            read.append(length)
        return pread(fd, length, position)

    monkeypatch.setattr(os, "pread", noting)
    config = StoreConfig(warm_queue_files=True)
    heard: list[tuple[str, int, int]] = []
    MessageStore.open(store_dir, config, on_progress=lambda *what: heard.append(what)).close()
    # 250 units of 20 bytes in each of two queues, 2,000 bytes to a file.
    assert [length for length in read if length > UNIT_BYTES] == [1000, 1000]
    assert heard[-2:] == [("warming consume queues", 1, 2), ("warming consume queues", 2, 2)]


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_a_checkpoint_vouches_for_what_was_flushed(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path
) -> None:
    """At a clean stop for everything, with the layout RocketMQ reads."""
    store = open_store()
    written = Written(store, make_message, 500)
    store.close()
    checkpoint = read_checkpoint(store_dir, FILES)
    assert checkpoint is not None
    newest = written.results[-1].store_timestamp
    assert checkpoint.physic_msg_timestamp == checkpoint.logics_msg_timestamp == newest
    assert 0 < checkpoint.index_msg_timestamp <= newest
    assert checkpoint.master_flushed_offset == checkpoint.confirm_phy_offset == 0


def test_checkpoints_are_saved_while_messages_arrive(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path
) -> None:
    """Without any stop, so that a later crash has little to repeat."""
    store = open_store()
    checkpoint = StoreCheckpoint()
    while checkpoint.physic_msg_timestamp == 0:
        written = Written(store, make_message, 1)
        checkpoint = read_checkpoint(store_dir, FILES) or checkpoint
        assert checkpoint.physic_msg_timestamp <= written.results[-1].store_timestamp


def test_a_reader_beside_the_writer_sees_what_is_durable(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path
) -> None:
    """No lock is taken and nothing written."""
    store = open_store(FlushMode.SYNC_FLUSH)
    written = Written(store, make_message, 100)
    store.save_checkpoint()  # It makes a file of its own, at any time else.
    before = tree(store_dir / "commitbus")
    with MessageStore.open_read_only(store_dir) as reader:
        assert reader.end_offset == reader.confirm_offset == written.results[-1].end_offset
        assert contents(reader) == written.bodies
        assert len(reader.query_by_key("TopicA", "k7", 0, FOREVER_MS, 9)) == 1
        store.put(make_message())
        assert reader.end_offset == written.results[-1].end_offset
    assert tree(store_dir / "commitbus").keys() == before.keys()
    assert store.put(make_message()).size_bytes > 0


@pytest.mark.shared
@pytest.mark.parametrize(("name", "messages"), [("broker", 177), ("directA", 42)])
def test_a_store_of_rocketmq_goes_on(
    name: str,
    messages: int,
    rocketmq_store: Callable[[str], Path],
    make_message: MakeMessage,
    config: StoreConfig,
) -> None:
    """Opened, appended to, closed; its queues rebuilt from its log are its own, byte for byte."""
    directory = rocketmq_store(name)
    queues = tree(directory / "consumequeue")
    index = entries(directory)
    with MessageStore.open_read_only(directory) as reader:
        held = {key: reader.max_offset(*key) for key in reader.queues()}
        assert sum(held.values()) == messages
    assert tree(directory / "consumequeue") == queues
    store = MessageStore.open(directory)
    assert "0 dispatched to queues" in store.recovery_summary
    store.close()
    assert tree(directory / "consumequeue") == queues
    assert entries(directory) == index
    shutil.rmtree(directory / "consumequeue")
    store = MessageStore.open(directory, config)
    assert f"{messages} dispatched to queues" in store.recovery_summary
    for (topic, queue_id), end in held.items():
        assert store.put(make_message(topic, queue_id)).queue_offset == end
    close_and_check(store)
    rebuilt = tree(directory / "consumequeue")
    for file, data in queues.items():
        assert data.rstrip(b"\0") == rebuilt[file][: len(data.rstrip(b"\0"))]


def entries(directory: Path) -> list[bytes]:
    """The index files' bytes, whose names are only times."""
    return list(tree(directory / "index").values())


def test_a_reader_is_not_led_beyond_what_it_may_see(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path, copy_of: CopyOf
) -> None:
    """In ASYNC_FLUSH the queues run ahead of the watermark, which is all that a reader trusts."""
    store = open_store()
    early = Written(store, make_message, 20)
    watermark = (store_dir / WATERMARK_PATH).read_bytes()
    Written(store, make_message, 20)
    copy = copy_of(store_dir)
    (copy / WATERMARK_PATH).write_bytes(watermark)
    with MessageStore.open_read_only(copy) as reader:
        assert reader.max_offset("TopicA", 0) == reader.max_offset("TopicA", 1) == 10
        assert contents(reader) == early.bodies
        assert reader.fetch("TopicA", 0, QueueOffset(10), 5) == ([], 10)
        assert reader.offset_by_timestamp("TopicA", 0, FOREVER_MS) == 10
