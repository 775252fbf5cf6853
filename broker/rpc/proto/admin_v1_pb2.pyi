from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeyKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY: _ClassVar[KeyKind]
    TAG: _ClassVar[KeyKind]
KEY: KeyKind
TAG: KeyKind

class Topic(_message.Message):
    __slots__ = ("name", "read_queue_nums", "write_queue_nums", "perm", "order", "topic_sys_flag", "attributes", "groups")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    order: bool
    topic_sys_flag: int
    attributes: _containers.ScalarMap[str, str]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., read_queue_nums: _Optional[int] = ..., write_queue_nums: _Optional[int] = ..., perm: _Optional[int] = ..., order: _Optional[bool] = ..., topic_sys_flag: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class PutTopicRequest(_message.Message):
    __slots__ = ("name", "read_queue_nums", "write_queue_nums", "perm", "order", "topic_sys_flag", "set_attributes", "delete_attributes")
    class SetAttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    TOPIC_SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    SET_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    DELETE_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    order: bool
    topic_sys_flag: int
    set_attributes: _containers.ScalarMap[str, str]
    delete_attributes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., read_queue_nums: _Optional[int] = ..., write_queue_nums: _Optional[int] = ..., perm: _Optional[int] = ..., order: _Optional[bool] = ..., topic_sys_flag: _Optional[int] = ..., set_attributes: _Optional[_Mapping[str, str]] = ..., delete_attributes: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping[str, object]]]] = ...) -> None: ...

class GetTopicStatusRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class TopicStatus(_message.Message):
    __slots__ = ("queues", "put_tps")
    class Queue(_message.Message):
        __slots__ = ("queue_id", "min_offset", "max_offset", "last_updated_ms")
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
        MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
        LAST_UPDATED_MS_FIELD_NUMBER: _ClassVar[int]
        queue_id: int
        min_offset: int
        max_offset: int
        last_updated_ms: int
        def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., last_updated_ms: _Optional[int] = ...) -> None: ...
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PUT_TPS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[TopicStatus.Queue]
    put_tps: float
    def __init__(self, queues: _Optional[_Iterable[_Union[TopicStatus.Queue, _Mapping[str, object]]]] = ..., put_tps: _Optional[float] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "consume_enable", "consume_from_min_enable", "consume_broadcast_enable", "consume_message_orderly", "retry_queue_nums", "retry_max_times", "broker_id", "which_broker_when_consume_slowly", "attributes", "group_retry_policy", "notify_consumer_ids_changed_enable")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONSUME_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_FROM_MIN_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_BROADCAST_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_MESSAGE_ORDERLY_FIELD_NUMBER: _ClassVar[int]
    RETRY_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    RETRY_MAX_TIMES_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    WHICH_BROKER_WHEN_CONSUME_SLOWLY_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_RETRY_POLICY_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_CONSUMER_IDS_CHANGED_ENABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_queue_nums: int
    retry_max_times: int
    broker_id: int
    which_broker_when_consume_slowly: int
    attributes: _containers.ScalarMap[str, str]
    group_retry_policy: str
    notify_consumer_ids_changed_enable: bool
    def __init__(self, name: _Optional[str] = ..., consume_enable: _Optional[bool] = ..., consume_from_min_enable: _Optional[bool] = ..., consume_broadcast_enable: _Optional[bool] = ..., consume_message_orderly: _Optional[bool] = ..., retry_queue_nums: _Optional[int] = ..., retry_max_times: _Optional[int] = ..., broker_id: _Optional[int] = ..., which_broker_when_consume_slowly: _Optional[int] = ..., attributes: _Optional[_Mapping[str, str]] = ..., group_retry_policy: _Optional[str] = ..., notify_consumer_ids_changed_enable: _Optional[bool] = ...) -> None: ...

