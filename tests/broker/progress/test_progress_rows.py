"""What is in flight as a blob: it comes back as it was, or is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.broker.progress.progress_rows import pack_in_flight, unpack_in_flight
from commitbus.broker.progress.queue_progress import InFlight

CLIENTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
TIMES = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.dictionaries(
    st.integers(0, 2**62),
    st.tuples(
        *(TIMES, TIMES, st.integers(1, 2**32 - 1)),
        *(CLIENTS, st.booleans(), st.booleans(), st.text(max_size=5)),
    ),
    max_size=20,
).map(lambda fields: [InFlight(offset, *rest) for offset, rest in sorted(fields.items())])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(ENTRIES)
def test_what_is_in_flight_comes_back(entries: list[InFlight]) -> None:
    assert unpack_in_flight(pack_in_flight(entries), 2**63 - 1) == entries


def test_nothing_in_flight_takes_no_room() -> None:
    assert pack_in_flight([]) == b""


def test_a_client_is_named_once_for_all_its_messages() -> None:
    def size(count: int) -> int:
        entries = [
            InFlight(n, 0, 0, 1, "a client with a name", auto_renew=True) for n in range(count)
        ]
        return len(pack_in_flight(entries))

    assert size(1000) - size(999) == 33


def test_every_flipped_or_missing_byte_is_found() -> None:
    entries = [InFlight(n, n, n, 1, f"client {n}", n % 2 == 0, n == 2) for n in range(3)]
    blob = pack_in_flight(entries)
    wrong = [
        blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :] for place in range(len(blob))
    ]
    wrong += [blob[:length] for length in range(1, len(blob))] + [blob + b"\0"]
    for damaged in wrong:
        with pytest.raises(ValueError, match="wrong"):
            unpack_in_flight(damaged, 100)


def test_offsets_that_do_not_ascend_below_the_next_one_are_refused() -> None:
    blob = pack_in_flight([InFlight(n, 0, 0, 1, "c", auto_renew=False) for n in (3, 7)])
    with pytest.raises(ValueError, match="out of order"):
        unpack_in_flight(blob, 7)
    blob = pack_in_flight([InFlight(n, 0, 0, 1, "c", auto_renew=False) for n in (7, 3)])
    with pytest.raises(ValueError, match="out of order"):
        unpack_in_flight(blob, 100)
