"""Receipt handles as text: RocketMQ's fields, and nothing else accepted."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.broker.common.errors import InvalidReceiptHandleError
from commitbus.broker.config.listen_settings import BROKER_NAME_MAX
from commitbus.broker.consuming.receipt_handle import ReceiptHandle
from commitbus.commitlog.types import PhysicalOffset, QueueOffset

HANDLE = ReceiptHandle(
    pop_time_ms=1795241733747,
    invisible_ms=10000,
    broker_name="broker-a",
    queue_id=3,
    queue_offset=QueueOffset(17),
    physical_offset=PhysicalOffset(4219119),
)
TEXT = "17 1795241733747 10000 0 0 broker-a 3 17 4219119"


def test_a_handle_has_the_fields_of_rocketmq() -> None:
    """So that whoever reads handles in logs finds what they know."""
    assert HANDLE.encode() == TEXT
    assert ReceiptHandle.parse(TEXT) == HANDLE
    assert HANDLE.expires_at_ms == 1795241743747


@pytest.mark.parametrize(
    "text",
    [
        "1 1795241733747 10000 1 0 broker-a 3 17",
        "1 1795241733747 10000 1 0 broker-a 3 17 0 4219119",
    ],
)
def test_handles_of_eight_and_of_ten_fields_are_understood(text: str) -> None:
    """RocketMQ has issued both; the place in the queue is at the same field in each."""
    handle = ReceiptHandle.parse(text)
    assert (handle.queue_id, handle.queue_offset) == (3, 17)
    assert handle.physical_offset in {-1, 4219119}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        TEXT.replace("1795241733747", "later"),
        TEXT.replace(" 3 ", " -3 "),
        TEXT.replace(" 3 ", " ٣ "),
        TEXT.replace(" 3 ", " 1_0 "),
        TEXT.replace("1795241733747", "9" * 20),
        TEXT.replace(" ", "  "),
        TEXT + " " + "9" * 2000,
        "9" * 100_000,
    ],
)
def test_anything_else_is_refused_whatever_its_size(text: str) -> None:
    """Handles come from the network: no sign, no other script's digits, no long numbers."""
    with pytest.raises(InvalidReceiptHandleError):
        ReceiptHandle.parse(text)


@given(st.text())
def test_no_text_does_worse_than_being_refused(text: str) -> None:
    """Parsing either returns a handle or raises its one error."""
    with suppress(InvalidReceiptHandleError):
        ReceiptHandle.parse(text)


@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
def test_the_longest_name_of_a_broker_still_makes_handles(letter: str) -> None:
    """With the largest numbers; one character more, and the broker would refuse its own."""
    largest = 2**63 - 1
    for length in (BROKER_NAME_MAX, BROKER_NAME_MAX + 1):
        handle = ReceiptHandle(
            largest,
            largest,
            letter * length,
            largest,
            QueueOffset(largest),
            PhysicalOffset(largest),
        )
        text = handle.encode(fifo=True)
        if length == BROKER_NAME_MAX:
            assert ReceiptHandle.parse(text) == handle
        else:
            with pytest.raises(InvalidReceiptHandleError):
                ReceiptHandle.parse(text)
