"""The limits of a message's properties, in the form in which the log stores them.

The properties of many messages are checked together, with a few passes over their bytes: that costs
a tenth of a microsecond for each message. Where that look cannot tell, a message goes through
`check_message`, the check of every message. The broker and its Python client use both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NoReturn

from commitbus.broker.common.errors import IllegalPropertyError
from commitbus.broker.common.shown import shown
from commitbus.broker.core import properties as names
from commitbus.broker.core.kinds import KINDS
from commitbus.broker.core.validation import USER_PROPERTIES_MAX, NewMessage, check_message
from commitbus.commitlog.record_format import decode_properties

PLAIN_BYTES_MAX: Final = 3 * USER_PROPERTIES_MAX
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
_OF_KINDS: Final = {kind.property for kind in KINDS.values() if kind.property}
_REFUSED: Final = frozenset(name.encode() for name in {*names.RESERVED_KEYS, *_OF_KINDS} - _ALLOWED)
"""Some of them would make a record one of another kind than NORMAL."""


def check_properties(properties: bytes, *, has_unique_keys: bool = False) -> None:
    """Check the properties of one message.

    Args:
        properties: The properties.
        has_unique_keys: Whether the producer may set UNIQ_KEY; else the broker sets it.

    Raises:
        RequestError: The first limit that they break.
    """
    if len(properties) > PLAIN_BYTES_MAX or not are_plain(
        [properties], has_unique_keys=has_unique_keys
    ):
        message = _as_message(properties, has_unique_keys=has_unique_keys)
        check_message(message, max_body_bytes=1, now_ms=0)


def are_plain(each: Sequence[bytes], *, has_unique_keys: bool) -> bool:
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
