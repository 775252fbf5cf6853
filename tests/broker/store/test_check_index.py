"""Index entries that RocketMQ writes twice, beside those that nobody should have written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import OutgoingMessage
from commitbus.indexfile.index_file import IndexFile, NewEntry
from commitbus.indexfile.index_format import key_hash


def test_a_message_indexed_twice_is_no_problem_and_an_alien_key_is(
    open_store: Callable[..., MessageStore],
    make_message: Callable[..., OutgoingMessage],
    copy_of: Callable[[Path], Path],
    store_dir: Path,
    config: StoreConfig,
) -> None:
    """RocketMQ indexes the message that the last trusted file ends with again when it recovers."""
    store = open_store()
    store.put(make_message("TopicA", KEYS="first"))
    last = store.put(make_message("TopicA", KEYS="a b"))
    store.close()
    copy = copy_of(store_dir)

    last_place = last.physical_offset, last.store_timestamp

    def index_again(*keys: str) -> None:
        (path,) = (copy / "index").iterdir()
        sizes = (config.index_slots, config.index_entries)
        file = IndexFile(path, *sizes, file_system=RealFileSystem())
        hashes = [key_hash(f"TopicA#{key}") for key in keys]
        file.append_few([NewEntry(one, *last_place) for one in hashes])
        file.close()

    index_again("a", "b")
    report = check_store(copy, config=config)
    assert report.problems == []
    assert (report.index_entries, report.not_in_index) == (5, 0)
    index_again("c")
    (problem,) = check_store(copy, config=config).problems
    assert problem.what.startswith("entry 6: no message at")
