"""How results look."""

from __future__ import annotations

import io
import json
import re

import pytest

from commitbus.broker.cli.output import (
    EXIT_FAILED,
    EXIT_OK,
    Answer,
    CommandError,
    Table,
    as_utf8,
    java_map,
    local_time,
    print_answer,
    run_command,
)


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    """Every row's cell begins below its heading; nothing trails."""
    table = Table(
        {"#Topic": "topic", "#N": "n", "#Rate": "rate", "#On": "on"},
        [
            {"topic": "a-long-topic", "n": 1, "rate": 0.5, "on": True, "hidden": "x"},
            {"topic": "b", "n": 23, "rate": 1, "on": False, "hidden": "y"},
        ],
    )
    assert str(table).splitlines() == [
        "#Topic        #N  #Rate  #On",
        "a-long-topic  1   0.50   true",
        "b             23  1      false",
    ]


def test_an_empty_table_has_its_headings() -> None:
    """A script finds the columns all the same."""
    assert str(Table({"#A": "a", "#B": "b"}, [])) == "#A  #B"


def test_an_answer_is_printed_as_text_or_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Both say the same."""
    answer = Answer([{"a": "ä"}], [Table({"#A": "a"}, [{"a": "ä"}]), "end"])
    print_answer(answer, as_json=False)
    assert capsys.readouterr().out == "#A\nä\nend\n"
    print_answer(answer, as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"a": "ä"}]


def test_never_is_shown_as_nothing() -> None:
    """A queue without messages was never updated."""
    assert local_time(-1) == ""


def test_times_are_local() -> None:
    """The format is that of RocketMQ's tools."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", local_time(1_700_000_000_123))
    assert local_time(1_700_000_000_123, milliseconds=True).endswith(",123")


def test_maps_are_sorted() -> None:
    """Two calls can be compared."""
    assert java_map({"b": "2", "a": "1"}) == "{a=1, b=2}"


def test_a_command_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """The reason goes to standard error, not a traceback."""

    def fail() -> int:
        raise CommandError("there is no topic 'x'")

    assert run_command("mqadmin topicStatus", fail) == EXIT_FAILED
    captured = capsys.readouterr()
    assert captured.err == "mqadmin topicStatus: there is no topic 'x'\n"
    assert captured.out == ""


def test_an_interrupted_command_fails_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    """Who presses Ctrl-C knows why."""

    def interrupt() -> int:
        raise KeyboardInterrupt

    assert run_command("commitbus check", interrupt) == EXIT_FAILED
    assert capsys.readouterr().err == ""


def test_a_command_that_works_returns_its_status() -> None:
    """The command decides."""
    assert run_command("x", lambda: EXIT_OK) == EXIT_OK


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, 253_402_300_800_000 * 1000])
def test_a_time_that_no_calendar_has_stays_a_number(timestamp_ms: int) -> None:
    """A producer says when a message was born, and may say anything."""
    assert local_time(timestamp_ms) == str(timestamp_ms)


@pytest.mark.parametrize("as_json", [True, False])
def test_what_a_terminal_cannot_show_is_escaped(
    monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    """JSON stays JSON; a table shows which character it was."""
    raw = io.BytesIO()
    terminal = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr("sys.stdout", terminal)

    def run() -> int:
        rows = [{"key": "Schlüssel"}]
        print_answer(Answer(rows, [Table({"#Key": "key"}, rows)]), as_json=as_json)
        return EXIT_OK

    assert run_command("x", run) == EXIT_OK
    shown = raw.getvalue().decode("ascii")
    if as_json:
        assert json.loads(shown) == [{"key": "Schlüssel"}]
    else:
        assert shown == "#Key\nSchl\\xfcssel\n"


def test_arguments_are_utf_8_whatever_the_locale_made_of_them() -> None:
    """In the C locale Python hands over what it cannot decode as surrogates."""
    assert as_utf8(["plain", "schlüssel"]) == ["plain", "schlüssel"]
    assert as_utf8(["schl\udcc3\udcbcssel"]) == ["schlüssel"]
    with pytest.raises(CommandError, match="is not UTF-8"):
        as_utf8(["schl\udcfcssel"])
