"""How results look: a command returns an `Answer`, and this module prints it.

Tables are plain text in RocketMQ's columns, so that `awk` written for its mqadmin still works.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
"""The command was understood, but what it asked for did not happen."""
EXIT_USAGE: Final = 2
"""The command was not understood; what argparse exits with."""


class CommandError(Exception):
    """A command cannot do what it was asked for; the message is for the person who asked."""


Row = Mapping[str, object]
"""One row of a table, by the names that `--json` shows."""


@final
@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings."""

    columns: Mapping[str, str]
    """Heading to the row's name for it. Other names of a row appear in JSON only."""
    rows: Sequence[Row]

    def __str__(self) -> str:
        """Return headings and rows, columns padded to their widest cell."""
        lines = [list(self.columns)]
        lines += [[_cell(row[name]) for name in self.columns.values()] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = (
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        )
        return "\n".join(line.rstrip() for line in padded)


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found or did."""

    data: Any
    """The same as `text`, as JSON has it."""
    text: Sequence[str | Table]
    """Printed one below the other."""
    status: int = EXIT_OK
    """The command's exit status."""


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """Print an answer to standard output."""
    if as_json:
        # What the terminal cannot show is escaped in JSON's own way, so that it stays JSON.
        shows_all = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        print(json.dumps(answer.data, indent=2, ensure_ascii=not shows_all))
    else:
        for part in answer.text:
            print(part)


def run_command(name: str, run: Callable[[], int]) -> int:
    """Return what `run` returns; say why on standard error when it cannot do its work."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names and keys are any text: one that the terminal cannot show must not stop us.
            stream.reconfigure(errors="backslashreplace")
    try:
        status = run()
        sys.stdout.flush()
    except CommandError as error:
        print_error(name, str(error))
        return EXIT_FAILED
    except BrokenPipeError:
        # The reader of a pipe has seen enough. Python would complain once more while exiting.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except KeyboardInterrupt:
        return EXIT_FAILED
    return status


def as_utf8(arguments: Iterable[str]) -> list[str]:
    """Return arguments as the text that their bytes are in UTF-8.

    In a locale without UTF-8 Python has put them in as single bytes.

    Raises:
        CommandError: an argument is not UTF-8, so no name, key or body can be made of it.
    """
    return [_text(argument) for argument in arguments]


def _text(argument: str) -> str:
    if not any("\ud800" <= character <= "\udfff" for character in argument):
        return argument
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        raise CommandError(f"{argument!r} is not UTF-8") from None


def print_error(name: str, message: str) -> None:
    """Print why a command failed to standard error."""
    print(f"{name}: {message}", file=sys.stderr)


def local_time(timestamp_ms: int, *, milliseconds: bool = False) -> str:
    """Return local time as `yyyy-MM-dd HH:mm:ss`, with `,SSS` if asked; empty for -1 (never).

    A time that no calendar has stays a number of milliseconds: producers send what they like.
    """
    if timestamp_ms < 0:
        return ""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text},{timestamp_ms % 1000:03d}" if milliseconds else text


def java_map(entries: Mapping[str, str]) -> str:
    """Return `{a=1, b=2}`, as RocketMQ's tools print a map; sorted, so that it can be compared."""
    return "{" + ", ".join(f"{key}={entries[key]}" for key in sorted(entries)) + "}"


def java_bool(value: bool) -> str:  # noqa: FBT001 - the value itself
    """Return `true` or `false`."""
    return "true" if value else "false"


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return java_bool(value)
    if isinstance(value, float):
        return f"{value:.2f}"
    return str(value)
