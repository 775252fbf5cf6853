"""Texts of others in our messages: only their beginning, however long they are.

A client sends any text as a name, and reads it again in the refusal. A gRPC client takes about 8 KB
of headers: of a longer `grpc-message` it sees neither the text nor the status.
"""

from __future__ import annotations

from typing import Final

VALUE_LENGTH_MAX: Final = 80
MESSAGE_BYTES_MAX: Final = 1024
"""UTF-8, of a whole message. In a `grpc-message` it may take three times as much."""
_CUT: Final = "..."


def shown(text: str) -> str:
    """Return a text in quotes as an error message shows it: the beginning of a long one."""
    if len(text) <= VALUE_LENGTH_MAX:
        return repr(text)
    return f"{text[:VALUE_LENGTH_MAX]!r}... ({len(text)} long)"


def shortened(message: str) -> str:
    """Return a message of `MESSAGE_BYTES_MAX` at most: of a longer one the beginning."""
    # A character takes at most 4 bytes, so few characters need no counting.
    if len(message) * 4 <= MESSAGE_BYTES_MAX:
        return message
    data = message[:MESSAGE_BYTES_MAX].encode("utf-8", "replace")
    if len(message) <= MESSAGE_BYTES_MAX and len(data) <= MESSAGE_BYTES_MAX:
        return message
    return data[: MESSAGE_BYTES_MAX - len(_CUT)].decode("utf-8", "ignore") + _CUT
