"""The requests of RocketMQ's protocol and of the broker's own services, encoded by hand."""

from __future__ import annotations

from typing import Final

from tests.attacks.protobuf import fields, message_in, number, text

MESSAGING: Final = "/apache.rocketmq.v2.MessagingService/"
ADMIN: Final = "/commitbus.admin.v1.Admin/"
BULK: Final = "/commitbus.bulk.v1.Bulk/"
HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
HEALTH_WATCH: Final = "/grpc.health.v1.Health/Watch"
OK: Final = 20000
MESSAGE_NOT_FOUND: Final = 40401
SERVING: Final = 1
TAG, SQL = 1, 2
PUSH_CONSUMER: Final = 2
PRODUCER: Final = 1


def resource(name: str, namespace: str = "") -> bytes:
    """Encode the name of a topic or group."""
    return (text(1, namespace) if namespace else b"") + text(2, name)


def endpoints(host: str, *, count: int = 1) -> bytes:
    """Encode a client's endpoints: the same address so many times."""
    return number(1, 1) + text(2, text(1, host) + number(2, 8081)) * count


def query_route(topic: str, namespace: str = "", where: bytes = b"") -> bytes:
    """Encode a QueryRouteRequest."""
    return text(1, resource(topic, namespace)) + (text(2, where) if where else b"")


def query_assignment(topic: str, group: str, namespace: str = "", where: bytes = b"") -> bytes:
    """Encode a QueryAssignmentRequest."""
    both = text(1, resource(topic, namespace)) + text(2, resource(group))
    return both + (text(3, where) if where else b"")


def send(topic: str, body: bytes, message_id: str, *, tag: str = "", key: str = "") -> bytes:
    """Encode a SendMessageRequest with one message."""
    system = (text(1, tag) if tag else b"") + (text(2, key) if key else b"")
    system += text(3, message_id) + number(5, 1) + number(6, 1)
    return text(1, text(1, resource(topic)) + text(3, system) + text(4, body))


def receive(
    topic: str,
    group: str,
    *,
    batch: int = 32,
    invisible_s: int = 30,
    polling_s: int = 5,
    kind: int = TAG,
    expression: str = "*",
) -> bytes:
    """Encode a ReceiveMessageRequest."""
    return b"".join(
        (
            text(1, resource(group)),
            text(2, text(1, resource(topic))),
            text(3, number(1, kind) + text(2, expression)),
            number(4, batch),
            text(5, number(1, invisible_s)),
            text(7, number(1, polling_s)),
        )
    )


def pull(topic: str, group: str, queue_id: int, offset: int) -> bytes:
    """Encode a PullMessageRequest."""
    queue = text(1, resource(topic)) + number(2, queue_id)
    both = text(1, resource(group)) + text(2, queue)
    return both + number(3, offset) + number(4, 32) + text(6, number(1, 5))


def ack(topic: str, group: str, entries: list[tuple[str, str]]) -> bytes:
    """Encode an AckMessageRequest; an entry is a message id and a receipt handle."""
    names = text(1, resource(group)) + text(2, resource(topic))
    return names + b"".join(text(3, text(1, id_) + text(2, handle)) for id_, handle in entries)


def heartbeat(group: str = "") -> bytes:
    """Encode a HeartbeatRequest, of a producer if there is no group."""
    if not group:
        return number(2, PRODUCER)
    return text(1, resource(group)) + number(2, PUSH_CONSUMER)


def publishing(topics: list[str]) -> bytes:
    """Encode a TelemetryCommand with the settings of a producer."""
    names = b"".join(text(1, resource(topic)) for topic in topics)
    return text(2, number(1, PRODUCER) + text(5, names))


def subscribing(group: str, topics: list[str]) -> bytes:
    """Encode a TelemetryCommand with the settings of a consumer."""
    entry = text(2, number(1, TAG) + text(2, "*"))
    entries = b"".join(text(2, text(1, resource(topic)) + entry) for topic in topics)
    return text(2, number(1, PUSH_CONSUMER) + text(6, text(1, resource(group)) + entries))


def offset_by_time(topic: str, queue_id: int, timestamp_s: int) -> bytes:
    """Encode a QueryOffsetRequest by time."""
    queue = text(1, resource(topic)) + number(2, queue_id)
    return text(1, queue) + number(2, 2) + text(3, number(1, timestamp_s))


def put_topic(topic: str, queues: int) -> bytes:
    """Encode the operators' PutTopicRequest."""
    return text(1, topic) + number(2, queues) + number(3, queues)


def get_message(topic: str, queue_id: int, offset: int) -> bytes:
    """Encode the operators' GetMessageRequest by place."""
    return text(3, text(1, topic) + number(2, queue_id) + number(3, offset))


def query_messages(topic: str, key: str, *, by_tag: bool) -> bytes:
    """Encode the operators' QueryMessagesRequest over all time."""
    found = text(1, topic) + text(2, key) + number(4, 1 << 42) + number(5, 64)
    return found + number(6, by_tag)


def append_start(topic: str, producer_id: bytes = b"") -> bytes:
    """Encode the first AppendRequest of a bulk stream."""
    return text(1, text(1, topic) + text(2, producer_id))


def fetch_topic(topic: str) -> bytes:
    """Encode a FetchRequest that follows a topic, with credit for everything."""
    return text(1, text(1, topic) + number(5, 1)) + number(3, 1 << 40)


def received_messages(responses: list[bytes]) -> list[tuple[bytes, str, str]]:
    """Return body, message id and receipt handle of the messages among ReceiveMessageResponses."""
    found = []
    for response in responses:
        for field, message in fields(response):
            if field == 2 and isinstance(message, bytes):
                system = message_in(message, 3)
                handle, id_ = message_in(system, 12), message_in(system, 3)
                found.append((message_in(message, 4), id_.decode(), handle.decode()))
    return found
