"""The consumer groups that clients made by naming them: their makers and their last use.

Any client makes a group by naming it. `commitbus.broker.messaging.client_groups` forgets
the idle ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from commitbus.broker.common.errors import TooManyRequestsError


@final
class ClientGroups:
    """The makers and the last use of groups. Lives on the trio thread."""

    def __init__(self) -> None:
        self._used, self._used_before = set[str](), set[str]()
        self._turns = 0
        self._making = 0
        # Of groups that were made since the start.
        self._makers: dict[str, str] = {}
        # By address; those that are being made as well.
        self._made = Counter[str]()

    def note_use(self, group: str) -> None:
        """Note that a client uses an existing group now."""
        self._used.add(group)

    def is_idle(self, group: str) -> bool:
        """Return whether nobody has used a group for a turn at least; never soon after a start."""
        return self._turns > 1 and group not in self._used and group not in self._used_before

    def turn(self) -> None:
        """Begin the next turn: what was not used in the last one is idle."""
        self._used_before, self._used = self._used, set()
        self._turns += 1

    @contextmanager
    def making(self, group: str, address: str, *, count: int, limit: int) -> Iterator[None]:
        """Note that a client makes a group while the block runs, which creates it or raises.

        Args:
            group: its name.
            address: where the client is; one without an address has no share of its own.
            count: how many groups there are.
            limit: how many there may be. Clients of one address may make half of them.

        Raises:
            TooManyRequestsError: it may not.
        """
        count += self._making
        if count >= limit:
            reason = f"there are {count} already"
        elif address and self._made[address] > limit // 2:
            reason = f"clients of {address} have made {self._made[address]} already"
        else:
            reason = ""
        if reason:
            raise TooManyRequestsError(
                f"group {group} is not created, because {reason}: an operator may create it"
            )
        self._making += 1
        self._made[address] += 1
        is_made = False
        try:
            yield
            is_made = True
        finally:
            self._making -= 1
            if is_made and address and group not in self._makers:
                self._makers[group] = address
            else:
                self._made_less(address)

    def forget(self, group: str) -> None:
        """Note that a group is gone."""
        self._used.discard(group)
        self._used_before.discard(group)
        address = self._makers.pop(group, None)
        if address is not None:
            self._made_less(address)

    def _made_less(self, address: str) -> None:
        self._made[address] -= 1
        if not self._made[address]:
            del self._made[address]
