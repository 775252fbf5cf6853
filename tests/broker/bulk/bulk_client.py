"""The bulk service called by grpcio: another implementation of the client's side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, final

import grpc

from commitbus.broker import Broker
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.wire.bulk_paths import SERVICE
from commitbus.broker.wire.frames import checksum, encode_frames
from commitbus.commitlog.record_format import decode_record, encode_properties
from commitbus.commitlog.types import PhysicalOffset, Record

Pair = tuple[bytes, dict[str, str]]
"""A message as the tests write it: body and properties."""


class Appended(NamedTuple):
    """How an Append call went."""

    acks: list[pb.AppendAck]
    error: tuple[grpc.StatusCode, str] | None


class Fetched(NamedTuple):
    """How a Fetch call went."""

    slices: list[pb.FetchResponse]
    error: tuple[grpc.StatusCode, str] | None

    @property
    def records(self) -> list[Record]:
        return [record for part in self.slices for record in records_of(part.records)]

    @property
    def bodies(self) -> list[bytes]:
        return [record.body for record in self.records]


def records_of(data: bytes) -> list[Record]:
    """Decode records that lie back to back, each checked."""
    view, records = memoryview(data), []
    while view:
        offset = PhysicalOffset(int.from_bytes(view[28:36], "big"))
        records.append(decode_record(view, offset))
        view = view[records[-1].size_bytes :]
    return records


def make_batch(
    sequence: int, messages: Sequence[Pair], *, queue_id: int | None = None, **changes: Any
) -> pb.AppendRequest:
    parts = [part for body, stored in messages for part in (body, encode_properties(stored))]
    lengths, records = encode_frames(parts)
    batch = pb.AppendBatch(
        sequence=sequence,
        queue_id=queue_id,
        lengths=lengths,
        records=records,
        checksum=checksum(lengths, records),
    )
    batch.MergeFrom(pb.AppendBatch(**changes))
    return pb.AppendRequest(batch=batch)


@final
class Bulk:
    """The two calls, each carried through to its end."""

    def __init__(self, broker: Broker) -> None:
        assert broker._thread.running is not None
        self.store = broker._thread.running.context.store
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(broker.endpoint, options)
        self.append_call = self._call("Append", pb.AppendResponse)
        self.fetch_call = self._call("Fetch", pb.FetchResponse)

    def _call(self, name: str, response: Any) -> Any:
        channel: Any = self.channel
        return channel.stream_stream(
            SERVICE + name, lambda request: request.SerializeToString(), response.FromString
        )

    def append(
        self, topic: str, *batches: pb.AppendRequest, producer_id: bytes = b"", **start: Any
    ) -> Appended:
        first = pb.AppendRequest(
            start=pb.AppendStart(topic=topic, producer_id=producer_id, **start)
        )
        responses, error = ended(self.append_call(iter([first, *batches])))
        return Appended([ack for response in responses for ack in response.acks], error)

    def fetch(self, topic: str, *, credit: int = 1 << 40, **what: Any) -> Fetched:
        request = pb.FetchRequest(
            topic=pb.FetchTopic(topic=topic, checksums=True, **what), credit_bytes=credit
        )
        return self._fetched(request)

    def fetch_log(self, *, credit: int = 1 << 40, **what: Any) -> Fetched:
        request = pb.FetchRequest(log=pb.FetchLog(**what), credit_bytes=credit)
        return self._fetched(request)

    def _fetched(self, request: pb.FetchRequest) -> Fetched:
        return Fetched(*ended(self.fetch_call(iter([request]))))


def ended(call: Iterable[Any]) -> tuple[list[Any], tuple[grpc.StatusCode, str] | None]:
    """Return what a call answered, and the status that it failed with."""
    responses: list[Any] = []
    try:
        responses.extend(call)
    except grpc.RpcError as error:
        status: Any = error
        return responses, (status.code(), status.details())
    return responses, None
