"""What of a queue a FIFO group may have now: decisions alone, about what is in flight there.

Messages of one lock unit are delivered in the order of their offsets, and none of them while a
batch of the unit is out. A unit is the whole queue, or one message group of it.

    offset     17   19   20   22   23      in flight; 18 and 21 are acknowledged and done
    unit        A    B    A    C    B
    visible    yes   no  yes  held yes     B is locked: 17, 20 and 22 may go, 23 waits for 19
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Final

from commitbus.broker.metadata.progress import InFlight

Unit = Hashable
UnitOf = Callable[[int], Unit]
"""Which lock unit the message at an offset belongs to."""

_SEPARATOR: Final = "\0"
"""No client id has one: they come as HTTP headers."""


def receiver_id(client_id: str, attempt_id: str) -> str:
    """Return who receives, so that the same client asking again for the same batch is known."""
    return f"{client_id}{_SEPARATOR}{attempt_id}" if attempt_id else client_id


def client_of(receiver: str) -> str:
    """Return the client id in what `receiver_id` made."""
    return receiver.partition(_SEPARATOR)[0]


def names_attempt(receiver: str) -> bool:
    """Return whether `receiver_id` was given an attempt."""
    return _SEPARATOR in receiver


def free_entries(
    entries: Iterable[InFlight], now_ms: int, taken: Collection[int], unit_of: UnitOf
) -> list[InFlight]:
    """Return what may be delivered, in order: all of every unit of which nothing is out.

    Args:
        entries: Of one queue, in the order of their offsets.
        now_ms: The time.
        taken: Offsets that are part of this very batch; they lock nothing and are not returned.
        unit_of: The lock units.
    """
    rest = [entry for entry in entries if entry.offset not in taken]
    locked = {unit_of(entry.offset) for entry in rest if entry.invisible_until_ms > now_ms}
    return [entry for entry in rest if not locked or unit_of(entry.offset) not in locked]


def repeated_entries(
    entries: Iterable[InFlight], now_ms: int, receiver: str, unit_of: UnitOf
) -> list[InFlight]:
    """Return what the same attempt has received before and is still in flight, in order.

    Not of a unit that somebody else has a part of meanwhile, and nothing that would overtake a
    message before it.

    Args:
        entries: Of one queue, in the order of their offsets.
        now_ms: The time.
        receiver: From `receiver_id`, with an attempt.
        unit_of: The lock units.
    """
    everything = list(entries)
    others = {
        unit_of(entry.offset)
        for entry in everything
        if entry.client_id != receiver and entry.invisible_until_ms > now_ms
    }
    found: list[InFlight] = []
    for entry in everything:
        unit = unit_of(entry.offset)
        if entry.client_id != receiver:
            others.add(unit)
        elif unit not in others:
            found.append(entry)
    return found


def next_free_ms(entries: Iterable[InFlight], now_ms: int) -> int | None:
    """Return when something that is out becomes visible next; None when nothing is out."""
    return min(
        (e.invisible_until_ms for e in entries if e.invisible_until_ms > now_ms), default=None
    )
