"""Progress on disk: kept through kills, closes and damage, and shown to RocketMQ."""

from __future__ import annotations

import errno
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.metadata.documents import parse_document
from commitbus.broker.metadata.errors import StateFileError, StateWriteError
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.queue_progress import InFlight, Lease, QueueProgress
from commitbus.commitlog.errors import StoreClosedError

Open = Callable[..., ProgressTable]
Killed = Callable[[Path, Path], Path]
State = dict[tuple[str, str, int], tuple[int, list[InFlight]]]


def _state(table: ProgressTable) -> State:
    return {key: (p.next_offset, list(p.in_flight.values())) for key, p in table.items()}


def _deliver(table: ProgressTable, progress: QueueProgress, count: int, until: int = 100) -> None:
    start = progress.next_offset
    table.deliver(
        progress,
        range(start, start + count),
        Lease(1, until, "c", auto_renew=True),
        next_offset=start + count,
    )


def _work(table: ProgressTable) -> QueueProgress:
    """One change of each kind, on three queues."""
    progress = table.create("g", "t", 0, 7)
    _deliver(table, progress, 5)
    assert table.acknowledge(progress, 8)
    table.change_invisible(progress, 9, pop_time_ms=2, invisible_until_ms=500, suspend=True)
    attempt = table.redeliver(progress, 7, Lease(3, 300, "d", auto_renew=False))
    assert attempt == 2
    table.reset("g", "t", 1, 40)
    table.create("gone", "t", 0, 0)
    table.delete_group("gone")
    return progress


def test_progress_begins_once(open_table: Open, tmp_path: Path) -> None:
    table = open_table(tmp_path)
    assert table.get("g", "t", 0) is None
    progress = table.create("g", "t", 0, 7)
    assert table.create("g", "t", 0, 9) is progress is table.get("g", "t", 0)
    assert progress.committed_offset == 7
    assert table.groups_of("t") == ["g"]
    assert table.groups_of("other") == []
    assert table.in_flight_max == 200_000


def test_a_kill_loses_nothing_that_was_answered(
    open_table: Open, tmp_path: Path, killed: Killed
) -> None:
    table = open_table(tmp_path / "a")
    progress = _work(table)
    expected = _state(table)
    assert expected["g", "t", 1] == (40, [])
    again = open_table(killed(tmp_path / "a", tmp_path / "b"))
    assert _state(again) == expected
    table.save()
    assert not table.acknowledge(progress, 8)
    assert table.acknowledge(progress, 7)
    third = open_table(killed(tmp_path / "a", tmp_path / "c"))
    assert _state(third) == _state(table)
    kept = third.get("g", "t", 0)
    assert kept is not None
    assert kept.committed_offset == 9
    assert third.redeliver(kept, 9, Lease(0, 0, "", auto_renew=False)) == 1, "it was suspended"


def test_a_kill_after_a_kill_loses_nothing_either(
    open_table: Open, tmp_path: Path, killed: Killed
) -> None:
    store = tmp_path / "0"
    expected: State = {}
    for n in range(1, 6):
        table = open_table(store)
        assert _state(table) == expected
        progress = table.create("g", f"t{n % 2}", 0, 0)
        _deliver(table, progress, 3)
        table.acknowledge(progress, progress.next_offset - 2)
        expected = _state(table)
        store = killed(store, tmp_path / str(n))
    assert _state(open_table(store)) == expected


def test_a_close_saves_in_full(open_table: Open, tmp_path: Path) -> None:
    table = open_table(tmp_path, sync=True)
    _work(table)
    expected = _state(table)
    table.close()
    (tmp_path / "commitbus" / "progress.journal").unlink()
    assert _state(open_table(tmp_path)) == expected


def test_a_lost_journal_does_not_make_new_entries_look_old(
    open_table: Open, tmp_path: Path, killed: Killed
) -> None:
    table = open_table(tmp_path / "a")
    progress = _work(table)
    table.save()
    store = killed(tmp_path / "a", tmp_path / "b")
    (store / "commitbus" / "progress.journal").write_bytes(b"")
    table = open_table(store)
    kept = table.get("g", "t", 0)
    assert kept is not None
    assert _state(table)["g", "t", 0][0] == progress.next_offset
    table.acknowledge(kept, 7)
    assert _state(open_table(killed(store, tmp_path / "c"))) == _state(table)


