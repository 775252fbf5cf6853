"""Filters by tag: `A || B`, and `*` for everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, final

from commitbus.broker.common.shown import shown
from commitbus.broker.filters.encoded_properties import PropertyFinder
from commitbus.broker.filters.errors import FilterExpressionError
from commitbus.broker.filters.filter_cache import SHORT_LENGTH_MAX, FilterCache
from commitbus.commitlog.record_format import tags_code

TAG_EXPRESSION_LENGTH_MAX: Final = 16384
"""In characters. The longest takes 0.6 MB to keep."""
ALIVE_LENGTH_MAX: Final = 1 << 22
"""In characters, of all expressions whose filters are in use or cached: 160 MB."""
_TAGS: Final = "TAGS"
_finder: Final = PropertyFinder((_TAGS,))


@final
@dataclass(frozen=True, slots=True, weakref_slot=True)
class TagFilter:
    """Accepts messages with one of some tags, or every message."""

    tags: frozenset[str] | None
    """None: every message, tagged or not."""
    tags_codes: frozenset[int] | None = field(init=False)
    """Of `tags`. Different tags may share one."""
    reads_properties: ClassVar[bool] = False

    def __post_init__(self) -> None:
        codes = None if self.tags is None else frozenset(map(tags_code, self.tags))
        object.__setattr__(self, "tags_codes", codes)

    def accepts(self, properties: Mapping[str, str]) -> bool:
        """See `MessageFilter`."""
        return self.tags is None or properties.get(_TAGS) in self.tags

    def accepts_encoded(self, properties: bytes | memoryview) -> bool:
        """See `MessageFilter`."""
        return self.tags is None or _finder.find(properties).get(_TAGS) in self.tags


EVERYTHING: Final = TagFilter(None)


def parse_tags(text: str) -> TagFilter:
    """Return the filter for `A || B`: tags are compared exactly, without the blanks around them.

    An asterisk alone, or nothing, means everything. An asterisk among tags is a tag.

    Raises:
        FilterExpressionError: It is too long, or there are bars and no tag.
        TooManyFiltersError: There is no room for one more.
    """
    if len(text) > TAG_EXPRESSION_LENGTH_MAX:
        raise FilterExpressionError(
            f"filter expression of {len(text)} characters, at most {TAG_EXPRESSION_LENGTH_MAX} are "
            "allowed"
        )
    text = text.strip()
    return EVERYTHING if text in {"", "*"} else cache.get(text)


def prepare_tags(text: str, owner: str) -> object:
    """Make a filter that `parse_tags` finds for as long as the returned object is kept.

    Args:
        text: as for `parse_tags`.
        owner: see `FilterCache.get`.

    Raises:
        FilterExpressionError: As `parse_tags`.
        TooManyFiltersError: There is no room for one more.
    """
    return cache.get(text.strip(), owner)


def is_quick(text: str) -> bool:
    """Return whether `parse_tags` answers at once; else it may take milliseconds."""
    if len(text) > TAG_EXPRESSION_LENGTH_MAX:
        return True
    text = text.strip()
    return len(text) <= SHORT_LENGTH_MAX or text in cache


def _parse(text: str) -> TagFilter:
    tags = frozenset(tag for part in text.split("||") if (tag := part.strip()))
    if not tags:
        raise FilterExpressionError(f"filter expression {shown(text)} names no tag")
    return TagFilter(tags)


cache: Final = FilterCache(_parse, length_max=ALIVE_LENGTH_MAX)
