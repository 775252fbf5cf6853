"""The settings of a consumer group, and their form in RocketMQ's `subscriptionGroup.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, final

from commitbus.broker.metadata.documents import (
    INT32_MAX,
    INTEGER_MAX,
    DocumentError,
    Json,
    JsonObject,
    from_strings,
    integer,
    strings,
    table,
    truth,
)


@final
@dataclass(frozen=True, slots=True)
class CustomizedBackoff:
    """Redelivery after a listed delay per attempt; the last one serves all later attempts."""

    next_ms: tuple[int, ...] = (
        1_000,
        5_000,
        10_000,
        30_000,
        60_000,
        120_000,
        180_000,
        240_000,
        300_000,
        360_000,
        420_000,
        480_000,
        540_000,
        600_000,
        1_200_000,
        1_800_000,
        3_600_000,
        7_200_000,
    )

    def delay_ms(self, reconsume_times: int) -> int:
        """Return when a message is delivered again if the broker decides; RocketMQ's formula.

        A consumer that decides by itself begins with the first delay of the list. The broker skips
        two: it decides for consumers that have had the message for hours.
        """
        return self.next_ms[min(reconsume_times + 2, len(self.next_ms) - 1)]


@final
@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Redelivery after `initial_ms * multiplier ** attempt`, at most `max_ms`."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: int = 2

    def delay_ms(self, reconsume_times: int) -> int:
        """Return when a message is delivered again, to its consumers and to the broker alike."""
        # RocketMQ's bound, which keeps the power small.
        return min(self.initial_ms * int(self.multiplier ** min(reconsume_times, 32)), self.max_ms)


Backoff = CustomizedBackoff | ExponentialBackoff

DEFAULT_BACKOFF: Final = CustomizedBackoff()

CREATED_BY_CLIENT_KEY: Final = "createdByClient"
LITE_BIND_TOPIC_ATTRIBUTE: Final = "lite.bind.topic"
PRIORITY_FACTOR_ATTRIBUTE: Final = "priority.factor"
FIFO_LOCK_UNIT_ATTRIBUTE: Final = "fifo.lock.unit"
"""Not RocketMQ's, which always locks a queue; a `LockUnit`."""


@final
class LockUnit(StrEnum):
    """The messages of which a FIFO group delivers no more while one of them is out."""

    QUEUE = "QUEUE"
    MESSAGE_GROUP = "MESSAGE_GROUP"


@final
@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A consumer group as its operator set it up; the defaults are RocketMQ's."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    """Deliveries after the first one; the message is a dead letter after that."""
    backoff: Backoff = DEFAULT_BACKOFF
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """RocketMQ's names without the `+` of its command line, such as `lite.bind.topic`."""

    created_by_client: bool | None = None
    """True if a client created the group by naming it, False once an operator has put it, None if
    unknown. RocketMQ does not have this field."""

    @property
    def lock_unit(self) -> LockUnit:
        """The unit that a FIFO group locks."""
        unit = self.attributes.get(FIFO_LOCK_UNIT_ATTRIBUTE)
        return LockUnit.MESSAGE_GROUP if unit == LockUnit.MESSAGE_GROUP else LockUnit.QUEUE


def encode_group(config: GroupConfig) -> JsonObject:
    """Return the entry of `subscriptionGroupTable`, its names in RocketMQ's order."""
    made_by = config.created_by_client
    return {
        "attributes": from_strings(config.attributes),
        "brokerId": config.broker_id,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeMessageOrderly": config.consume_message_orderly,
        "consumeTimeoutMinute": config.consume_timeout_minute,
        "groupName": config.name,
        "groupRetryPolicy": _encode_backoff(config.backoff),
        "groupSysFlag": config.group_sys_flag,
        "notifyConsumerIdsChangedEnable": config.notify_consumer_ids_changed_enable,
        "retryMaxTimes": config.retry_max_times,
        "retryQueueNums": config.retry_queue_nums,
        "whichBrokerWhenConsumeSlowly": config.which_broker_when_consume_slowly,
        **({} if made_by is None else {CREATED_BY_CLIENT_KEY: made_by}),
    }


