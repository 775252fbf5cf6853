"""Manifests of sealed files: what they vouch for is checked, and losing one is no damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.store.check import check_store
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.types import OutgoingMessage
from commitbus.flush.sealed import SEALED_PATH, manifest_path

BORN_TIMESTAMP_POSITION = 40
"""Of a record: in its header, which no checksum of its own covers."""


@pytest.fixture
def sealed_store(
    open_store: Callable[..., MessageStore],
    make_message: Callable[..., OutgoingMessage],
    copy_of: Callable[[Path], Path],
    store_dir: Path,
) -> Path:
    """A copy of a cleanly closed store with two sealed files."""
    store = open_store()
    while store.end_offset < 2 << 16:
        store.put(make_message(body=bytes(1000)))
    store.durable_watermark.wait(store.end_offset, 20)
    store.keep_house()
    store.close()
    report = check_store(store_dir)
    assert (report.manifests, report.problems) == (2, [])
    return copy_of(store_dir)


def the_problem(store: Path) -> str:
    """The one problem of a store."""
    (problem,) = check_store(store).problems
    return str(problem)


def test_a_changed_header_is_found(sealed_store: Path) -> None:
    """Only the manifest can tell: nothing in the record itself would be wrong."""
    log_file = sealed_store / "commitlog" / f"{1 << 16:020}"
    data = bytearray(log_file.read_bytes())
    data[BORN_TIMESTAMP_POSITION] ^= 1
    log_file.write_bytes(data)
    assert the_problem(sealed_store).startswith(
        f"commitlog/{1 << 16:020}, position 0: its bytes have CRC-32 "
    )


def test_damage_that_a_record_shows_is_reported_once(sealed_store: Path) -> None:
    """With its place, not as a wrong checksum of the file besides."""
    log_file = sealed_store / "commitlog" / f"{0:020}"
    data = bytearray(log_file.read_bytes())
    data[500] ^= 1
    log_file.write_bytes(data)
    assert the_problem(sealed_store).endswith("its body does not match its checksum")


@pytest.mark.parametrize(
    ("name", "value"),
    [("record_count", 1), ("topics", {}), ("boundaries", []), ("max_store_timestamp", 5)],
)
def test_a_manifest_that_lies_is_found(sealed_store: Path, name: str, value: Any) -> None:
    """Whichever field it is."""
    path = manifest_path(sealed_store, 0)
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    problem = the_problem(sealed_store)
    assert problem.startswith(f"{SEALED_PATH}/{path.name}, position 0: {name} ")


def test_what_is_no_manifest_is_found(sealed_store: Path) -> None:
    """Damaged ones, those of no log file, and other files."""
    manifest_path(sealed_store, 0).write_bytes(b"{")
    assert "it is no manifest of this file" in the_problem(sealed_store)
    manifest_path(sealed_store, 0).rename(manifest_path(sealed_store, 1 << 20))
    assert the_problem(sealed_store).endswith("there is no such log file")
    manifest_path(sealed_store, 1 << 20).rename(sealed_store / SEALED_PATH / "note")
    assert the_problem(sealed_store).endswith("this is no name of a manifest")


def test_a_lost_manifest_is_no_damage(sealed_store: Path) -> None:
    """The next start makes it again."""
    manifest_path(sealed_store, 0).unlink()
    assert check_store(sealed_store).is_sound


def test_what_an_unclean_stop_leaves_is_no_damage(sealed_store: Path) -> None:
    """A half-written manifest, and one whose removal did not reach the disk."""
    (sealed_store / "abort").touch()
    manifest_path(sealed_store, 0).with_suffix(".json.tmp").write_bytes(b"{")
    manifest_path(sealed_store, 0).rename(manifest_path(sealed_store, 1 << 20))
    assert check_store(sealed_store).is_sound


def test_an_unfinished_manifest_is_no_problem(sealed_store: Path) -> None:
    """A full disk leaves one behind, also in a store that was closed cleanly afterwards."""
    (sealed_store / SEALED_PATH / f"{manifest_path(sealed_store, 0).name}.tmp").write_bytes(b"{")
    assert check_store(sealed_store).problems == []
