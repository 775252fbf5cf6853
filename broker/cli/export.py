"""`commitbus export`: a store's messages as Parquet, without Java."""

from __future__ import annotations

import argparse

from commitbus.broker.cli.common_options import path
from commitbus.broker.cli.open_files import raise_open_files_limit
from commitbus.broker.cli.output import EXIT_OK, CommandError
from commitbus.broker.cli.progress import progress_bar
from commitbus.commitlog.errors import StoreError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("directory", type=path, metavar="DIR", help="the store's directory")
    parser.add_argument("out", type=path, metavar="OUT", help="where the Parquet files go")


def run(options: argparse.Namespace) -> int:
    """Export a store."""
    try:
        from commitbus.flush.spark.export import export_store  # noqa: PLC0415 - needs an extra
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{error.name} is not installed; in a clone: pip install '.[spark]'"
        ) from None
    raise_open_files_limit()
    try:
        with progress_bar() as on_progress:
            summary = export_store(options.directory, options.out, on_progress=on_progress)
    except (StoreError, OSError) as error:
        raise CommandError(str(error)) from None
    print(
        f"{summary.messages} messages in {summary.files_written + summary.files_kept} files "
        f"({summary.files_kept} were there already), "
        f"{summary.parquet_bytes / 1e6:.1f} MB of Parquet"
    )
    return EXIT_OK
