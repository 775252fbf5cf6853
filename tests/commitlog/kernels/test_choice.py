"""Which kernels a process uses, and since when."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from commitbus.commitlog.kernels import KernelChoice, Kernels, UnknownKernelsError, choice
from commitbus.commitlog.kernels.python_kernels import PythonKernels


def compiled() -> Kernels:
    """Stands in for what takes seconds to load."""
    kernels = PythonKernels()
    kernels.name = "compiled"
    return kernels


def test_a_process_begins_with_python_and_changes_over_when_it_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After so many records, on a thread; who reads meanwhile never waits."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(choice, "load_compiled", compiled)
    chosen = KernelChoice()
    told: list[str] = []
    chosen.on_loaded = lambda: told.append(chosen.kernels(0).name)
    assert chosen.kernels(choice.WORTH_LOADING_RECORDS - 1).name == "python"
    chosen.wait()
    assert chosen.kernels(0).name == "python"
    chosen.kernels(1)
    chosen.wait()
    assert chosen.kernels(1).name == "compiled"
    assert told == ["compiled"]


def test_kernels_that_cannot_be_loaded_are_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong with the compiler: the log says it once, and Python goes on."""

    def fail() -> Kernels:
        raise OSError("no compiler for this machine")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(choice, "load_compiled", fail)
    chosen = KernelChoice()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            chosen.kernels(choice.WORTH_LOADING_RECORDS)
            chosen.wait()
    assert chosen.kernels(1).name == "python"
    assert len(caplog.records) == 1


def test_without_numba_python_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is tried."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(choice, "load_compiled", lambda: pytest.fail("there is nothing to load"))
    chosen = KernelChoice()
    assert chosen.kernels(choice.WORTH_LOADING_RECORDS).name == "python"
    chosen.wait()


def test_the_environment_can_force_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be had is refused instead of being slow in silence."""
    monkeypatch.setattr(choice, "load_compiled", compiled)
    assert KernelChoice("numba").kernels(0).name == "compiled"
    forced = KernelChoice("python")
    forced.kernels(choice.WORTH_LOADING_RECORDS)
    forced.wait()
    assert forced.kernels(0).name == "python"
    with pytest.raises(UnknownKernelsError, match="neither"):
        KernelChoice("fortran")

    def missing() -> Kernels:
        raise ImportError("No module named 'numba'")

    monkeypatch.setattr(choice, "load_compiled", missing)
    with pytest.raises(UnknownKernelsError, match="installed"):
        KernelChoice("numba")


SCAN_ONE = """
from commitbus.commitlog.kernels import TopicTable
from commitbus.commitlog.kernels.choice import load_compiled
from tests.records import encode_record
from commitbus.commitlog.types import Host
host = Host.parse("127.0.0.1", 1)
record = encode_record(topic="t", body=b"x" * 77, properties=b"", queue_id=0, queue_offset=0,
    physical_offset=0, born_timestamp=0, born_host=host, store_timestamp=0, store_host=host)
for changed, intact in ((record, 1), (record.replace(b"xx", b"xy"), 0)):
    found = load_compiled().scan(memoryview(changed), 0, 0, TopicTable(), max_records=9,
        verify_crc=True)
    assert len(found) == intact
"""


@pytest.mark.parametrize(
    "hindrance",
    [
        pytest.param("import isal.isal_zlib as isal; isal.__file__ = '/nowhere'", id="no ISA-L"),
        pytest.param(
            "from numba.core.caching import CacheImpl; CacheImpl._locator_classes = []",
            id="nowhere to keep compiled code",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_compiled_kernels_need_neither_isal_nor_a_cache(hindrance: str) -> None:
    """Without ISA-L's function their own takes its place; without a cache each start compiles."""
    pytest.importorskip("numba")
    subprocess.run([sys.executable, "-c", hindrance + SCAN_ONE], check=True, timeout=120)