class PutGroupRequest(_message.Message):
    __slots__ = ("name", "consume_enable", "consume_from_min_enable", "consume_broadcast_enable", "consume_message_orderly", "retry_queue_nums", "retry_max_times", "broker_id", "which_broker_when_consume_slowly", "set_attributes", "delete_attributes", "group_retry_policy", "notify_consumer_ids_changed_enable")
    class SetAttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONSUME_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_FROM_MIN_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_BROADCAST_ENABLE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_MESSAGE_ORDERLY_FIELD_NUMBER: _ClassVar[int]
    RETRY_QUEUE_NUMS_FIELD_NUMBER: _ClassVar[int]
    RETRY_MAX_TIMES_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    WHICH_BROKER_WHEN_CONSUME_SLOWLY_FIELD_NUMBER: _ClassVar[int]
    SET_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    DELETE_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    GROUP_RETRY_POLICY_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_CONSUMER_IDS_CHANGED_ENABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    consume_enable: bool
    consume_from_min_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_queue_nums: int
    retry_max_times: int
    broker_id: int
    which_broker_when_consume_slowly: int
    set_attributes: _containers.ScalarMap[str, str]
    delete_attributes: _containers.RepeatedScalarFieldContainer[str]
    group_retry_policy: str
    notify_consumer_ids_changed_enable: bool
    def __init__(self, name: _Optional[str] = ..., consume_enable: _Optional[bool] = ..., consume_from_min_enable: _Optional[bool] = ..., consume_broadcast_enable: _Optional[bool] = ..., consume_message_orderly: _Optional[bool] = ..., retry_queue_nums: _Optional[int] = ..., retry_max_times: _Optional[int] = ..., broker_id: _Optional[int] = ..., which_broker_when_consume_slowly: _Optional[int] = ..., set_attributes: _Optional[_Mapping[str, str]] = ..., delete_attributes: _Optional[_Iterable[str]] = ..., group_retry_policy: _Optional[str] = ..., notify_consumer_ids_changed_enable: _Optional[bool] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("summaries",)
    class Summary(_message.Message):
        __slots__ = ("group", "client_count", "client_version", "consume_tps", "diff_total")
        GROUP_FIELD_NUMBER: _ClassVar[int]
        CLIENT_COUNT_FIELD_NUMBER: _ClassVar[int]
        CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
        CONSUME_TPS_FIELD_NUMBER: _ClassVar[int]
        DIFF_TOTAL_FIELD_NUMBER: _ClassVar[int]
        group: Group
        client_count: int
        client_version: str
        consume_tps: float
        diff_total: int
        def __init__(self, group: _Optional[_Union[Group, _Mapping[str, object]]] = ..., client_count: _Optional[int] = ..., client_version: _Optional[str] = ..., consume_tps: _Optional[float] = ..., diff_total: _Optional[int] = ...) -> None: ...
    SUMMARIES_FIELD_NUMBER: _ClassVar[int]
    summaries: _containers.RepeatedCompositeFieldContainer[ListGroupsResponse.Summary]
    def __init__(self, summaries: _Optional[_Iterable[_Union[ListGroupsResponse.Summary, _Mapping[str, object]]]] = ...) -> None: ...

class GetConsumerProgressRequest(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class ConsumerProgress(_message.Message):
    __slots__ = ("queues", "consume_tps")
    class Queue(_message.Message):
        __slots__ = ("topic", "queue_id", "broker_offset", "consumer_offset", "inflight", "last_time_ms", "client_ids", "diff")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        BROKER_OFFSET_FIELD_NUMBER: _ClassVar[int]
        CONSUMER_OFFSET_FIELD_NUMBER: _ClassVar[int]
        INFLIGHT_FIELD_NUMBER: _ClassVar[int]
        LAST_TIME_MS_FIELD_NUMBER: _ClassVar[int]
        CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
        DIFF_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_id: int
        broker_offset: int
        consumer_offset: int
        inflight: int
        last_time_ms: int
        client_ids: _containers.RepeatedScalarFieldContainer[str]
        diff: int
        def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., broker_offset: _Optional[int] = ..., consumer_offset: _Optional[int] = ..., inflight: _Optional[int] = ..., last_time_ms: _Optional[int] = ..., client_ids: _Optional[_Iterable[str]] = ..., diff: _Optional[int] = ...) -> None: ...
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    CONSUME_TPS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[ConsumerProgress.Queue]
    consume_tps: float
    def __init__(self, queues: _Optional[_Iterable[_Union[ConsumerProgress.Queue, _Mapping[str, object]]]] = ..., consume_tps: _Optional[float] = ...) -> None: ...

class ResetOffsetsRequest(_message.Message):
    __slots__ = ("group", "topic", "timestamp_ms", "offset", "queue_id", "only_back")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    ONLY_BACK_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    timestamp_ms: int
    offset: int
    queue_id: int
    only_back: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., timestamp_ms: _Optional[int] = ..., offset: _Optional[int] = ..., queue_id: _Optional[int] = ..., only_back: _Optional[bool] = ...) -> None: ...

