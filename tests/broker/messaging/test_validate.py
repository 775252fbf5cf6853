"""Limits on messages and names: each at its edge, in the order in which they are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commitbus.broker.common import errors as e
from commitbus.broker.core.kinds import DELAY, FIFO, LITE, NORMAL, PRIORITY, TRANSACTION
from commitbus.broker.core.message_kind import MessageKind
from commitbus.broker.core.properties import RESERVED_KEYS
from commitbus.broker.core.validation import (
    MESSAGES_MAX,
    check_batch_size,
    check_message,
    common_topic,
)
from commitbus.broker.messaging.validate import (
    ATTEMPT_ID_LENGTH_MAX,
    attempt_id,
    duration_ms,
    group_name,
    invisible_ms,
    new_message,
    send_request_bytes_max,
    topic_name,
)
from commitbus.broker.rpc.defaults import MAX_MESSAGE_BYTES
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Make = Callable[..., pb.Message]
NOW_MS = 1_800_000_000_000
BODY_MAX = 4 * 1024 * 1024


def check(message: pb.Message) -> MessageKind:
    return check_message(new_message(message), max_body_bytes=BODY_MAX, now_ms=NOW_MS)


def user(**properties: str) -> Callable[[pb.Message], None]:
    return lambda message: message.user_properties.update(properties)


def system(**fields: Any) -> Callable[[pb.Message], None]:
    def set_fields(message: pb.Message) -> None:
        for name, value in fields.items():
            target = getattr(message.system_properties, name)
            if isinstance(value, list):
                target.extend(value)
            elif isinstance(value, int) and name != "priority":
                target.FromMilliseconds(value)
            else:
                setattr(message.system_properties, name, value)

    return set_fields


ACCEPTED = {
    "as it is": user(),
    "128 properties": lambda message: message.user_properties.update(
        {str(number): "" for number in range(128)}
    ),
    "16384 bytes in all": lambda message: (
        user(k="v" * 16373)(message),
        system(tag="t" * 5, keys=["k" * 5])(message),
    ),
    "an empty tag and an empty key are none": system(tag="", keys=[""]),
    "the group's 63 bytes": system(message_group="g" * 63),
    "a lite topic of 64": system(lite_topic="l" * 64),
    "delivery in a day": system(delivery_timestamp=NOW_MS + 86_400_000),
    "delivery in the past": system(delivery_timestamp=1),
    "recovery within an hour": system(orphaned_transaction_recovery_duration=3_600_000),
    "priority zero": system(priority=0),
    "names of no meaning to the broker": user(__SHARDINGKEY="x", tags="y"),
}

REFUSED = {
    "129 properties": (
        e.PropertiesTooLargeError,
        lambda message: message.user_properties.update({str(n): "" for n in range(129)}),
    ),
    "a reserved name": (e.IllegalPropertyError, user(TAGS="x")),
    "an empty name": (
        e.IllegalPropertyError,
        lambda message: message.user_properties.update({"": "x"}),
    ),
    "a separator in a name": (
        e.IllegalPropertyError,
        lambda message: message.user_properties.update({"a\x01b": "x"}),
    ),
    "a separator in a value": (e.IllegalPropertyError, user(a="x\x02y")),
    "NUL in a value": (e.IllegalPropertyError, user(a="\0")),
    "an old control character": (e.IllegalPropertyError, user(a="\x85")),
    "a blank tag": (e.IllegalTagError, system(tag=" \t".strip("\t"))),
    "a bar in a tag": (e.IllegalTagError, system(tag="a|b")),
    "a control character in a tag": (e.IllegalTagError, system(tag="a\nb")),
    "a blank key": (e.IllegalKeyError, system(keys=["ok", "  "])),
    "a control character in a key": (e.IllegalKeyError, system(keys=["a\x7fb"])),
    "16385 bytes in all": (
        e.PropertiesTooLargeError,
        lambda message: (user(k="ü" * 8187)(message), system(tag="t" * 5, keys=["k" * 5])(message)),
    ),
    "no id": (e.IllegalMessageIdError, system(message_id="")),
    "a blank id": (e.IllegalMessageIdError, system(message_id="  ")),
    "a separator in an id": (e.IllegalMessageIdError, system(message_id="a\x01b")),
    "recovery after more than an hour": (
        e.BadRequestError,
        system(orphaned_transaction_recovery_duration=3_600_001),
    ),
    "delivery in more than a day": (
        e.IllegalDeliveryTimeError,
        system(delivery_timestamp=NOW_MS + 86_400_001),
    ),
    "a negative priority": (e.BadRequestError, system(priority=-1)),
    "a group of 64 bytes": (e.IllegalMessageGroupError, system(message_group="ü" * 32)),
    "a blank group": (e.IllegalMessageGroupError, system(message_group=" ")),
    "a control character in a group": (e.IllegalMessageGroupError, system(message_group="\0")),
    "a lite topic of 65": (e.IllegalLiteTopicError, system(lite_topic="l" * 65)),
    "an empty lite topic": (e.IllegalLiteTopicError, system(lite_topic="")),
    "a dot in a lite topic": (e.IllegalLiteTopicError, system(lite_topic="a.b")),
    "a newline after a lite topic": (e.IllegalLiteTopicError, system(lite_topic="a\n")),
    "a separator in a trace context": (e.IllegalPropertyError, system(trace_context="\x01")),
}


@pytest.mark.parametrize("change", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_within_the_limits_is_accepted(
    message: Make, change: Callable[[pb.Message], None]
) -> None:
    """The edge itself belongs to what is allowed."""
    made = message()
    change(made)
    check(made)


@pytest.mark.parametrize(("kind", "change"), REFUSED.values(), ids=REFUSED)
def test_what_breaks_a_limit_is_refused_with_its_own_error(
    message: Make, kind: type[e.RequestError], change: Callable[[pb.Message], None]
) -> None:
    """One over the edge is too much."""
    made = message()
    change(made)
    with pytest.raises(kind):
        check(made)


@pytest.mark.parametrize("key", sorted(RESERVED_KEYS))
def test_no_reserved_name_is_accepted_as_a_users(message: Make, key: str) -> None:
    """It would overwrite what the broker stores under that name."""
    made = message()
    made.user_properties[key] = "x"
    with pytest.raises(e.IllegalPropertyError, match="reserved"):
        check(made)


def test_exactly_the_largest_body_is_accepted(message: Make) -> None:
    """Clients are told the limit and use all of it."""
    check(message(bytes(BODY_MAX)))
    with pytest.raises(e.BodyTooLargeError):
        check(message(bytes(BODY_MAX + 1)))
    with pytest.raises(e.BodyEmptyError):
        check(message(b""))


def test_the_first_limit_in_rocketmqs_order_is_the_one_reported(message: Make) -> None:
    """Body before properties before tag before keys before id."""
    made = message(b"")
    made.user_properties["TAGS"] = "x"
    made.system_properties.tag, made.system_properties.message_id = "|", ""
    made.system_properties.keys.append(" ")
    order = [e.BodyEmptyError, e.IllegalPropertyError, e.IllegalTagError, e.IllegalKeyError]
    repairs: list[Callable[[], Any]] = [
        lambda: setattr(made, "body", b"x"),
        made.user_properties.clear,
        lambda: setattr(made.system_properties, "tag", "t"),
        lambda: made.system_properties.ClearField("keys"),
    ]
    for kind, repair in zip(order, repairs, strict=True):
        with pytest.raises(kind):
            check(made)
        repair()
    with pytest.raises(e.IllegalMessageIdError):
        check(made)


def test_the_messages_of_a_request_share_one_topic() -> None:
    """None at all is as wrong as two topics."""
    assert common_topic(["A", "A"]) == "A"
    for topics in ([], ["A", "B"]):
        with pytest.raises(e.MessageCorruptedError):
            common_topic(topics)


def test_a_request_has_a_bounded_number_of_messages() -> None:
    """200,000 tiny ones were 17 s in which nobody else was served."""
    assert common_topic(["A"] * MESSAGES_MAX) == "A"
    with pytest.raises(e.BadRequestError, match="1025 messages"):
        common_topic(["A"] * (MESSAGES_MAX + 1))


def test_the_bodies_of_a_request_together_are_bounded_like_one_body(message: Make) -> None:
    """The limit is met exactly, and one byte more is refused."""
    halves = [new_message(message(b"x" * 10)), new_message(message(b"y" * 6))]
    check_batch_size(halves, max_body_bytes=16)
    with pytest.raises(e.BodyTooLargeError):
        check_batch_size(halves, max_body_bytes=15)


@pytest.mark.parametrize(
    "name", ["", "a" * 128, "a b", "ä", "a/b", "..", "a\n", "rmq_sys_x", "TBW102"]
)
def test_illegal_and_system_topics_are_refused(name: str) -> None:
    """The system's own have legal names but are nobody's business."""
    with pytest.raises(e.IllegalTopicError):
        topic_name(pb.Resource(name=name))


@pytest.mark.parametrize("name", ["", "g" * 121, "a b", "CID_RMQ_SYS_TRANS"])
def test_illegal_groups_are_refused(name: str) -> None:
    """The system's own among them."""
    with pytest.raises(e.IllegalGroupError):
        group_name(pb.Resource(name=name))


