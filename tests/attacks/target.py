"""What an attack knows of the broker, and what it notes of the answers."""

from __future__ import annotations

import random
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from tests.attacks.connection import Answer, Connection
from tests.attacks.http2 import WINDOW_MAX

NORMAL_TOPIC: Final = "orders"
NORMAL_GROUP: Final = "billing"
WIDE_TOPIC: Final = "wide"
"""Has many queues: what is copied into each of them is copied often."""
WIDE_QUEUES: Final = 256
LARGE_TOPIC: Final = "large"
"""Has messages of a megabyte, which nobody but attackers reads."""
LARGE_BODY_BYTES: Final = 1 << 20
LARGE_MESSAGES: Final = 64
TOPICS: Final = {NORMAL_TOPIC: 4, WIDE_TOPIC: WIDE_QUEUES, LARGE_TOPIC: 4}
"""Made before the attacks, with their queues."""


@final
@dataclass(slots=True)
class Target:
    """A broker, seen by one attack, until it is over."""

    port: int
    metrics_port: int
    source: str
    """The address to connect from."""
    until_s: float
    """On the monotonic clock."""
    random: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)

    def left_s(self) -> float:
        """Return the time until the end."""
        return max(0.0, self.until_s - time.monotonic())

    def pause(self, seconds: float) -> None:
        """Do nothing for so long, or until the end."""
        time.sleep(min(seconds, self.left_s()))

    def connect(
        self,
        *,
        source: str = "",
        window_bytes: int = WINDOW_MAX,
        refills: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> Connection:
        """Connect; see `Connection`."""
        return Connection(
            ("127.0.0.1", self.port),
            source=source or self.source,
            window_bytes=window_bytes,
            refills=refills,
            tls=tls,
        )

    def note(self, answers: Iterable[Answer]) -> None:
        """Count how calls ended."""
        self.outcomes.update(answer.outcome() for answer in answers)

    def name(self, prefix: str) -> str:
        """Return a name that nobody used before."""
        return f"{prefix}-{self.random.randbytes(8).hex()}"


class Attack(NamedTuple):
    """What one hostile client does again and again."""

    name: str
    finding: str
    """What it was found as; empty for what held from the beginning."""
    round: Callable[[Target], None]
    """One round; what the network raises in it is counted."""
    pause_s: float
    """Between rounds."""
