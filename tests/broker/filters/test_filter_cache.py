"""Filters are made once for all who have the same expression, and only as long as there is room."""

from __future__ import annotations

import tracemalloc

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
