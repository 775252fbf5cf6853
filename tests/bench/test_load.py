"""Requests as both brokers take them, and what is not taken for an answer."""

from __future__ import annotations

import pytest

from bench.load import BODY, ack_request, check_response, framed, receive_request, send_request
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb


def test_a_batch_has_messages_with_ids_and_keys_of_their_own() -> None:
    request = pb.SendMessageRequest.FromString(send_request(5, 3, "Topic"))
    assert [m.system_properties.message_id[-2:] for m in request.messages] == ["05", "06", "07"]
    assert [list(m.system_properties.keys) for m in request.messages] == [
        ["key-5"], ["key-6"], ["key-7"]
    ]  # fmt: skip
    assert {(m.topic.name, m.body) for m in request.messages} == {("Topic", BODY)}
    assert len(BODY) == 1024


def test_a_receiver_asks_for_what_the_original_does_not_refuse() -> None:
    """32 is the most that it hands out, 10 s to 12 h its range, five seconds its shortest poll."""
    request = pb.ReceiveMessageRequest.FromString(receive_request("Group", "Topic"))
    assert request.batch_size == 32
    assert 10 <= request.invisible_duration.ToSeconds() <= 12 * 3600
    assert request.long_polling_timeout.ToSeconds() >= 5


def test_entries_can_be_appended_to_an_ack() -> None:
    """The generator does so with the bytes: a field may come again."""
    entry = pb.AckMessageRequest()
    entry.entries.add(message_id="1", receipt_handle="2")
    whole = pb.AckMessageRequest.FromString(ack_request("G", "T") + entry.SerializeToString())
    assert (whole.group.name, whole.topic.name) == ("G", "T")
    assert [(e.message_id, e.receipt_handle) for e in whole.entries] == [("1", "2")]


def test_requests_for_one_call_each_come_after_their_lengths() -> None:
    assert framed([b"ab", b"", b"c"]) == b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01c"


@pytest.mark.parametrize("kind", [pb.SendMessageResponse, pb.AckMessageResponse])
def test_a_refusal_is_an_error(
    kind: type[pb.SendMessageResponse | pb.AckMessageResponse],
) -> None:
    response = kind()
    response.status.code = pb.OK
    response.entries.add().message_id = "not a status, though it stands where one is elsewhere"
    check_response(response.SerializeToString())
    response.status.code = pb.TOO_MANY_REQUESTS
    response.status.message = "busy"
    with pytest.raises(AssertionError, match="busy"):
        check_response(response.SerializeToString())
