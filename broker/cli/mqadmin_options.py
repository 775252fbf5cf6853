"""Options that several commands of mqadmin share, and how their values are read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from commitbus.broker.cli.output import CommandError

if TYPE_CHECKING:
    from commitbus.broker.cli.admin_client import AdminClient

SECONDS_MAX: Final = 86_400


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add `-b` and `-c`, by which RocketMQ's tool chooses one of many brokers."""
    parser.add_argument("-b", "--brokerAddr", help="accepted: there is one broker, the one at -n")
    add_cluster(parser)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add `-c`, the name of a cluster."""
    parser.add_argument("-c", "--clusterName", help="must be the broker's cluster if given")


def check_cluster(client: AdminClient, options: argparse.Namespace) -> None:
    """Refuse a command that is meant for another cluster.

    Raises:
        CommandError: `-c` was given and is not the cluster of the broker.
    """
    if options.clusterName is not None:
        cluster = client.broker().cluster
        if options.clusterName != cluster:
            raise CommandError(
                f"the broker at this endpoint belongs to cluster {cluster!r}, not to "
                f"{options.clusterName!r}"
            )


def boolean(text: str) -> bool:
    """Return the value of an option that takes `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def int32(text: str) -> int:
    """Return a number that the admin protocol can carry where it has 32 bits."""
    return _integer(text, 32)


def int64(text: str) -> int:
    """Return a number that the admin protocol can carry where it has 64 bits."""
    return _integer(text, 64)


def _integer(text: str, bits: int) -> int:
    limit = 1 << (bits - 1)
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not -limit <= value < limit:
        raise argparse.ArgumentTypeError(f"{text} is outside [{-limit}, {limit - 1}]")
    return value


def seconds(text: str) -> float:
    """Return a time to wait, at least a tenth of a second."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    # Not a number compares as false.
    if not 0.1 <= value <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no time from 0.1 to {SECONDS_MAX} seconds")
    return value


def attribute_changes(text: str) -> tuple[dict[str, str], list[str]]:
    """Return what `+name=value,-name` sets, and which names it deletes.

    Raises:
        ArgumentTypeError: the text is written differently.
    """
    sets: dict[str, str] = {}
    deletes: list[str] = []
    for part in text.split(","):
        sign, name, separator, value = part[:1], *part[1:].partition("=")
        if sign == "+" and name and separator and value:
            sets[name] = value
        elif sign == "-" and name and not separator:
            deletes.append(name)
        else:
            raise argparse.ArgumentTypeError(
                f"{part!r} is neither +name=value (set) nor -name (delete)"
            )
    if len(sets) + len(deletes) < len(text.split(",")) or sets.keys() & set(deletes):
        raise argparse.ArgumentTypeError(f"{text!r} names an attribute twice")
    return sets, deletes
