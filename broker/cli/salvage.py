"""`commitbus salvage`: every intact message of a damaged store, in a new one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from commitbus.broker.cli.common_options import path
from commitbus.broker.cli.open_files import raise_open_files_limit
from commitbus.broker.cli.output import EXIT_FAILED, EXIT_OK, CommandError
from commitbus.broker.cli.progress import progress_bar
from commitbus.broker.progress.state_salvage import salvage_state
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.layout import LOG
from commitbus.broker.store.salvage import Salvage, SalvageReport, salvage_store
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.errors import NotAStoreError, StoreError
from commitbus.commitlog.file_system import RealFileSystem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("directory", type=path, metavar="DIR", help="the damaged store")
    parser.add_argument(
        "out", type=path, metavar="OUT", help="where the new store goes: new or empty"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Salvage a store; it failed only if no message could be read."""
    raise_open_files_limit()
    clock, file_system = SystemClock(), RealFileSystem()

    def take_over_state(salvage: Salvage, made: Path) -> None:
        for lost in salvage_state(
            options.directory, made, salvage.numbers, clock=clock, file_system=file_system
        ):
            salvage.report.add("config", 0, 0, lost)

    try:
        with progress_bar() as on_progress:
            report = salvage_store(
                options.directory,
                options.out,
                config=StoreConfig(),
                clock=clock,
                file_system=file_system,
                on_progress=on_progress,
                complete=take_over_state,
            ).report
    except NotAStoreError as error:
        # Without a log no other file was looked at.
        if error.path != options.out or not (options.directory / LOG).is_dir():
            raise CommandError(str(error)) from None
        raise CommandError(f"{error.path} cannot take the new store: {error.reason}") from None
    except (StoreError, OSError) as error:
        raise CommandError(str(error)) from None
    print(json.dumps(report.to_json(), indent=2) if options.json else "\n".join(_lines(report)))
    return EXIT_OK if report.records else EXIT_FAILED


def _lines(report: SalvageReport) -> list[str]:
    lines = [str(loss) for loss in report.losses]
    if report.loss_count > len(report.losses):
        lines.append(f"... and {report.loss_count - len(report.losses)} more")
    lines.append(
        f"{report.records} messages of {len(report.topics)} topics, {report.record_bytes} bytes, "
        f"from {report.log_files} log files"
    )
    lines.append(
        f"{report.loss_count} losses, {report.lost_bytes} bytes of the log"
        if report.loss_count
        else "nothing was lost"
    )
    lines.append(f"the new store is {report.out}" if report.records else "no new store was made")
    return lines