def test_legal_names_pass() -> None:
    """At full length, with every kind of character."""
    assert topic_name(pb.Resource(name="%|a-Z_0" + "x" * 120)) == "%|a-Z_0" + "x" * 120
    assert topic_name(pb.Resource(name="%DLQ%g")) == "%DLQ%g"
    assert group_name(pb.Resource(name="g" * 120)) == "g" * 120


def test_durations_are_whole_milliseconds_whatever_their_sign_and_size() -> None:
    """Fields come as the client sent them, valid or not."""
    request = pb.ChangeInvisibleDurationRequest()
    duration = request.invisible_duration
    duration.seconds, duration.nanos = 1, 999_999_999
    assert duration_ms(duration) == 1999
    duration.seconds, duration.nanos = -(2**63), -(2**31)
    assert duration_ms(duration) < -(2**63)


@pytest.mark.parametrize(
    ("ms", "minimum_ms", "legal"),
    [
        (999, 1000, False),
        (1000, 1000, True),
        (12 * 3600 * 1000, 1000, True),
        (12 * 3600 * 1000 + 1, 1000, False),
        (0, 0, True),
        (-1, 0, False),
    ],
)
def test_an_invisible_time_lies_between_a_second_and_half_a_day(
    ms: int, minimum_ms: int, *, legal: bool
) -> None:
    """A change of it may be zero."""
    duration = pb.ReceiveMessageRequest().invisible_duration
    duration.FromMilliseconds(ms)
    if legal:
        assert invisible_ms(duration, minimum_ms=minimum_ms) == ms
    else:
        with pytest.raises(e.IllegalInvisibleTimeError):
            invisible_ms(duration, minimum_ms=minimum_ms)


