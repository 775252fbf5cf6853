"""SendMessage."""

from __future__ import annotations

from commitbus.broker.core import validation
from commitbus.broker.metadata.topics import MESSAGE_TYPE_ATTRIBUTE
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.errors import MessageRefusedError
from tests.broker.matrix.registry import MESSAGING, cell
from tests.broker.matrix.stage import Stage
from tests.broker.messaging.bus import EPOCH_MS, make_message

SEND = MESSAGING + "SendMessage"


def send_of(*messages: pb.Message) -> pb.SendMessageRequest:
    return pb.SendMessageRequest(messages=messages)


@cell(SEND, pb.OK, changes=("log",))
async def message_stored(_stage: Stage) -> pb.SendMessageRequest:
    """The request is granted."""
    return send_of(make_message())


@cell(SEND, pb.MESSAGE_CORRUPTED)
async def no_message(_stage: Stage) -> pb.SendMessageRequest:
    """The request has no message."""
    return send_of()


@cell(SEND, pb.MESSAGE_CORRUPTED)
async def several_topics(_stage: Stage) -> pb.SendMessageRequest:
    """The messages of the request have different topics."""
    return send_of(make_message(), make_message(topic="U"))


@cell(SEND, pb.BAD_REQUEST)
async def too_many_messages(stage: Stage) -> pb.SendMessageRequest:
    """The request has more messages than it may."""
    stage.patch.setattr("commitbus.broker.messaging.send.MESSAGES_MAX", 1)
    stage.patch.setattr(validation, "MESSAGES_MAX", 1)
    return send_of(make_message(), make_message())


@cell(SEND, pb.MESSAGE_BODY_EMPTY)
async def empty_body(_stage: Stage) -> pb.SendMessageRequest:
    """A message has no body."""
    return send_of(make_message(b""))


@cell(SEND, pb.MESSAGE_BODY_TOO_LARGE)
async def large_body(stage: Stage) -> pb.SendMessageRequest:
    """A message's body is over the limit."""
    return send_of(make_message(bytes(stage.context.config.max_body_bytes + 1)))


@cell(SEND, pb.MESSAGE_BODY_TOO_LARGE)
async def large_bodies(stage: Stage) -> pb.SendMessageRequest:
    """The bodies of the request together are over the limit for one."""
    half = bytes(stage.context.config.max_body_bytes // 2 + 1)
    return send_of(make_message(half), make_message(half))


@cell(SEND, pb.MESSAGE_PROPERTIES_TOO_LARGE)
async def many_properties(_stage: Stage) -> pb.SendMessageRequest:
    """A message has more than 128 user properties."""
    message = make_message()
    message.user_properties.update({f"p{number}": "x" for number in range(129)})
    return send_of(message)


@cell(SEND, pb.MESSAGE_PROPERTIES_TOO_LARGE)
async def large_properties(_stage: Stage) -> pb.SendMessageRequest:
    """Properties, tag and keys of a message take more than 16,384 bytes."""
    message = make_message()
    message.user_properties["p"] = "x" * 16384
    return send_of(message)


@cell(SEND, pb.MESSAGE_PROPERTIES_TOO_LARGE)
async def large_stored_properties(stage: Stage) -> pb.SendMessageRequest:
    """With what the broker adds the properties do not fit into a record."""
    stage.fails(stage.context.store, "put", MessageRefusedError("the properties", 40000, 32767))
    return send_of(make_message())


@cell(SEND, pb.ILLEGAL_MESSAGE_PROPERTY_KEY)
async def reserved_property(_stage: Stage) -> pb.SendMessageRequest:
    """The name of a user property is reserved."""
    message = make_message()
    message.user_properties["UNIQ_KEY"] = "x"
    return send_of(message)


@cell(SEND, pb.ILLEGAL_MESSAGE_PROPERTY_KEY)
async def unclean_property(_stage: Stage) -> pb.SendMessageRequest:
    """A user property has no name, or has control characters."""
    message = make_message()
    message.user_properties["p"] = "a\x01b"
    return send_of(message)


@cell(SEND, pb.ILLEGAL_MESSAGE_PROPERTY_KEY)
async def unclean_trace_context(_stage: Stage) -> pb.SendMessageRequest:
    """The trace context has control characters."""
    message = make_message()
    message.system_properties.trace_context = "a\x01b"
    return send_of(message)


@cell(SEND, pb.ILLEGAL_MESSAGE_TAG)
async def illegal_tag(_stage: Stage) -> pb.SendMessageRequest:
    """A tag is blank, or has `|` or control characters."""
    message = make_message()
    message.system_properties.tag = "a|b"
    return send_of(message)


@cell(SEND, pb.ILLEGAL_MESSAGE_KEY)
async def illegal_key(_stage: Stage) -> pb.SendMessageRequest:
    """A key is blank or has control characters."""
    message = make_message()
    message.system_properties.keys.append(" ")
    return send_of(message)


@cell(SEND, pb.ILLEGAL_MESSAGE_ID)
async def illegal_message_id(_stage: Stage) -> pb.SendMessageRequest:
    """A message's id is blank or has control characters."""
    return send_of(make_message(message_id=" "))


@cell(SEND, pb.BAD_REQUEST)
async def long_recovery(_stage: Stage) -> pb.SendMessageRequest:
    """The time after which a transaction is checked is more than an hour."""
    message = make_message()
    message.system_properties.orphaned_transaction_recovery_duration.seconds = 3601
    return send_of(message)


@cell(SEND, pb.ILLEGAL_DELIVERY_TIME)
async def late_delivery(_stage: Stage) -> pb.SendMessageRequest:
    """The delivery time is more than a day from now."""
    message = make_message()
    message.system_properties.delivery_timestamp.seconds = EPOCH_MS // 1000 + 2 * 86400
    return send_of(message)


@cell(SEND, pb.BAD_REQUEST)
async def negative_priority(_stage: Stage) -> pb.SendMessageRequest:
    """The priority is negative."""
    message = make_message()
    message.system_properties.priority = -1
    return send_of(message)


@cell(SEND, pb.ILLEGAL_MESSAGE_GROUP)
async def long_message_group(_stage: Stage) -> pb.SendMessageRequest:
    """A message group is blank, has 64 bytes or more, or control characters."""
    message = make_message()
    message.system_properties.message_group = "g" * 64
    return send_of(message)


@cell(SEND, pb.ILLEGAL_LITE_TOPIC)
async def illegal_lite_topic(_stage: Stage) -> pb.SendMessageRequest:
    """A lite topic is blank, too long, or has characters that are not allowed."""
    message = make_message()
    message.system_properties.lite_topic = "a b"
    return send_of(message)


@cell(SEND, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)
async def other_type(_stage: Stage) -> pb.SendMessageRequest:
    """The message is of another type than its topic takes."""
    message = make_message()
    message.system_properties.message_group = "g"
    return send_of(message)


@cell(SEND, pb.NOT_IMPLEMENTED)
async def unsupported_type(stage: Stage) -> pb.SendMessageRequest:
    """DELAY, TRANSACTION, PRIORITY and LITE messages are not supported yet."""
    await stage.bus.topic("Delayed", attributes={MESSAGE_TYPE_ATTRIBUTE: "DELAY"})
    message = make_message(topic="Delayed")
    message.system_properties.delivery_timestamp.seconds = EPOCH_MS // 1000 + 60
    return send_of(message)