def test_what_is_deleted_stays_deleted_and_may_begin_anew(
    open_table: Open, tmp_path: Path, killed: Killed
) -> None:
    table = open_table(tmp_path / "a")
    for group, topic in [("g", "t"), ("g", "u"), ("h", "t")]:
        _deliver(table, table.create(group, topic, 0, 0), 2)
    table.save()
    stale = table.get("g", "t", 0)
    assert stale is not None
    table.delete_topic("t")
    assert table.acknowledge(stale, 0), "whoever still holds it does no harm"
    assert list(_state(table)) == [("g", "u", 0)]
    table.create("g", "t", 0, 55)
    expected = _state(table)
    assert _state(open_table(killed(tmp_path / "a", tmp_path / "b"))) == expected
    table.save()
    assert _state(open_table(killed(tmp_path / "a", tmp_path / "c"))) == expected
    table.delete_group("g")
    table.close()
    assert _state(open_table(tmp_path / "a")) == {}


def test_a_full_ring_saves_first_and_loses_nothing(
    open_table: Open, tmp_path: Path, killed: Killed
) -> None:
    table = open_table(tmp_path / "a")
    progress = table.create("g", "t", 0, 0)
    _deliver(table, progress, 1)
    for n in range(6_000):  # 45 bytes each: twice around the ring
        table.change_invisible(progress, 0, pop_time_ms=n, invisible_until_ms=n, suspend=False)
    assert _state(open_table(killed(tmp_path / "a", tmp_path / "b"))) == _state(table)


def test_a_full_ring_that_cannot_be_saved_refuses_the_change(
    open_table: Open, tmp_path: Path, killed: Killed, caplog: pytest.LogCaptureFixture
) -> None:
    table = open_table(tmp_path / "a")
    progress = table.create("g", "t", 0, 0)
    _deliver(table, progress, 1)
    rows: Any = table._rows
    rows.run(lambda: rows._thread.database.execute("PRAGMA query_only = 1"))

    def fill() -> None:
        for n in range(6_000):
            table.change_invisible(progress, 0, pop_time_ms=n, invisible_until_ms=n, suspend=False)

    with caplog.at_level(logging.WARNING), pytest.raises(StateWriteError):
        fill()
    assert [record.getMessage() for record in caplog.records] == ["progress not saved"]
    with pytest.raises(StateWriteError):
        table.acknowledge(progress, 0)
    assert list(progress.in_flight) == [0], "what is refused has not happened"
    assert _state(open_table(killed(tmp_path / "a", tmp_path / "b"))) == _state(table)
    rows.run(lambda: rows._thread.database.execute("PRAGMA query_only = 0"))
    assert table.acknowledge(progress, 0), "it goes on as soon as the disk does"


def test_saves_go_on_beside_changes(open_table: Open, tmp_path: Path) -> None:
    table = open_table(tmp_path, save_interval_ms=1)
    for n in range(300):
        progress = table.create("g", "t", n % 7, 0)
        _deliver(table, progress, 8)
        for offset in list(progress.in_flight)[:5]:
            table.acknowledge(progress, offset)
        if n % 50 == 0:
            table.delete_group("g")
    expected = _state(table)
    table.close()
    assert _state(open_table(tmp_path)) == expected