class ResetOffsetsResponse(_message.Message):
    __slots__ = ("queues",)
    class Queue(_message.Message):
        __slots__ = ("queue_id", "offset")
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        queue_id: int
        offset: int
        def __init__(self, queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[ResetOffsetsResponse.Queue]
    def __init__(self, queues: _Optional[_Iterable[_Union[ResetOffsetsResponse.Queue, _Mapping[str, object]]]] = ...) -> None: ...

class ListProducersRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListProducersResponse(_message.Message):
    __slots__ = ("producers",)
    class Producer(_message.Message):
        __slots__ = ("client_id", "address", "language", "version")
        CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        LANGUAGE_FIELD_NUMBER: _ClassVar[int]
        VERSION_FIELD_NUMBER: _ClassVar[int]
        client_id: str
        address: str
        language: str
        version: str
        def __init__(self, client_id: _Optional[str] = ..., address: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    producers: _containers.RepeatedCompositeFieldContainer[ListProducersResponse.Producer]
    def __init__(self, producers: _Optional[_Iterable[_Union[ListProducersResponse.Producer, _Mapping[str, object]]]] = ...) -> None: ...

class GetBrokerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Broker(_message.Message):
    __slots__ = ("cluster", "name", "id", "address", "version", "in_tps", "out_tps", "in_total_yesterday", "out_total_yesterday", "in_total_today", "out_total_today", "earliest_message_ms", "disk_ratio", "boot_ms", "commit_log_min_offset", "commit_log_max_offset", "flush_behind_bytes", "dispatch_behind_bytes")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IN_TPS_FIELD_NUMBER: _ClassVar[int]
    OUT_TPS_FIELD_NUMBER: _ClassVar[int]
    IN_TOTAL_YESTERDAY_FIELD_NUMBER: _ClassVar[int]
    OUT_TOTAL_YESTERDAY_FIELD_NUMBER: _ClassVar[int]
    IN_TOTAL_TODAY_FIELD_NUMBER: _ClassVar[int]
    OUT_TOTAL_TODAY_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_MESSAGE_MS_FIELD_NUMBER: _ClassVar[int]
    DISK_RATIO_FIELD_NUMBER: _ClassVar[int]
    BOOT_MS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LOG_MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LOG_MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLUSH_BEHIND_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_BEHIND_BYTES_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    name: str
    id: int
    address: str
    version: str
    in_tps: float
    out_tps: float
    in_total_yesterday: int
    out_total_yesterday: int
    in_total_today: int
    out_total_today: int
    earliest_message_ms: int
    disk_ratio: float
    boot_ms: int
    commit_log_min_offset: int
    commit_log_max_offset: int
    flush_behind_bytes: int
    dispatch_behind_bytes: int
    def __init__(self, cluster: _Optional[str] = ..., name: _Optional[str] = ..., id: _Optional[int] = ..., address: _Optional[str] = ..., version: _Optional[str] = ..., in_tps: _Optional[float] = ..., out_tps: _Optional[float] = ..., in_total_yesterday: _Optional[int] = ..., out_total_yesterday: _Optional[int] = ..., in_total_today: _Optional[int] = ..., out_total_today: _Optional[int] = ..., earliest_message_ms: _Optional[int] = ..., disk_ratio: _Optional[float] = ..., boot_ms: _Optional[int] = ..., commit_log_min_offset: _Optional[int] = ..., commit_log_max_offset: _Optional[int] = ..., flush_behind_bytes: _Optional[int] = ..., dispatch_behind_bytes: _Optional[int] = ...) -> None: ...

class SealSegmentRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SealSegmentResponse(_message.Message):
    __slots__ = ("segment",)
    class Segment(_message.Message):
        __slots__ = ("base_offset", "end_offset", "records_end", "record_count", "first_ms", "last_ms")
        BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
        END_OFFSET_FIELD_NUMBER: _ClassVar[int]
        RECORDS_END_FIELD_NUMBER: _ClassVar[int]
        RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
        FIRST_MS_FIELD_NUMBER: _ClassVar[int]
        LAST_MS_FIELD_NUMBER: _ClassVar[int]
        base_offset: int
        end_offset: int
        records_end: int
        record_count: int
        first_ms: int
        last_ms: int
        def __init__(self, base_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., records_end: _Optional[int] = ..., record_count: _Optional[int] = ..., first_ms: _Optional[int] = ..., last_ms: _Optional[int] = ...) -> None: ...
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    segment: SealSegmentResponse.Segment
    def __init__(self, segment: _Optional[_Union[SealSegmentResponse.Segment, _Mapping[str, object]]] = ...) -> None: ...

class QueryMessagesRequest(_message.Message):
    __slots__ = ("topic", "key", "begin_ms", "end_ms", "max_count", "kind", "before_physical_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BEFORE_PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    begin_ms: int
    end_ms: int
    max_count: int
    kind: KeyKind
    before_physical_offset: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., max_count: _Optional[int] = ..., kind: _Optional[_Union[KeyKind, str]] = ..., before_physical_offset: _Optional[int] = ...) -> None: ...

class QueryMessagesResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping[str, object]]]] = ...) -> None: ...

