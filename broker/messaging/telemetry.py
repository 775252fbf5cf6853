"""How clients introduce themselves, show that they live, and say goodbye."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

import trio

from commitbus.broker.common.errors import (
    InvalidSettingsError,
    UnrecognizedClientError,
)
from commitbus.broker.common.shown import shown
from commitbus.broker.messaging.clients import (
    DISCONNECT_GRACE_S,
    HOSTNAME_LENGTH_MAX,
    Client,
    Introduction,
    Subscription,
    client_id_of,
)
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.filters import parse_filter, prepare_filter
from commitbus.broker.messaging.polling_time import POLLING_MS_MAX
from commitbus.broker.messaging.status import ok, status_of
from commitbus.broker.messaging.validate import group_name, known_topic_name
from commitbus.broker.metadata.groups import (
    Backoff,
    CustomizedBackoff,
    ExponentialBackoff,
    GroupConfig,
)
from commitbus.broker.receiving.allowance import BATCH_MAX
from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.settling import renewals

TOPICS_MAX: Final = 1000
"""Of one client's settings: checking them takes 5 ms."""
SETTINGS_BYTES_MAX: Final = 256 * 1024
"""Of one client. They are repeated in the answer."""
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of answers that wait for clients that do not listen yet; others are sent at once."""

_AT_ONCE: Final = 100
"""Subscriptions checked between two looks at other tasks."""
_PRODUCER_ATTEMPTS: Final = 3
_UNLIMITED_ATTEMPTS: Final = 2**31 - 1
_LITE_SUBSCRIPTION_QUOTA: Final = 2000
_LITE_TOPIC_SIZE_MAX: Final = 64
_NODE_ROUTE_S: Final = 0.2
"""For the Node.js client to learn where a topic is, over a slow network as well."""
_BACKOFF_STEPS: Final = 32
"""Of an exponential backoff written as a list; its last delay holds for all further attempts."""


async def telemetry(
    context: MessagingContext,
    commands: AsyncIterator[pb.TelemetryCommand],
    call: Call,
    send: Send,
) -> None:
    """Answer each of a client's settings with the merged ones, until it closes the stream.

    Nothing of a command is kept beyond its answer: a stream may be open for months.

    Raises:
        RequestError: the settings are refused; this RPC reports errors by closing the stream.
    """
    client = context.clients.of(call)
    with (
        context.clients.streaming(client, idle_after_s=DISCONNECT_GRACE_S),
        _reachable(context, client, send),
    ):
        async for command in commands:
            kind = command.WhichOneof("command")
            if kind == "settings":
                answer, not_listening_s = await _answer_to(context, client, command.settings)
                del command
                if not_listening_s:
                    await _wait(context, len(answer), not_listening_s)
                await send(answer)
                del answer
            else:
                _take_answer(context, client, command)
                del command


async def _answer_to(
    context: MessagingContext, client: Client, settings: pb.Settings
) -> tuple[bytes, float]:
    """Return the answer to a client's settings, and for how long the client would ignore it.

    Raises:
        RequestError: they are refused.
        StateWriteError: a consumer's group could not be created.
    """
    merged = await _merged(context, client, settings)
    answer = pb.TelemetryCommand(status=ok(), settings=merged)
    return answer.SerializeToString(), _not_listening_s(merged)


def _take_answer(context: MessagingContext, client: Client, command: pb.TelemetryCommand) -> None:
    """Hand what a client was asked for to who asked."""
    kind = command.WhichOneof("command")
    if kind == "thread_stack_trace":
        context.questions.answered(client, command.thread_stack_trace.nonce, command)
    elif kind == "verify_message_result":
        context.questions.answered(client, command.verify_message_result.nonce, command)


async def _wait(context: MessagingContext, size_bytes: int, seconds: float) -> None:
    """Hold an answer of this size back, unless too much is held back already."""
    if context.waiting_settings_bytes + size_bytes > WAITING_BYTES_MAX:
        return
    context.waiting_settings_bytes += size_bytes
    try:
        await trio.sleep(seconds)
    finally:
        context.waiting_settings_bytes -= size_bytes


@contextmanager
def _reachable(context: MessagingContext, client: Client, send: Send) -> Iterator[None]:
    """Let operators ask the client by this stream, the newest one that it has."""
    client.send = send
    try:
        yield
    finally:
        if client.send is send:
            client.send = None
            client.since_ms = context.clock.now_ms()
            context.questions.disconnected(client)


def heartbeat(
    context: MessagingContext, request: pb.HeartbeatRequest, call: Call
) -> pb.HeartbeatResponse | Awaitable[pb.HeartbeatResponse]:
    """Note that a client lives; one that we do not know, because we restarted, as well.

    Raises:
        IllegalGroupError: a consumer names no group, or an illegal one.
    """
    client = context.clients.of(call)
    if request.client_type != pb.CLIENT_TYPE_UNSPECIFIED:
        client.kind = request.client_type
    if request.client_type not in {pb.CLIENT_TYPE_UNSPECIFIED, pb.PRODUCER}:
        name = group_name(request.group)
        context.clients.consumes(client, name, request.client_type)
        if context.metadata.group(name) is None:
            return _heartbeat_of_new_group(context, name)
        context.client_groups.note_use(name)
    return pb.HeartbeatResponse(status=ok())


async def _heartbeat_of_new_group(context: MessagingContext, name: str) -> pb.HeartbeatResponse:
    await context.group(name)
    return pb.HeartbeatResponse(status=ok())


def notify_client_termination(
    context: MessagingContext, _request: pb.NotifyClientTerminationRequest, call: Call
) -> pb.NotifyClientTerminationResponse:
    """Forget a client; what it holds with automatic renewal becomes visible soon.

    Raises:
        UnrecognizedClientError: we do not know it, or no longer.
    """
    client = context.clients.remove(client_id_of(call))
    if client is None:
        raise UnrecognizedClientError(f"client {shown(call.client_id)} is not known")
    renewals.leave(context.consuming, client.client_id)
    return pb.NotifyClientTerminationResponse(status=ok())


async def _merged(context: MessagingContext, client: Client, settings: pb.Settings) -> pb.Settings:
    """Register what a client says of itself and return its settings with ours merged in."""
    if (size := settings.ByteSize()) > SETTINGS_BYTES_MAX:
        raise InvalidSettingsError(
            f"settings of {size} bytes, at most {SETTINGS_BYTES_MAX} are allowed"
        )
    merged = pb.Settings()
    merged.CopyFrom(settings)
    kind = settings.WhichOneof("pub_sub")
    if kind == "publishing":
        _check_count(len(settings.publishing.topics))
        topics = tuple(known_topic_name(topic) for topic in settings.publishing.topics)
        await trio.lowlevel.checkpoint()
        client.kind = pb.PRODUCER
        _introduce(context, client, settings, published=topics)
        _set_publishing(merged, context.config.max_body_bytes)
    elif kind == "subscription":
        subscription = settings.subscription
        name = group_name(subscription.group)
        _check_count(len(subscription.subscriptions))
        wanted = {}
        for number, entry in enumerate(subscription.subscriptions, 1):
            if number % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            prepared = await prepare_filter(entry.expression)
            parse_filter(entry.expression)
            del prepared
            topic = known_topic_name(entry.topic)
            wanted[topic] = Subscription(entry.expression.type, entry.expression.expression)
        group = await context.group(name)
        context.clients.consumes(client, name, settings.client_type)
        _introduce(context, client, settings, subscriptions=wanted)
        _set_subscription(merged, group)
    else:
        raise InvalidSettingsError("there is no publishing or subscription data in settings")
    # Present but off: clients that find none at all do not start their own metrics either way,
    # and some refuse settings without it.
    merged.metric.CopyFrom(pb.Metric(on=False))
    return merged


def _not_listening_s(settings: pb.Settings) -> float:
    """Return for how long a client would ignore the answer to its settings.

    The Node.js client (1.0.8) sends them when it knows where its first topic is, asks for the
    others one by one, and only then listens. Without an answer it waits 5 minutes to start.
    """
    if settings.user_agent.language != pb.NODE_JS:
        return 0
    topics = len(settings.publishing.topics) + len(settings.subscription.subscriptions)
    return _NODE_ROUTE_S * max(topics - 1, 0)


def _introduce(
    context: MessagingContext,
    client: Client,
    settings: pb.Settings,
    *,
    published: tuple[str, ...] = (),
    subscriptions: Mapping[str, Subscription] = MappingProxyType({}),
) -> None:
    introduction = Introduction(
        at_ms=context.clock.now_ms(),
        hostname=settings.user_agent.hostname[:HOSTNAME_LENGTH_MAX],
        published=published,
        subscriptions=subscriptions,
    )
    context.clients.introduced(client, introduction)


def _check_count(topics: int) -> None:
    if topics > TOPICS_MAX:
        raise InvalidSettingsError(f"{topics} topics, at most {TOPICS_MAX} are allowed")


def _set_publishing(settings: pb.Settings, max_body_bytes: int) -> None:
    policy = pb.RetryPolicy(max_attempts=_PRODUCER_ATTEMPTS)
    policy.exponential_backoff.initial.nanos = 10_000_000
    policy.exponential_backoff.max.seconds = 1
    policy.exponential_backoff.multiplier = 2
    settings.backoff_policy.CopyFrom(policy)
    settings.publishing.max_body_size = max_body_bytes
    settings.publishing.validate_message_type = True


def _set_subscription(settings: pb.Settings, group: GroupConfig) -> None:
    backoff = _understood(group.backoff, settings.user_agent.language)
    settings.backoff_policy.CopyFrom(_policy(group, backoff))
    subscription = settings.subscription
    subscription.fifo = group.consume_message_orderly
    subscription.receive_batch_size = BATCH_MAX
    subscription.long_polling_timeout.Clear()
    subscription.long_polling_timeout.seconds = POLLING_MS_MAX // 1000
    subscription.lite_subscription_quota = _LITE_SUBSCRIPTION_QUOTA
    subscription.max_lite_topic_size = _LITE_TOPIC_SIZE_MAX


def _understood(backoff: Backoff, language: pb.Language) -> Backoff:
    """Return a group's backoff in the form that a client's push consumer knows, if only in one.

    Node.js's (1.0.8) ignores a list together with the attempts: the first failure of a FIFO message
    would be its last. Python's (5.1.2) ignores anything else, and waits as long as it likes.
    """
    if language == pb.NODE_JS and isinstance(backoff, CustomizedBackoff):
        return ExponentialBackoff(initial_ms=backoff.next_ms[0], max_ms=max(backoff.next_ms))
    if language == pb.PYTHON and isinstance(backoff, ExponentialBackoff):
        return CustomizedBackoff(tuple(map(backoff.delay_ms, range(_BACKOFF_STEPS))))
    return backoff


def _policy(group: GroupConfig, backoff: Backoff) -> pb.RetryPolicy:
    policy = pb.RetryPolicy(
        max_attempts=_UNLIMITED_ATTEMPTS
        if group.retry_max_times < 0
        else min(group.retry_max_times + 1, _UNLIMITED_ATTEMPTS)
    )
    if isinstance(backoff, CustomizedBackoff):
        for ms in backoff.next_ms:
            policy.customized_backoff.next.add(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)
        return policy
    exponential = policy.exponential_backoff
    for field, ms in ((exponential.initial, backoff.initial_ms), (exponential.max, backoff.max_ms)):
        field.seconds, field.nanos = ms // 1000, ms % 1000 * 1_000_000
    exponential.multiplier = backoff.multiplier
    return policy


def refusal(error: Exception) -> RpcError:
    """Return the gRPC error that closes a telemetry stream, as RocketMQ words it."""
    status = status_of(error)
    fault_of_client = 40000 <= status.code < 50000
    return RpcError(
        StatusCode.INVALID_ARGUMENT if fault_of_client else StatusCode.INTERNAL,
        f"process client telemetryCommand failed. {status.message}",
    )
