"""Filters are made once for all who have the same expression, and only as long as there is room."""

from __future__ import annotations

import tracemalloc
from time import thread_time

import pytest

from commitbus.broker.filters import filter_cache, tag_filter
from commitbus.broker.filters.errors import TooManyFiltersError
from commitbus.broker.filters.filter_cache import RECENT_MAX, SHORT_LENGTH_MAX, FilterCache
from commitbus.broker.filters.tag_filter import TAG_EXPRESSION_LENGTH_MAX, parse_tags

LONG = "x" * SHORT_LENGTH_MAX


class Filter:
    """Any filter."""

    def __init__(self, text: str) -> None:
        self.text = text


def test_equal_expressions_share_a_filter_as_long_as_anybody_has_it() -> None:
    """However many others were made meanwhile; and somewhat longer, for who asks again."""
    cache = FilterCache(Filter, length_max=1 << 20)
    kept = cache.get("kept")
    for number in range(2 * RECENT_MAX):
        cache.get(str(number))
    assert cache.get("kept") is kept
    assert str(2 * RECENT_MAX - 1) in cache
    assert "0" not in cache


def test_long_expressions_have_room_up_to_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for one more, until somebody's wait is over; but for short ones, and for known ones."""
    monkeypatch.setattr(filter_cache, "RECENT_MAX", 1)
    cache = FilterCache(Filter, length_max=2 * SHORT_LENGTH_MAX)
    waiting = [cache.get(f"{number}{LONG}") for number in range(2)]
    with pytest.raises(TooManyFiltersError):
        cache.get(f"2{LONG}")
    assert cache.get(f"0{LONG}") is waiting[0]
    assert cache.get("short").text == "short"
    waiting.clear()
    assert cache.get(f"2{LONG}").text == f"2{LONG}"


def test_what_cannot_be_made_is_not_kept() -> None:
    """Whoever asks again is told again."""

    def refuse(text: str) -> Filter:
        raise ValueError(text)

    cache = FilterCache(refuse, length_max=1)
    for _ in range(2):
        with pytest.raises(ValueError, match="x"):
            cache.get("x")
    assert "x" not in cache


def test_a_character_of_a_tag_expression_takes_no_more_memory_than_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many consumers wait, each with the longest expression and no other's."""
    length_max = tag_filter.ALIVE_LENGTH_MAX // 16
    monkeypatch.setattr(tag_filter, "cache", FilterCache(tag_filter._parse, length_max=length_max))

    def expression(number: int) -> str:
        tags = (f"{number}{tag:x}" for tag in range(TAG_EXPRESSION_LENGTH_MAX // 4))
        return "||".join(tags)[:TAG_EXPRESSION_LENGTH_MAX]

    count = length_max // TAG_EXPRESSION_LENGTH_MAX + 1
    tracemalloc.start()
    waiting = [parse_tags(expression(number)) for number in range(count)]
    with pytest.raises(TooManyFiltersError):
        parse_tags(expression(count))
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(map(id, waiting))) == count
    assert size_bytes < 160 * 1_000_000 // 16


def test_an_owner_has_half_of_the_room() -> None:
    """Whoever fills it keeps nobody else from waiting with a long filter."""
    cache = FilterCache(Filter, length_max=8 * SHORT_LENGTH_MAX)
    waiting = [cache.get(f"{number}{LONG}", "greedy") for number in range(4)]
    with pytest.raises(TooManyFiltersError, match="greedy"):
        cache.get(f"5{LONG}", "greedy")
    assert cache.get(f"0{LONG}", "greedy") is waiting[0]
    waiting.append(cache.get(f"5{LONG}", "modest"))
    assert cache.get(f"5{LONG}", "greedy") is waiting[4]


def test_room_is_counted_by_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten thousand filters in use the next one does not look at each of them."""
    monkeypatch.setattr(filter_cache, "RECENT_MAX", 1)
    cache = FilterCache(Filter, length_max=1 << 30)
    waiting = [cache.get(f"{number}{LONG}") for number in range(10_000)]
    begin = thread_time()
    for number in range(100):
        cache.get(f"new {number}{LONG}")
    assert thread_time() - begin < 0.05
    assert len(cache._alive) - len(cache._gone) == len(waiting) + 1
    assert cache._length == sum(map(len, cache._alive)) == sum(cache._lengths.values())


def test_a_filter_that_is_made_anew_counts_once() -> None:
    """Also when its predecessor is noted to be gone only after that."""
    cache = FilterCache(Filter, length_max=1000)
    first = cache.get("x", "a")
    predecessor = cache._alive["x"]
    cache._recent.clear()
    del first
    cache._gone.clear()
    kept = cache.get("x", "b")
    cache._gone.append(predecessor)
    cache._forget_gone()
    assert cache.get("x") is kept
    assert (cache._length, dict(cache._lengths)) == (1, {"b": 1})
