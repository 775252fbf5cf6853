from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppendRequest(_message.Message):
    __slots__ = ("start", "batch")
    START_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    start: AppendStart
    batch: AppendBatch
    def __init__(self, start: _Optional[_Union[AppendStart, _Mapping[str, object]]] = ..., batch: _Optional[_Union[AppendBatch, _Mapping[str, object]]] = ...) -> None: ...

class AppendStart(_message.Message):
    __slots__ = ("topic", "producer_id", "resumes", "durable")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    producer_id: bytes
    resumes: bool
    durable: bool
    def __init__(self, topic: _Optional[str] = ..., producer_id: _Optional[bytes] = ..., resumes: _Optional[bool] = ..., durable: _Optional[bool] = ...) -> None: ...

class AppendBatch(_message.Message):
    __slots__ = ("sequence", "queue_id", "lengths", "records", "born_ms", "checksum")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    BORN_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    queue_id: int
    lengths: bytes
    records: bytes
    born_ms: int
    checksum: int
    def __init__(self, sequence: _Optional[int] = ..., queue_id: _Optional[int] = ..., lengths: _Optional[bytes] = ..., records: _Optional[bytes] = ..., born_ms: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("started", "acks")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    started: AppendLimits
    acks: _containers.RepeatedCompositeFieldContainer[AppendAck]
    def __init__(self, started: _Optional[_Union[AppendLimits, _Mapping[str, object]]] = ..., acks: _Optional[_Iterable[_Union[AppendAck, _Mapping[str, object]]]] = ...) -> None: ...

class AppendLimits(_message.Message):
    __slots__ = ("body_bytes_max", "batch_bytes_max", "batch_records_max", "window_batches")
    BODY_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BATCH_RECORDS_MAX_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BATCHES_FIELD_NUMBER: _ClassVar[int]
    body_bytes_max: int
    batch_bytes_max: int
    batch_records_max: int
    window_batches: int
    def __init__(self, body_bytes_max: _Optional[int] = ..., batch_bytes_max: _Optional[int] = ..., batch_records_max: _Optional[int] = ..., window_batches: _Optional[int] = ...) -> None: ...

class AppendAck(_message.Message):
    __slots__ = ("sequence", "queue_id", "first_queue_offset", "first_physical_offset", "record_count", "store_ms")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    queue_id: int
    first_queue_offset: int
    first_physical_offset: int
    record_count: int
    store_ms: int
    def __init__(self, sequence: _Optional[int] = ..., queue_id: _Optional[int] = ..., first_queue_offset: _Optional[int] = ..., first_physical_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., store_ms: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("topic", "log", "credit_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: FetchTopic
    log: FetchLog
    credit_bytes: int
    def __init__(self, topic: _Optional[_Union[FetchTopic, _Mapping[str, object]]] = ..., log: _Optional[_Union[FetchLog, _Mapping[str, object]]] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("queue_offset", "store_ms", "latest")
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    store_ms: int
    latest: bool
    def __init__(self, queue_offset: _Optional[int] = ..., store_ms: _Optional[int] = ..., latest: _Optional[bool] = ...) -> None: ...

class QueuePosition(_message.Message):
    __slots__ = ("queue_id", "position")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    position: Position
    def __init__(self, queue_id: _Optional[int] = ..., position: _Optional[_Union[Position, _Mapping[str, object]]] = ...) -> None: ...

class FetchTopic(_message.Message):
    __slots__ = ("topic", "queues", "begin", "tags", "follow", "slice_bytes_max", "checksums", "other_queues")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    SLICE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    OTHER_QUEUES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queues: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    begin: Position
    tags: str
    follow: bool
    slice_bytes_max: int
    checksums: bool
    other_queues: bool
    def __init__(self, topic: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueuePosition, _Mapping[str, object]]]] = ..., begin: _Optional[_Union[Position, _Mapping[str, object]]] = ..., tags: _Optional[str] = ..., follow: _Optional[bool] = ..., slice_bytes_max: _Optional[int] = ..., checksums: _Optional[bool] = ..., other_queues: _Optional[bool] = ...) -> None: ...

class FetchLog(_message.Message):
    __slots__ = ("physical_offset", "follow", "slice_bytes_max", "checksums")
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    SLICE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    physical_offset: int
    follow: bool
    slice_bytes_max: int
    checksums: bool
    def __init__(self, physical_offset: _Optional[int] = ..., follow: _Optional[bool] = ..., slice_bytes_max: _Optional[int] = ..., checksums: _Optional[bool] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("queue_id", "first_offset", "record_count", "next_offset", "end_offset", "records", "checksum", "sizes")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    first_offset: int
    record_count: int
    next_offset: int
    end_offset: int
    records: bytes
    checksum: int
    sizes: bytes
    def __init__(self, queue_id: _Optional[int] = ..., first_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., next_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., records: _Optional[bytes] = ..., checksum: _Optional[int] = ..., sizes: _Optional[bytes] = ...) -> None: ...
