"""`commitbus check`: verify a store, ours or RocketMQ's, without changing it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from commitbus.broker.cli.output import EXIT_FAILED, EXIT_OK, CommandError
from commitbus.broker.cli.progress import progress_bar
from commitbus.broker.store.check import check_store
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.file_system import RealFileSystem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="the store's directory")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Check a store; the exit status tells whether it is intact."""
    try:
        with progress_bar() as on_progress:
            report = check_store(
                options.directory, file_system=RealFileSystem(), on_progress=on_progress
            )
    except (StoreError, OSError) as error:
        raise CommandError(str(error)) from None
    if options.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        for problem in report.problems:
            print(f"{problem.file} at {problem.offset}: {problem.what}")
        print(report.summary)
    return EXIT_FAILED if report.problems else EXIT_OK
