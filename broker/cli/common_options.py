"""What the commands of both programs share that speak to a broker."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from commitbus.broker.cli.output import CommandError, as_utf8
from commitbus.broker.common.shown import shown

DEFAULT_ENDPOINT: Final = "127.0.0.1:8081"
ENDPOINT_VARIABLE: Final = "COMMITBUS_ENDPOINT"
TLS_VARIABLE: Final = "COMMITBUS_TLS"
CA_VARIABLE: Final = "COMMITBUS_CA"
INSECURE_VARIABLE: Final = "COMMITBUS_TLS_INSECURE"
SERVER_NAME_VARIABLE: Final = "COMMITBUS_SERVER_NAME"
CONNECT_TIMEOUT_S: Final = 3.0
"""A broker that was started in the line before is ready within this time."""
SECONDS_MAX: Final = 86_400
_COUNT_MAX: Final = 2**31 - 1


def default_endpoint(*more_variables: str) -> str:
    """Return the endpoint that the environment names, else the usual one."""
    named = (os.environ.get(variable) for variable in (ENDPOINT_VARIABLE, *more_variables))
    return next(filter(None, named), DEFAULT_ENDPOINT)


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add how a broker's TLS port is spoken to; `commitbus.broker.cli.tls` reads them.

    None has a default, so that the environment counts where an option is not given.
    """
    group = parser.add_argument_group("TLS", "Not used on a Unix socket.")
    group.add_argument(
        "--tls",
        action=argparse.BooleanOptionalAction,
        help=f"speak TLS, or plaintext whatever the environment says; ${TLS_VARIABLE}=1",
    )
    group.add_argument(
        "--ca",
        metavar="FILE",
        help=f"PEM: whom to trust instead of the system's authorities, and use TLS; ${CA_VARIABLE}",
    )
    group.add_argument(
        "--tls-insecure",
        action="store_true",
        default=None,
        help=f"use TLS and verify nothing, for a self-signed certificate; ${INSECURE_VARIABLE}=1",
    )
    group.add_argument(
        "--server-name",
        metavar="NAME",
        help="the name that the certificate must have if it is not the endpoint's host, and use "
        f"TLS; ${SERVER_NAME_VARIABLE}",
    )


def seconds(text: str) -> float:
    """Return a time to wait, at least a tenth of a second."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # Not a number compares as false.
    if not 0.1 <= value <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is no time from 0.1 to {SECONDS_MAX} seconds"
        )
    return value


def path(text: str) -> Path:
    """Return the path of a file or a directory."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no path")
    return Path(text)


def queue(text: str) -> int:
    """Return the number of a queue."""
    # Ten digits at most: Python refuses to read a number of thousands of them.
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else -1
    if not 0 <= number <= _COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a queue from 0 to {_COUNT_MAX}")
    return number


def utf8(text: str) -> str:
    """Return an argument as the text that its bytes are in UTF-8, whatever the locale."""
    try:
        return as_utf8([text])[0]
    except CommandError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def count(text: str) -> int:
    """Return how many of something are wanted: one at least."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= _COUNT_MAX:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is not a whole number from 1 to {_COUNT_MAX}"
        )
    return value
