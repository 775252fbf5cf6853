"""How results look: a command returns an `Answer`, and this module prints it.

Tables are plain text in RocketMQ's columns, so that `awk` written for its mqadmin still works.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn, final

_MESSAGE_MAX: Final = 1000
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


def prepare_streams() -> None:
    """Put the null device where the shell has closed a standard stream.

    Otherwise the next file that is opened gets the stream's number, and what a library writes to
    number 2 ends in the middle of a store. Python itself sends `file=None` to standard output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one: those below are open.
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - never closed


@final
class Parser(ArgumentParser):
    """argparse's, but an error shows a long argument in part only."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and exit."""
        super().error(_clipped(message))


def parse(parser: ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """Return the parsed arguments.

    Raises:
        SystemExit: they make no sense, or ask for help, which is printed then.
    """
    try:
        return parser.parse_args(arguments)
    except SystemExit:
        if (status := run_command(parser.prog, lambda: EXIT_OK)) != EXIT_OK:
            raise SystemExit(status) from None
        raise
    except OSError:
        # Standard error failed: there is no place left to say so.
        raise SystemExit(EXIT_USAGE) from None


def run_command(name: str, run: Callable[[], int], *, needs_output: bool = False) -> int:
    """Return what `run` returns; say why on standard error when it cannot do its work.

    Whatever the system refuses is one line. With `needs_output` a command is not even begun whose
    output nobody could see.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names and keys are any text: one that the terminal cannot show must not stop us.
            # It also writes what is buffered; below shows whether that is possible.
            with suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None and needs_output:
        print_error(name, "standard output is closed")
        return EXIT_FAILED
    status = EXIT_FAILED
    try:
        status = run()
    except CommandError as error:
        print_error(name, str(error))
    except KeyboardInterrupt:
        pass
    except MemoryError:
        print_error(name, "there is not enough memory")
    except BrokenPipeError:
        # The reader of a pipe has seen enough. Python would complain once more while exiting.
        _drop_output()
        return EXIT_OK
    except OSError as error:
        print_error(name, _reason(error))
        _drop_output()
    return _with_output_flushed(name, status)


def _flush_output() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _with_output_flushed(name: str, status: int) -> int:
    """Write what was printed now, because Python's exit would print a traceback if it fails."""
    try:
        _flush_output()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        print_error(name, _reason(error))
        _drop_output()
        return EXIT_FAILED
    return status


def _drop_output() -> None:
    """Discard the rest of standard output without an error."""
    # A stream that was put in its place has no number.
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reason(error: OSError) -> str:
    """Return the reason of an OSError, with the file's name.

    Commands name what they read and write themselves: only what they print has no name.
    """
    text = error.strerror or str(error) or type(error).__name__
    name = "standard output" if error.filename is None else os.fsdecode(error.filename)
    return f"{name}: {text}"


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
    """Print why a command failed to standard error: one line, of a length that people read."""
    # Where standard error takes nothing either, the exit status has to do.
    with suppress(OSError):
        print(f"{name}: {_clipped(message)}", file=sys.stderr)


def _clipped(message: str) -> str:
    """Return a message with the middle of a long one left out."""
    if len(message) <= _MESSAGE_MAX:
        return message
    return f"{message[: _MESSAGE_MAX // 2]} ... {message[-_MESSAGE_MAX // 2 :]}"


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
