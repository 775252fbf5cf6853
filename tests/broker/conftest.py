"""Fixtures of all tests of the broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.blocking_reads import noted_blocking_reads


@pytest.fixture(autouse=True)
def _no_blocking_reads_on_the_trio_thread() -> Iterator[None]:
    """Whatever a test of the broker does, its trio thread waits for no disk."""
    with pytest.MonkeyPatch.context() as patch, noted_blocking_reads(patch) as found:
        yield
    assert not found, "read these in a worker thread, or only what is cached"
