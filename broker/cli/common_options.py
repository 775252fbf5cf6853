"""What the commands of both programs share that speak to a broker."""

from __future__ import annotations

import argparse
import os
from typing import Final

DEFAULT_ENDPOINT: Final = "127.0.0.1:8081"
ENDPOINT_VARIABLE: Final = "COMMITBUS_ENDPOINT"
TLS_VARIABLE: Final = "COMMITBUS_TLS"
CA_VARIABLE: Final = "COMMITBUS_CA"
INSECURE_VARIABLE: Final = "COMMITBUS_TLS_INSECURE"
SERVER_NAME_VARIABLE: Final = "COMMITBUS_SERVER_NAME"
CONNECT_TIMEOUT_S: Final = 3.0
"""A broker that was started in the line before is ready within this time."""
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


def count(text: str) -> int:
    """Return how many of something are wanted: one at least."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= _COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_COUNT_MAX}")
    return value
