"""fastjson's dialect: read, and written back byte for byte."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.broker.metadata.documents import (
    DocumentError,
    Json,
    JsonObject,
    format_document,
    integer,
    parse_document,
    strings,
    table,
    truth,
)

KEYS = st.text() | st.integers(-(10**18), 10**18)
EXAMPLES = settings(max_examples=20, deadline=None, derandomize=True)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)


@pytest.mark.shared
def test_every_file_that_rocketmq_wrote_comes_back_byte_for_byte(rocketmq_store: Path) -> None:
    files = sorted((rocketmq_store / "config").glob("*.json"))
    assert len(files) >= 5
    for file in files:
        assert format_document(parse_document(file.read_bytes())) == file.read_bytes()


@EXAMPLES
@given(st.dictionaries(KEYS, VALUES))
def test_what_is_written_is_read_back(document: dict[str | int, Json]) -> None:
    if any(isinstance(key, str) and key.startswith("\0") for key in _keys(document)):
        return  # the one text that stands for an unquoted key
    assert parse_document(format_document(document)) == document


def _keys(value: Json) -> list[str | int]:
    if isinstance(value, list):
        return [key for item in value for key in _keys(item)]
    if isinstance(value, dict):
        return [*value, *(key for item in value.values() for key in _keys(item))]
    return []


def test_text_that_looks_like_an_integer_key_is_left_alone() -> None:
    assert parse_document(b'{"a":"{0:1}",  7 :"\\",8:"}') == {"a": "{0:1}", 7: '",8:'}


@EXAMPLES
@given(st.binary(max_size=200))
def test_bytes_that_are_no_document_get_a_typed_error(data: bytes) -> None:
    with contextlib.suppress(DocumentError):
        parse_document(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b"\xff", b'{"a":NaN}', b'{"\\u0000x":1}', b'{"a":' + b"[" * 100_000],
)
def test_no_document(data: bytes) -> None:
    with pytest.raises(DocumentError):
        parse_document(data)


def test_a_field_of_the_wrong_type_is_named() -> None:
    entry: JsonObject = {"n": "1", "b": 1, "t": [], "s": {"a": 1}, "low": -1, "high": 2**63}
    with pytest.raises(DocumentError, match="n is no integer"):
        integer(entry, "n", 0)
    with pytest.raises(DocumentError, match="b is neither"):
        truth(entry, "b", default=False)
    with pytest.raises(DocumentError, match="t is no object"):
        table(entry, "t")
    with pytest.raises(DocumentError, match="s maps"):
        strings(entry, "s")
    for key in ("low", "high"):
        with pytest.raises(DocumentError, match="outside"):
            integer(entry, key, 0)


def test_a_missing_field_has_its_default() -> None:
    assert integer({}, "n", 5) == 5
    assert truth({}, "b", default=True)
    assert table({"t": None}, "t") == strings({}, "s") == {}
