"""What a message shows of a text that somebody else chose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.broker.common.shown import MESSAGE_BYTES_MAX, VALUE_LENGTH_MAX, shortened, shown


def test_a_short_text_is_shown_as_it_is() -> None:
    assert shown("a\n") == r"'a\n'"
    assert shown("x" * VALUE_LENGTH_MAX) == f"'{'x' * VALUE_LENGTH_MAX}'"


def test_a_long_text_is_shown_by_its_beginning() -> None:
    assert shown("x" * 1_000_000) == f"'{'x' * VALUE_LENGTH_MAX}'... (1000000 long)"
    assert len(shown("\0" * 1_000_000)) < 400


@given(st.text(max_size=300, alphabet=st.characters(codec=None)), st.sampled_from([1, 5, 100]))
def test_no_message_is_longer_than_allowed(text: str, times: int) -> None:
    """A shortened one is a beginning of it; one that fits is the same."""
    message = text * times
    short = shortened(message)
    size = len(short.encode("utf-8", "replace"))
    assert size <= MESSAGE_BYTES_MAX
    if len(message.encode("utf-8", "replace")) <= MESSAGE_BYTES_MAX:
        assert short == message
    else:
        assert size > MESSAGE_BYTES_MAX - 8
        begin = message.encode("utf-8", "replace").decode()
        assert begin.startswith(short.removesuffix("..."))


@pytest.mark.parametrize("character", ["a", "é", "\u20ac", "\U0001f600", "\ud800"])
def test_the_limit_counts_bytes(character: str) -> None:
    """As they are sent."""
    count = MESSAGE_BYTES_MAX // len(character.encode("utf-8", "replace"))
    assert shortened(character * count) == character * count
    assert shortened(character * (count + 1)).endswith("...")
