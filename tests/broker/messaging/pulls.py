"""Shorthands for PullMessage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from commitbus.broker.rpc.call import Response
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb


@final
@dataclass
class Pulled:
    """The answer to one PullMessage."""

    code: int = -1
    messages: list[pb.Message] = field(default_factory=list)
    next_offset: int | None = None
    kinds: list[str | None] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def take(self, *responses: Response) -> None:
        for response in responses:
            data = response if isinstance(response, bytes) else response.SerializeToString()
            part = pb.PullMessageResponse.FromString(data)
            kind = part.WhichOneof("content")
            self.kinds.append(kind)
            if kind == "status":
                self.code = part.status.code
            elif kind == "message":
                self.messages.append(part.message)
            else:
                self.next_offset = part.next_offset


def request_of(
    offset: int = 0,
    *,
    group: str = "G",
    topic: str = "T",
    queue_id: int = 0,
    batch: int = 32,
    tags: str = "*",
    sql: str | None = None,
    polling_s: int = 5,
) -> pb.PullMessageRequest:
    request = pb.PullMessageRequest(offset=offset, batch_size=batch)
    request.group.name, request.message_queue.topic.name = group, topic
    request.message_queue.id = queue_id
    request.filter_expression.type, request.filter_expression.expression = pb.TAG, tags
    if sql is not None:
        request.filter_expression.CopyFrom(pb.FilterExpression(type=pb.SQL, expression=sql))
    request.long_polling_timeout.seconds = polling_s
    return request


async def pull(bus: Any, offset: int = 0, **changes: Any) -> Pulled:
    pulled = Pulled()
    await bus.stream("PullMessage", request_of(offset, **changes), pulled.take)
    return pulled
