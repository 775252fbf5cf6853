"""Topics and groups as values and as entries of RocketMQ's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.broker.metadata.documents import DocumentError, Json, parse_document, table
from commitbus.broker.metadata.groups import (
    CustomizedBackoff,
    ExponentialBackoff,
    GroupConfig,
    decode_group,
    encode_group,
)
from commitbus.broker.metadata.topics import (
    STORED_QUEUES_MAX,
    MessageType,
    TopicConfig,
    decode_topic,
    encode_topic,
)

EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True)
NUMBERS = st.integers(0, 2**31 - 1)
QUEUES = st.integers(0, STORED_QUEUES_MAX)
ATTRIBUTES = st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3)


@EXAMPLES
@given(
    st.builds(
        TopicConfig, st.just("t"), QUEUES, QUEUES, NUMBERS, st.booleans(), NUMBERS, ATTRIBUTES
    )
)
def test_a_topic_survives_its_entry(config: TopicConfig) -> None:
    assert decode_topic("t", encode_topic(config)) == config


@EXAMPLES
@given(
    st.builds(
        GroupConfig,
        st.just("g"),
        consume_message_orderly=st.booleans(),
        retry_max_times=st.integers(-1, 100),
        backoff=st.builds(ExponentialBackoff, NUMBERS, NUMBERS, st.integers(1, 9))
        | st.builds(CustomizedBackoff, st.lists(NUMBERS, min_size=1).map(tuple)),
        attributes=ATTRIBUTES,
    )
)
def test_a_group_survives_its_entry(config: GroupConfig) -> None:
    assert decode_group("g", encode_group(config)) == config


@pytest.mark.shared
def test_an_entry_of_rocketmq_is_written_as_rocketmq_wrote_it(rocketmq_store: Path) -> None:
    config = rocketmq_store / "config"
    topics = table(parse_document((config / "topics.json").read_bytes()), "topicConfigTable")
    groups = table(
        parse_document((config / "subscriptionGroup.json").read_bytes()), "subscriptionGroupTable"
    )
    assert len(topics) == 20
    for name, entry in topics.items():
        again = encode_topic(decode_topic(str(name), entry))
        assert list(again.items()) == list(table(topics, str(name)).items())
    assert groups
    for name, entry in groups.items():
        again = encode_group(decode_group(str(name), entry))
        assert list(again.items()) == list(table(groups, str(name)).items())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("FIFO", MessageType.FIFO), ("nonsense", MessageType.NORMAL), (None, MessageType.NORMAL)],
)
def test_a_topics_message_type_is_its_attribute(text: str | None, expected: MessageType) -> None:
    attributes = {} if text is None else {"message.type": text}
    assert TopicConfig("t", attributes=attributes).message_type is expected


def test_perm_says_who_may_use_a_topic() -> None:
    assert TopicConfig("t").readable
    assert TopicConfig("t").writable
    assert not TopicConfig("t", perm=2).readable
    assert not TopicConfig("t", perm=4).writable


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {"perm": "6"},
        {"readQueueNums": -1},
        {"writeQueueNums": STORED_QUEUES_MAX + 1},
        {"topicSysFlag": 2**31},
        {"readQueueNums": True},
        {"order": 0},
        {"attributes": {"a": 1}},
    ],
)
def test_a_topic_that_is_none_is_refused(entry: Json) -> None:
    with pytest.raises(DocumentError):
        decode_topic("t", entry)


@pytest.mark.parametrize(
    "policy",
    [
        {"customizedRetryPolicy": {"next": []}},
        {"customizedRetryPolicy": {"next": [1, "2"]}},
        {"customizedRetryPolicy": {"next": [2**63]}},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": 0}},
        [],
    ],
)
def test_a_retry_policy_that_is_none_is_refused(policy: Json) -> None:
    with pytest.raises(DocumentError):
        decode_group("g", {"groupRetryPolicy": policy})
    with pytest.raises(DocumentError):
        decode_group("g", None)


@pytest.mark.parametrize("field", ["retryMaxTimes", "retryQueueNums", "brokerId"])
def test_a_number_that_no_protocol_can_carry_is_refused(field: str) -> None:
    """Or every client of the group, and every list of groups, would fail over it."""
    with pytest.raises(DocumentError, match=field):
        decode_group("g", {field: 2**31})
    assert decode_group("g", {field: 2**31 - 1}).name == "g"


def test_the_broker_waits_longer_from_one_attempt_to_the_next() -> None:
    """RocketMQ's numbers: its own list without the first two, or a power up to the limit."""
    customized, exponential = CustomizedBackoff(), ExponentialBackoff()
    assert [customized.delay_ms(times) // 1000 for times in (0, 1, 15, 16, 99)] == [
        *(10, 30, 7200, 7200, 7200),
    ]
    assert CustomizedBackoff((7,)).delay_ms(0) == 7
    assert [exponential.delay_ms(times) // 1000 for times in (0, 1, 2, 10, 2**31)] == [
        *(5, 10, 20, 5120, 7200),
    ]
