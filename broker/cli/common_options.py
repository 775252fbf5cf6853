"""What the commands of both programs share that speak to a broker."""

from __future__ import annotations

import argparse
import os
from typing import Final

DEFAULT_ENDPOINT: Final = "127.0.0.1:8081"
ENDPOINT_VARIABLE: Final = "COMMITBUS_ENDPOINT"
CONNECT_TIMEOUT_S: Final = 3.0
"""A broker that was started in the line before is ready within this time."""
_COUNT_MAX: Final = 2**31 - 1


def default_endpoint(*more_variables: str) -> str:
    """Return the endpoint that the environment names, else the usual one."""
    named = (os.environ.get(variable) for variable in (ENDPOINT_VARIABLE, *more_variables))
    return next(filter(None, named), DEFAULT_ENDPOINT)


def count(text: str) -> int:
    """Return how many of something are wanted: one at least."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= _COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_COUNT_MAX}")
    return value
