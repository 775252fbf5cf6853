"""Options are understood, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitbus.flush.spark.read_options import (
    OnDamage,
    ReadOptions,
    parse_read_options,
    store_directory,
)


def test_without_options_everything_is_read_and_verified() -> None:
    """The defaults are those of the value class."""
    assert parse_read_options({"path": "x"}) == ReadOptions()


def test_every_option_is_understood() -> None:
    """As Spark hands them over: all are text."""
    options = {
        "mode": "dropMalformed",
        "verify": "False",
        "decompress": "false",
        "splitBytes": "4096",
        "topics": "a, b,",
        "startingOffset": "1",
        "endingOffset": "2",
        "startingTimestamp": "3",
        "endingTimestamp": "4",
    }
    assert parse_read_options(options) == ReadOptions(
        on_damage=OnDamage.DROPMALFORMED,
        verify=False,
        decompress=False,
        split_bytes=4096,
        topics=frozenset({"a", "b"}),
        starting_offset=1,
        ending_offset=2,
        starting_timestamp=3,
        ending_timestamp=4,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "PERMISSIVE"),
        ("verify", "yes"),
        ("decompress", ""),
        ("splitBytes", "4095"),
        ("startingOffset", "-1"),
        ("endingOffset", "1e3"),
        ("startingTimestamp", str(1 << 63)),
        ("endingTimestamp", "²"),
    ],
)
def test_a_value_without_sense_is_refused(name: str, value: str) -> None:
    """The message names the option and what was given."""
    with pytest.raises(ValueError, match=name) as refused:
        parse_read_options({name: value})
    assert repr(value) in str(refused.value)


def test_the_store_is_a_directory_or_file_url() -> None:
    """A read without a path says how to give one."""
    assert store_directory({"path": "/a/b"}) == Path("/a/b")
    assert store_directory({"path": "file:///a/b"}) == Path("/a/b")
    with pytest.raises(ValueError, match="load"):
        store_directory({})
