"""Names: what clients may use, and what can reach the file system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.broker.metadata.names import (
    IllegalNameError,
    dead_letter_topic,
    group_of_topic,
    is_system_topic,
    validate_group,
    validate_stored_group,
    validate_stored_topic,
    validate_topic,
)

ALL = (validate_topic, validate_stored_topic, validate_group, validate_stored_group)


@pytest.mark.parametrize("name", ["a", "A-b_c|d%9", "x" * 127])
def test_a_plain_name_is_a_topic(name: str) -> None:
    validate_topic(name)
    validate_stored_topic(name)


@pytest.mark.parametrize("check", ALL)
@pytest.mark.parametrize("name", ["", "a/b", "../a", "a\0", "a\n", "a b", "ä", "a@b"])
def test_an_illegal_name_is_refused_everywhere(check: Callable[[str], None], name: str) -> None:
    with pytest.raises(IllegalNameError) as caught:
        check(name)
    assert caught.value.name == name


@pytest.mark.parametrize("name", [".", ".."])
def test_a_topic_is_no_path(name: str) -> None:
    for check in (validate_topic, validate_stored_topic):
        with pytest.raises(IllegalNameError):
            check(name)


def test_lengths_end_where_rocketmq_ends_them() -> None:
    validate_group("g" * 120)
    validate_topic("%RETRY%" + "x" * 248)
    for check, name in [
        (validate_topic, "x" * 128),
        (validate_group, "g" * 121),
        (validate_topic, "%DLQ%" + "x" * 251),
        (validate_stored_topic, "x" * 256),
    ]:
        with pytest.raises(IllegalNameError, match="at most"):
            check(name)


def test_the_message_of_an_endless_name_is_short() -> None:
    with pytest.raises(IllegalNameError) as caught:
        validate_topic("x" * 1_000_000)
    assert len(str(caught.value)) < 300


def test_names_that_rocketmq_makes_itself_may_be_stored_but_not_asked_for() -> None:
    for name in ("%LMQ%$parent$child", "%RETRY%g+t", "host.example.org"):
        validate_stored_topic(name)
        with pytest.raises(IllegalNameError):
            validate_topic(name)


def test_clients_may_not_use_the_brokers_own_groups() -> None:
    validate_stored_group("CID_RMQ_SYS_TRANS")
    with pytest.raises(IllegalNameError, match="the broker's"):
        validate_group("CID_RMQ_SYS_TRANS")


@pytest.mark.parametrize("name", ["TBW102", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"])
def test_system_topics_are_known(name: str) -> None:
    assert is_system_topic(name)
    assert not is_system_topic("x" + name)


def test_a_groups_dead_letter_topic_is_a_legal_one() -> None:
    assert dead_letter_topic("orders") == "%DLQ%orders"
    validate_topic(dead_letter_topic("g" * 120))


@settings(deadline=None, derandomize=True)
@given(st.text(max_size=300))
def test_a_stored_topic_is_always_one_directory_name(name: str) -> None:
    try:
        validate_stored_topic(name)
    except IllegalNameError:
        return
    path = Path("/store/consumequeue") / name
    assert path.parent == Path("/store/consumequeue")
    assert path.name == name
    assert len(name.encode()) <= 255


def test_a_derived_topic_belongs_to_a_group() -> None:
    assert group_of_topic(dead_letter_topic("G")) == "G"
    assert group_of_topic("%RETRY%G") == "G"
    assert group_of_topic("G") is None


@pytest.mark.parametrize("name", ["%RETRY%", "%DLQ%"])
def test_a_derived_topic_of_no_group_is_refused(name: str) -> None:
    with pytest.raises(IllegalNameError, match="a group's name must follow"):
        validate_topic(name)
