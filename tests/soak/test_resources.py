"""When a process is said to grow."""

from __future__ import annotations

import os
from pathlib import Path

from tests.soak.resources import Sample, growth, sample, summary


def samples(memory: list[float], *, threads: int = 4) -> list[Sample]:
    """A look a second, half a core busy."""
    return [Sample(n, mb, 5, 10, threads, n / 2) for n, mb in enumerate(memory)]


def test_warming_up_is_no_growth() -> None:
    """The first quarter does not count, nor does a single high value."""
    assert growth(samples([10, 20, 40, 50, 50, 50, 50, 50, 50, 300, 50, 50])) == []


def test_growth_beyond_a_tenth_and_some_megabytes_is_told() -> None:
    """With both values."""
    assert growth(samples([50.0] * 6 + [55.0] * 6)) == []
    assert growth(samples([50.0] * 6 + [70.0] * 6)) == ["memory_mb grew from 50 to 70"]


def test_threads_count_too() -> None:
    """As do sockets, and not the files of the store."""
    few, many = samples([50.0] * 6), samples([50.0] * 6, threads=40)
    assert growth(few + many) == ["threads grew from 4 to 40"]


def test_a_few_samples_say_nothing() -> None:
    """A run that is over at once."""
    assert growth(samples([1, 1000, 1000000])) == []
    assert summary(samples([1.0])) == {"samples": 1}


def test_the_summary_has_medians_and_the_share_of_a_core() -> None:
    """Of each quarter."""
    told = summary(samples([10.0] * 4 + [20.0] * 4))
    assert told["core_share"] == 0.5
    assert [quarter["memory_mb"] for quarter in told["quarters"]] == [10, 10, 20, 20]  # type: ignore[attr-defined] # a list


def test_a_process_can_be_looked_at(tmp_path: Path) -> None:
    """Files of the store are told from others."""
    before = sample(os.getpid(), tmp_path, 1.0)
    with (tmp_path / "one").open("w"), Path("/dev/null").open():
        now = sample(os.getpid(), tmp_path, 2.0)
    assert (before.store_files, now.store_files) == (0, 1)
    assert now.other_files == before.other_files + 1
    assert now.memory_mb > 1
    assert now.threads >= 1