def test_a_save_that_takes_long_is_not_repeated_at_once(
    open_table: Open, tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Much in flight would otherwise keep the interpreter from those who serve."""
    table = open_table(tmp_path)
    progress = table.create("g", "t", 0, 0)
    rows: Any = table._rows
    save, saved = rows.save, 0

    def slow_save(*arguments: Any, **options: Any) -> None:
        nonlocal saved
        saved += 1
        clock.ms += 50
        save(*arguments, **options)

    def saved_after_tick() -> int:
        _deliver(table, progress, 1)
        table._rows.run(table._tick)
        return saved

    monkeypatch.setattr(rows, "save", slow_save)
    assert [saved_after_tick(), saved_after_tick()] == [1, 1]
    clock.ms += 49 * 50
    assert [saved_after_tick(), saved_after_tick()] == [2, 2]


def test_a_clamp_lets_no_new_message_pass_by(
    open_table: Open, tmp_path: Path, killed: Killed, caplog: pytest.LogCaptureFixture
) -> None:
    table = open_table(tmp_path / "a")
    for queue_id in range(3):
        progress = table.create("g", "t", queue_id, 0)
        _deliver(table, progress, 10)
        table.acknowledge(progress, 9)
    with caplog.at_level(logging.WARNING):
        table.clamp(lambda _, queue_id: (10, 4, 0)[queue_id])
    assert len(caplog.records) == 2
    expected = {0: (10, list(range(9))), 1: (4, list(range(4))), 2: (0, [])}
    for opened in (table, open_table(killed(tmp_path / "a", tmp_path / "b"))):
        for queue_id, (next_offset, in_flight) in expected.items():
            kept = opened.get("g", "t", queue_id)
            assert kept is not None
            assert (kept.next_offset, list(kept.in_flight)) == (next_offset, in_flight)


def test_a_closed_table_takes_no_change(open_table: Open, tmp_path: Path) -> None:
    table = open_table(tmp_path)
    progress = table.create("g", "t", 0, 0)
    table.close()
    table.close()
    with pytest.raises(StoreClosedError):
        table.create("h", "t", 0, 0)
    with pytest.raises(StoreClosedError):
        table.acknowledge(progress, 0)
    with pytest.raises(StoreClosedError):
        table.save()


# Beside RocketMQ


def _mirror(store: Path) -> dict[str | int, object]:
    return dict(parse_document((store / "config" / "consumerOffset.json").read_bytes()).items())


@pytest.mark.shared
def test_the_first_opening_imports_rocketmqs_offsets(
    open_table: Open, rocketmq_store: Path
) -> None:
    table = open_table(rocketmq_store)
    assert _state(table) == {
        ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0): (1, []),
        ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0): (5, []),
    }
    assert _mirror(rocketmq_store)["writtenBy"] == "commitbus", "before anything is served"


def test_committed_offsets_are_mirrored_as_rocketmq_writes_them(
    open_table: Open, tmp_path: Path
) -> None:
    table = open_table(tmp_path)
    _work(table)
    table.close()
    text = (tmp_path / "config" / "consumerOffset.json").read_text()
    assert '"t@g":{\n\t\t\t0:7,\n\t\t\t1:40\n\t\t}' in text
    assert _mirror(tmp_path)["groupTopicMap"] == {"g": ["t"]}


def test_the_mirror_follows_by_itself(open_table: Open, tmp_path: Path) -> None:
    table = open_table(tmp_path)
    _work(table)
    table._rows.run(table._tick)
    assert not (tmp_path / "config").exists(), "not before its interval has passed"
    table._clock.ms += 5_000  # type: ignore[attr-defined] # the fixture's clock
    table._rows.run(table._tick)
    assert _mirror(tmp_path)["offsetTable"] == {"t@g": {0: 7, 1: 40}}


def test_our_own_stale_mirror_undoes_nothing(
    open_table: Open, tmp_path: Path, killed: Killed
) -> None:
    table = open_table(tmp_path / "a")
    _work(table)
    table.close()
    table = open_table(tmp_path / "a")
    table.reset("g", "t", 1, 3)
    assert _state(open_table(killed(tmp_path / "a", tmp_path / "b"))) == _state(table)


def test_what_rocketmq_consumed_after_us_counts(open_table: Open, tmp_path: Path) -> None:
    table = open_table(tmp_path)
    _work(table)
    table.close()
    # RocketMQ writes without our mark; queue 1 and the other group are as we left them.
    (tmp_path / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"t@g":{0:12,1:40},"new@h":{3:5,4:-1}}}'
    )
    state = _state(open_table(tmp_path))
    assert state == {("g", "t", 0): (12, []), ("g", "t", 1): (40, []), ("h", "new", 3): (5, [])}


def test_what_rocketmq_left_alone_keeps_what_is_in_flight(open_table: Open, tmp_path: Path) -> None:
    table = open_table(tmp_path)
    _work(table)
    expected = _state(table)
    table.close()
    (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:7,1:40}}}')
    assert _state(open_table(tmp_path)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"offsetTable":7}',
        '{"offsetTable":{"no at sign":{0:1}}}',
        '{"offsetTable":{"../t@g":{0:1}}}',
        '{"offsetTable":{"t@g/h":{0:1}}}',
        '{"offsetTable":{"t@g":7}}',
        '{"offsetTable":{"t@g":{"x":1}}}',
        '{"offsetTable":{"t@g":{-1:1}}}',
        '{"offsetTable":{"t@g":{0:true}}}',
        '{"offsetTable":{"t@g":{0:9223372036854775808}}}',
    ],
)
def test_a_damaged_offset_file_stops_the_opening(
    open_table: Open, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "config" / "consumerOffset.json"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(StateFileError) as caught:
        open_table(tmp_path)
    assert caught.value.path == file
    assert file.read_text() == text


def test_an_import_that_cannot_be_marked_does_not_open(
    open_table: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config" / "consumerOffset.json"
    file.parent.mkdir()
    file.write_text('{"offsetTable":{"t@g":{0:5}}}')
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", _refuse_to_replace)
        with pytest.raises(StateWriteError, match="read-only"):
            open_table(tmp_path)
    table = open_table(tmp_path)
    progress = table.get("g", "t", 0)
    assert progress is not None
    assert progress.committed_offset == 5


def _refuse_to_replace(_source: Path, _target: Path) -> Path:
    raise OSError(errno.EROFS, "read-only")


def test_a_mirror_that_cannot_be_written_costs_nothing_but_a_warning(
    open_table: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = open_table(tmp_path)
    _work(table)
    expected = _state(table)
    (tmp_path / "config").write_bytes(b"in the way")
    with caplog.at_level(logging.WARNING):
        table.close()
    assert "mirror not written" in caplog.text
    (tmp_path / "config").unlink()
    assert _state(open_table(tmp_path)) == expected


# Damage


def _damaged_store(open_table: Open, tmp_path: Path) -> Path:
    table = open_table(tmp_path)
    _work(table)
    table.close()
    return tmp_path / "commitbus" / "progress.db"


def test_a_damaged_row_stops_the_opening(open_table: Open, tmp_path: Path) -> None:
    database = _damaged_store(open_table, tmp_path)
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE progress SET in_flight = x'00112233' WHERE queue_id = 0")
    connection.close()
    with pytest.raises(StateFileError, match="group g, topic t, queue 0"):
        open_table(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE progress SET next_offset = 8",
        "UPDATE progress SET next_offset = 'x'",
        "UPDATE progress SET in_flight = 5",
        "UPDATE progress SET topic = x'00'",
        "UPDATE progress SET sequence = -1",
        "UPDATE progress SET key_id = -1 WHERE queue_id = 0",
        "UPDATE journal SET epoch = 'x'",
        "UPDATE journal SET position = -1",
        "DELETE FROM journal",
        "DROP TABLE journal",
    ],
)
def test_a_database_that_makes_no_sense_stops_the_opening(
    open_table: Open, tmp_path: Path, damage: str
) -> None:
    database = _damaged_store(open_table, tmp_path)
    with sqlite3.connect(database) as connection:
        connection.execute(damage)
    connection.close()
    with pytest.raises(StateFileError):
        open_table(tmp_path)


def test_any_page_of_garbage_in_the_database_opens_or_gets_a_typed_error(
    open_table: Open, tmp_path: Path
) -> None:
    database = _damaged_store(open_table, tmp_path)
    data = database.read_bytes()
    for place in range(0, len(data), 509):
        database.write_bytes(data[:place] + bytes([data[place] ^ 0x5A]) + data[place + 1 :])
        try:
            open_table(tmp_path).close()
        except StateFileError:
            continue


def test_any_flipped_byte_of_the_journal_costs_at_most_what_comes_after(
    open_table: Open, tmp_path: Path, killed: Killed
) -> None:
    table = open_table(tmp_path / "a")
    progress = table.create("g", "t", 0, 0)
    _deliver(table, progress, 40)
    table.save()
    for offset in range(40):
        table.acknowledge(progress, offset)
    store = killed(tmp_path / "a", tmp_path / "b")
    data = (store / "commitbus" / "progress.journal").read_bytes()
    first = next(p for p in range(16, 400) if data[p + 6] == 4)  # the first acknowledgement
    for n in range(0, 40, 3):
        store = killed(tmp_path / "a", tmp_path / "b")
        place = first + 28 * n + n % 28
        (store / "commitbus" / "progress.journal").write_bytes(
            data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        )
        again = open_table(store)
        assert _state(again)["g", "t", 0][1][0].offset == n
        again.close()


def test_a_journal_that_is_a_directory_stops_the_opening(open_table: Open, tmp_path: Path) -> None:
    (tmp_path / "commitbus" / "progress.journal").mkdir(parents=True)
    with pytest.raises(StateFileError):
        open_table(tmp_path)


def test_no_room_for_the_journal_is_said_at_the_opening(
    open_table: Open, tmp_path: Path, killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(tmp_path / "a")
    _work(table)
    store = killed(tmp_path / "a", tmp_path / "b")
    with monkeypatch.context() as patch:

        def full(_fd: int, _position: int, _length: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr("os.posix_fallocate", full)
        with pytest.raises(StateWriteError, match="No space left"):
            open_table(store)
    assert _state(open_table(store)) == _state(table), "and nothing is lost by it"
