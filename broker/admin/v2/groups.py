"""How far groups are, and having them go on elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.lag import QueueLag, queue_lags, stored_at_ms
from commitbus.broker.admin.reset import at_time, reset_offsets
from commitbus.broker.admin.v2.names import known_group, known_topic
from commitbus.broker.common.errors import BadRequestError, UnsupportedFeatureError
from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.messaging.message_codec import timestamp_ms
from commitbus.broker.messaging.status import ok
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

_Accumulation = pb.DescribeGroupAccumulationResponse.GroupAccumulation


async def describe_group_accumulation(
    context: AdminContext, request: pb.DescribeGroupAccumulationRequest, _call: Call
) -> pb.DescribeGroupAccumulationResponse:
    """Return how much a group has before it, in all and by topic; all its topics if none is named.

    Raises:
        RequestError: the group or a topic does not exist, or a lite topic is asked about.
    """
    if request.lite_topic:
        raise UnsupportedFeatureError("lite topics are not supported")
    group, topics = _named(context, request.group, request.topics)
    response = pb.DescribeGroupAccumulationResponse(status=ok())
    # One time for all, so that a delay in all is that of a topic.
    now_ms = context.messaging.clock.now_ms()

    def fill() -> None:
        lags = queue_lags(context, group, topics)
        by_topic: dict[str, list[QueueLag]] = {}
        for lag in lags:
            by_topic.setdefault(lag.topic, []).append(lag)
        response.accumulation.CopyFrom(_accumulation(context, lags, now_ms))
        for topic, those in by_topic.items():
            response.topic_accumulation[topic].CopyFrom(_accumulation(context, those, now_ms))

    await run_in_worker(fill)
    return response


def _named(
    context: AdminContext, group: pb.Resource, topics: Sequence[pb.Resource]
) -> tuple[str, Sequence[str]]:
    """Return the group's name, and those of the topics: all that it has begun if none is named."""
    name = known_group(context, group).name
    named = sorted({known_topic(context, topic).name for topic in topics})
    return name, named or context.progress.topics_of(name)


def _accumulation(context: AdminContext, lags: Sequence[QueueLag], now_ms: int) -> _Accumulation:
    """Return the sum of queues. Reads pages that may be cold: own thread."""
    waiting = [lag for lag in lags if lag.ready]
    oldest_ms = [stored_at_ms(context, lag, lag.first_ready) for lag in waiting]
    consumed_ms = [stored_at_ms(context, lag, lag.committed_offset - 1) for lag in lags]
    inflight, ready = sum(lag.inflight for lag in lags), sum(lag.ready for lag in lags)
    found = _Accumulation(
        inflight_messages=inflight,
        ready_messages=ready,
        accumulation=sum(lag.lag for lag in lags),
        last_consume_timestamp=max(*consumed_ms, 0, 0),
    )
    delays = [now_ms - stored_ms for stored_ms in oldest_ms if stored_ms >= 0]
    found.deliver_delay_time.FromMilliseconds(max(*delays, 0, 0))
    return found


async def query_time_span(
    context: AdminContext, request: pb.QueryTimeSpanRequest, _call: Call
) -> pb.QueryTimeSpanResponse:
    """Return for each queue from when its messages are, and from when what is next.

    Raises:
        RequestError: the group or a topic does not exist.
    """
    group, topics = _named(context, request.group, request.topics)
    spans = await run_in_worker(
        lambda: [_time_span(context, lag) for lag in queue_lags(context, group, topics)]
    )
    return pb.QueryTimeSpanResponse(status=ok(), queue_time_span_list=spans)


def _time_span(context: AdminContext, lag: QueueLag) -> pb.QueryTimeSpanResponse.QueueTimeSpan:
    next_ms = stored_at_ms(context, lag, lag.committed_offset)
    span = pb.QueryTimeSpanResponse.QueueTimeSpan(
        min_timestamp=stored_at_ms(context, lag, lag.min_offset),
        max_timestamp=stored_at_ms(context, lag, lag.max_offset - 1),
        consume_timestamp=stored_at_ms(context, lag, lag.committed_offset - 1),
        delay_time_ms=max(context.messaging.clock.now_ms() - next_ms, 0) if next_ms >= 0 else 0,
    )
    span.message_queue.id, span.message_queue.topic.name = lag.queue_id, lag.topic
    span.message_queue.broker.name = context.config.broker_name
    return span


async def reset_group_offset(
    context: AdminContext, request: pb.ResetGroupOffsetRequest, _call: Call
) -> pb.ResetGroupOffsetResponse:
    """Have a group go on at the first message of a time, in all queues of a topic.

    Raises:
        RequestError: the group or the topic does not exist, or there is no time.
        StateWriteError: the progress could not be saved.
    """
    group, topic = known_group(context, request.group), known_topic(context, request.topic)
    if not request.HasField("reset_timestamp"):
        raise BadRequestError("a reset needs a timestamp")
    begin_ms = timestamp_ms(request.reset_timestamp)
    await reset_offsets(context, group.name, topic.name, at_time(context, topic.name, begin_ms))
    return pb.ResetGroupOffsetResponse(status=ok())
