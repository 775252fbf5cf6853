"""The table of errors and codes."""

from __future__ import annotations

from commitbus.broker.common.errors import TopicNotFoundError
from commitbus.broker.messaging.status import CODES, ok, overall, status_of
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb


def test_no_row_says_ok_or_nothing() -> None:
    """Each code is one of the protocol's refusals."""
    assert all(code >= 40000 for code in CODES.values())


def test_a_status_has_the_code_of_the_table_and_the_text_of_the_error() -> None:
    """The text is what an engineer reads in a client's stack trace."""
    status = status_of(TopicNotFoundError("orders"))
    assert (status.code, status.message) == (pb.TOPIC_NOT_FOUND, "no such topic: orders")


def test_the_overall_status_is_the_common_one() -> None:
    """And says so if there is none."""
    refused = status_of(TopicNotFoundError("orders"))
    assert overall([ok(), ok()]).code == pb.OK
    assert overall([refused, refused]).code == pb.TOPIC_NOT_FOUND
    assert overall([ok(), refused]).code == pb.MULTIPLE_RESULTS
