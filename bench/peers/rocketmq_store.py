"""RocketMQ's own `DefaultMessageStore`, doing what bench/store.py and bench/read.py do with ours.

`StoreBench`, a Java program of ours, runs in one JVM through all rounds, so it is as warm as a
broker that has served for a while; what it does is in `java/rocketmq`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from bench import read, store
from bench.measure import Benchmark, Row
from bench.peers.jvm import class_path, java, tail
from bench.store_process import IDLE, IDLE_MESSAGES, REBUILD, RESTART, anonymous_megabytes

Program: TypeAlias = subprocess.Popen[str]

HEAP: Final = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-XX:+AlwaysPreTouch")
SMALL_HEAP: Final = ("-Xmx1g", "-XX:+UseG1GC")
"""For the memory: what is touched beforehand or held in reserve would count."""
POOL: Final = ("-DtransientStorePool=true", "-XX:MaxDirectMemorySize=3g")
DISK: Final = (
    # What others filled must not make it refuse or delete messages in the middle of a run.
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.99",
)
ERRORS: Final = "errors"
WARM_ROUNDS: Final = 3
REMARK: Final = (
    f"RocketMQ 5.4.0's DefaultMessageStore with its defaults, JVM {' '.join(HEAP)}, one JVM for "
    f"all rounds; before the first measurement of a kind the same is done {WARM_ROUNDS} times "
    "unmeasured (lookups 15 times, recovery of its many messages once). transientStorePool, its "
    "faster mode that loses messages when the process is killed, has rows of its own."
)


class RocketmqStore:
    """The Java program; its methods are benchmarks. To be used in a `with` block.

    Raises:
        PeerMissingError: There is no JDK or no Maven.
    """

    def __init__(self) -> None:
        self._classes = class_path("rocketmq")

    def __enter__(self) -> Self:
        self._work = Path(tempfile.mkdtemp(prefix="commitbus-bench-rocketmq-"))
        try:
            self._program = self._start(*HEAP)
        except BaseException:
            shutil.rmtree(self._work)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stop(self._program)
        shutil.rmtree(self._work)

    def benchmarks(self) -> dict[str, Benchmark]:
        """Return the peers of our benchmarks by the names of `python -m bench`."""
        return {
            "append": self.append_one_by_one,
            "batch": self.append_batches,
            "pool": self.append_through_pool,
            "sync-flush": self.sync_flush,
            "recovery": self.recover_and_rebuild,
            "lookup": self.look_up,
            "visible": self.append_to_visible,
            "store-memory": self.memory_idle,
        }

    def append_one_by_one(self) -> list[Row]:
        """As `bench.store.append_one_by_one`."""
        return self._append(self._program, 1, "append one by one", "")

    def append_batches(self) -> list[Row]:
        """As `bench.store.append_batches`, the way its broker takes a producer's batch."""
        name = f"append in batches of {store.BATCH}"
        return self._append(self._program, store.BATCH, name, "MessageExtBatch of one queue")

    def append_through_pool(self) -> list[Row]:
        """The same two in a JVM of their own, as the pool's locked memory is never given back."""
        program = self._start(*HEAP, *POOL)
        try:
            return with_pool(
                self._append(program, 1, "append one by one", "")
                + self._append(program, store.BATCH, f"append in batches of {store.BATCH}", "")
            )
        finally:
            stop(program)

    def _append(self, program: Program, batch: int, name: str, note: str) -> list[Row]:
        found = self._ask(program, "append", messages=store.MESSAGES, batch=batch)
        return [
            (name, "msg/s", found["appended"], note),
            (f"{name}, dispatched", "msg/s", found["dispatched"], ""),
            (f"{name}, CPU", "us/msg", found["cpu"] * 1e6, ""),
        ]

    def sync_flush(self) -> list[Row]:
        """As `bench.store.sync_flush`, through asyncPutMessage."""
        waiters = ",".join(map(str, store.WAITERS))
        found = self._ask(self._program, "sync", waiters=waiters, seconds=store.SYNC_SECONDS)
        return [(f"SYNC_FLUSH, {count} waiting", "msg/s", found[str(count)], "asyncPutMessage")
                for count in store.WAITERS]  # fmt: skip

    def recover_and_rebuild(self) -> list[Row]:
        """As `bench.read.recover_and_rebuild`, and starts after a crash and without queues."""
        found = self._ask(self._program, "recovery", messages=read.LOG_MESSAGES, warm=1)
        scan = found["scan_cpu"] / found["bytes"] * read.GIB
        rebuild = found["rebuild_cpu"] / found["bytes"] * read.GIB
        return [
            ("recovery scan with checksums", "s/GiB", scan,
             "CPU of the thread in load() after a clean stop, which reads the whole file"),
            ("full rebuild of queues and index", "s/GiB", rebuild - scan,
             "CPU of load() with consumequeue/ and index/ deleted, less the scan"),
            (RESTART, "s", found["crash_wall"], "abort file put back; load(), start(), reput done"),
            (REBUILD, "s", found["rebuild_wall"], ""),
        ]  # fmt: skip

    def look_up(self) -> list[Row]:
        """As `bench.read.look_up`."""
        found = self._ask(self._program, "lookup", messages=read.MESSAGES,
                          lookups=read.LOOKUPS, fetches=read.FETCHES)  # fmt: skip
        return [
            ("key lookup", "us", found["lookup"] * 1e6, "IndexService.queryOffset"),
            ("fetch of 32", "us", found["fetch"] * 1e6, "getMessage"),
        ]

    def append_to_visible(self) -> list[Row]:
        """As `bench.read.append_to_visible`, told by its MessageArrivingListener."""
        found = self._ask(self._program, "visible",
                          per_second=read.PER_SECOND, seconds=read.SECONDS)  # fmt: skip
        return [
            (f"append to visible, {name}", "ms", found[name] * 1000, "MessageArrivingListener")
            for name in ("p50", "p99")
        ]

    def memory_idle(self) -> list[Row]:
        """A fresh JVM with a store open."""
        program = self._start(*SMALL_HEAP)
        try:
            self._ask(program, "open", messages=IDLE_MESSAGES)
            megabytes = anonymous_megabytes(program.pid)
        finally:
            stop(program)
        return [(IDLE, "MB", megabytes, f"after System.gc(), JVM {' '.join(SMALL_HEAP)}")]

    def _start(self, *options: str) -> Program:
        with (self._work / ERRORS).open("wb") as errors:
            return subprocess.Popen(
                [*java(self._classes, self._work, *options, *DISK), "StoreBench"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def _ask(self, program: Program, command: str, **numbers: float | str) -> dict[str, float]:
        """Run one command in a directory that is gone afterwards."""
        assert program.stdin is not None
        assert program.stdout is not None
        with tempfile.TemporaryDirectory(dir=self._work) as directory:
            arguments = {"directory": directory, "queues": store.QUEUES, "warm": WARM_ROUNDS}
            arguments |= numbers
            words = [command, *(f"{name}={value}" for name, value in arguments.items())]
            program.stdin.write(" ".join(words) + "\n")
            program.stdin.flush()
            answer = program.stdout.readline()
        if not answer:
            raise RuntimeError(f"StoreBench ended in {command}: {tail(self._work / ERRORS)}")
        found: dict[str, float] = json.loads(answer)
        return found


def stop(program: Program) -> None:
    """End the program: at the end of its input it does so itself."""
    assert program.stdin is not None
    program.stdin.close()
    try:
        program.wait(timeout=10)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def ours_beside_pool() -> list[Row]:
    """Our appends once more, in the minute in which RocketMQ's run through the pool."""
    return with_pool([*store.append_one_by_one(), *store.append_batches()])


def with_pool(rows: Sequence[Row]) -> list[Row]:
    """Give the rows names of their own."""
    return [(f"{name}; RocketMQ with transientStorePool", unit, value, note)
            for name, unit, value, note in rows]  # fmt: skip
