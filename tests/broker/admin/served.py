"""A running broker, called over the network as clients and operators call it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import grpc
import trio
from google.protobuf.message import Message

from commitbus.broker.config import BrokerConfig, Transport
from commitbus.broker.embedded.broker import SMALL_FILES
from commitbus.broker.rpc.proto import admin_v1_pb2 as own
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.server import RunningBroker, run_broker
from commitbus.broker.store.message_store import MessageStore

WAIT_S = 20.0


@final
class Served:
    """A broker in a thread of its own, called over the network."""

    def __init__(self, directory: Path, transport: Transport) -> None:
        self._config = BrokerConfig().with_changes(
            {
                **SMALL_FILES,
                "store_directory": directory,
                "listen": "127.0.0.1:0",
                "transport": transport,
            }
        )
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,))
        self._thread.start()
        assert self._started.wait(WAIT_S)
        self.channel = grpc.insecure_channel(self.running.endpoint)

    async def _main(self) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        await run_broker(self._config, self._stop, task_status=self)

    def started(self, value: RunningBroker | None = None) -> None:
        """Be a task status."""
        assert value is not None
        self.running = value
        self._started.set()

    def stop(self) -> None:
        self.channel.close()
        self._token.run_sync_soon(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def call(self, path: str, request: Message, response_type: Any, client_id: str = "") -> Any:
        method = self.channel.unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=response_type.FromString,
        )
        metadata = (("x-mq-client-id", client_id), ("x-mq-client-version", "5.1.2"))
        return method(request, timeout=WAIT_S, metadata=metadata)

    def admin(self, name: str, request: Message) -> Any:
        """Call the protocol's operators' service."""
        response_type = getattr(pb, type(request).__name__.replace("Request", "Response"))
        return self.call(f"/apache.rocketmq.v2.Admin/{name}", request, response_type)

    def own(self, name: str, request: Message, response_type: Any) -> Any:
        """Call our operators' service."""
        return self.call(f"/commitbus.admin.v1.Admin/{name}", request, response_type)

    def messaging(self, name: str, request: Message, client_id: str = "receiver") -> Any:
        response_type = getattr(pb, type(request).__name__.replace("Request", "Response"))
        path = f"/apache.rocketmq.v2.MessagingService/{name}"
        return self.call(path, request, response_type, client_id)

    # Shorthands

    @property
    def endpoint(self) -> str:
        return self.running.endpoint

    @property
    def store(self) -> MessageStore:
        return self.running.context.store

    def topic(self, name: str, queues: int = 1, **attributes: str) -> str:
        request = own.PutTopicRequest(name=name, read_queue_nums=queues, write_queue_nums=queues)
        request.set_attributes.update(attributes)
        self.own("PutTopic", request, own.Topic)
        return name

    def group(self, name: str, **settings: Any) -> str:
        self.own("PutGroup", own.PutGroupRequest(name=name, **settings), own.Group)
        return name

    def send(self, topic: str, *bodies: bytes, key: str = "", tag: str = "") -> list[str]:
        """Send messages one by one; return their ids once they can be received."""
        ids = []
        for body in bodies:
            request = pb.AdminSendMessageRequest(body=body, key=key, tag=tag)
            request.topic.name = topic
            response = self.admin("AdminSendMessage", request)
            assert response.status.code == pb.OK, response.status.message
            ids.append(response.message_id)
        assert self.store.dispatched.wait(self.store.end_offset, WAIT_S)
        return ids

    def receive(
        self,
        topic: str,
        group: str,
        *,
        client_id: str = "receiver",
        batch: int = 32,
        wait_s: int = 5,
        attempt_id: str = "",
    ) -> list[pb.Message]:
        request = pb.ReceiveMessageRequest(batch_size=batch, attempt_id=attempt_id)
        request.group.name, request.message_queue.topic.name = group, topic
        request.invisible_duration.seconds, request.long_polling_timeout.seconds = 60, wait_s
        method = self.channel.unary_stream(
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
            request_serializer=pb.ReceiveMessageRequest.SerializeToString,
            response_deserializer=pb.ReceiveMessageResponse.FromString,
        )
        responses = method(request, timeout=WAIT_S, metadata=(("x-mq-client-id", client_id),))
        return [r.message for r in responses if r.WhichOneof("content") == "message"]

    def ack(self, topic: str, group: str, *messages: pb.Message) -> pb.Code:
        request = pb.AckMessageRequest()
        request.group.name, request.topic.name = group, topic
        for message in messages:
            request.entries.add(receipt_handle=message.system_properties.receipt_handle)
        code: pb.Code = self.messaging("AckMessage", request).status.code
        return code


@final
class Consumer:
    """A client with a telemetry stream. `answer` makes its answer to a command; None: silence."""

    def __init__(self, served: Served, client_id: str, settings: pb.Settings) -> None:
        self.client_id = client_id
        self.answer: Callable[[pb.TelemetryCommand], pb.TelemetryCommand | None] = lambda _: None
        self._requests: queue.Queue[pb.TelemetryCommand | None] = queue.Queue()
        self._requests.put(pb.TelemetryCommand(settings=settings))
        method = served.channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        metadata = (
            ("x-mq-client-id", client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.1.2"),
        )
        self._responses = method(iter(self._requests.get, None), metadata=metadata)
        assert next(iter(self._responses)).status.code == pb.OK
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        for command in self._responses:
            answer = self.answer(command)
            if answer is not None:
                self._requests.put(answer)

    def hang_up(self) -> None:
        self._requests.put(None)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


@final
class Connections:
    """Connects consumers of groups; in the end they hang up and say goodbye."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._consumers: list[Consumer] = []

    def __call__(self, client_id: str, group: str, **filters: str) -> Consumer:
        """Connect a consumer; `filters` are tag expressions by topic."""
        settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
        settings.user_agent.hostname = "host-1"
        settings.subscription.group.name = group
        for topic, expression in filters.items():
            entry = settings.subscription.subscriptions.add()
            entry.topic.name = topic
            entry.expression.type, entry.expression.expression = pb.TAG, expression
        self._consumers.append(Consumer(self._served, client_id, settings))
        return self._consumers[-1]

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.hang_up()
            request = pb.NotifyClientTerminationRequest()
            self._served.messaging("NotifyClientTermination", request, consumer.client_id)
