"""How many files a command may open: a store has more of them than the usual limit allows."""

from __future__ import annotations

import logging
import resource

_log = logging.getLogger(__name__)


def raise_open_files_limit() -> None:
    """Allow this process as many open files as it may have at all.

    Each log file, each file of a queue and each connection holds one; the usual 1,024 are soon used
    up. They are that few for programs that use `select`, which this is not.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        # macOS names no limit and then refuses to go that far: it stays as it is.
        _log.warning("limit of open files not raised", extra={"reason": str(error)})
