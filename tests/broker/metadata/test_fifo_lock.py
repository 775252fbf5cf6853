"""What of a queue a FIFO group may have, beside a statement of the rule that is plain and slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.broker.metadata.fifo_lock import (
    client_of,
    free_entries,
    names_attempt,
    next_free_ms,
    receiver_id,
    repeated_entries,
)
from commitbus.broker.metadata.progress import InFlight

NOW = 1_000
ME = receiver_id("client", "A")

ENTRIES = st.lists(
    st.tuples(
        st.sampled_from("xyz"),
        st.sampled_from([0, NOW - 1, NOW, NOW + 1, NOW + 500]),
        st.sampled_from([ME, "client", receiver_id("client", "B"), receiver_id("other", "A")]),
        st.booleans(),
    ),
    max_size=12,
)
"""Of each: its lock unit, until when it is invisible, who received it, whether the batch has it."""


def made(described: list[tuple[str, int, str, bool]]) -> list[InFlight]:
    return [
        InFlight(offset, NOW - 100, until, 1, receiver, auto_renew=False)
        for offset, (_, until, receiver, _) in enumerate(described)
    ]


@given(described=ENTRIES)
def test_free_is_what_has_nothing_of_its_unit_out(
    described: list[tuple[str, int, str, bool]],
) -> None:
    """What the batch took already locks nothing and is not taken again; the order is kept."""
    taken = {offset for offset, (*_, mine) in enumerate(described) if mine}
    expected = [
        offset
        for offset, (unit, *_) in enumerate(described)
        if offset not in taken
        and not any(
            other == unit and until > NOW and not mine for other, until, _, mine in described
        )
    ]
    found = free_entries(made(described), NOW, taken, lambda offset: described[offset][0])
    assert [entry.offset for entry in found] == expected


@given(described=ENTRIES)
def test_repeated_is_the_same_receivers_part_with_nothing_of_others_before_it(
    described: list[tuple[str, int, str, bool]],
) -> None:
    """And nobody else may have anything of the unit out."""
    expected = [
        offset
        for offset, (unit, _, receiver, _) in enumerate(described)
        if receiver == ME
        and not any(
            other == unit and who != ME and (until > NOW or at < offset)
            for at, (other, until, who, _) in enumerate(described)
        )
    ]
    found = repeated_entries(made(described), NOW, ME, lambda offset: described[offset][0])
    assert [entry.offset for entry in found] == expected


@pytest.mark.parametrize(
    ("until", "next_free"), [([], None), ([NOW], None), ([0, NOW + 5, NOW + 2], NOW + 2)]
)
def test_time_sets_free_what_is_out_next(until: list[int], next_free: int | None) -> None:
    """What is visible already is nothing that time will change."""
    entries = [InFlight(n, 0, at, 1, "", auto_renew=False) for n, at in enumerate(until)]
    assert next_free_ms(entries, NOW) == next_free


@pytest.mark.parametrize("attempt_id", ["", "A", "with\0nul"])
def test_a_receiver_is_a_client_and_perhaps_an_attempt(attempt_id: str) -> None:
    """Whatever the attempt's text is."""
    receiver = receiver_id("client@1", attempt_id)
    assert client_of(receiver) == "client@1"
    assert names_attempt(receiver) == bool(attempt_id)
