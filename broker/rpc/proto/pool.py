"""The descriptor pool of our generated modules, apart from the process's default one.

Protobuf allows one definition of a name per pool, and the official `rocketmq-python-client`
registers `apache.rocketmq.v2` in the default pool. With a pool of our own both can live in one
process, whichever is imported first, even when their versions of the protocol differ.

The price: the `Timestamp` and `Duration` of our messages are other classes than those of
`google.protobuf.timestamp_pb2`; an object of one cannot be put into a message of the other. Fill
the field in place (`message.born_timestamp.FromMilliseconds(ms)`) or use the classes below.
"""

from __future__ import annotations

from typing import cast

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

POOL = DescriptorPool()
for _module in (duration_pb2, timestamp_pb2):
    POOL.AddSerializedFile(_module.DESCRIPTOR.serialized_pb)

Duration = cast(
    "type[duration_pb2.Duration]",
    GetMessageClass(POOL.FindMessageTypeByName("google.protobuf.Duration")),
)
Timestamp = cast(
    "type[timestamp_pb2.Timestamp]",
    GetMessageClass(POOL.FindMessageTypeByName("google.protobuf.Timestamp")),
)
