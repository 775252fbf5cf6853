"""Many records from one buffer: the same bytes as one by one, and all of them or none."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.commitlog import commit_log
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import MessageRefusedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.framed import FramedBatch
from commitbus.commitlog.kernels import Kernels
from commitbus.commitlog.kernels.choice import load_compiled
from commitbus.commitlog.kernels.python_kernels import PythonKernels
from commitbus.commitlog.record_format import MAX_PROPERTIES_BYTES, SIZE, encode_properties
from commitbus.commitlog.types import Host, OutgoingMessage, PhysicalOffset

FILE = 4096
V4 = Host.parse("10.1.2.3", 4567)
V6 = Host.parse("2001:db8::7", 10911)
OpenLog = Callable[..., CommitLog]
Parts = Sequence[tuple[bytes, bytes]]
"""Body and properties of each record."""

texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12
)
parts_of_a_batch = st.lists(
    st.tuples(
        st.binary(max_size=300),
        st.dictionaries(texts, texts, max_size=3).map(encode_properties),
    ),
    min_size=1,
    max_size=12,
)
topics = st.one_of(
    st.sampled_from(["t", "x" * 127, "x" * 128, "x" * 255, "ü" * 64]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60),
)


@pytest.fixture(params=["python", "numba"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Each implementation in turn is the process's; the compiled one where it can be."""
    if request.param == "python":
        chosen: Kernels = PythonKernels()
    else:
        pytest.importorskip("numba")
        chosen = load_compiled()
    monkeypatch.setattr(commit_log, "kernels", lambda _: chosen)
    return chosen


def framed(parts: Parts, topic: str = "topic", **changes: Any) -> FramedBatch:
    lengths = np.array([(len(body), len(properties)) for body, properties in parts], np.int64)
    arguments: dict[str, Any] = {
        "topic": topic,
        "queue_id": 0,
        "records": b"".join(body + properties for body, properties in parts),
        "body_bytes": lengths.reshape(-1, 2)[:, 0],
        "properties_bytes": lengths.reshape(-1, 2)[:, 1],
        "born_timestamp": 1,
        "born_host": V4,
    }
    return FramedBatch(**(arguments | changes))


def messages(batch: FramedBatch) -> list[OutgoingMessage]:
    """The same records, one by one."""
    found, start = [], 0
    for left, body_bytes, properties_bytes in zip(
        range(len(batch) - 1, -1, -1),
        batch.body_bytes.tolist(),
        batch.properties_bytes.tolist(),
        strict=True,
    ):
        body_end = start + body_bytes
        end = body_end + properties_bytes
        found.append(
            OutgoingMessage(
                batch.topic,
                batch.queue_id,
                bytes(batch.records[start:body_end]),
                bytes(batch.records[body_end:end]) + (b"" if left else batch.last_properties),
                batch.born_timestamp,
                batch.born_host,
            )
        )
        start = end
    return found


class StoppedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_s(self) -> float:
        return 0.0


def log_in(directory: Path, store_host: Host) -> CommitLog:
    return CommitLog(
        directory,
        1 << 14,
        store_host=store_host,
        max_body_bytes=1 << 12,
        clock=StoppedClock(),
        file_system=RealFileSystem(),
    )


def contents(log: CommitLog) -> list[bytes]:
    return [file.read(0, file.size_bytes) for file in log.files.files]


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(
        st.tuples(
            topics,
            parts_of_a_batch,
            st.integers(0, 3),
            st.sampled_from([V4, V6]),
            st.sampled_from([b"", b"k\x01v\x02"]),
        ),
        min_size=1,
        max_size=8,
    ),
    store_host=st.sampled_from([V4, V6]),
    born=st.integers(-(1 << 62), 1 << 62),
)
@pytest.mark.usefixtures("kernels")
def test_the_files_are_those_of_appending_one_batch_after_the_other(
    batches: list[tuple[str, Parts, int, Host, bytes]], store_host: Host, born: int
) -> None:
    """Byte for byte, over the ends of files too, and with the same results."""
    with tempfile.TemporaryDirectory() as directory:
        one, other = (log_in(Path(directory) / name, store_host) for name in ("one", "other"))
        try:
            for topic, parts, queue_id, host, more in batches:
                batch = framed(
                    parts, topic, queue_id=queue_id, born_host=host, born_timestamp=born,
                    last_properties=more,
                )  # fmt: skip
                got = one.append_framed(batch)
                wanted = other.append_batch(messages(batch))
                assert got.physical_offset == wanted[0].physical_offset
                assert got.queue_offset == wanted[0].queue_offset
                assert got.store_timestamp == wanted[0].store_timestamp
                assert got.end_offset == wanted[-1].end_offset == one.end_offset
            assert one.queue_ends() == other.queue_ends()
            assert contents(one) == contents(other)
        finally:
            one.close()
            other.close()


