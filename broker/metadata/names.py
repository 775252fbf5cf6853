"""The names that topics and consumer groups may have.

A topic's name becomes the name of its directory below `consumequeue/`, so nothing that a file
system could read as a path may ever pass: neither `/` nor NUL is in any of these alphabets, and
the names `.` and `..` are refused.
"""

from __future__ import annotations

import re
from typing import Final, final

from commitbus.broker.common.shown import shown

TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 120
STORED_TOPIC_LENGTH_MAX: Final = 255
"""Retry and dead letter topics carry a group's and a topic's name; the record format ends here."""

RETRY_TOPIC_PREFIX: Final = "%RETRY%"
DEAD_LETTER_TOPIC_PREFIX: Final = "%DLQ%"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"

SYSTEM_TOPICS: Final = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    }
)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
# RocketMQ names topics of its own after the broker's host ("."), after a group and a topic
# ("+", the second kind of retry topic) and after a lite topic ("$").
_STORED_NAME = re.compile(r"[%|a-zA-Z0-9_+$.-]+")


@final
class IllegalNameError(ValueError):
    """A topic or group may not have this name."""

    def __init__(self, what: str, name: str, reason: str) -> None:
        self.what, self.name, self.reason = what, name, reason
        super().__init__(f"{shown(name)} is no {what}: {reason}")


def _check(what: str, name: str, alphabet: re.Pattern[str], allowed: str, length_max: int) -> None:
    if not name:
        raise IllegalNameError(what, name, "it is empty")
    if len(name) > length_max:
        raise IllegalNameError(
            what, name, f"it has {len(name)} characters, at most {length_max} are allowed"
        )
    if not alphabet.fullmatch(name):
        raise IllegalNameError(what, name, f"only the characters {allowed} are allowed")


def validate_topic(name: str) -> None:
    """Check a topic's name as a client or an operator gives it.

    Retry and dead letter topics may be longer than others, because they carry a group's name; a
    retry topic may carry its topic's name as well. Whether the topic is reserved is another
    question: see `is_system_topic`.

    Raises:
        IllegalNameError: It is empty, too long, has a character outside `[%|a-zA-Z0-9_-]`, or ends
            where a group's name should begin.
    """
    length_max = TOPIC_LENGTH_MAX
    for prefix in (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX):
        if name.startswith(prefix):
            length_max = STORED_TOPIC_LENGTH_MAX
            if name == prefix:
                raise IllegalNameError("topic", name, "a group's name must follow")
    _check("topic", name, _NAME, "[%|a-zA-Z0-9_-]", length_max)


def validate_stored_topic(name: str) -> None:
    """Check the name of a topic that the broker itself makes or finds in a store.

    Wider than `validate_topic`, and still always one plain directory name.

    Raises:
        IllegalNameError: It is empty, too long, has a character outside `[%|a-zA-Z0-9_+$.-]`,
            or is `.` or `..`.
    """
    _check("topic", name, _STORED_NAME, "[%|a-zA-Z0-9_+$.-]", STORED_TOPIC_LENGTH_MAX)
    if name in {".", ".."}:
        raise IllegalNameError("topic", name, "it is a path")


def validate_group(name: str) -> None:
    """Check a consumer group's name as a client or an operator gives it.

    Raises:
        IllegalNameError: It is empty, too long, has a character outside `[%|a-zA-Z0-9_-]`, or is
            one of the broker's own groups.
    """
    _check("consumer group", name, _NAME, "[%|a-zA-Z0-9_-]", GROUP_LENGTH_MAX)
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise IllegalNameError(
            "consumer group", name, f"names that begin with {SYSTEM_GROUP_PREFIX} are the broker's"
        )


def validate_stored_group(name: str) -> None:
    """Check the name of a group that is found in a store: wider, for what RocketMQ let pass.

    Raises:
        IllegalNameError: It is empty, too long, or has a character outside `[%|a-zA-Z0-9_+$.-]`.
    """
    _check("consumer group", name, _STORED_NAME, "[%|a-zA-Z0-9_+$.-]", STORED_TOPIC_LENGTH_MAX)


def is_system_topic(name: str) -> bool:
    """Return whether clients may neither send to nor create this topic."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def dead_letter_topic(group: str) -> str:
    """Return the topic that takes the messages a group could not consume."""
    return DEAD_LETTER_TOPIC_PREFIX + group


def group_of_topic(name: str) -> str | None:
    """Return the group whose retry or dead letter topic this is; None for any other topic."""
    for prefix in (RETRY_TOPIC_PREFIX, DEAD_LETTER_TOPIC_PREFIX):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return None
