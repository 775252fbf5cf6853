"""Consumer groups: create, change, delete, and how far they are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from commitbus.broker.admin.attributes import (
    GROUP_ATTRIBUTES,
    AttributeRefusedError,
    changed_entry,
)
from commitbus.broker.admin.context import AdminContext, refuse
from commitbus.broker.admin.lag import queue_lags, stored_at_ms
from commitbus.broker.admin.reset import at_end, at_offset, at_time, reset_offsets
from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.messaging.clients import Client
from commitbus.broker.metadata.documents import DocumentError, JsonObject
from commitbus.broker.metadata.groups import (
    CustomizedBackoff,
    GroupConfig,
    decode_group,
    encode_group,
)
from commitbus.broker.metadata.names import IllegalNameError, validate_group
from commitbus.broker.observe.backlog import backlogs
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb

DELAYS_MAX: Final = 100
"""Of a retry policy. Every client of the group is told all of them, again and again."""

# Field of the messages to its name in RocketMQ's subscriptionGroup.json, by which it is checked.
_FIELDS: Final = {
    "consume_enable": "consumeEnable",
    "consume_from_min_enable": "consumeFromMinEnable",
    "consume_broadcast_enable": "consumeBroadcastEnable",
    "consume_message_orderly": "consumeMessageOrderly",
    "notify_consumer_ids_changed_enable": "notifyConsumerIdsChangedEnable",
    "retry_queue_nums": "retryQueueNums",
    "retry_max_times": "retryMaxTimes",
    "broker_id": "brokerId",
    "which_broker_when_consume_slowly": "whichBrokerWhenConsumeSlowly",
}


async def put_group(context: AdminContext, request: pb.PutGroupRequest) -> pb.Group:
    """Create a group or change one."""
    _check_name(request.name)
    current = context.metadata.group(request.name) or GroupConfig(request.name)
    try:
        entry = changed_entry(
            encode_group(current), GROUP_ATTRIBUTES, current.attributes, request, _FIELDS
        )
        if request.HasField("group_retry_policy"):
            entry["groupRetryPolicy"] = _retry_policy(request.group_retry_policy)
        config = decode_group(request.name, entry)
    except (AttributeRefusedError, DocumentError) as error:
        refuse(error)
    _check_delays(config)
    if config.created_by_client:
        # An operator wants it: it stays, also when nobody uses it.
        config = replace(config, created_by_client=False)
    await context.metadata.put_group(config)
    return _group(config)


async def delete_group(
    context: AdminContext, request: pb.DeleteGroupRequest
) -> pb.DeleteGroupResponse:
    """Delete a group and its progress."""
    _check_name(request.name)
    context.existing_group(request.name)
    await context.broker.delete_group(request.name)
    return pb.DeleteGroupResponse()


async def list_groups(
    context: AdminContext, _request: pb.ListGroupsRequest
) -> pb.ListGroupsResponse:
    """Return all groups by name, with the number of their clients and how far they are behind."""
    # A walk over all clients, queues and groups, so not on the trio thread.
    clients = list(context.messaging.clients.all())
    summaries = await run_in_worker(_summaries, context, clients)
    return pb.ListGroupsResponse(summaries=summaries)


def _summaries(
    context: AdminContext, clients: Iterable[Client]
) -> list[pb.ListGroupsResponse.Summary]:
    counts: Counter[str] = Counter()
    versions: dict[str, str] = {}
    for client in clients:
        counts[client.group] += 1
        versions.setdefault(client.group, client.version)
    return [
        pb.ListGroupsResponse.Summary(
            group=_group(config),
            client_count=counts[config.name],
            client_version=versions.get(config.name, ""),
            consume_tps=context.rates.consume_tps(config.name),
            diff_total=sum(
                queue.lag
                for topic in context.progress.topics_of(config.name)
                for queue in backlogs(context.store, context.progress, config.name, topic)
            ),
        )
        for config in sorted(context.metadata.groups(), key=lambda config: config.name)
    ]


async def get_consumer_progress(
    context: AdminContext, request: pb.GetConsumerProgressRequest
) -> pb.ConsumerProgress:
    """Return how far a group is in every queue of the topics it has received from."""
    context.existing_group(request.group)
    if request.topic:
        context.existing_topic(request.topic)
    rows = await run_in_worker(_rows, context, request)
    return pb.ConsumerProgress(queues=rows, consume_tps=context.rates.consume_tps(request.group))


def _rows(
    context: AdminContext, request: pb.GetConsumerProgressRequest
) -> list[pb.ConsumerProgress.Queue]:
    """Return the rows of an answer. Reads pages that may be cold: own thread."""
    topics = [t for t in context.progress.topics_of(request.group) if request.topic in ("", t)]
    return [
        pb.ConsumerProgress.Queue(
            topic=lag.topic,
            queue_id=lag.queue_id,
            broker_offset=lag.max_offset,
            consumer_offset=lag.committed_offset,
            inflight=lag.inflight,
            last_time_ms=stored_at_ms(context, lag, lag.committed_offset - 1),
            client_ids=lag.client_ids,
            diff=lag.lag,
        )
        for lag in queue_lags(context, request.group, topics)
    ]


async def reset_group_offsets(
    context: AdminContext, request: pb.ResetOffsetsRequest
) -> pb.ResetOffsetsResponse:
    """Have a group go on elsewhere in a topic."""
    context.existing_group(request.group)
    topic = context.existing_topic(request.topic).name
    if request.HasField("timestamp_ms"):
        offset_of = at_time(context, topic, request.timestamp_ms)
    elif request.HasField("offset"):
        offset_of = at_offset(request.offset)
    else:
        offset_of = at_end(context, topic)
    offsets = await reset_offsets(
        context,
        request.group,
        topic,
        offset_of,
        queue_id=request.queue_id if request.HasField("queue_id") else None,
        only_back=request.only_back,
    )
    return pb.ResetOffsetsResponse(
        queues=[
            pb.ResetOffsetsResponse.Queue(queue_id=queue_id, offset=offset)
            for queue_id, offset in offsets.items()
        ]
    )


async def list_producers(
    context: AdminContext, request: pb.ListProducersRequest
) -> pb.ListProducersResponse:
    """Return the producers that said they publish to a topic."""
    topic = context.existing_topic(request.topic).name
    return pb.ListProducersResponse(
        producers=[
            pb.ListProducersResponse.Producer(
                client_id=client.client_id,
                address=client.peer,
                language=client.language,
                version=client.version,
            )
            for client in context.messaging.clients.all()
            if topic in client.introduction.published
        ]
    )


def _retry_policy(text: str) -> JsonObject:
    try:
        policy = json.loads(text)
    except (ValueError, RecursionError) as error:
        refuse(f"the retry policy is not JSON: {error}")
    if not isinstance(policy, dict) or policy.get("type") not in ("CUSTOMIZED", "EXPONENTIAL"):
        refuse('the retry policy needs a "type", CUSTOMIZED or EXPONENTIAL')
    return policy


def _check_delays(config: GroupConfig) -> None:
    backoff = config.backoff
    if isinstance(backoff, CustomizedBackoff) and len(backoff.next_ms) > DELAYS_MAX:
        refuse(f"the retry policy has {len(backoff.next_ms)} delays, at most {DELAYS_MAX} can be")


def _group(config: GroupConfig) -> pb.Group:
    entry = encode_group(config)
    return pb.Group(
        name=config.name,
        consume_enable=config.consume_enable,
        consume_from_min_enable=config.consume_from_min_enable,
        consume_broadcast_enable=config.consume_broadcast_enable,
        consume_message_orderly=config.consume_message_orderly,
        notify_consumer_ids_changed_enable=config.notify_consumer_ids_changed_enable,
        retry_queue_nums=config.retry_queue_nums,
        retry_max_times=config.retry_max_times,
        broker_id=config.broker_id,
        which_broker_when_consume_slowly=config.which_broker_when_consume_slowly,
        attributes=config.attributes,
        group_retry_policy=json.dumps(entry["groupRetryPolicy"], separators=(",", ":")),
    )


def _check_name(name: str) -> None:
    try:
        validate_group(name)
    except IllegalNameError as error:
        refuse(error)
