"""What the log keeps of each topic."""

from __future__ import annotations

import pytest

from commitbus.commitlog.errors import MessageRefusedError
from commitbus.commitlog.topics import Topics


def test_two_threads_that_meet_a_topic_first_get_the_same_one() -> None:
    """Both looked and did not find it; with one topic each, both would begin at queue offset 0."""
    topics = Topics()
    assert topics.__missing__("a") is topics.__missing__("a") is topics["a"]


def test_what_was_never_asked_for_has_no_queues() -> None:
    """Nor does asking for its queues make it a topic."""
    topics = Topics()
    topics["a"].queue_ends[3] = 7
    assert topics.queue_ends_of("a") == {3: 7}
    assert topics.queue_ends_of("b") == {}
    assert topics.queue_ends() == {("a", 3): 7}
    assert list(topics) == ["a"]


def test_a_name_that_is_too_long_is_no_topic() -> None:
    """The format has no room for it; a name of the same number of letters may be shorter."""
    topics = Topics()
    assert topics["x" * 255].magic_code
    with pytest.raises(MessageRefusedError):
        topics["ü" * 128]
    assert len(topics) == 1
