"""The bulk service: Append and Fetch. Both refuse by ending their streams with a gRPC status."""

from __future__ import annotations

from typing import Any

from commitbus.broker.bulk import producers, validate
from commitbus.broker.metadata.topics import MESSAGE_TYPE_ATTRIBUTE
from commitbus.broker.rpc.call import StatusCode
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.wire.bulk_paths import APPEND, FETCH
from commitbus.broker.wire.frames import checksum, encode_frames
from commitbus.commitlog.errors import (
    CorruptRecordError,
    MessageRefusedError,
    StoreReadOnlyError,
)
from commitbus.commitlog.record_format import encode_properties
from tests.broker.matrix.registry import cell, cells
from tests.broker.matrix.stage import NOT_SAVED, UNREADABLE, Stage

BOTH = (APPEND, FETCH)
PRODUCER = bytes(16)


# Append


def appending(*batches: pb.AppendRequest, **start: Any) -> list[pb.AppendRequest]:
    """Return the requests of one call."""
    first = pb.AppendStart(**{"topic": "T", **start})
    return [pb.AppendRequest(start=first), *batches]


def batch_of(
    body: bytes = b"x", *, properties: dict[str, str] | None = None, **changes: Any
) -> pb.AppendRequest:
    lengths, records = encode_frames([body, encode_properties(properties or {})])
    batch = {"lengths": lengths, "records": records, "checksum": checksum(lengths, records)}
    return pb.AppendRequest(batch=pb.AppendBatch(**{**batch, **changes}))


@cell(APPEND, StatusCode.OK, changes=("log",))
async def batch_stored(_stage: Stage) -> list[pb.AppendRequest]:
    """The request is granted."""
    return appending(batch_of(), producer_id=PRODUCER)


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def no_start(_stage: Stage) -> list[pb.AppendRequest]:
    """The first request is no start."""
    return [batch_of()]


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def second_start(_stage: Stage) -> list[pb.AppendRequest]:
    """Another request than the first is a start."""
    return appending() * 2


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def odd_producer_id(_stage: Stage) -> list[pb.AppendRequest]:
    """The producer id has not 16 bytes."""
    return appending(producer_id=b"x")


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def empty_batch(_stage: Stage) -> list[pb.AppendRequest]:
    """A batch has no record."""
    return appending(pb.AppendRequest(batch=pb.AppendBatch(sequence=1)))


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def many_records(stage: Stage) -> list[pb.AppendRequest]:
    """A batch has more records than it may."""
    stage.patch.setattr(validate, "RECORDS_MAX", 0)
    return appending(batch_of())


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def large_batch(stage: Stage) -> list[pb.AppendRequest]:
    """A batch has more bytes than it may."""
    size = validate.batch_bytes_max(stage.context.config.max_body_bytes) + 1
    return appending(batch_of(bytes(size)))


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def wrong_checksum(_stage: Stage) -> list[pb.AppendRequest]:
    """A batch does not match its checksum."""
    return appending(batch_of(checksum=1))


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def wrong_lengths(_stage: Stage) -> list[pb.AppendRequest]:
    """The lengths of a batch are not those of its records."""
    lengths, records = bytes(8), b"x"
    batch = pb.AppendBatch(lengths=lengths, records=records, checksum=checksum(lengths, records))
    return appending(pb.AppendRequest(batch=batch))


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def illegal_record(_stage: Stage) -> list[pb.AppendRequest]:
    """A record's tag, keys or properties break a limit that holds for those of a message."""
    return appending(batch_of(properties={"TAGS": "a|b"}))


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def empty_record(_stage: Stage) -> list[pb.AppendRequest]:
    """A record has no body."""
    return appending(batch_of(b""))


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def large_body(stage: Stage) -> list[pb.AppendRequest]:
    """A record's body is over the limit."""
    return appending(batch_of(bytes(stage.context.config.max_body_bytes + 1)))


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def odd_properties(_stage: Stage) -> list[pb.AppendRequest]:
    """The properties of a record are not UTF-8, or not in the form in which they are stored."""
    lengths, records = encode_frames([b"x", b"no separators"])
    batch = pb.AppendBatch(lengths=lengths, records=records)
    return appending(pb.AppendRequest(batch=batch))


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def large_record(stage: Stage) -> list[pb.AppendRequest]:
    """With what the broker adds the properties do not fit into a record."""
    error = MessageRefusedError("the properties", 40000, 32767)
    stage.fails(stage.context.store, "put_framed", error)
    return appending(batch_of())


