"""Embedded brokers that are interrupted, forgotten, forked and killed."""

from __future__ import annotations

import dis
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.broker.store.check import check_store

SIGNALS_ARE_LOOKED_AT_AFTER = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
"""Instructions behind which CPython calls signal handlers; and at the begin of a function."""


def threads() -> set[str]:
    """The names of what still runs beside the tests."""
    mine = (threading.main_thread(), threading.current_thread())
    names = {t.name for t in threading.enumerate() if t.is_alive() and t not in mine}
    return {name for name in names if name.startswith(("commitbus", "sqlite"))}


@cache
def instructions(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


@contextmanager
def interrupted_at(number: int) -> Iterator[list[str]]:
    """Raise KeyboardInterrupt at the `number`-th place where Ctrl-C can be noticed in our code.

    Yields a list that has the place once it was reached.
    """
    count, places = 0, list[str]()

    def visit(frame: FrameType, where: str) -> None:
        nonlocal count
        count += 1
        if count == number:
            sys.settrace(None)
            places.append(f"{frame.f_code.co_name}:{frame.f_lineno} {where}")
            raise KeyboardInterrupt

    def trace(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.endswith(("/embedded.py", "/broker_thread.py")):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        names, last = instructions(frame.f_code), ""

        def local(frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
            nonlocal last
            if event == "opcode":
                before, last = last, names.get(frame.f_lasti, "")
                if before.startswith(SIGNALS_ARE_LOOKED_AT_AFTER):
                    visit(frame, before)
            return local

        visit(frame, "begin")
        return local

    sys.settrace(trace)
    try:
        yield places
    finally:
        sys.settrace(None)


def start_and_stop(directory: Path | None) -> None:
    with Broker(directory):
        pass


@pytest.mark.filterwarnings("ignore:a Broker was never stopped:ResourceWarning")
@pytest.mark.parametrize("is_named", [False, True], ids=["temporary", "named"])
def test_ctrl_c_anywhere_leaves_nothing_running(tmp_path: Path, *, is_named: bool) -> None:
    """And a directory that can be opened again."""
    number, places = 0, ["the first"]
    while places:
        number += 1
        directory = tmp_path / f"{number}" if is_named else None
        with suppress(KeyboardInterrupt), interrupted_at(number) as places:
            start_and_stop(directory)
        assert (places, threads()) == (places, set())
        if directory is not None:
            Broker(directory).stop()
    assert number > 20


RANDOM_INTERRUPTS = """
import random, signal, sys, threading, warnings
from pathlib import Path
from commitbus.broker import Broker

warnings.simplefilter("ignore")  # of what was never stopped
signal.signal(signal.SIGALRM, signal.default_int_handler)
random.seed(int(sys.argv[1]))
base, interrupts = Path(sys.argv[2]), 0
with Broker():  # the first one takes longer: imports
    pass

def start_and_stop(directory):
    with Broker(directory):
        pass

for number in range(40):
    directory = base / str(number) if number % 2 else None
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.12))
        start_and_stop(directory)
        signal.setitimer(signal.ITIMER_REAL, 0)
    # The standard library's own: Thread.start, interrupted at the wrong moment, loses its lock.
    except (KeyboardInterrupt, RuntimeError):
        interrupts += 1
    left = [t for t in threading.enumerate() if t.is_alive() and t.name.startswith("commitbus")]
    assert not left, (number, left)
    if directory:
        Broker(directory).stop()
print(interrupts)
"""


@pytest.mark.slow
def test_real_interrupts_at_random_moments_leave_nothing_running(tmp_path: Path) -> None:
    """A signal handler raises wherever the main thread happens to be."""
    done = subprocess.run(
        [sys.executable, "-c", RANDOM_INTERRUPTS, "1", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 5


def test_a_second_ctrl_c_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker then ends by itself."""
    broker = Broker()
    monkeypatch.setattr(broker._thread, "_ended", _InterruptedLock(broker._thread._ended))
    with pytest.raises(KeyboardInterrupt):
        broker.stop()
    monkeypatch.undo()
    broker.stop()
    assert threads() == set()


class _InterruptedLock:
    """Stands in for a lock: Ctrl-C is pressed whenever somebody waits for it."""

    def __init__(self, lock: threading.Lock) -> None:
        self.release, self.locked = lock.release, lock.locked

    def __enter__(self) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None: ...


def test_a_broker_that_nobody_refers_to_is_stopped() -> None:
    """With a warning, as for a file that was never closed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        broker = Broker()
        directory = broker.directory
        del broker
        gc.collect()
    assert [str(w.message) for w in caught if w.category is ResourceWarning] == [
        "a Broker was never stopped"
    ]
    assert not directory.exists()
    assert threads() == set()


FORK = """
import os, sys
from pathlib import Path
from commitbus.broker import Broker
from commitbus.broker.embedded.broker import BrokerError

with Broker() as broker:
    broker.create_topic("orders", queues=1)
    child = os.fork()
    if child == 0:
        for refused in (
            lambda: broker.create_topic("more"),
            lambda: broker.create_group("more"),
            lambda: broker.clock.advance(1),
        ):
            try:
                refused()
            except RuntimeError as error:
                print(error, flush=True)
        if sys.argv[1] == "stop":
            broker.stop()
        if sys.argv[1] == "broker":
            with Broker() as own:
                own.create_topic("own")
        if sys.argv[1] != "leave":
            sys.exit()
    else:
        assert os.waitpid(child, 0)[1] == 0
        assert broker.directory.is_dir()
        broker.create_topic("later", queues=1)
        broker.clock.advance(60)
if child:
    assert not broker.directory.exists()
    print("sound")
"""


@pytest.mark.parametrize("child_does", ["exit", "leave", "stop", "broker"])
def test_a_forked_child_leaves_its_parents_broker_alone(child_does: str) -> None:
    """However it ends; and what it cannot do it is told, at once."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, child_does],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *refusals, last = done.stdout.splitlines()
    assert [text.split(" runs in process")[0] for text in refusals] == ["the broker"] * 3
    assert last == "sound"


def test_a_fork_changes_nothing_of_a_store(tmp_path: Path) -> None:
    """The parent's messages from before and after are there, and `check` finds no problem."""
    with Broker(tmp_path / "store") as broker, AdminClient(broker.endpoint) as client:
        broker.create_topic("orders", queues=1)
        for number in range(3):
            client.send(pb.SendMessageRequest(topic="orders", body=b"%d" % number))
            with warnings.catch_warnings():
                # Python warns of threads, which the child does not use.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                broker.stop()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    report = check_store(tmp_path / "store")
    assert (report.problems, report.was_closed_cleanly) == ([], True)
    with Broker(tmp_path / "store") as broker, AdminClient(broker.endpoint) as client:
        (status,) = client.topic_status("orders").queues
        assert status.max_offset == 3


SLEEPING = """
import signal
from commitbus.broker import Broker
with Broker() as broker:
    print(broker.directory, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_process_left_is_removed_by_the_next_broker(number: signal.Signals) -> None:
    """Not before it is dead, and not what somebody else made under such a name."""
    with subprocess.Popen(
        [sys.executable, "-c", SLEEPING], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        directory = Path(process.stdout.readline().strip())
        Broker().stop()
        assert (directory / "commitlog").is_dir()
        process.send_signal(number)
    assert process.wait() == -number
    assert directory.is_dir()
    Broker().stop()
    assert not directory.exists()


def test_only_our_own_directories_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without our mark is somebody's."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = tmp_path / "commitbus-broker-mine"
    kept.mkdir()
    (tmp_path / "commitbus-broker-link").symlink_to(kept)
    (tmp_path / "commitbus-broker-file").touch()
    Broker().stop()
    assert {path.name for path in tmp_path.iterdir()} == {
        *("commitbus-broker-mine", "commitbus-broker-link", "commitbus-broker-file")
    }
