"""`commitbus check`: verify a store, ours or RocketMQ's, without changing it."""

from __future__ import annotations

import argparse
import json

from commitbus.broker.cli.common_options import path
from commitbus.broker.cli.open_files import raise_open_files_limit
from commitbus.broker.cli.output import EXIT_FAILED, EXIT_OK, CommandError
from commitbus.broker.cli.progress import progress_bar
from commitbus.broker.store.check import CheckReport, check_store
from commitbus.commitlog.errors import StoreError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("directory", type=path, metavar="DIR", help="the store's directory")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Check a store; the exit status tells whether it is sound."""
    raise_open_files_limit()
    try:
        with progress_bar() as on_progress:
            report = check_store(options.directory, on_progress=on_progress)
    except (StoreError, OSError) as error:
        raise CommandError(str(error)) from None
    if options.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print("\n".join(_lines(report)))
    return EXIT_OK if report.is_sound else EXIT_FAILED


def _lines(report: CheckReport) -> list[str]:
    lines = [str(problem) for problem in report.problems]
    if report.problem_count > len(report.problems):
        lines.append(f"... and {report.problem_count - len(report.problems)} more")
    lines += [
        f"log: {report.messages} messages in {report.log_files} files, from {report.log_begin} to "
        f"{report.log_end}",
        f"queues: {report.queue_units} units in {report.queues} queues",
        f"index: {report.index_entries} entries in {report.index_files} files",
        f"sealed: {report.manifests} log files with a manifest",
    ]
    if report.of_deleted_topics:
        lines.append(f"{report.of_deleted_topics} messages are of topics that were deleted")
    if not report.was_closed_cleanly:
        lines.append(
            "in use, or not closed cleanly: the next start cuts "
            f"{report.torn_bytes} bytes and derives {report.to_be_recovered} units and entries anew"
        )
    lines.append("sound" if report.is_sound else f"{report.problem_count} problems")
    return lines