@cell(APPEND, StatusCode.INVALID_ARGUMENT)
async def no_such_queue(_stage: Stage) -> list[pb.AppendRequest]:
    """The topic has no such queue that may be written to."""
    return appending(batch_of(queue_id=1))


@cell(APPEND, StatusCode.FAILED_PRECONDITION)
async def topic_of_another_type(stage: Stage) -> list[pb.AppendRequest]:
    """The topic takes messages of another type than NORMAL."""
    await stage.bus.topic(attributes={MESSAGE_TYPE_ATTRIBUTE: "FIFO"})
    return appending()


@cell(APPEND, StatusCode.FAILED_PRECONDITION)
async def gap(_stage: Stage) -> list[pb.AppendRequest]:
    """A batch is not the next one of its producer."""
    return appending(batch_of(sequence=1), producer_id=PRODUCER)


@cell(APPEND, StatusCode.FAILED_PRECONDITION)
async def another_batch(stage: Stage) -> list[pb.AppendRequest]:
    """Another batch was stored under this sequence."""
    await stage.answer(APPEND, appending(batch_of(), producer_id=PRODUCER), stage.bus.call())
    stage.bus.settle()
    return appending(batch_of(b"other"), producer_id=PRODUCER, resumes=True)


@cell(APPEND, StatusCode.ABORTED)
async def taken_over(stage: Stage) -> list[pb.AppendRequest]:
    """Another stream has taken the producer over."""
    stage.patch.setattr(producers.Producers, "is_speaking", lambda *_: False)
    return appending(batch_of(), producer_id=PRODUCER)


@cell(APPEND, StatusCode.RESOURCE_EXHAUSTED, settings={"auto_create_topics": True})
async def one_topic_too_many(stage: Stage) -> list[pb.AppendRequest]:
    """A topic would have to be created, and clients have created too many."""
    stage.no_room()
    return appending(topic="New")


@cell(APPEND, StatusCode.UNAVAILABLE)
async def index_is_behind(stage: Stage) -> list[pb.AppendRequest]:
    """The index does not know yet what an earlier stream of the producer stored."""
    await stage.bus.send(b"a")
    stage.patch.setattr(producers, "INDEX_WAIT_S", 0)
    stage.patch.setattr(type(stage.context.store), "indexed_to", 0)
    return appending(batch_of(), producer_id=PRODUCER, resumes=True)


@cell(APPEND, StatusCode.UNAVAILABLE, settings={"auto_create_topics": True})
async def topic_not_saved(stage: Stage) -> list[pb.AppendRequest]:
    """A topic would have to be created, and that could not be saved."""
    stage.fails(stage.context.metadata, "add_topic", NOT_SAVED)
    return appending(topic="New")


@cell(APPEND, StatusCode.INTERNAL)
async def unreadable(_stage: Stage) -> list[bytes]:
    """A request is not what the .proto file says."""
    return [b"\xff"]


# Fetch


def fetching(credit_bytes: int = 1 << 20, **what: Any) -> list[pb.FetchRequest]:
    topic = pb.FetchTopic(**{"topic": "T", **what})
    return [pb.FetchRequest(topic=topic, credit_bytes=credit_bytes)]


@cell(FETCH, StatusCode.OK)
async def records_fetched(stage: Stage) -> list[pb.FetchRequest]:
    """The request is granted."""
    await stage.bus.send(b"a")
    return fetching()


