"""What log lines look like."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from commitbus.broker.common.log_format import JsonFormatter, TextFormatter


def record(**extra: object) -> logging.LogRecord:
    """A record as `logger.info("flushed", extra=...)` makes it."""
    logger = logging.getLogger("commitbus.test")
    return logger.makeRecord(logger.name, logging.INFO, "f", 1, "flushed", (), None, extra=extra)


def test_a_json_line_has_the_message_and_the_fields() -> None:
    """The message is constant, so the facts are fields of their own."""
    line = json.loads(JsonFormatter().format(record(physical_offset=4096)))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "INFO",
        "logger": "commitbus.test",
        "message": "flushed",
        "physical_offset": 4096,
    }


def test_a_text_line_ends_with_the_fields() -> None:
    """A person reads message and facts in one line."""
    assert (
        TextFormatter()
        .format(record(physical_offset=4096))
        .endswith("INFO flushed physical_offset=4096")
    )


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_an_exception_is_part_of_the_line(formatter: logging.Formatter) -> None:
    """A traceback is not lost."""
    entry = record()
    try:
        raise ValueError("broken")  # noqa: TRY301 - to have a traceback
    except ValueError:
        entry.exc_info = sys.exc_info()
    assert "ValueError: broken" in formatter.format(entry)
