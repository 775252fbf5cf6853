"""Properties decoded by the column equal properties decoded one message at a time."""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commitbus.commitlog.record_format import decode_properties
from commitbus.flush.spark.properties import PropertyColumns

# Few letters, so that separators meet, names repeat, and UTF-8 breaks.
raw_properties = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"a", b"b", b"TAGS", "é".encode(), b"\xc3", b"\xff"]),
    max_size=12,
).map(b"".join)


@settings(deadline=None)
@given(st.lists(raw_properties, max_size=8))
@example([b"a\x01b", b"\x02a\x01b\x02"])
@example([b"", b"a\x01", b"", b"a\x01b\x02a\x01c\x02", b"\x01a\x02"])
@example([])
def test_columns_equal_the_struct_decoder(rows: list[bytes]) -> None:
    """Whatever the bytes: missing ends, empty names, repeated names, broken UTF-8."""
    columns = PropertyColumns(pa.array(rows, pa.binary()))
    expected = [decode_properties(row) for row in rows]
    assert [dict(row) for row in columns.maps.to_pylist()] == expected
    assert [len(row) for row in columns.maps.to_pylist()] == [len(row) for row in expected]
    for name in ("a", "TAGS", "missing"):
        assert columns.values(name).to_pylist() == [row.get(name) for row in expected]