@cell(FETCH, StatusCode.INVALID_ARGUMENT)
async def nothing_named(_stage: Stage) -> list[pb.FetchRequest]:
    """The first request does not say what to fetch."""
    return [pb.FetchRequest(credit_bytes=1)]


@cell(FETCH, StatusCode.INVALID_ARGUMENT)
async def named_twice(_stage: Stage) -> list[pb.FetchRequest]:
    """Another request than the first says what to fetch."""
    return fetching(follow=True) * 2


@cell(FETCH, StatusCode.INVALID_ARGUMENT)
async def negative_credit(_stage: Stage) -> list[pb.FetchRequest]:
    """A credit is negative."""
    return fetching(-1)


@cell(FETCH, StatusCode.INVALID_ARGUMENT)
async def large_slices(_stage: Stage) -> list[pb.FetchRequest]:
    """The slices are to be negative, or larger than they may be."""
    return fetching(slice_bytes_max=1 << 30)


@cell(FETCH, StatusCode.INVALID_ARGUMENT)
async def unknown_queue(_stage: Stage) -> list[pb.FetchRequest]:
    """The topic has no such queue that may be read."""
    return fetching(queues=[pb.QueuePosition(queue_id=1)])


@cell(FETCH, StatusCode.INVALID_ARGUMENT)
async def bad_tags(_stage: Stage) -> list[pb.FetchRequest]:
    """The tags cannot be understood."""
    return fetching(tags="||")


@cell(FETCH, StatusCode.INVALID_ARGUMENT)
async def inside_a_record(stage: Stage) -> list[pb.FetchRequest]:
    """No record begins at the physical offset."""
    await stage.bus.send(b"a")
    return [pb.FetchRequest(log=pb.FetchLog(physical_offset=1), credit_bytes=1)]


@cell(FETCH, StatusCode.PERMISSION_DENIED)
async def topic_is_write_only(stage: Stage) -> list[pb.FetchRequest]:
    """The topic has no queue that may be read."""
    await stage.bus.topic(perm=2)
    return fetching()


@cell(FETCH, StatusCode.OUT_OF_RANGE)
async def offset_behind_the_end(_stage: Stage) -> list[pb.FetchRequest]:
    """The queue has no such offset."""
    return fetching(begin=pb.Position(queue_offset=1))


@cell(FETCH, StatusCode.OUT_OF_RANGE)
async def behind_the_log(_stage: Stage) -> list[pb.FetchRequest]:
    """The log has no such offset."""
    return [pb.FetchRequest(log=pb.FetchLog(physical_offset=1), credit_bytes=1)]


@cell(FETCH, StatusCode.DATA_LOSS)
async def damaged_record(stage: Stage) -> list[pb.FetchRequest]:
    """A record is damaged."""
    await stage.bus.send(b"a")
    stage.fails(stage.context.store, "queue_slice", CorruptRecordError(0, "the CRC does not match"))
    return fetching()


@cell(FETCH, StatusCode.DATA_LOSS)
async def unreadable_record(stage: Stage) -> list[pb.FetchRequest]:
    """The disk does not give the next record back."""
    await stage.bus.send(b"a")
    stage.fails(stage.context.store, "queue_slice", UNREADABLE)
    return fetching()


@cell(FETCH, StatusCode.UNAVAILABLE)
async def store_gives_no_more(stage: Stage) -> list[pb.FetchRequest]:
    """The store is closed, or its queues cannot follow the log."""
    await stage.bus.send(b"a")
    stage.fails(stage.context.store, "queue_slice", StoreReadOnlyError("a flush failed"))
    return fetching()


# Both


@cells(BOTH, StatusCode.INVALID_ARGUMENT)
async def illegal_topic(_stage: Stage, path: str) -> list[Any]:
    """The topic's name is illegal, or one of the system's own."""
    return [*(appending if path == APPEND else fetching)(topic="no/topic")]


@cells(BOTH, StatusCode.NOT_FOUND)
async def unknown_topic(_stage: Stage, path: str) -> list[Any]:
    """There is no such topic."""
    return [*(appending if path == APPEND else fetching)(topic="Nowhere")]
