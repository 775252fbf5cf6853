"""The calls of a RocketMQ client, over a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar, final

import grpc.aio
from google.protobuf.message import Message

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.soak.messages import Group, body_of, key_of, tag_of

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
CALL_S: Final = 30
OVERDUE_S: Final = 5
"""After its deadline a call is given up: grpcio 1.85 once lost the end of a stream whose server was
killed, and waited past the deadline for it."""
POLLING_S: Final = 5
FAILURES: Final = (grpc.aio.AioRpcError, TimeoutError)
"""What a call raises that got no answer."""

_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    # grpcio waits a second and more before it tries to reach a server anew.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)

Response = TypeVar("Response", bound=Message)


@final
class Client:
    """Everything raises `FAILURES`; a refusal is a response."""

    def __init__(self, endpoint: str, name: str, trusted: bytes | None = None) -> None:
        """Connect with the first call; over TLS if there is a certificate to trust."""
        self._metadata = (("x-mq-client-id", name), ("x-mq-client-version", "5.1.2"))
        if trusted is None:
            self._channel = grpc.aio.insecure_channel(endpoint, _OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(trusted)
            self._channel = grpc.aio.secure_channel(endpoint, credentials, _OPTIONS)

    async def close(self) -> None:
        """Disconnect."""
        await self._channel.close(grace=None)

    async def send(self, topic: str, numbers: range) -> pb.SendMessageResponse:
        """Send messages in one request."""
        request = pb.SendMessageRequest()
        for number in numbers:
            message = request.messages.add(body=body_of(number))
            message.topic.name = topic
            properties = message.system_properties
            properties.message_id = f"soak-{number}"
            properties.tag = tag_of(number)
            properties.keys.append(key_of(number))
            properties.body_encoding = pb.IDENTITY
        return await self.unary("SendMessage", request, pb.SendMessageResponse)

    async def receive(
        self,
        group: Group,
        batch: int,
        invisible_ms: int,
        each: Callable[[pb.Message], object],
    ) -> None:
        """Wait for messages; `each` gets one at once, so that none is lost if the call breaks."""
        request = pb.ReceiveMessageRequest(batch_size=batch)
        request.group.name, request.message_queue.topic.name = group.name, group.topic
        request.filter_expression.expression = group.tag
        request.invisible_duration.FromMilliseconds(invisible_ms)
        request.long_polling_timeout.FromSeconds(POLLING_S)
        method: Any = self._channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )
        call = method(request, timeout=CALL_S, metadata=self._metadata)
        try:
            async with asyncio.timeout(CALL_S + OVERDUE_S):
                async for response in call:
                    if response.HasField("message"):
                        each(response.message)
        finally:
            # Who is cancelled meanwhile takes the call along.
            call.cancel()

    async def ack(self, group: Group, messages: list[pb.Message]) -> pb.AckMessageResponse:
        """Acknowledge what was received."""
        request = pb.AckMessageRequest()
        request.group.name, request.topic.name = group.name, group.topic
        for message in messages:
            properties = message.system_properties
            request.entries.add(
                receipt_handle=properties.receipt_handle, message_id=properties.message_id
            )
        return await self.unary("AckMessage", request, pb.AckMessageResponse)

    async def change_invisible(
        self, group: Group, message: pb.Message, duration_ms: int
    ) -> pb.ChangeInvisibleDurationResponse:
        """Give a message back, at once or later."""
        properties = message.system_properties
        request = pb.ChangeInvisibleDurationRequest(
            receipt_handle=properties.receipt_handle, message_id=properties.message_id
        )
        request.group.name, request.topic.name = group.name, group.topic
        request.invisible_duration.FromMilliseconds(duration_ms)
        return await self.unary(
            "ChangeInvisibleDuration", request, pb.ChangeInvisibleDurationResponse
        )

    async def forward(
        self, group: Group, message: pb.Message
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """Give up on a message."""
        properties = message.system_properties
        request = pb.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=properties.receipt_handle, message_id=properties.message_id
        )
        request.group.name, request.topic.name = group.name, group.topic
        return await self.unary(
            "ForwardMessageToDeadLetterQueue", request, pb.ForwardMessageToDeadLetterQueueResponse
        )

    async def telemetry(
        self, settings: pb.Settings, stay_s: float, *, says_goodbye: bool
    ) -> list[pb.TelemetryCommand]:
        """Introduce oneself, stay for a while, then end the stream or just cancel it."""

        async def commands() -> AsyncIterator[pb.TelemetryCommand]:
            yield pb.TelemetryCommand(settings=settings)
            await asyncio.sleep(stay_s)

        call: Any = self._channel.stream_stream(
            SERVICE + "Telemetry",
            request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )(commands(), timeout=CALL_S, metadata=self._metadata)
        answers: list[pb.TelemetryCommand] = []
        async with asyncio.timeout(CALL_S + OVERDUE_S):
            async for answer in call:
                answers.append(answer)
                if not says_goodbye:
                    await asyncio.sleep(stay_s / 2)
                    call.cancel()
                    break
        return answers

    async def unary(self, name: str, request: Message, response_type: type[Response]) -> Response:
        """Make any unary call."""
        call: Any = self._channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        async with asyncio.timeout(CALL_S + OVERDUE_S):
            response = await call(request, timeout=CALL_S, metadata=self._metadata)
        assert isinstance(response, response_type)
        return response
