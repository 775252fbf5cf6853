"""How mqadmin reads values."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import datetime

import pytest

from commitbus.broker.cli.common_options import count, seconds
from commitbus.broker.cli.mqadmin_options import (
    NOW,
    attribute_changes,
    boolean,
    int32,
    int64,
    point_in_time,
)


@pytest.mark.parametrize(
    ("text", "sets", "deletes"),
    [
        ("+message.type=FIFO", {"message.type": "FIFO"}, []),
        ("-message.type", {}, ["message.type"]),
        ("+a=1,-b,+c=x=y", {"a": "1", "c": "x=y"}, ["b"]),
    ],
)
def test_attributes_are_set_and_deleted(
    text: str, sets: dict[str, str], deletes: list[str]
) -> None:
    """RocketMQ's syntax: a sign, a name, and what to set."""
    assert attribute_changes(text) == (sets, deletes)


@pytest.mark.parametrize("text", ["", "a=1", "+a", "+=1", "+a=", "-", "-a=1", "+a=1,", "+a=1,-a"])
def test_other_attributes_are_refused(text: str) -> None:
    """A typo must not change anything."""
    with pytest.raises(ArgumentTypeError):
        attribute_changes(text)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False)])
def test_booleans_are_words(text: str, *, value: bool) -> None:
    """As RocketMQ's tool takes them."""
    assert boolean(text) is value


def test_other_booleans_are_refused() -> None:
    """1 is no boolean to RocketMQ's tool either."""
    with pytest.raises(ArgumentTypeError):
        boolean("1")


def test_numbers_are_those_that_the_protocol_carries() -> None:
    """A larger one is a mistake of who typed it."""
    assert [int32("-2147483648"), int32("2147483647")] == [-(2**31), 2**31 - 1]
    assert int64("9223372036854775807") == 2**63 - 1
    for text in ("2147483648", "-2147483649", "1.5", "", "x", "9" * 5000):
        with pytest.raises(ArgumentTypeError):
            int32(text)
    with pytest.raises(ArgumentTypeError):
        int64("9223372036854775808")


def test_a_count_is_one_at_least() -> None:
    """Nobody wants no message, or less."""
    assert [count("1"), count("2147483647")] == [1, 2**31 - 1]
    for text in ("0", "-1", "2147483648", "1.5", "", "x", "9" * 5000):
        with pytest.raises(ArgumentTypeError, match="is not a whole number from 1"):
            count(text)


def test_an_interval_is_a_time_that_can_be_waited() -> None:
    """Nobody waits for nan seconds."""
    assert seconds("0.5") == 0.5
    for text in ("nan", "inf", "-1", "0", "x", ""):
        with pytest.raises(ArgumentTypeError):
            seconds(text)


def test_times_are_a_word_milliseconds_or_a_date() -> None:
    """The date in local time, with or without milliseconds."""
    moment = datetime(2026, 11, 21, 18, 30, 5).astimezone()
    at_ms = round(moment.timestamp() * 1000)
    assert (point_in_time("now"), point_in_time("currentTimeMillis")) == (NOW, NOW)
    assert point_in_time("1700000000000") == 1_700_000_000_000
    assert point_in_time("2026-11-21#18:30:05:007") == at_ms + 7
    assert point_in_time("2026-11-21#18:30:05") == at_ms


@pytest.mark.parametrize(
    "text",
    [
        *("", "then", "-1", "2026-11-21", "2026-13-01#00:00:00:000"),
        *("9" * 30, "9" * 5000, str(2**63 - 1), "0001-01-01#00:00:00", "1969-12-30#00:00:00"),
    ],
)
def test_other_times_are_refused(text: str) -> None:
    """Those that no message can have, too."""
    with pytest.raises(ArgumentTypeError):
        point_in_time(text)
