"""Messages found by key, tag, unique key or offset id; offsets found by time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commitbus.broker.store import store_reader
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    QueryTooWideError,
)
from commitbus.commitlog.record_format import offset_message_id
from commitbus.commitlog.types import OutgoingMessage, PhysicalOffset
from commitbus.indexfile.index_format import KeyKind
from tests.broker.store.filling import settle

FOREVER_MS = 1 << 62

OpenStore = Callable[..., MessageStore]
MakeMessage = Callable[..., OutgoingMessage]


def test_messages_are_found_by_key_tag_and_unique_key(
    open_store: OpenStore, make_message: MakeMessage
) -> None:
    """Newest first, and only those that really have the key: "Aa" and "BB" hash alike in Java."""
    store = open_store()
    messages = [
        make_message(
            "TopicA" if i % 2 else "TopicB",
            body=b"%d" % i,
            KEYS=f"k{i // 2} {'Aa' if i < 10 else 'BB'}",
            TAGS="even" if i % 2 == 0 else "odd",
            UNIQ_KEY=f"id{i // 2}",
        )
        for i in range(20)
    ]
    settle(store, [store.put(message) for message in messages][-1])

    def by_key(topic: str, key: str, count: int, kind: KeyKind = KeyKind.KEY) -> list[int]:
        records = store.query_by_key(topic, key, 0, FOREVER_MS, count, kind=kind)
        return [int(record.body) for record in records]

    assert by_key("TopicA", "k3", 9) == [7]
    assert by_key("TopicB", "k3", 9) == [6]
    assert by_key("TopicA", "Aa", 9) == [9, 7, 5, 3, 1]
    assert by_key("TopicA", "BB", 2) == [19, 17]
    assert by_key("TopicA", "Aa", 2) == [9, 7]
    assert by_key("TopicA", "Aa", 0) == []
    assert by_key("TopicA", "odd", 3, KeyKind.TAG) == [19, 17, 15]
    assert by_key("TopicA", "odd", 3) == by_key("TopicA", "even", 3, KeyKind.TAG) == []
    assert [int(r.body) for r in store.query_by_unique_key("TopicB", "id4")] == [8]
    assert store.query_by_unique_key("TopicB", "k4") == []
    assert store.query_by_key("TopicA", "Aa", 0, 5, 9) == []


def test_a_search_may_leave_bodies_out(open_store: OpenStore, make_message: MakeMessage) -> None:
    """They may have 4 MiB each, and any number of messages the same key."""
    store = open_store()
    results = [store.put(make_message(body=b"%d" % n, KEYS="k", UNIQ_KEY="u")) for n in range(3)]
    settle(store, results[-1])
    records = store.query_by_key("TopicA", "k", 0, FOREVER_MS, 9, with_bodies=False)
    assert [(record.queue_offset, record.body) for record in records] == [
        (2, b""),
        (1, b""),
        (0, b""),
    ]
    assert [record.body for record in store.query_by_unique_key("TopicA", "u", 2)] == [b"2", b"1"]
    records = store.query_by_unique_key("TopicA", "u", with_bodies=False)
    assert [record.body for record in records] == [b""] * 3


def test_a_search_goes_on_before_a_place_in_the_log(
    open_store: OpenStore, make_message: MakeMessage
) -> None:
    """Pages of a long list: what the pages before held is not read again."""
    store = open_store()
    results = [store.put(make_message(body=b"%d" % n, KEYS="k")) for n in range(30)]
    settle(store, results[-1])
    before = results[20].physical_offset
    records = store.query_by_key("TopicA", "k", 0, FOREVER_MS, 3, before=before)
    assert [record.body for record in records] == [b"19", b"18", b"17"]
    first = results[0].physical_offset
    assert store.query_by_key("TopicA", "k", 0, FOREVER_MS, 3, before=first) == []


def test_a_search_that_finds_too_many_others_is_given_up(
    open_store: OpenStore, make_message: MakeMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can make a key that hashes like one that millions of messages have."""
    monkeypatch.setattr(store_reader, "_OTHERS_MAX", 20)
    store = open_store()
    settle(store, [store.put(make_message(KEYS="Aa")) for _ in range(30)][-1])
    assert len(store.query_by_key("TopicA", "Aa", 0, FOREVER_MS, 99)) == 30
    with pytest.raises(QueryTooWideError):
        store.query_by_key("TopicA", "BB", 0, FOREVER_MS, 1)


def test_an_offset_id_is_checked_before_it_is_followed(
    open_store: OpenStore, make_message: MakeMessage
) -> None:
    """An id comes from outside: any place may be named in it."""
    store = open_store()
    results = [store.put(make_message(body=b"%d" % i)) for i in range(3)]
    settle(store, results[-1])
    host = store.read(results[1].physical_offset).store_host
    assert store.read_by_offset_id(offset_message_id(host, results[1].physical_offset)).body == b"1"
    for wrong in ("", "zz" * 16, "00" * 15, "00" * 17):
        with pytest.raises(ValueError, match="hex"):
            store.read_by_offset_id(wrong)
    for outside in (-1, results[-1].end_offset, 1 << 62):
        with pytest.raises(OffsetOutOfRangeError):
            store.read_by_offset_id(offset_message_id(host, PhysicalOffset(outside)))
    inside = PhysicalOffset(results[1].physical_offset + 1)
    with pytest.raises(CorruptRecordError):
        store.read_by_offset_id(offset_message_id(host, inside))


def test_offsets_are_found_by_time(open_store: OpenStore, make_message: MakeMessage) -> None:
    """The first message stored at or after a time, for times between and outside too."""
    times = [1000, 1000, 1005, 1005, 1005, 2000]
    clock = _Clock(times)
    store = open_store(clock=clock)
    for clock.index in range(len(times)):
        settle(store, store.put(make_message()))
    expected = {0: 0, 1000: 0, 1001: 2, 1005: 2, 1006: 5, 2000: 5, 2001: 6, FOREVER_MS: 6}
    for timestamp, offset in expected.items():
        assert store.offset_by_timestamp("TopicA", 0, timestamp) == offset


class _Clock:
    def __init__(self, times: list[int]) -> None:
        self.times, self.index = times, 0

    def now_ms(self) -> int:
        return self.times[self.index]

    def monotonic_s(self) -> float:
        return 0.0
