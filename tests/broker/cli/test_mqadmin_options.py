"""How mqadmin reads values."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from commitbus.broker.cli.mqadmin_options import attribute_changes, boolean


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
