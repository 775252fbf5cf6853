"""Options that several commands of mqadmin share, and how their values are read."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import TYPE_CHECKING, Final

from commitbus.broker.cli.output import CommandError

if TYPE_CHECKING:
    from commitbus.broker.cli.admin_client import AdminClient

NOW: Final = -1
"""What `point_in_time` makes of the word `now`."""
_TIME_FORMAT: Final = "%Y-%m-%d#%H:%M:%S:%f"
_TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, behind which the protocol has no times."""


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


def check_broker_name(client: AdminClient, options: argparse.Namespace) -> None:
    """Refuse a command that is meant for another broker.

    Raises:
        CommandError: a broker was named and is not the one at the endpoint.
    """
    if options.brokerName is not None and options.brokerName != (name := client.broker().name):
        raise CommandError(f"the broker at this endpoint is {name!r}, not {options.brokerName!r}")


def point_in_time(text: str) -> int:
    """Return milliseconds since 1970 for these, or for `yyyy-MM-dd#HH:mm:ss:SSS` in local time.

    `now` and `currentTimeMillis`, which RocketMQ's tool has as well, are `NOW`.
    """
    if text in ("now", "currentTimeMillis"):
        return NOW
    try:
        at_ms = int(text) if text.isascii() and text.isdigit() else _local_time_ms(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither now, nor milliseconds, nor yyyy-MM-dd#HH:mm:ss:SSS"
        ) from None
    if not 0 <= at_ms <= _TIME_MS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not in the years 1970 to 9999")
    return at_ms


def _local_time_ms(text: str) -> int:
    # RocketMQ lets the milliseconds be left out; strptime takes 1 to 6 digits for them.
    moment = datetime.strptime(text if text.count(":") == 3 else f"{text}:0", _TIME_FORMAT)  # noqa: DTZ007 - local time, as RocketMQ's tool takes it
    return round(moment.timestamp() * 1000)


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


def add_attributes(parser: argparse.ArgumentParser, *names: str, example: str) -> None:
    """Add the option that changes attributes."""
    parser.add_argument(
        *names,
        type=attribute_changes,
        default=({}, []),
        metavar="+NAME=VALUE,-NAME",
        help=f"attributes to set and to delete, such as {example}",
    )


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
