"""Changes of attributes."""

from __future__ import annotations

import pytest

from commitbus.broker.admin.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    AttributeRefusedError,
    changed_attributes,
)


def test_a_change_sets_and_deletes() -> None:
    """What is not named stays."""
    before = {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    after = changed_attributes(
        TOPIC_ATTRIBUTES, before, {"message.type": "DELAY"}, ["cleanup.policy"]
    )
    assert after == {"message.type": "DELAY"}
    assert before == {"message.type": "FIFO", "cleanup.policy": "DELETE"}


@pytest.mark.parametrize(
    ("sets", "deletes", "reason"),
    [
        ({"message.typ": "FIFO"}, [], "unknown; there are .*message.type"),
        ({"message.type": "fifo"}, [], "must be one of .*FIFO"),
        ({"cleanup.policy": "COMPACTION"}, [], "only DELETE is supported"),
        ({"queue.type": "BatchCQ"}, [], "only SimpleCQ is supported"),
        ({"lite.topic.expiration": "soon"}, [], "must be a number"),
        ({"lite.topic.expiration": "9" * 5000}, [], "must be a number"),
        ({"lite.topic.expiration": "-2"}, [], "must be a number from -1"),
        ({}, ["message.type"], "cannot be deleted"),
    ],
)
def test_a_change_without_effect_is_refused(
    sets: dict[str, str], deletes: list[str], reason: str
) -> None:
    """A setting that is stored and ignored would be worse than an error."""
    with pytest.raises(AttributeRefusedError, match=reason):
        changed_attributes(TOPIC_ATTRIBUTES, {}, sets, deletes)


@pytest.mark.parametrize(
    ("name", "value", "good"),
    [
        ("priority.factor", "0", True),
        ("priority.factor", "100", True),
        ("priority.factor", "101", False),
        ("priority.factor", "", False),
        ("fifo.lock.unit", "QUEUE", True),
        ("fifo.lock.unit", "MESSAGE_GROUP", True),
        ("fifo.lock.unit", "TOPIC", False),
        ("lite.bind.topic", "T", True),
        ("lite.bind.topic", "", False),
        ("lite.bind.topic", "T" * 128, False),
    ],
)
def test_a_group_attribute_has_its_range(name: str, value: str, *, good: bool) -> None:
    """RocketMQ's, of the first."""
    change = {name: value}
    if good:
        assert changed_attributes(GROUP_ATTRIBUTES, {}, change, []) == change
    else:
        with pytest.raises(AttributeRefusedError):
            changed_attributes(GROUP_ATTRIBUTES, {}, change, [])
