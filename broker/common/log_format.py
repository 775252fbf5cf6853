"""How log lines look: a constant message and fields, JSON when no person is watching.

Call `logger.info("flushed", extra={"physical_offset": 4096})`: the message stays the same for
every event of its kind, so that it can be searched and counted, and the facts are fields.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, TextIO, final

# What every record has; whatever else is there was given as `extra`.
_STANDARD: Final = frozenset(
    (*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "color_message")
)


def set_up_logging(stream: TextIO = sys.stderr) -> None:
    """Send the log of this process to `stream`: text to a terminal, JSON lines to anything else."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if stream.isatty() else JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


@final
class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


@final
class TextFormatter(logging.Formatter):
    """Time of day, level and message, then `field=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        moment = datetime.fromtimestamp(record.created).astimezone()
        fields = "".join(f" {name}={value}" for name, value in _extra(record).items())
        line = f"{moment:%H:%M:%S} {record.levelname} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
