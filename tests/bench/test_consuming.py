"""Acks of one message each, and messages that come back, with a broker as a process."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from bench import consuming
from bench.broker import broker
from bench.consuming import ACK, ack_requests, nack_to_redelivery
from bench.load import METADATA, SEND, TOPIC, check_response, send_request, until_accepted
from commitbus.broker.config import Transport
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb


def test_each_request_acknowledges_a_message_of_its_own() -> None:
    with broker(Transport.TRIO) as server:
        until_accepted(server.endpoint, send_request(0))
        with grpc.insecure_channel(server.endpoint) as channel:
            send, ack = (channel.unary_unary(path, None, None) for path in (SEND, ACK))
            check_response(send(send_request(1, 49), metadata=METADATA, timeout=10))
            requests = asyncio.run(ack_requests(server.endpoint, 50))
            for request in requests:
                check_response(ack(request, metadata=METADATA, timeout=10))
    parsed = [pb.AckMessageRequest.FromString(request) for request in requests]
    assert {request.topic.name for request in parsed} == {TOPIC}
    assert len({entry.receipt_handle for request in parsed for entry in request.entries}) == 50


@pytest.mark.slow
def test_no_message_comes_back_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "GROUPS", 3)
    rows = nack_to_redelivery()
    assert [name for name, *_ in rows] == [
        "nack of 1 s to redelivery, p50", "nack of 1 s to redelivery, p99"
    ]  # fmt: skip
    assert all(milliseconds >= 1000 for _, _, milliseconds, _ in rows)
