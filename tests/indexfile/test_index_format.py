"""Key hashes, key texts and file names of the index."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.indexfile import KeyKind
from commitbus.indexfile.index_format import (
    IndexHeader,
    file_name,
    index_file_bytes,
    is_file_name,
    key_hash,
    key_hashes,
    key_text,
    key_texts,
)

ONE_MS_BEFORE_NEW_YEAR = "20251231235959999"


def request(**changes: str | int) -> DispatchRequest:
    """A message with all three kinds of keys."""
    plain = DispatchRequest(
        PhysicalOffset(0), 10, "T", 0, QueueOffset(0), 0, 1, 0, "U1", "k1  k2", "tag"
    )
    return DispatchRequest(**{**plain._asdict(), **changes})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TopicTest#key", 85_128_477),
        ("polygenelubricants", 0),  # its Java hash is -2^31, whose absolute value is negative
        ("", 0),
        ("\U0001f600", 1_772_899),  # two UTF-16 units
    ],
)
def test_the_hash_is_the_absolute_java_hash(text: str, expected: int) -> None:
    """As RocketMQ stores it."""
    units = text.encode("utf-16-be")
    java = 0
    for position in range(0, len(units), 2):
        java = (java * 31 + int.from_bytes(units[position : position + 2], "big")) & 0xFFFFFFFF
    signed = java - (1 << 32) if java >> 31 else java
    assert key_hash(text) == (0 if signed == -(1 << 31) else abs(signed)) == expected


@given(st.lists(st.text(st.characters(codec=None), min_size=1, max_size=30), max_size=30))
def test_the_batch_hashes_as_the_single_one_does(texts: list[str]) -> None:
    """Whatever the characters, lone surrogates included."""
    assert key_hashes(texts).tolist() == [key_hash(text) for text in texts]


def test_long_texts_are_hashed_in_pieces() -> None:
    """A batch beyond the table of powers, and a single text beyond it."""
    texts = ["T#" + "x" * 40_000 + str(n) for n in range(9)] + ["y" * 300_000, "T#z"]
    assert key_hashes(texts).tolist() == [key_hash(text) for text in texts]


def test_a_message_is_indexed_by_its_unique_key_its_keys_and_its_tags() -> None:
    """In this order; repeated separators give no empty key."""
    assert key_texts(request()) == ["T#U1", "T#k1", "T#k2", "T#T#tag"]
    assert key_texts(request(unique_key="", keys=" ", tags="")) == []
    assert key_texts(request(sys_flag=0xC)) == []
    assert len(key_texts(request(sys_flag=0x4))) == 4


def test_a_tag_is_looked_for_under_another_text_than_a_key() -> None:
    """A key "x" and a tag "x" do not meet."""
    assert key_text("T", "x", KeyKind.KEY) == "T#x"
    assert key_text("T", "x", KeyKind.TAG) == "T#T#x"


def test_file_names_are_local_times_that_only_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within one millisecond, and when the clock is set back."""
    name = file_name(1_795_242_953_092, "")
    assert len(name) == 17
    assert is_file_name(name)
    assert name.endswith("092")
    second = file_name(1_795_242_953_092, name)
    assert second > name
    assert file_name(0, second) > second
    assert file_name(0, ONE_MS_BEFORE_NEW_YEAR) == "20260101000000000"


@pytest.mark.parametrize("name", ["", "2026", "2026112106355309x", "20261321063553092", "٢" * 17])
def test_other_names_are_no_index_files(name: str) -> None:
    """Seventeen digits that are a time, nothing else."""
    assert not is_file_name(name)


def test_the_default_size_is_that_of_rocketmq() -> None:
    """5 million slots, 20 million entries; a fresh header counts the unused entry 0."""
    assert index_file_bytes(5_000_000, 20_000_000) == 420_000_040
    assert IndexHeader().index_count == 1
