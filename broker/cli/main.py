"""`commitbus`: start a broker, see it work, check and export what it stored."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from commitbus.broker.cli.output import EXIT_OK, run_command
from commitbus.broker.version import version

PROGRAM: Final = "commitbus"

# Name to summary. Each command is a module of this package with `add_arguments(parser)` and
# `run(options) -> exit status`; only the one that is run gets imported, for a fast start.
COMMANDS: Final = {
    "serve": "Start a broker.",
    "demo": "See it work: real messages through the official client, then the same log in Spark.",
    "produce": "Send the lines of a file or a pipe to a topic.",
    "consume": "Print the messages of a topic, without a group.",
    "check": "Verify every byte of a store.",
    "salvage": "Copy every intact message of a damaged store to a new one.",
    "export": "Write a store's messages as Parquet.",
    "config": "Print every setting with its default, as a file for `serve --config`.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `commitbus` and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="A message broker that speaks the RocketMQ 5 gRPC protocol.",
        epilog="mqadmin operates a running broker: topics, groups, messages.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    chosen = next((argument for argument in arguments if argument in COMMANDS), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == chosen:
            import_module(f"commitbus.broker.cli.{name}").add_arguments(command)
    options = parser.parse_args(arguments)
    if options.version:
        print(f"{PROGRAM} {version()}")
        return EXIT_OK
    if options.command is None:
        parser.print_help()
        return EXIT_OK
    module = import_module(f"commitbus.broker.cli.{options.command}")
    return run_command(f"{PROGRAM} {options.command}", lambda: _status(module.run(options)))


def _status(status: object) -> int:
    # Modules found by name have no type.
    assert isinstance(status, int)
    return status
