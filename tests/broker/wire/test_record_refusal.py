"""The index of a refused record in the text of the refusal."""

from __future__ import annotations

import pytest

from commitbus.broker.wire.record_refusal import refusal_text, refused_record


def test_the_index_comes_back() -> None:
    text = refusal_text(17, "record 3: is not what it was refused for")
    assert refused_record(text) == refused_record(f"batch 5: {text}") == 17


@pytest.mark.parametrize("text", ["", "record", "record x: y", "batch 5: the body is empty"])
def test_another_refusal_names_no_record(text: str) -> None:
    assert refused_record(text) is None
