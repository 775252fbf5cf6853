"""Checks of what a program passes to a producer, so that a wrong argument is an error of its call.

Later, when a batch is encoded, it would be an error of all messages in the batch.
"""

from __future__ import annotations

from typing import Final, TypeAlias

Body: TypeAlias = bytes | bytearray | memoryview
"""The content of a message."""
QUEUE_ID_MAX: Final = 2**31 - 1
"""The protocol has 32 bits, with a sign."""
OFFSET_MAX: Final = 2**63 - 1


def body_bytes(body: object) -> bytes:
    """Return a body as bytes that nobody changes: a copy of a bytearray or memoryview.

    Raises:
        TypeError: It is no bytes-like object.
    """
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"body must be bytes, bytearray or memoryview, not {type(body).__name__}")


def check_text(what: str, text: object) -> None:
    """Check the type of a text, such as a topic's name, and that it can be sent.

    Raises:
        TypeError: It is no str.
        ValueError: It cannot be encoded as UTF-8.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} cannot be encoded as UTF-8: {error.reason}") from None


def check_queue_id(queue_id: object) -> None:
    """Check a queue id.

    Raises:
        TypeError: It is neither an int nor None.
        ValueError: It is negative, or larger than the protocol can carry.
    """
    if queue_id is None:
        return
    if not isinstance(queue_id, int) or isinstance(queue_id, bool):
        raise TypeError(f"queue_id must be an int or None, not {type(queue_id).__name__}")
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise ValueError(f"queue_id must be from 0 to {QUEUE_ID_MAX}, not {queue_id}")


def check_property(name: object, value: object) -> None:
    """Check the types of a property. Raises TypeError."""
    for part in (name, value):
        if not isinstance(part, str):
            kind = type(part).__name__
            raise TypeError(f"property names, values, tags and keys must be str, not {kind}")


def check_listener(on_delivery: object) -> None:
    """Check that a listener can be called. Raises TypeError."""
    if on_delivery is not None and not callable(on_delivery):
        kind = type(on_delivery).__name__
        raise TypeError(f"on_delivery must be callable or None, not {kind}")
