"""Where a group is told to go on, beside a reput thread that is behind."""

from __future__ import annotations

import threading

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin_pb
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.watermark import Watermark


def test_a_message_whose_send_was_answered_can_be_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although no queue has it yet."""
    original, is_behind = MessageStore.max_offset, threading.Event()
    is_behind.set()

    def max_offset(self: MessageStore, topic: str, queue_id: int) -> int:
        return 0 if is_behind.is_set() else original(self, topic, queue_id)

    def wait(self: Watermark, end: PhysicalOffset, timeout_s: float | None = None) -> bool:
        is_behind.clear()
        return waits(self, end, timeout_s)

    waits = Watermark.wait
    with Broker() as broker, AdminClient(broker.endpoint) as admin:
        broker.create_topic("T", queues=1)
        broker.create_group("G")
        admin.send(admin_pb.SendMessageRequest(topic="T", body=b"x"))
        monkeypatch.setattr(MessageStore, "max_offset", max_offset)
        monkeypatch.setattr(Watermark, "wait", wait)
        request = admin_pb.ResetOffsetsRequest(group="G", topic="T", offset=1)
        (queue,) = admin.reset_offsets(request)
    assert queue.offset == 1
