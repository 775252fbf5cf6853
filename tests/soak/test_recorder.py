"""The checker itself: what it must find, and what it must let pass."""

from __future__ import annotations

import pytest

from tests.soak.messages import BODY_BYTES_MAX, BODY_BYTES_MIN, GROUPS, body_of, number_of
from tests.soak.recorder import Recorder

BILLING, REDS, AUDIT, ARCHIVE = GROUPS
NONE_DEAD = {group: set[int]() for group in GROUPS}


@pytest.fixture
def recorder() -> Recorder:
    """Message 0, which everybody wants, was sent to orders."""
    recorder = Recorder()
    assert recorder.sending("orders", 1) == range(1)
    recorder.sent(0, 0)
    return recorder


def deliver(recorder: Recorder, number: int = 0, attempt: int = 1, **changes: int) -> None:
    """Hand a message to both groups of orders."""
    place = {"queue_id": 1, "queue_offset": 0, "pop_ms": 1000 * attempt, **changes}
    for group in (BILLING, REDS):
        if group.wants(number):
            recorder.delivered(group, number, attempt=attempt, **place)


def test_what_was_sent_delivered_again_and_acknowledged_is_sound(recorder: Recorder) -> None:
    """Redelivery before the acknowledgement is what a broker promises."""
    deliver(recorder)
    deliver(recorder, attempt=2)
    recorder.acked(BILLING, 0, 2001)
    recorder.acked(REDS, 0, 2001)
    recorder.check(NONE_DEAD)
    assert recorder.failures == []


def test_a_delivery_that_was_made_before_the_answer_may_arrive_after_it(
    recorder: Recorder,
) -> None:
    """Another consumer of the group may read it late."""
    deliver(recorder)
    recorder.acked(BILLING, 0, 5000)
    deliver(recorder, attempt=2)
    recorder.check(NONE_DEAD)
    assert recorder.failures == []


def test_a_delivery_after_an_answered_acknowledgement_is_found(recorder: Recorder) -> None:
    """It is told with all that was known."""
    deliver(recorder)
    recorder.acked(BILLING, 0, 1500)
    deliver(recorder, attempt=2)
    (failure,) = recorder.failures
    assert "billing: delivery 2, made at 2000" in failure
    assert "answered at 1500: message 0 of orders (send answered; queue 1, offset 0" in failure


def test_a_delivery_after_it_was_moved_to_the_dead_letters_is_found(recorder: Recorder) -> None:
    """To the group such a message is acknowledged."""
    deliver(recorder)
    recorder.forwarded(REDS, 0, 1500)
    deliver(recorder, attempt=2)
    assert len(recorder.failures) == 1
    assert recorder.failures[0].startswith("reds: delivery 2")


def test_a_lost_message_is_found(recorder: Recorder) -> None:
    """By every group that should have had it."""
    recorder.check(NONE_DEAD)
    assert [failure.split()[0] for failure in recorder.failures] == ["billing", "reds"]


def test_a_dead_letter_is_not_lost(recorder: Recorder) -> None:
    """A message whose deliveries all broke lies there in the end."""
    recorder.check({**NONE_DEAD, BILLING: {0}, REDS: {0}})
    assert recorder.failures == []


def test_a_dead_letter_that_is_not_there_is_found(recorder: Recorder) -> None:
    """The broker had said it was."""
    deliver(recorder)
    recorder.forwarded(BILLING, 0, 1500)
    recorder.check(NONE_DEAD)
    assert [failure.split(":")[0] for failure in recorder.failures] == ["billing"]


def test_a_send_without_an_answer_may_be_lost_or_stored(recorder: Recorder) -> None:
    """Its number lies at one place or none."""
    deliver(recorder)
    assert recorder.sending("orders", 2) == range(1, 3)
    deliver(recorder, number=1, queue_offset=1)
    recorder.check(NONE_DEAD)
    assert recorder.failures == []


@pytest.mark.parametrize("changes", [{"queue_id": 2}, {"queue_offset": 1}])
def test_a_message_at_a_second_place_is_found(recorder: Recorder, changes: dict[str, int]) -> None:
    """Stored twice, or moved by a restart."""
    deliver(recorder)
    recorder.delivered(
        BILLING, 0, **{"queue_id": 1, "queue_offset": 0, "attempt": 2, "pop_ms": 2, **changes}
    )
    assert len(recorder.failures) == 1
    assert "too: message 0 of orders" in recorder.failures[0]


def test_two_messages_at_one_place_are_found(recorder: Recorder) -> None:
    """An offset was given away twice."""
    deliver(recorder)
    recorder.sending("orders", 1)
    deliver(recorder, number=1)
    recorder.check(NONE_DEAD)
    assert len(recorder.failures) == 1
    assert "0 where 1 was to be" in recorder.failures[0]


def test_a_gap_is_found(recorder: Recorder) -> None:
    """Something lies there that nobody sent, or that nobody was shown."""
    deliver(recorder)
    recorder.sending("orders", 1)
    deliver(recorder, number=1, queue_offset=2)
    recorder.check(NONE_DEAD)
    assert len(recorder.failures) == 1
    assert "2 where 1 was to be" in recorder.failures[0]


def test_an_attempt_that_is_counted_twice_is_found(recorder: Recorder) -> None:
    """Each delivery counts one more."""
    deliver(recorder)
    recorder.delivered(BILLING, 0, queue_id=1, queue_offset=0, attempt=1, pop_ms=1000)
    assert len(recorder.failures) == 1
    assert "twice delivery 1" in recorder.failures[0]


def test_what_a_filter_leaves_out_is_found(recorder: Recorder) -> None:
    """Message 1 is green."""
    recorder.sending("orders", 1)
    recorder.delivered(REDS, 1, queue_id=0, queue_offset=0, attempt=1, pop_ms=1)
    assert len(recorder.failures) == 1
    assert "reds does not want message 1" in recorder.failures[0]


def test_a_message_of_another_topic_is_found(recorder: Recorder) -> None:
    """As is one that was never sent at all."""
    recorder.delivered(AUDIT, 0, queue_id=0, queue_offset=0, attempt=1, pop_ms=1)
    recorder.fetched("bulk", 7, 0, 0)
    assert len(recorder.failures) == 2


def test_a_body_has_its_number_in_it() -> None:
    """And no other body is taken for it."""
    sizes = set()
    for number in range(3000):
        body = body_of(number)
        assert number_of(body) == number
        sizes.add(len(body))
    assert min(sizes) == BODY_BYTES_MIN
    assert max(sizes) == BODY_BYTES_MAX
    assert number_of(body_of(1)[:-1]) is None
    assert number_of(body_of(1) + b"x") is None
    assert number_of(b"") is None
