"""The service as a list of methods for a transport, and the tasks that run beside them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
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
    renewals,
    route,
    send,
    telemetry,
)
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.status import status_of
from commitbus.broker.messaging.validate import SEND_FIELDS_MAX, send_request_bytes_max
from commitbus.broker.rpc.call import Call, Response
from commitbus.broker.rpc.defaults import (
    REQUEST_BYTES_MAX,
    REQUEST_FIELDS_MAX,
    SMALL_REQUEST_BYTES_MAX,
)
from commitbus.broker.rpc.method import Later, Method, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

_SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"

UnaryHandler = Callable[[MessagingContext, Any, Call], Response | Later | Awaitable[Response]]

_UNARY: Final[Sequence[tuple[str, type[Message], type[Message], UnaryHandler]]] = (
    ("QueryRoute", pb.QueryRouteRequest, pb.QueryRouteResponse, route.query_route),
    (
        "QueryAssignment",
        pb.QueryAssignmentRequest,
        pb.QueryAssignmentResponse,
        route.query_assignment,
    ),
    ("Heartbeat", pb.HeartbeatRequest, pb.HeartbeatResponse, telemetry.heartbeat),
    (
        "NotifyClientTermination",
        pb.NotifyClientTerminationRequest,
        pb.NotifyClientTerminationResponse,
        telemetry.notify_client_termination,
    ),
    ("SendMessage", pb.SendMessageRequest, pb.SendMessageResponse, send.send_message),
    ("AckMessage", pb.AckMessageRequest, pb.AckMessageResponse, acks.ack_message),
    (
        "ChangeInvisibleDuration",
        pb.ChangeInvisibleDurationRequest,
        pb.ChangeInvisibleDurationResponse,
        acks.change_invisible_duration,
    ),
    (
        "ForwardMessageToDeadLetterQueue",
        pb.ForwardMessageToDeadLetterQueueRequest,
        pb.ForwardMessageToDeadLetterQueueResponse,
        acks.forward_message_to_dead_letter_queue,
    ),
    ("UpdateOffset", pb.UpdateOffsetRequest, pb.UpdateOffsetResponse, offsets.update_offset),
    ("GetOffset", pb.GetOffsetRequest, pb.GetOffsetResponse, offsets.get_offset),
    ("QueryOffset", pb.QueryOffsetRequest, pb.QueryOffsetResponse, offsets.query_offset),
)


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
    request_bytes_max = {
        "SendMessage": send_request_bytes_max(context.config.max_body_bytes),
        # A thousand receipt handles.
        "AckMessage": REQUEST_BYTES_MAX,
    }
    unary = [
        Method(
            path=_SERVICE + name,
            kind=MethodKind.UNARY,
            request_type=request_type,
            response_type=response_type,
            handler=_handler(context, name, handler),
            refusal=refusal_in(response_type),
            max_request_bytes=request_bytes_max.get(name, SMALL_REQUEST_BYTES_MAX),
            max_request_fields=SEND_FIELDS_MAX if name == "SendMessage" else REQUEST_FIELDS_MAX,
        )
        for name, request_type, response_type, handler in _UNARY
    ]
    return [
        *unary,
        Method(
            path=_SERVICE + "ReceiveMessage",
            kind=MethodKind.SERVER_STREAM,
            request_type=pb.ReceiveMessageRequest,
            response_type=pb.ReceiveMessageResponse,
            handler=partial(receive.receive_message, context),
            refusal=partial(receive.refusal, context),
            max_request_bytes=SMALL_REQUEST_BYTES_MAX,
        ),
        Method(
            path=_SERVICE + "PullMessage",
            kind=MethodKind.SERVER_STREAM,
            request_type=pb.PullMessageRequest,
            response_type=pb.PullMessageResponse,
            handler=partial(pull.pull_message, context),
            refusal=refusal_in(pb.PullMessageResponse),
            max_request_bytes=SMALL_REQUEST_BYTES_MAX,
        ),
        Method(
            path=_SERVICE + "Telemetry",
            kind=MethodKind.BIDI,
            request_type=pb.TelemetryCommand,
            response_type=pb.TelemetryCommand,
            handler=partial(telemetry.telemetry, context),
            refusal=telemetry.refusal,
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
