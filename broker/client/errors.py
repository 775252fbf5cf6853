"""What a client is told, grouped by what it may do about it."""

from __future__ import annotations

from enum import Enum
from typing import final

from commitbus.broker.rpc.call import RpcError, StatusCode


class ClientError(Exception):
    """The base of everything that the client raises on purpose."""


@final
class RefusedError(ClientError):
    """The broker refuses: to try the same again is in vain. Of a message: it was not stored."""

    def __init__(self, code: StatusCode, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(reason)

    @classmethod
    def of(cls, error: RpcError) -> RefusedError:
        """Return what a status says."""
        return cls(error.code, error.message)


@final
class Trouble(Enum):
    """Why a broker is not available, where a setting of the client would help."""

    OTHER = "other"
    """No known setting would help: no process listens, or the network is broken."""
    EXPECTS_TLS = "expects TLS"
    """It speaks TLS only, and the client began in plaintext."""
    EXPECTS_PLAINTEXT = "expects plaintext"
    """It speaks plaintext only, and the client began with TLS."""
    UNTRUSTED = "untrusted"
    """It has a certificate that the client does not trust, or that is another name's."""


@final
class BrokerUnavailableError(ClientError):
    """The broker cannot be reached, or does not answer, and was given time to."""

    def __init__(self, endpoint: str, reason: str, trouble: Trouble = Trouble.OTHER) -> None:
        self.endpoint, self.reason, self.trouble = endpoint, reason, trouble
        super().__init__(f"the broker at {endpoint} is not available: {reason}")


@final
class DeliveryUnknownError(ClientError):
    """It is unknown whether the message was stored. To send it again may store it twice."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the message may or may not be stored: {reason}")


@final
class BufferFullError(ClientError):
    """More messages wait to be sent than the options allow."""

    def __init__(self, topic: str, buffer_bytes: int) -> None:
        self.topic, self.buffer_bytes = topic, buffer_bytes
        super().__init__(f"{buffer_bytes} bytes for topic {topic} wait to be sent already")


@final
class ClientClosedError(ClientError):
    """The client was closed, or its `with` block was left."""

    def __init__(self) -> None:
        super().__init__("the client is closed")
