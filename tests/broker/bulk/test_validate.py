"""The limits of a batch are those of single messages."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commitbus.broker.bulk.validate import (
    RecordRefusedError,
    batch_bytes_max,
    check_records,
    check_size,
)
from commitbus.broker.common.errors import (
    BadRequestError,
    BodyEmptyError,
    BodyTooLargeError,
    IllegalKeyError,
    IllegalPropertyError,
    IllegalTagError,
    MessageCorruptedError,
    PropertiesTooLargeError,
    RequestError,
)
from commitbus.broker.core.properties import RESERVED_KEYS
from commitbus.broker.core.validation import NewMessage, check_message
from commitbus.broker.wire.frames import RECORDS_MAX, Frames, decode_frames, encode_frames
from commitbus.commitlog.record_format import encode_properties

NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "MSG_REGION", "é"]) | st.text(max_size=3)
VALUES = st.sampled_from(["", " ", "a|b", "x y", "\u3000", "\x80", "ok"]) | st.text(max_size=5)
PROPERTIES = st.dictionaries(NAMES, VALUES, max_size=3)


def make_frames(*properties: bytes, body: bytes = b"x") -> Frames:
    return decode_frames(*encode_frames([part for each in properties for part in (body, each)]))


def accepted(*properties: bytes, has_unique_keys: bool = True) -> bool:
    try:
        check_records(make_frames(*properties), max_body_bytes=10, has_unique_keys=has_unique_keys)
    except RecordRefusedError:
        return False
    return True


def accepted_alone(properties: dict[str, str]) -> bool:
    """Whether SendMessage takes a message with these properties."""
    tag, keys = properties.get("TAGS", ""), properties.get("KEYS", "").split(" ")
    own = {n: v for n, v in properties.items() if n not in {"TAGS", "KEYS", "UNIQ_KEY"}}
    message_id = properties.get("UNIQ_KEY", "id")
    message = NewMessage(b"x", message_id, tag, keys, user_properties=own)
    try:
        check_message(message, max_body_bytes=10, now_ms=0)
    except RequestError:
        return False
    return True


@given(st.lists(PROPERTIES, min_size=1, max_size=4))
@example([{"TAGS": " "}])
@example([{"KEYS": "\u3000 a"}])
@example([{"a": "b"}, {"MSG_REGION": "x"}])
def test_a_batch_is_taken_if_each_of_its_messages_would_be(each: list[dict[str, str]]) -> None:
    """Of all that can be encoded: the fast look and the check of single messages agree."""
    try:
        encoded = [encode_properties(properties) for properties in each]
    except ValueError:
        return
    assert accepted(*encoded) == all(map(accepted_alone, each))


@pytest.mark.parametrize(
    "damaged",
    [
        b"a",
        b"a\x01",
        b"a\x01b",
        b"\x01b\x02",
        b"\x02",
        b"a\x01b\x01c\x02",
        b"a\x02b\x01",
        b"\xff\x01b\x02",
    ],
)
def test_bytes_that_are_no_properties_are_refused(damaged: bytes) -> None:
    """Also where those of the next record would make them whole."""
    good = encode_properties({"n": "v"})
    for batch in ((damaged,), (good, damaged), (damaged, good), (damaged, b"x\x02")):
        assert not accepted(*batch)


@pytest.mark.parametrize("name", sorted(RESERVED_KEYS - {"TAGS", "KEYS", "UNIQ_KEY"}))
def test_reserved_names_are_refused(name: str) -> None:
    assert not accepted(encode_properties({"a": "b"}), encode_properties({name: "v"}))


def test_the_sharding_key_would_make_a_message_fifo() -> None:
    assert not accepted(encode_properties({"__SHARDINGKEY": "v"}))


def test_the_unique_key_is_the_broker_s_where_it_gives_one() -> None:
    unique_key = encode_properties({"UNIQ_KEY": "v"})
    assert accepted(unique_key)
    assert not accepted(unique_key, has_unique_keys=False)


@pytest.mark.parametrize(
    ("properties", "cause"),
    [
        ({"TAGS": "a|b"}, IllegalTagError),
        ({"TAGS": " "}, IllegalTagError),
        ({"KEYS": "a\u3000 \u3000"}, IllegalKeyError),
        ({"a": "\x7f"}, IllegalPropertyError),
        ({"a": "v" * 16385}, PropertiesTooLargeError),
        ({str(number): "" for number in range(129)}, PropertiesTooLargeError),
    ],
)
def test_the_record_and_the_reason_are_named(
    properties: dict[str, str], cause: type[RequestError]
) -> None:
    frames = make_frames(b"", encode_properties({"a": "b"}), encode_properties(properties))
    with pytest.raises(RecordRefusedError, match="record 2: ") as caught:
        check_records(frames, max_body_bytes=10, has_unique_keys=True)
    assert type(caught.value.cause) is cause


def test_bodies_have_a_length_between_1_and_the_limit() -> None:
    for body, cause in ((b"", BodyEmptyError), (b"x" * 11, BodyTooLargeError)):
        frames = decode_frames(*encode_frames([b"x", b"", body, b""]))
        with pytest.raises(RecordRefusedError, match="record 1: ") as caught:
            check_records(frames, max_body_bytes=10, has_unique_keys=True)
        assert type(caught.value.cause) is cause


def test_a_batch_is_limited_before_anything_is_made_of_it() -> None:
    with pytest.raises(MessageCorruptedError):
        check_size(b"", b"", max_body_bytes=10)
    with pytest.raises(BadRequestError):
        check_size(bytes(8 * (RECORDS_MAX + 1)), b"", max_body_bytes=10)
    with pytest.raises(BodyTooLargeError):
        check_size(bytes(8), bytes(batch_bytes_max(10) + 1), max_body_bytes=10)
    check_size(bytes(8 * RECORDS_MAX), bytes(batch_bytes_max(10)), max_body_bytes=10)
