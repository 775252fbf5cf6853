"""The names under which RocketMQ stores what a message carries beside its body."""

from __future__ import annotations

import re
from typing import Final

UNIQUE_KEY: Final = "UNIQ_KEY"
TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
PRODUCER_GROUP: Final = "PGROUP"
RECONSUME_TIME: Final = "RECONSUME_TIME"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
CLUSTER: Final = "CLUSTER"
MESSAGE_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
SHARDING_KEY: Final = "__SHARDINGKEY"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
DELIVERY_TIME_MS: Final = "TIMER_DELIVER_MS"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
LITE_TOPIC: Final = "__LITE_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
DEAD_LETTER_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"

KEY_SEPARATOR: Final = " "
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
DEFAULT_REGION: Final = "DefaultRegion"

RESERVED_KEYS: Final = frozenset(
    {
        *(TRACE_ON, MESSAGE_REGION, KEYS, TAGS, "WAIT", "DELAY", "RETRY_TOPIC"),
        *("ORIGIN_GROUP", REAL_TOPIC, REAL_QUEUE_ID, TRANSACTION_PREPARED, PRODUCER_GROUP),
        *("MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", ORIGIN_MESSAGE_ID, "TRANSFER_FLAG"),
        *("CORRECTION_FLAG", "MQ2_FLAG", RECONSUME_TIME, UNIQUE_KEY, "MAX_RECONSUME_TIMES"),
        *("CONSUME_START_TIME", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME"),
        *("TRAN_PREPARED_QUEUE_OFFSET", "DUP_INFO", "EXTEND_UNIQ_INFO", "INSTANCE_ID"),
        *("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME"),
        *(CLUSTER, "MSG_TYPE", "INNER_MULTI_QUEUE_OFFSET", "TIMER_DELAY_MS"),
        *("TIMER_DELAY_SEC", DELIVERY_TIME_MS, "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"),
        *("TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL"),
        *(BORN_HOST, BORN_TIMESTAMP, DEAD_LETTER_ORIGIN_TOPIC, DEAD_LETTER_ORIGIN_MESSAGE_ID),
        *("__CRC32#", PRIORITY, LITE_TOPIC),
    }
)
"""The names that a producer may not set."""

HIDDEN_KEYS: Final = RESERVED_KEYS | {SHARDING_KEY, TRACE_CONTEXT}
"""The names that a consumer does not see among its properties. The two are not reserved, but are
handed to it in fields of their own instead."""


def split_keys(keys: str) -> list[str]:
    """Return the keys of a message that are stored together: other white space belongs to them."""
    return [key for key in keys.split(KEY_SEPARATOR) if key]


def has_control_characters(text: str) -> bool:
    """Return whether a text could not be stored: the separators are control characters."""
    return _CONTROL.search(text) is not None
