"""The text by which the broker names the record that it refused a batch for.

The status of a gRPC call has a code and a text, so the record's index travels in the text.
"""

from __future__ import annotations

import re
from typing import Final

_RECORD: Final = re.compile(r"record (\d+): ")


def refusal_text(index: int, reason: object) -> str:
    """Return the text of a refusal because of one record of the batch."""
    return f"record {index}: {reason}"


def refused_record(text: str) -> int | None:
    """Return the index of the record that a refusal names, None if it names none.

    The text may say before it which batch it is about.
    """
    match = _RECORD.search(text)
    return int(match[1]) if match else None
