"""Our own client as the comparison uses it, with a broker as a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.own_client import CommitbusFromPython


@pytest.mark.slow
def test_what_was_produced_is_consumed_and_no_more(tmp_path: Path) -> None:
    with CommitbusFromPython().start(tmp_path, fsync=True) as client:
        assert client.awaited(2, 0.1) > 0
        client.produce(100)
        client.consume(100)
        with pytest.raises(AssertionError, match="messages were read"):
            client.consume(10_000_000)
