"""Which messages of a topic a consumer wants."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

from commitbus.broker.messaging.errors import IllegalFilterError, UnsupportedFeatureError
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.record_format import tags_code

EXPRESSION_LENGTH_MAX: Final = 16384


@final
@dataclass(frozen=True, slots=True)
class TagFilter:
    """Accepts messages by tag, in two steps: by the hash in the queue's unit, then exactly."""

    tags: frozenset[str] | None
    """None: every message, tagged or not."""
    tags_codes: frozenset[int] | None
    """The hashes of `tags`, for `MessageStore.fetch`. Different tags may share one."""

    def matches(self, tag: str | None) -> bool:
        """Return whether a message with this tag (None: without one) is wanted."""
        return self.tags is None or tag in self.tags


EVERYTHING: Final = TagFilter(None, None)


def parse_filter(expression: pb.FilterExpression) -> TagFilter:
    """Return the filter that a client asks for; an absent expression accepts everything.

    Raises:
        IllegalFilterError: the expression is empty where it must not be, too long, or has no tag.
        UnsupportedFeatureError: an SQL expression.
    """
    return _parse(expression.type == pb.SQL, expression.expression)


def check_syntax(expression: pb.FilterExpression) -> None:
    """Check a filter that is announced, not used yet.

    Raises:
        IllegalFilterError: as in `parse_filter`.
    """
    with suppress(UnsupportedFeatureError):
        parse_filter(expression)


@lru_cache(maxsize=1024)
def _parse(is_sql: bool, text: str) -> TagFilter:  # noqa: FBT001 - a cache key
    if len(text) > EXPRESSION_LENGTH_MAX:
        raise IllegalFilterError(
            f"filter expression of {len(text)} characters, at most {EXPRESSION_LENGTH_MAX} are "
            "allowed"
        )
    stripped = text.strip()
    if is_sql:
        if not stripped:
            raise IllegalFilterError("an SQL filter expression cannot be empty")
        raise UnsupportedFeatureError("SQL filter expressions are not supported: filter by tag")
    if stripped in {"", "*"}:
        return EVERYTHING
    tags = frozenset(tag for part in text.split("||") if (tag := part.strip()))
    if not tags:
        raise IllegalFilterError(f"filter expression {text!r} names no tag")
    return TagFilter(tags, frozenset(map(tags_code, tags)))
