"""Acknowledgements and power cuts, over the wire.

A power cut is a copy of the store in which the progress journal has what was last synced, and no
byte more. Nothing is saved to SQLite meanwhile: that alone would be no proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import grpc
import pytest

from commitbus.broker import Broker
from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.config import Transport
from commitbus.broker.embedded.broker import SMALL_FILES
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin_pb
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog import file_system
from commitbus.commitlog.clock import SystemClock
from tests.running_copies import copy_running

SERVICE = "/apache.rocketmq.v2.MessagingService/"
METADATA = (("x-mq-client-id", "client"),)
JOURNAL = "progress.journal"


@final
class Syncs:
    """What of the journal is on stable storage."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.count = 0

    def power_cut(self, store: Path, copy: Path) -> Path:
        copy_running(store, copy)
        journal = copy / "commitbus" / JOURNAL
        journal.unlink()
        if self.content is not None:
            journal.write_bytes(self.content)
        return copy


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    noted, original = Syncs(), file_system._RealFile.sync_data

    def sync_data(self: Any) -> None:
        # What is written while the disk is busy may miss it.
        content = self.path.read_bytes() if self.path.name == JOURNAL else None
        original(self)
        if content is not None:
            noted.content, noted.count = content, noted.count + 1

    monkeypatch.setattr(file_system._RealFile, "sync_data", sync_data)
    return noted


@pytest.fixture(params=list(Transport))
def start(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Broker]]:
    """Start a broker that never saves progress by itself."""
    monkeypatch.setitem(SMALL_FILES, "transport", request.param)
    monkeypatch.setitem(SMALL_FILES, "progress_save_interval_ms", 24 * 3_600_000)
    started: list[Broker] = []

    def start_broker(**options: Any) -> Broker:
        started.append(Broker(**options))
        started[0].create_topic("T", queues=1)
        started[0].create_group("H")
        return started[0]

    yield start_broker
    for broker in started:
        broker.stop()


def unary(channel: Any, name: str, request: Any) -> Any:
    answer: Any = getattr(pb, f"{name}Response")
    call = channel.unary_unary(
        SERVICE + name,
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    response = call(request, metadata=METADATA, timeout=20)
    assert response.status.code == pb.OK, response.status.message
    return response


def receive(channel: Any) -> str:
    """Return the receipt handle of the one message."""
    request = pb.ReceiveMessageRequest(batch_size=32)
    request.group.name, request.message_queue.topic.name = "G", "T"
    request.filter_expression.type, request.filter_expression.expression = pb.TAG, "*"
    request.invisible_duration.seconds = 600
    call = channel.unary_stream(
        SERVICE + "ReceiveMessage",
        request_serializer=pb.ReceiveMessageRequest.SerializeToString,
        response_deserializer=pb.ReceiveMessageResponse.FromString,
    )
    answers = list(call(request, metadata=METADATA, timeout=30))
    (message,) = [answer.message for answer in answers if answer.HasField("message")]
    return str(message.system_properties.receipt_handle)


def ack(channel: Any, handle: str) -> None:
    request = pb.AckMessageRequest()
    request.group.name, request.topic.name = "G", "T"
    request.entries.add(receipt_handle=handle, message_id="some")
    unary(channel, "AckMessage", request)


def change(channel: Any, handle: str) -> None:
    request = pb.ChangeInvisibleDurationRequest(receipt_handle=handle)
    request.group.name, request.topic.name = "G", "T"
    request.invisible_duration.seconds = 3600
    unary(channel, "ChangeInvisibleDuration", request)


def forward(channel: Any, handle: str) -> None:
    request = pb.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle)
    request.group.name, request.topic.name = "G", "T"
    unary(channel, "ForwardMessageToDeadLetterQueue", request)


def update_offset(channel: Any, _handle: str) -> None:
    request = pb.UpdateOffsetRequest(offset=1)
    request.group.name, request.message_queue.topic.name = "H", "T"
    unary(channel, "UpdateOffset", request)


def progress_in(store: Path) -> Any:
    """Return by group the next offset and, by offset, until when messages are invisible."""
    files = file_system.RealFileSystem()
    table = ProgressTable(store, SqliteRows(store, files), clock=SystemClock(), file_system=files)
    table.open()
    try:
        return {
            key[0]: (
                progress.next_offset,
                {e.offset: e.invisible_until_ms for e in progress.entries()},
            )
            for key, progress in table.items()
        }
    finally:
        table.close()


@pytest.mark.parametrize("work", [ack, change, forward, update_offset])
@pytest.mark.parametrize("progress_sync", [True, False])
def test_what_is_answered_survives_a_power_cut(
    start: Callable[..., Broker],
    syncs: Syncs,
    tmp_path: Path,
    work: Callable[[Any, str], None],
    *,
    progress_sync: bool,
) -> None:
    """With the setting; without it the same power cut takes what was done."""
    broker = start(progress_sync=progress_sync)
    with AdminClient(broker.endpoint) as admin:
        admin.send(admin_pb.SendMessageRequest(topic="T", body=b"x"))
    with grpc.insecure_channel(broker.endpoint) as channel:
        handle = receive(channel)
        before = progress_in(copy_running(broker.directory, tmp_path / "before"))
        work(channel, handle)
        now = progress_in(copy_running(broker.directory, tmp_path / "killed"))
        cut = progress_in(syncs.power_cut(broker.directory, tmp_path / "cut"))
    assert now != before
    assert (cut == now) is progress_sync


@pytest.mark.parametrize("progress_sync", [True, False])
def test_a_reset_that_is_answered_survives_a_power_cut(
    start: Callable[..., Broker], syncs: Syncs, tmp_path: Path, *, progress_sync: bool
) -> None:
    """An operator's change of progress is like an acknowledgement."""
    broker = start(progress_sync=progress_sync)
    broker.create_group("G")
    with AdminClient(broker.endpoint) as admin:
        admin.send(admin_pb.SendMessageRequest(topic="T", body=b"x"))
        while not any(queue.max_offset for queue in admin.topic_status("T").queues):
            time.sleep(0.01)  # a message is answered before it is in its queue
        admin.reset_offsets(admin_pb.ResetOffsetsRequest(group="G", topic="T", offset=1))
        cut = progress_in(syncs.power_cut(broker.directory, tmp_path / "cut"))
    assert cut == ({"G": (1, {})} if progress_sync else {})
