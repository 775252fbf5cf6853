"""The filters that subscriptions of histories choose from."""

from __future__ import annotations

from typing import Final

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.histories.oracle import Filter

FILTERS: Final = (
    Filter("*", lambda _: True),
    Filter("*", lambda _: True),
    Filter("a", lambda sent: sent.tag == "a"),
    Filter("a || b", lambda sent: sent.tag in {"a", "b"}),
    Filter("n > 3", lambda sent: sent.number is not None and sent.number > 3, is_sql=True),
    Filter(
        "n IS NULL OR (n BETWEEN 2 AND 5 AND TAGS = 'b')",
        lambda sent: sent.number is None or (2 <= sent.number <= 5 and sent.tag == "b"),
        is_sql=True,
    ),
)


def filter_expression(filter_: Filter) -> pb.FilterExpression:
    """Return how a request says a filter."""
    kind = pb.SQL if filter_.is_sql else pb.TAG
    return pb.FilterExpression(type=kind, expression=filter_.expression)
