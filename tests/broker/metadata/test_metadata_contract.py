"""The promises of `MetadataStore`, of every implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.metadata_store import MetadataStore
from commitbus.broker.metadata.names import IllegalNameError
from commitbus.broker.metadata.sqlite_metadata import SqliteMetadata
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.errors import StoreClosedError
from commitbus.commitlog.file_system import RealFileSystem
from tests.broker.metadata.metadata_in_memory import MetadataInMemory, Saved

Open = Callable[[], MetadataStore]
"""Opens one place, each time as another process would."""
FIFO = TopicConfig("orders", 4, 4, attributes={"message.type": "FIFO"})
SLOW = GroupConfig("slow", retry_max_times=3, consume_message_orderly=True)


@pytest.fixture(params=["sqlite", "memory"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Open]:
    saved, stores = Saved(), list[MetadataStore]()

    def open_() -> MetadataStore:
        store: MetadataStore = MetadataInMemory(saved)
        if request.param == "sqlite":
            store = SqliteMetadata(tmp_path, clock=clock, file_system=RealFileSystem())
        stores.append(store)
        return store

    yield open_
    for store in stores:
        store.close()


def test_a_new_store_has_no_topic_and_no_group(open_store: Open) -> None:
    metadata = open_store()
    assert metadata.topics() == []
    assert metadata.groups() == []
    assert metadata.topic("orders") is None
    assert metadata.group("slow") is None


def test_a_change_replaces_what_was_set(open_store: Open) -> None:
    metadata = open_store()
    changed = TopicConfig("orders", 8, 8, attributes={"message.type": "DELAY"})
    trio.run(metadata.put_topic, FIFO)
    trio.run(metadata.put_topic, changed)
    assert metadata.topics() == [changed]
    trio.run(metadata.put_group, SLOW)
    trio.run(metadata.delete_groups, ["slow"])
    trio.run(metadata.delete_groups, ["slow"])
    assert metadata.groups() == []


def test_many_tasks_may_change_at_once(open_store: Open) -> None:
    metadata = open_store()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(metadata.put_topic, TopicConfig("same", n, n))

    trio.run(main)
    last = metadata.topics()
    metadata.close()
    assert open_store().topics() == last


def test_a_name_that_cannot_be_a_directory_is_refused(open_store: Open) -> None:
    metadata = open_store()
    with pytest.raises(IllegalNameError):
        trio.run(metadata.put_topic, TopicConfig("../../etc"))
    with pytest.raises(IllegalNameError):
        trio.run(metadata.put_group, GroupConfig("a/b"))
    assert metadata.topics() == []


def test_a_closed_store_can_be_read_but_not_changed(open_store: Open) -> None:
    metadata = open_store()
    trio.run(metadata.put_topic, FIFO)
    metadata.close()
    assert metadata.topics() == [FIFO]
    with pytest.raises(StoreClosedError):
        trio.run(metadata.put_group, SLOW)


def test_groups_are_deleted_together(open_store: Open) -> None:
    metadata = open_store()

    async def main() -> None:
        for name in ("a", "b", "c"):
            await metadata.put_group(GroupConfig(name))
        await metadata.delete_groups(["a", "c", "never there"])

    trio.run(main)
    assert metadata.groups() == [GroupConfig("b")]
    metadata.close()
    again = open_store()
    assert again.groups() == [GroupConfig("b")]
    assert (again.topic_count, again.group_count) == (0, 1)


def test_what_a_client_creates_never_overwrites_what_an_operator_put(open_store: Open) -> None:
    """Both found no such topic and group; whoever comes second gets what is there."""
    metadata = open_store()
    added: list[object] = []

    async def add(config: TopicConfig | GroupConfig) -> None:
        if isinstance(config, TopicConfig):
            added.append(await metadata.add_topic(config))
        else:
            added.append(await metadata.add_group(config))

    async def main() -> None:
        # The first to run holds the lock, so every order of the two is tried.
        for n in range(5):
            theirs, slow = TopicConfig(f"t{n}", perm=2), GroupConfig(f"g{n}", retry_max_times=3)
            added.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metadata.put_topic, theirs)
                nursery.start_soon(add, TopicConfig(f"t{n}"))
                nursery.start_soon(metadata.put_group, slow)
                nursery.start_soon(add, GroupConfig(f"g{n}"))
            assert (metadata.topic(f"t{n}"), metadata.group(f"g{n}")) == (theirs, slow)
            await add(TopicConfig(f"t{n}"))
            await add(GroupConfig(f"g{n}"))
            assert added[-2:] == [theirs, slow]

    trio.run(main)


def test_a_topic_is_not_made_anew_while_it_is_being_deleted(open_store: Open) -> None:
    """Or what is being removed would be the new topic's."""
    metadata = open_store()

    async def main() -> None:
        await metadata.put_topic(FIFO)
        async with trio.open_nursery() as nursery, metadata.topic_deleted("orders"):
            nursery.start_soon(metadata.add_topic, TopicConfig("orders"))
            await trio.testing.wait_all_tasks_blocked()
            assert metadata.topic("orders") is None
        assert metadata.topic("orders") == TopicConfig("orders")

    trio.run(main)
