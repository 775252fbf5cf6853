"""TLS options of the command line and the environment, and advice when a connection fails."""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from commitbus.broker.cli.common_options import (
    CA_VARIABLE,
    INSECURE_VARIABLE,
    SERVER_NAME_VARIABLE,
    TLS_VARIABLE,
)
from commitbus.broker.cli.output import CommandError
from commitbus.broker.client.errors import BrokerUnavailableError, Trouble
from commitbus.broker.common.address import is_host
from commitbus.broker.common.shown import shown
from commitbus.broker.common.small_file import SmallFileError, read_small_file

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("", "0", "false", "no", "off")
_CA_BYTES_MAX: Final = 16 * 1024 * 1024

_HINTS: Final[Mapping[Trouble, str]] = {
    Trouble.OTHER: "",
    Trouble.EXPECTS_TLS: ": add --tls",
    Trouble.EXPECTS_PLAINTEXT: ": leave out --tls, or add --no-tls",
    Trouble.UNTRUSTED: " (--ca FILE says whom to trust, --server-name NAME which name to expect, "
    "--tls-insecure verifies nothing)",
}


@final
@dataclass(frozen=True, slots=True)
class Tls:
    """How to speak to a broker."""

    context: ssl.SSLContext | None = None
    """TLS context with the trusted certificates; None for plaintext."""
    server_name: str = ""
    """The name that the certificate must have; the endpoint's host if empty."""


PLAINTEXT: Final = Tls()


def tls_of(options: argparse.Namespace) -> Tls:
    """Return the settings of the options, else of the environment.

    Raises:
        CommandError: a variable makes no sense, or the file of authorities has none.
    """
    is_insecure = options.tls_insecure or (options.ca is None and _is_set(INSECURE_VARIABLE))
    ca = options.ca or os.environ.get(CA_VARIABLE, "")
    name = options.server_name or os.environ.get(SERVER_NAME_VARIABLE, "")
    wanted = options.tls
    if wanted is None:
        wanted = is_insecure or bool(ca or name) or _is_set(TLS_VARIABLE)
    if not wanted:
        return PLAINTEXT
    if name and not is_host(name):
        raise CommandError(f"{shown(name)} is not a host name or address")
    if is_insecure:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif ca:
        context = _trusting(Path(ca))
    else:
        context = ssl.create_default_context()
    return Tls(context, name)


def explained(error: BrokerUnavailableError) -> CommandError:
    """Return the message for an unavailable broker, with the option that helps."""
    return CommandError(f"{error}{_HINTS[error.trouble]}")


def _trusting(ca: Path) -> ssl.SSLContext:
    """Return a context that trusts the authorities of a PEM file only.

    A certificate that is none of an authority, such as the broker's own, is trusted itself.
    """
    try:
        text = read_small_file(ca, _CA_BYTES_MAX).decode("ascii", "ignore")
        context = ssl.create_default_context(cadata=text)
    except SmallFileError as error:
        raise CommandError(str(error)) from None
    # ValueError: an empty file.
    except (ssl.SSLError, ValueError):
        raise CommandError(f"{ca}: no certificate in PEM") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _is_set(variable: str) -> bool:
    text = os.environ.get(variable, "").lower()
    if text not in (*_TRUE, *_FALSE):
        raise CommandError(f"${variable} is {text!r}, not 1 or 0")
    return text in _TRUE
