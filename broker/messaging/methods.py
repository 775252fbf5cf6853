"""The service as a list of methods for a transport, and the tasks that run beside them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, cast

import trio
from google.protobuf.message import Message

from commitbus.broker.core.kinds import run_deliveries
from commitbus.broker.messaging import (
    acks,
    client_groups,
    offsets,
    pull,
    receive,
    route,
    send,
    telemetry,
)
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.status import status_of
from commitbus.broker.messaging.validate import SEND_FIELDS_MAX, send_request_bytes_max
from commitbus.broker.rpc.access import Access, Action, Resource, group, topics, touching
from commitbus.broker.rpc.call import Call, Response
from commitbus.broker.rpc.defaults import (
    REQUEST_BYTES_MAX,
    SMALL_REQUEST_BYTES_MAX,
)
from commitbus.broker.rpc.method import Later, Method, MethodKind, unary_methods
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.settling import renewals

UnaryHandler = Callable[[MessagingContext, Any, Call], Response | Later | Awaitable[Response]]

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["MessagingService"]
_OF_GROUP_IN_TOPIC: Final = touching(Action.SUB, topic="topic.name", group="group.name")
_OF_GROUP_IN_QUEUE: Final = touching(
    Action.SUB, topic="message_queue.topic.name", group="group.name"
)


def _sent(request: pb.SendMessageRequest) -> list[Resource]:
    return topics([message.topic.name for message in request.messages])


def _consumers_group(request: pb.HeartbeatRequest) -> list[Resource]:
    is_consumer = request.client_type not in {pb.CLIENT_TYPE_UNSPECIFIED, pb.PRODUCER}
    return [group(request.group.name)] if is_consumer else []


def _left(request: pb.NotifyClientTerminationRequest) -> list[Resource]:
    return [group(request.group.name)] if request.HasField("group") else []


def _settings(command: pb.TelemetryCommand) -> list[Resource]:
    settings = command.settings
    if settings.HasField("subscription"):
        subscription = settings.subscription
        names = [entry.topic.name for entry in subscription.subscriptions]
        return [group(subscription.group.name), *topics(names)]
    return topics([topic.name for topic in settings.publishing.topics])


_UNARY: Final[Mapping[str, tuple[UnaryHandler, Access]]] = {
    "QueryRoute": (route.query_route, touching(Action.ANY, topic="topic.name")),
    "QueryAssignment": (route.query_assignment, _OF_GROUP_IN_TOPIC),
    "Heartbeat": (telemetry.heartbeat, Access(Action.SUB, _consumers_group)),
    "NotifyClientTermination": (
        telemetry.notify_client_termination,
        Access(Action.SUB, _left),
    ),
    "SendMessage": (send.send_message, Access(Action.PUB, _sent)),
    "AckMessage": (acks.ack_message, _OF_GROUP_IN_TOPIC),
    "ChangeInvisibleDuration": (acks.change_invisible_duration, _OF_GROUP_IN_TOPIC),
    "ForwardMessageToDeadLetterQueue": (
        acks.forward_message_to_dead_letter_queue,
        _OF_GROUP_IN_TOPIC,
    ),
    "UpdateOffset": (offsets.update_offset, _OF_GROUP_IN_QUEUE),
    "GetOffset": (offsets.get_offset, _OF_GROUP_IN_QUEUE),
    "QueryOffset": (
        offsets.query_offset,
        touching(Action.SUB, topic="message_queue.topic.name"),
    ),
}


_CHANGE_PROGRESS: Final = frozenset(
    ("AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue", "UpdateOffset")
)


def _handler(
    context: MessagingContext, name: str, handler: UnaryHandler
) -> Callable[[Any, Call], Response | Later | Awaitable[Response]]:
    handle = partial(handler, context)
    if name in _CHANGE_PROGRESS:
        return context.progress_durability.once_durable(handle)
    return handle


def messaging_methods(context: MessagingContext) -> list[Method]:
    """Return the methods that this broker serves; a transport answers UNIMPLEMENTED to others."""
    unary = unary_methods(
        _SERVICE,
        {
            name: (_handler(context, name, handler), access)
            for name, (handler, access) in _UNARY.items()
        },
        refusal_in,
        request_bytes_max=SMALL_REQUEST_BYTES_MAX,
        larger_requests={
            "SendMessage": send_request_bytes_max(context.config.max_body_bytes),
            # A thousand receipt handles.
            "AckMessage": REQUEST_BYTES_MAX,
        },
        request_fields_max={"SendMessage": SEND_FIELDS_MAX},
    )
    prefix = f"/{_SERVICE.full_name}/"
    return [
        *unary,
        Method(
            path=prefix + "ReceiveMessage",
            kind=MethodKind.SERVER_STREAM,
            request_type=pb.ReceiveMessageRequest,
            response_type=pb.ReceiveMessageResponse,
            handler=partial(receive.receive_message, context),
            refusal=partial(receive.refusal, context),
            access=_OF_GROUP_IN_QUEUE,
            max_request_bytes=SMALL_REQUEST_BYTES_MAX,
        ),
        Method(
            path=prefix + "PullMessage",
            kind=MethodKind.SERVER_STREAM,
            request_type=pb.PullMessageRequest,
            response_type=pb.PullMessageResponse,
            handler=partial(pull.pull_message, context),
            refusal=refusal_in(pb.PullMessageResponse),
            access=_OF_GROUP_IN_QUEUE,
            max_request_bytes=SMALL_REQUEST_BYTES_MAX,
        ),
        Method(
            path=prefix + "Telemetry",
            kind=MethodKind.BIDI,
            request_type=pb.TelemetryCommand,
            response_type=pb.TelemetryCommand,
            handler=partial(telemetry.telemetry, context),
            refusal=telemetry.refusal,
            access=Access(Action.ANY, _settings),
            lasts=True,
        ),
    ]


def refusal_in(response_type: type[Message]) -> Callable[[Exception], tuple[Message]]:
    """Return what makes of a refusal a response of this type, which has nothing but a status."""
    # Every response has a status, which no base class says.
    response = cast("Callable[..., Message]", response_type)
    return lambda error: (response(status=status_of(error)),)


async def run_messaging(
    context: MessagingContext,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run what the handlers need beside them until cancelled: start it before the transport."""
    context.broker.trio_thread.attach()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(context.consuming.polls.run_timer)
            nursery.start_soon(context.consuming.polls.deadlines.run)
            nursery.start_soon(renewals.run, context.consuming, context.clients)
            nursery.start_soon(client_groups.run, context)
            nursery.start_soon(run_deliveries, context.broker)
            task_status.started()
    finally:
        context.broker.trio_thread.detach()
