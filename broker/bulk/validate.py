"""The limits that SendMessage has, for the records of a batch at once.

Properties are looked at all together, with a few passes over their bytes: that costs a tenth of a
microsecond for each record. Where that look cannot tell, the record is put through the very check
that a single message goes through, whose word counts.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn, final

import numpy as np

from commitbus.broker.core import properties as names
from commitbus.broker.core.errors import (
    BadRequestError,
    BodyEmptyError,
    BodyTooLargeError,
    IllegalPropertyError,
    MessageCorruptedError,
    RequestError,
)
from commitbus.broker.core.kinds import KINDS
from commitbus.broker.core.validation import USER_PROPERTIES_MAX, NewMessage, check_message
from commitbus.broker.shown import shown
from commitbus.broker.wire.frames import LENGTHS_BYTES, RECORDS_MAX, Frames
from commitbus.broker.wire.record_refusal import refusal_text
from commitbus.commitlog.record_format import MAX_PROPERTIES_BYTES, decode_properties

_PLAIN_BYTES_MAX: Final = 3 * USER_PROPERTIES_MAX
"""A property takes 3 bytes at least: in so few there cannot be too many, nor too long ones."""
_NOT_CONTROL: Final = bytes(byte for byte in range(256) if 0x20 <= byte != 0x7F)
_SEPARATORS: Final = b"\x01\x02"
_EMPTY_NAME: Final = b"\x02\x01"
_DOUBTFUL_VALUES: Final = (
    b"|",
    *(name.encode() + end for name in (names.TAGS, names.KEYS, names.UNIQUE_KEY)
      for end in (b"\x01\x02", b"\x01 ")),
)  # fmt: skip
"""What may not be in a tag, and a tag, key or unique key that may be blank."""
_DOUBTFUL_TEXT: Final = re.compile("[^\\S ]|[\x80-\x9f]")
"""White space that is no space, and control characters that are no ASCII."""

_ALLOWED: Final = frozenset({names.TAGS, names.KEYS, names.UNIQUE_KEY})
_REFUSED: Final = frozenset(
    name.encode()
    for name in {*names.RESERVED_KEYS, *(kind.property for kind in KINDS.values())} - _ALLOWED
)
"""Some of them would make a record one of another kind than NORMAL."""


@final
class RecordRefusedError(RequestError):
    """A record of a batch breaks a limit; nothing of the batch was stored."""

    def __init__(self, index: int, cause: RequestError) -> None:
        self.index, self.cause = index, cause
        super().__init__(refusal_text(index, cause))


def batch_bytes_max(max_body_bytes: int) -> int:
    """Return how many bytes of bodies and properties a batch may have: those of any one message."""
    return max_body_bytes + MAX_PROPERTIES_BYTES


def request_bytes_max(max_body_bytes: int) -> int:
    """Return how large a request may be that is looked at.

    Twice the largest that can be right: a batch that is a little too large is told so by name.
    """
    return 2 * (batch_bytes_max(max_body_bytes) + RECORDS_MAX * LENGTHS_BYTES)


def check_size(lengths: bytes, records: bytes | memoryview, *, max_body_bytes: int) -> None:
    """Check how large a batch is, before anything is made of it.

    Raises:
        MessageCorruptedError: It has no record.
        BadRequestError: It has too many.
        BodyTooLargeError: It has too many bytes.
    """
    count = len(lengths) // LENGTHS_BYTES
    if count == 0:
        raise MessageCorruptedError("the batch has no record")
    if count > RECORDS_MAX:
        raise BadRequestError(f"{count} records in one batch, at most {RECORDS_MAX} are allowed")
    if len(records) > batch_bytes_max(max_body_bytes):
        raise BodyTooLargeError(len(records), batch_bytes_max(max_body_bytes))


def check_records(frames: Frames, *, max_body_bytes: int, has_unique_keys: bool) -> None:
    """Check the records of a batch.

    Args:
        frames: The records.
        max_body_bytes: Longest body.
        has_unique_keys: Whether the producer may set UNIQ_KEY; else the broker sets it.

    Raises:
        RecordRefusedError: The first limit that a record breaks.
    """
    sizes = frames.body_bytes
    if not sizes.all():
        raise RecordRefusedError(int(sizes.argmin()), BodyEmptyError())
    longest_bytes = int(sizes.max())
    if longest_bytes > max_body_bytes:
        # Not asked for before: it lets go of the GIL, and getting that back takes longer than all.
        index = int(sizes.argmax())
        raise RecordRefusedError(index, BodyTooLargeError(longest_bytes, max_body_bytes))
    if not frames.properties_bytes.any():
        return
    each = frames.properties()
    if not _are_plain(each, has_unique_keys=has_unique_keys):
        _check_all(each, has_unique_keys=has_unique_keys)
        return
    for index in np.flatnonzero(frames.properties_bytes > _PLAIN_BYTES_MAX).tolist():
        _check_one(index, each[index], has_unique_keys=has_unique_keys)


def check_properties(properties: bytes) -> None:
    """Check the properties of one record whose producer has an id.

    Raises:
        RequestError: The first limit that they break.
    """
    if len(properties) > _PLAIN_BYTES_MAX or not _are_plain([properties], has_unique_keys=False):
        check_message(_as_message(properties, has_unique_keys=False), max_body_bytes=1, now_ms=0)


def _are_plain(each: list[bytes], *, has_unique_keys: bool) -> bool:
    """Return whether nothing can be wrong with the properties, but that they are too many."""
    data = b"".join(each)
    separators = data.translate(None, _NOT_CONTROL)
    if (
        separators != _SEPARATORS * (len(separators) // 2)
        # As separators alternate, a record that ends with one has whole properties.
        or any(properties and properties[-1] != 2 for properties in each)
        or data[:1] == b"\x01"
        or _EMPTY_NAME in data
        or any(doubtful in data for doubtful in _DOUBTFUL_VALUES)
        or not (data.isascii() or _is_plain_text(data))
    ):
        return False
    used = set(data.replace(b"\x01", b"\x02").split(b"\x02")[::2])
    return used.isdisjoint(_REFUSED) and (has_unique_keys or names.UNIQUE_KEY.encode() not in used)


def _is_plain_text(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return not _DOUBTFUL_TEXT.search(text.replace("\x01", " ").replace("\x02", " "))


def _check_all(each: list[bytes], *, has_unique_keys: bool) -> None:
    for index, properties in enumerate(each):
        _check_one(index, properties, has_unique_keys=has_unique_keys)


def _check_one(index: int, properties: bytes, *, has_unique_keys: bool) -> None:
    try:
        check_message(
            _as_message(properties, has_unique_keys=has_unique_keys), max_body_bytes=1, now_ms=0
        )
    except RequestError as error:
        raise RecordRefusedError(index, error) from None


def _as_message(properties: bytes, *, has_unique_keys: bool) -> NewMessage:
    """Return a message with these properties, for the check that all messages go through.

    Raises:
        IllegalPropertyError: The bytes are no properties, or have a reserved name.
    """
    try:
        properties.decode()
    except UnicodeDecodeError:
        _refuse("the properties are not UTF-8")
    items = properties.split(b"\x02")
    if items.pop() or any(item.count(b"\x01") != 1 or item[:1] == b"\x01" for item in items):
        _refuse("the properties are not `name 0x01 value 0x02`, repeated")
    own = decode_properties(properties)
    for name in own:
        if name.encode() in _REFUSED or (name == names.UNIQUE_KEY and not has_unique_keys):
            _refuse(f"property {shown(name)} is reserved for the system")
    keys = own.pop(names.KEYS, "").split(names.KEY_SEPARATOR)
    tag, message_id = own.pop(names.TAGS, ""), own.pop(names.UNIQUE_KEY, "none")
    return NewMessage(b"x", message_id, tag, keys, user_properties=own)


def _refuse(reason: str) -> NoReturn:
    raise IllegalPropertyError(reason)
