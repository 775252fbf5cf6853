"""`commitbus`: start a broker, see it work, check and export what it stored."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

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
_WITHOUT_OUTPUT: Final = ("serve", "produce")
"""Commands that run with a closed standard output, because they do their work without it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `commitbus` and return its exit status."""
    # All imports but the few above lie behind this line: Ctrl-C meanwhile shows no traceback.
    try:
        return _main(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return 1


def _main(arguments: Sequence[str]) -> int:
    from commitbus.broker.cli.output import parse, prepare_streams, run_command  # noqa: PLC0415 - see main

    prepare_streams()
    parser = _parser(arguments)
    options = parse(parser, arguments)
    if options.version or options.command is None:
        return run_command(
            PROGRAM, lambda: _describe(parser, version_only=options.version), needs_output=True
        )
    module = import_module(f"commitbus.broker.cli.{options.command}")
    return run_command(
        f"{PROGRAM} {options.command}",
        lambda: _status(module.run(options)),
        needs_output=options.command not in _WITHOUT_OUTPUT,
    )


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser, with the options of the command that is named only."""
    from commitbus.broker.cli.output import Parser  # noqa: PLC0415 - see main

    parser = Parser(
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
    return parser


def _describe(parser: argparse.ArgumentParser, *, version_only: bool) -> int:
    from commitbus.broker.common.version import version  # noqa: PLC0415 - see main

    if version_only:
        print(f"{PROGRAM} {version()}")
    else:
        # argparse's own printing says nothing of what could not be written.
        print(parser.format_help(), end="")
    return 0


def _status(status: object) -> int:
    # Modules found by name have no type.
    assert isinstance(status, int)
    return status