def decode_group(name: str, entry: Json) -> GroupConfig:
    """Return the group of an entry of `subscriptionGroupTable`; what is left out has its default.

    Raises:
        DocumentError: The entry is no object, or a field has the wrong type or an impossible value.
    """
    if not isinstance(entry, dict):
        raise DocumentError(f"group {name!r} is no object")
    default = GroupConfig(name)
    return GroupConfig(
        name=name,
        consume_enable=truth(entry, "consumeEnable", default=default.consume_enable),
        consume_from_min_enable=truth(
            entry, "consumeFromMinEnable", default=default.consume_from_min_enable
        ),
        consume_broadcast_enable=truth(
            entry, "consumeBroadcastEnable", default=default.consume_broadcast_enable
        ),
        consume_message_orderly=truth(
            entry, "consumeMessageOrderly", default=default.consume_message_orderly
        ),
        retry_queue_nums=_int32(entry, "retryQueueNums", default.retry_queue_nums),
        # -1 is RocketMQ's "without end" for remoting consumers.
        retry_max_times=_int32(entry, "retryMaxTimes", default.retry_max_times, minimum=-1),
        backoff=_decode_backoff(table(entry, "groupRetryPolicy")),
        broker_id=_int32(entry, "brokerId", default.broker_id),
        which_broker_when_consume_slowly=_int32(
            entry, "whichBrokerWhenConsumeSlowly", default.which_broker_when_consume_slowly
        ),
        notify_consumer_ids_changed_enable=truth(
            entry,
            "notifyConsumerIdsChangedEnable",
            default=default.notify_consumer_ids_changed_enable,
        ),
        group_sys_flag=integer(entry, "groupSysFlag", default.group_sys_flag),
        consume_timeout_minute=integer(
            entry, "consumeTimeoutMinute", default.consume_timeout_minute
        ),
        attributes=MappingProxyType(strings(entry, "attributes")),
        created_by_client=truth(entry, CREATED_BY_CLIENT_KEY, default=False)
        if CREATED_BY_CLIENT_KEY in entry
        else None,
    )


def _int32(entry: JsonObject, key: str, default: int, *, minimum: int = 0) -> int:
    return integer(entry, key, default, minimum=minimum, maximum=INT32_MAX)


def _encode_backoff(backoff: Backoff) -> JsonObject:
    if isinstance(backoff, ExponentialBackoff):
        return {
            "exponentialRetryPolicy": {
                "initial": backoff.initial_ms,
                "max": backoff.max_ms,
                "multiplier": backoff.multiplier,
            },
            "type": "EXPONENTIAL",
        }
    if backoff == DEFAULT_BACKOFF:
        return {"type": "CUSTOMIZED"}
    return {"customizedRetryPolicy": {"next": list(backoff.next_ms)}, "type": "CUSTOMIZED"}


def _decode_backoff(policy: JsonObject) -> Backoff:
    if policy.get("type", "CUSTOMIZED") == "EXPONENTIAL":
        entry, default = table(policy, "exponentialRetryPolicy"), ExponentialBackoff()
        return ExponentialBackoff(
            initial_ms=integer(entry, "initial", default.initial_ms),
            max_ms=integer(entry, "max", default.max_ms),
            multiplier=integer(entry, "multiplier", default.multiplier, minimum=1),
        )
    listed = table(policy, "customizedRetryPolicy").get("next")
    if listed is None:
        return DEFAULT_BACKOFF
    if not isinstance(listed, list) or not listed:
        raise DocumentError("customizedRetryPolicy.next is no list of delays")
    return CustomizedBackoff(tuple(_delay(item) for item in listed))


def _delay(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INTEGER_MAX:
        raise DocumentError("customizedRetryPolicy.next holds something else than milliseconds")
    return value
