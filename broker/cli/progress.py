"""A progress bar for work that may take minutes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from commitbus.commitlog.recovery import Progress, no_progress


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Give a callable that shows progress on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield no_progress
        return
    # rich takes 0.1 s to import: only who watches pays for it.
    from rich.console import Console  # noqa: PLC0415 - see above
    from rich.progress import Progress as Bar  # noqa: PLC0415 - see above
    from rich.progress import TaskID  # noqa: PLC0415 - see above

    tasks: dict[str, TaskID] = {}
    with Bar(console=Console(stderr=True), transient=True) as bar:

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total or None)

        yield show
