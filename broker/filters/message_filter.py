"""The one shape that all filters have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class MessageFilter(Protocol):
    """Decides in two steps: by the tags code in a queue's unit, then by the message's properties.

    Immutable, and never raises: a message that a filter cannot make sense of is not wanted.
    """

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """The tags codes of what may be wanted, for `MessageStore.fetch`; None: any.

        Necessary, not sufficient: different tags may share a code.
        """

    @property
    def reads_properties(self) -> bool:
        """Whether the tags code says too little to put a message in flight before it is asked."""

    def accepts(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these stored properties is wanted.

        All that is stored counts, the system's own (TAGS, KEYS, UNIQ_KEY and so on) included. To
        SQL an empty value is a missing one, as it is for RocketMQ, whose decoder drops it.
        """

    def accepts_encoded(self, properties: bytes | memoryview) -> bool:
        """Return the same for properties as a record has them: `name 0x01 value 0x02`, repeated.

        Looks only for what the filter names, so it is much cheaper than to decode them first.
        """
