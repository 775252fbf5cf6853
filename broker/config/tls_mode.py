"""Which connections may be encrypted, and which must be."""

from __future__ import annotations

from enum import StrEnum
from typing import final


@final
class TlsMode(StrEnum):
    """RocketMQ's words for it (`tls.server.mode`)."""

    DISABLED = "disabled"
    """Plaintext only."""
    PERMISSIVE = "permissive"
    """What the client begins with, on the same port."""
    ENFORCING = "enforcing"
    """TLS only; a Unix socket takes plaintext all the same, it never leaves the machine."""
