"""The commands that read a store at rest: check and export; and the demo's refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli import demo
from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.cli.main import main
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb


@pytest.fixture(scope="module")
def closed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three messages. Not to be changed."""
    directory = tmp_path_factory.mktemp("closed") / "store"
    with Broker(directory) as broker:
        broker.create_topic("orders", queues=1)
        with AdminClient(broker.endpoint) as client:
            for body in (b"one", b"two", b"three"):
                client.send(pb.SendMessageRequest(topic="orders", body=body, keys="k"))
    return directory


@pytest.fixture
def damaged_store(closed_store: Path, tmp_path: Path) -> Path:
    """A copy of it in which one bit of the second body is another."""
    directory = tmp_path / "damaged"
    shutil.copytree(closed_store, directory)
    (log,) = (directory / "commitlog").glob("0*0")
    data = bytearray(log.read_bytes())
    data[data.index(b"two")] ^= 1
    log.write_bytes(data)
    return directory


def test_a_sound_store_is_called_sound(
    closed_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the counts, and exit status 0."""
    assert main(["check", str(closed_store)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("log: 3 messages in 1 files, from 0 to ")
    assert lines[1] == "queues: 3 units in 1 queues"
    assert lines[-1] == "sound"


def test_damage_is_named_and_fails_the_check(
    damaged_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File and position, in words and as JSON."""
    assert main(["check", str(damaged_store)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("commitlog/00000000000000000000, position ")
    assert lines[-1].endswith("problems")
    assert main(["check", "--json", str(damaged_store)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["problem_count"] == len(report["problems"]) > 0
    assert report["problems"][0]["file"] == "commitlog/00000000000000000000"


def test_a_store_that_is_in_use_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    """The check may run beside a broker, and changes nothing."""
    with Broker() as broker:
        broker.create_topic("orders")
        assert main(["check", str(broker.directory)]) == 0
    assert "in use, or not closed cleanly" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "export"])
def test_a_directory_that_is_no_store_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason, not a traceback."""
    out = [str(tmp_path / "out")] if command == "export" else []
    assert main([command, str(tmp_path / "nothing"), *out]) == 1
    assert capsys.readouterr().err.startswith(f"commitbus {command}: ")


def test_an_export_counts_the_messages(
    closed_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a second one finds the files there."""
    pytest.importorskip("pyarrow")
    for _ in range(2):
        assert main(["export", str(closed_store), str(tmp_path / "parquet")]) == 0
        assert capsys.readouterr().out.startswith("3 messages in 1 files")
    assert len(list((tmp_path / "parquet").glob("*.parquet"))) == 1


def test_an_export_refuses_a_damaged_store(
    damaged_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Leaving a message out in silence would be a lie."""
    pytest.importorskip("pyarrow")
    assert main(["export", str(damaged_store), str(tmp_path / "parquet")]) == 1
    assert "no intact record" in capsys.readouterr().err


def test_the_demo_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that installs it, for copying."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "rocketmq" else object())
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "commitbus demo: the demo needs rocketmq; in a clone: pip install '.[client]'\n"
    )


def test_an_export_says_what_it_needs(
    closed_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By a name that can be installed: the package is on no index."""
    monkeypatch.delitem(sys.modules, "commitbus.flush.spark.export", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in [name for name in sys.modules if name.startswith("commitbus.flush.spark.")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["export", str(closed_store), str(tmp_path / "parquet")]) == 1
    said = capsys.readouterr().err
    assert (
        said == "commitbus export: pyarrow is not installed; in a clone: pip install '.[spark]'\n"
    )


def test_the_demo_shows_what_others_say_only_when_it_fails(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Spark warns of a dozen things that are of no interest."""
    with demo._hidden_stderr():
        subprocess.run(["sh", "-c", "echo warning >&2"], check=True)
    assert capfd.readouterr().err == ""

    def fail() -> None:
        subprocess.run(["sh", "-c", "echo the reason >&2"], check=True)
        raise ValueError

    with pytest.raises(ValueError), demo._hidden_stderr():  # noqa: PT011 - any error
        fail()
    assert capfd.readouterr().err == "the reason\n"


def test_the_demo_does_not_touch_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--keep` names a directory to make."""
    monkeypatch.setattr(demo, "find_spec", lambda _: object())
    assert main(["demo", "--keep", str(tmp_path)]) == 1
    assert f"{tmp_path} exists already" in capsys.readouterr().err
