"""The mirror of the offsets: whole in the file, made anew only where an offset changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.metadata.documents import format_document, parse_document
from commitbus.broker.progress import consumer_offsets, offset_mirror
from commitbus.broker.progress.progress_table import ProgressTable

Open = Callable[..., ProgressTable]


def _tick(table: ProgressTable, clock: Any) -> None:
    clock.ms += 5_000
    table._rows.run(table._tick)


def _file(store: Path) -> bytes:
    return (store / "config" / "consumerOffset.json").read_bytes()


def test_only_what_changed_is_made_anew(
    open_table: Open, tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 400,000 queues of groups, all of it took 3 s each time."""
    table = open_table(tmp_path)
    made: list[tuple[str, str]] = []
    format_queues = consumer_offsets.format_queues

    def noting(group: str, topic: str, offsets: Any) -> str:
        made.append((group, topic))
        return format_queues(group, topic, offsets)

    monkeypatch.setattr(offset_mirror, "format_queues", noting)
    for group in range(20):
        for queue_id in range(4):
            table.create(f"g{group}", "t", queue_id, queue_id)
    _tick(table, clock)
    assert len(made) == len(set(made)) == 20
    made.clear()
    table.reset("g3", "t", 1, 55)
    table.create("g4", "u", 7, 8)
    table.delete_group("g5")
    _tick(table, clock)
    assert sorted(made) == [("g3", "t"), ("g4", "u")]
    document = parse_document(_file(tmp_path))
    offsets: Any = document["offsetTable"]
    assert offsets["t@g3"] == {0: 0, 1: 55, 2: 2, 3: 3}
    assert offsets["u@g4"] == {7: 8}
    assert "t@g5" not in offsets
    assert len(offsets) == 20
    groups: Any = document["groupTopicMap"]
    assert (groups["g4"], "g5" in groups) == (["t", "u"], False)
    made.clear()
    _tick(table, clock)
    assert made == [], "nothing changed"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_file_is_as_if_made_at_once(
    open_table: Open, tmp_path: Path, clock: Any, count: int
) -> None:
    table = open_table(tmp_path)
    table.create("gone", "t", 0, 0)
    for group in range(count):
        for queue_id in range(group + 1):
            table.create(f"g{group}", f"t{group}", queue_id, queue_id)
    table.delete_group("gone")
    _tick(table, clock)
    data = _file(tmp_path)
    assert format_document(parse_document(data)) == data


def _offset(store: Path) -> object:
    offsets: Any = parse_document(_file(store))["offsetTable"]
    return offsets["t@g"][0]


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_change_that_is_saved_after_the_mirror_was_written_is_in_the_next_one(
    open_table: Open,
    tmp_path: Path,
    clock: Any,
    is_closed: bool,  # noqa: FBT001 - drawn
) -> None:
    """A save may be due up to three seconds after a change, and the mirror is due before that."""
    table = open_table(tmp_path)
    table.create("g", "t", 0, 1)
    _tick(table, clock)
    assert _offset(tmp_path) == 1
    table.reset("g", "t", 0, 55)
    # As after a save that took long.
    table._saver._next_save_s = clock.monotonic_s() + 6
    _tick(table, clock)
    if is_closed:
        table.close()
    else:
        _tick(table, clock)
    assert _offset(tmp_path) == 55