def test_the_kind_of_a_message_follows_from_its_properties(message: Make) -> None:
    """In RocketMQ's order; what the message says of itself counts for transactions only."""
    made = message()
    properties = made.system_properties
    properties.message_type = pb.FIFO
    assert check(made) is NORMAL
    properties.lite_topic = "l"
    assert check(made) is LITE
    properties.priority = 0
    assert check(made) is PRIORITY
    properties.message_group = "g"
    assert check(made) is FIFO
    properties.delivery_timestamp.seconds = 1
    assert check(made) is DELAY
    properties.message_type = pb.TRANSACTION
    assert check(made) is TRANSACTION


def test_an_attempt_id_has_a_bounded_length() -> None:
    """It is kept with every message in flight."""
    assert attempt_id("a" * ATTEMPT_ID_LENGTH_MAX) == "a" * ATTEMPT_ID_LENGTH_MAX
    with pytest.raises(e.BadRequestError, match="attempt id of 256 characters"):
        attempt_id("a" * (ATTEMPT_ID_LENGTH_MAX + 1))


def test_a_request_to_send_is_as_large_as_what_can_be_taken() -> None:
    """Twice that, so that a body slightly too large is told so; never beyond RocketMQ's limit."""
    assert send_request_bytes_max(64 << 10) == 2 * ((64 << 10) + (1 << 20))
    assert send_request_bytes_max(BODY_MAX) == 10 << 20
    assert send_request_bytes_max(1 << 30) == MAX_MESSAGE_BYTES
