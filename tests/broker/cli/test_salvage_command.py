"""`commitbus salvage` from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.cli.main import main
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store with the messages one and three; two has a wrong bit."""
    directory = tmp_path / "damaged"
    with Broker(directory) as broker:
        broker.create_topic("orders", queues=1)
        with AdminClient(broker.endpoint) as client:
            for body in (b"one", b"two", b"three"):
                client.send(pb.SendMessageRequest(topic="orders", body=body))
    (log,) = (directory / "commitlog").glob("0*0")
    data = bytearray(log.read_bytes())
    data[data.index(b"two")] ^= 1
    log.write_bytes(data)
    return directory


def test_the_new_store_can_be_served(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It passes the check; topic and messages are there, and what was lost is told."""
    out = tmp_path / "out"
    assert main(["salvage", str(damaged), str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"commitlog/{0:020}: ")
    assert lines[1].startswith("2 messages of 1 topics, ")
    assert lines[2].startswith("1 losses, ")
    assert lines[3] == f"the new store is {out}"
    assert main(["check", str(out)]) == 0
    with Broker(out) as broker, AdminClient(broker.endpoint) as client:
        (queue,) = client.topic_status("orders").queues
        assert (queue.min_offset, queue.max_offset) == (0, 2)
        bodies = []
        for offset in range(2):
            place = pb.GetMessageRequest.QueuePlace(topic="orders", queue_offset=offset)
            bodies.append(client.message(pb.GetMessageRequest(place=place)).message.body)
        assert bodies == [b"one", b"three"]


def test_json_tells_the_same(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For programs."""
    assert main(["salvage", str(damaged), str(tmp_path / "out"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["records"], report["loss_count"]) == (2, 1)
    assert report["losses"][0]["end"] - report["losses"][0]["start"] == report["lost_bytes"]


def test_it_fails_where_nothing_can_be_read(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No log, no messages, or no place for the new store."""
    assert main(["salvage", str(tmp_path / "nothing"), str(tmp_path / "out")]) == 1
    assert "has no directory commitlog" in capsys.readouterr().err
    assert main(["salvage", str(damaged), str(damaged)]) == 1
    assert capsys.readouterr().err == (
        f"commitbus salvage: {damaged} cannot take the new store: it is the damaged store itself; "
        "name a new or an empty directory\n"
    )
    assert main(["salvage", str(damaged), str(tmp_path)]) == 1
    assert "cannot take the new store: it is not empty" in capsys.readouterr().err
    nothing = str(tmp_path / "nothing")
    assert main(["salvage", nothing, nothing]) == 1
    assert "nothing is not a store: it has no directory commitlog" in capsys.readouterr().err
    for log in (damaged / "commitlog").iterdir():
        log.write_bytes(b"")
    assert main(["salvage", str(damaged), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().out.endswith("no new store was made\n")