@pytest.mark.usefixtures("kernels")
def test_until_the_last_step_the_log_ends_before_the_batch(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a reader nor a recovery after a kill sees any of its records."""
    log = open_log(FILE)
    before = log.append_framed(framed([(b"first", b"")])).end_offset
    seen: list[tuple[int, bytes]] = []
    real = SIZE.pack_into

    class SpiedSize:
        def pack_into(self, buffer: memoryview, position: int, size: int) -> None:
            seen.append((log.end_offset, bytes(buffer[before : before + 4])))
            real(buffer, position, size)

    monkeypatch.setattr(commit_log, "SIZE", SpiedSize())
    result = log.append_framed(framed([(b"a", b""), (b"b", b"")]))
    assert seen == [(before, bytes(4))]
    assert result.physical_offset == before
    assert [log.read(PhysicalOffset(at)).body for at in (0, before)] == [b"first", b"a"]


@pytest.mark.usefixtures("kernels")
def test_a_batch_is_never_split_over_two_files(open_log: OpenLog) -> None:
    """It begins a new file when the rest of the current one is too small."""
    log = open_log(FILE)
    log.append_framed(framed([(bytes(2000), b"")]))
    assert log.append_framed(framed([(bytes(1100), b"")] * 2)).physical_offset == FILE
    with pytest.raises(MessageRefusedError):
        log.append_framed(framed([(bytes(2000), b"")] * 2))
    assert log.queue_end("topic", 0) == 3


BAD_LENGTHS: dict[str, dict[str, Any]] = {
    "too short": {"records": b"bod"},
    "too long": {"records": b"body "},
    "negative": {"body_bytes": np.array([-1]), "properties_bytes": np.array([5])},
    "of properties only": {"body_bytes": np.array([], np.int64)},
    "of no record": {
        "body_bytes": np.array([], np.int64),
        "properties_bytes": np.array([], np.int64),
    },
    "that add up after overflowing": {
        "records": b"body",
        "body_bytes": np.array([(1 << 63) - 1] * 2 + [6]),
        "properties_bytes": np.array([0, 0, 0]),
    },
    "in two dimensions": {
        "body_bytes": np.array([[4]]),
        "properties_bytes": np.array([[0]]),
    },
}


@pytest.mark.parametrize("name", BAD_LENGTHS)
def test_lengths_that_are_not_the_buffers_are_refused(open_log: OpenLog, name: str) -> None:
    """Nothing is read or written beyond either buffer."""
    log = open_log(FILE)
    with pytest.raises((ValueError, MessageRefusedError)):
        log.append_framed(framed([(b"body", b"")], **BAD_LENGTHS[name]))
    assert log.append_framed(framed([(b"body", b"")])).physical_offset == 0


@pytest.mark.parametrize(
    "parts",
    [
        [(b"", b""), (b"x" * 101, b"")],
        [(b"", b""), (b"", b"a\x01" + b"b" * MAX_PROPERTIES_BYTES + b"\x02")],
        [(b"", b""), (b"", b"a\x01" + bytes(512) + b"\x02")],
        [(b"", b"a\x01b"), (b"", b"a\x01b\x02")],
    ],
    ids=["body", "properties", "zeros", "separator"],
)
def test_what_one_record_must_not_have_refuses_all(open_log: OpenLog, parts: Parts) -> None:
    """The limits of `append`; its assertion about the separator is an error here."""
    log = open_log(1 << 17, max_body_bytes=100)
    with pytest.raises((MessageRefusedError, ValueError)):
        log.append_framed(framed(parts))
    assert log.end_offset == 0
    assert log.queue_end("topic", 0) == 0


@pytest.mark.parametrize(
    "more", [b"a\x01b", b"a\x01" + b"b" * (MAX_PROPERTIES_BYTES - 4) + b"\x02"]
)
def test_what_the_last_record_has_besides_is_checked_with_the_rest(
    open_log: OpenLog, more: bytes
) -> None:
    log = open_log(1 << 17)
    with pytest.raises((MessageRefusedError, ValueError)):
        log.append_framed(framed([(b"x", b""), (b"x", b"a\x01b\x02")], last_properties=more))
    assert log.end_offset == 0


def test_long_properties_without_a_run_of_zeros_are_taken(open_log: OpenLog) -> None:
    """Where one record's end and the next one's begin are zeros, they are no run."""
    log = open_log(1 << 14)
    properties = b"a\x01" + (bytes(511) + b"b") * 2 + b"\x02"
    batch = framed([(bytes(600), properties), (bytes(600), properties)])
    assert log.append_framed(batch).size_bytes == log.end_offset