class GetMessageRequest(_message.Message):
    __slots__ = ("offset_id", "unique_key", "place")
    class QueuePlace(_message.Message):
        __slots__ = ("topic", "queue_id", "queue_offset")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_id: int
        queue_offset: int
        def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ...) -> None: ...
    class UniqueKey(_message.Message):
        __slots__ = ("topic", "unique_key")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
        topic: str
        unique_key: str
        def __init__(self, topic: _Optional[str] = ..., unique_key: _Optional[str] = ...) -> None: ...
    OFFSET_ID_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    offset_id: str
    unique_key: GetMessageRequest.UniqueKey
    place: GetMessageRequest.QueuePlace
    def __init__(self, offset_id: _Optional[str] = ..., unique_key: _Optional[_Union[GetMessageRequest.UniqueKey, _Mapping[str, object]]] = ..., place: _Optional[_Union[GetMessageRequest.QueuePlace, _Mapping[str, object]]] = ...) -> None: ...

class GetMessageResponse(_message.Message):
    __slots__ = ("message", "tracks")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACKS_FIELD_NUMBER: _ClassVar[int]
    message: Message
    tracks: _containers.RepeatedCompositeFieldContainer[Track]
    def __init__(self, message: _Optional[_Union[Message, _Mapping[str, object]]] = ..., tracks: _Optional[_Iterable[_Union[Track, _Mapping[str, object]]]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("offset_id", "topic", "queue_id", "queue_offset", "physical_offset", "reconsume_times", "born_ms", "store_ms", "born_host", "store_host", "sys_flag", "properties", "body")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    OFFSET_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    BORN_MS_FIELD_NUMBER: _ClassVar[int]
    STORE_MS_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    SYS_FLAG_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    offset_id: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    reconsume_times: int
    born_ms: int
    store_ms: int
    born_host: str
    store_host: str
    sys_flag: int
    properties: _containers.ScalarMap[str, str]
    body: bytes
    def __init__(self, offset_id: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., physical_offset: _Optional[int] = ..., reconsume_times: _Optional[int] = ..., born_ms: _Optional[int] = ..., store_ms: _Optional[int] = ..., born_host: _Optional[str] = ..., store_host: _Optional[str] = ..., sys_flag: _Optional[int] = ..., properties: _Optional[_Mapping[str, str]] = ..., body: _Optional[bytes] = ...) -> None: ...

class Track(_message.Message):
    __slots__ = ("group", "track_type")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TRACK_TYPE_FIELD_NUMBER: _ClassVar[int]
    group: str
    track_type: str
    def __init__(self, group: _Optional[str] = ..., track_type: _Optional[str] = ...) -> None: ...

class SendMessageRequest(_message.Message):
    __slots__ = ("topic", "body", "keys", "tags", "queue_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    body: bytes
    keys: str
    tags: str
    queue_id: int
    def __init__(self, topic: _Optional[str] = ..., body: _Optional[bytes] = ..., keys: _Optional[str] = ..., tags: _Optional[str] = ..., queue_id: _Optional[int] = ...) -> None: ...

class SendMessageResponse(_message.Message):
    __slots__ = ("broker_name", "queue_id", "queue_offset", "message_id", "offset_id")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_ID_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    queue_id: int
    queue_offset: int
    message_id: str
    offset_id: str
    def __init__(self, broker_name: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., message_id: _Optional[str] = ..., offset_id: _Optional[str] = ...) -> None: ...

class SendBackDeadLettersRequest(_message.Message):
    __slots__ = ("group", "message_id", "from_offset", "max_count")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    group: str
    message_id: str
    from_offset: int
    max_count: int
    def __init__(self, group: _Optional[str] = ..., message_id: _Optional[str] = ..., from_offset: _Optional[int] = ..., max_count: _Optional[int] = ...) -> None: ...

class SendBackDeadLettersResponse(_message.Message):
    __slots__ = ("letters", "next_offset", "end_offset")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[SendBackDeadLettersResponse.Outcome]
        SENT_BACK: _ClassVar[SendBackDeadLettersResponse.Outcome]
        SENT_BACK_BEFORE: _ClassVar[SendBackDeadLettersResponse.Outcome]
        FAILED: _ClassVar[SendBackDeadLettersResponse.Outcome]
    OUTCOME_UNSPECIFIED: SendBackDeadLettersResponse.Outcome
    SENT_BACK: SendBackDeadLettersResponse.Outcome
    SENT_BACK_BEFORE: SendBackDeadLettersResponse.Outcome
    FAILED: SendBackDeadLettersResponse.Outcome
    class Letter(_message.Message):
        __slots__ = ("queue_offset", "message_id", "topic", "outcome", "reason")
        QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        OUTCOME_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        queue_offset: int
        message_id: str
        topic: str
        outcome: SendBackDeadLettersResponse.Outcome
        reason: str
        def __init__(self, queue_offset: _Optional[int] = ..., message_id: _Optional[str] = ..., topic: _Optional[str] = ..., outcome: _Optional[_Union[SendBackDeadLettersResponse.Outcome, str]] = ..., reason: _Optional[str] = ...) -> None: ...
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[SendBackDeadLettersResponse.Letter]
    next_offset: int
    end_offset: int
    def __init__(self, letters: _Optional[_Iterable[_Union[SendBackDeadLettersResponse.Letter, _Mapping[str, object]]]] = ..., next_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...
