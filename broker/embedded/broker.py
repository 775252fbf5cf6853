"""A broker inside another program: a test, a notebook, a demonstration."""

from __future__ import annotations

import json
import weakref
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, TypeVar, final

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.groups import put_group
from commitbus.broker.admin.topics import put_topic
from commitbus.broker.embedded.broker_thread import BrokerError, BrokerThread
from commitbus.broker.embedded.virtual_clock import VirtualClock
from commitbus.broker.metadata.groups import (
    DEFAULT_BACKOFF,
    FIFO_LOCK_UNIT_ATTRIBUTE,
    Backoff,
    GroupConfig,
    LockUnit,
    encode_group,
)
from commitbus.broker.metadata.topics import MessageType
from commitbus.broker.rpc.call import RpcError
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.flush.policy import FlushMode

__all__ = ["Broker", "BrokerError"]

Request = TypeVar("Request", pb.PutTopicRequest, pb.PutGroupRequest)

NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})
SMALL_FILES: Final = {
    "log_file_bytes": 16 << 20,
    "queue_file_bytes": 20 * 4096,
    "index_slots": 5_000,
    "index_entries": 20_000,
    # A test must not fail because the developer's disk is nearly full.
    "disk_force_percent": 100,
    "disk_refuse_percent": 100,
}
"""Sizes with which a store takes a few megabytes, not gigabytes."""


@final
class Broker:
    """A broker in a thread of its own. Any client can connect to `endpoint`.

    It installs no signal handlers and needs no event loop of the caller; all methods may be called
    from any thread. Its store is made for small tests: see `SMALL_FILES`. Its time is the machine's
    until `clock.advance` moves it.

    Args:
        directory: the store; a temporary directory that `stop` removes if not given.
        listen: host:port; a free port of the loopback interface if not given.
        auto_create_topics: create a topic when a client first names it.
        flush_mode: when a send is answered.
        progress_sync: answer an acknowledgement only when it survives a power cut.

    Raises:
        StoreError: `directory` cannot be opened as a store.
        ListenError: the address cannot be listened on.
        ConfigError: an argument cannot be used.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        listen: str = "127.0.0.1:0",
        auto_create_topics: bool = True,
        flush_mode: FlushMode = FlushMode.ASYNC_FLUSH,
        progress_sync: bool = False,
    ) -> None:
        self.clock: Final = VirtualClock()
        """The clock that the broker runs by."""
        settings: dict[str, object] = {
            **SMALL_FILES,
            "listen": listen,
            "auto_create_topics": auto_create_topics,
            "flush_mode": flush_mode,
            "progress_sync": progress_sync,
        }
        given = None if directory is None else Path(directory)
        self._thread = BrokerThread(given, settings, self.clock)
        # Ctrl-C between the end of this call and the begin of the caller's block leaves an object
        # without references.
        self._finalizer = weakref.finalize(self, self._thread.stop_unreferenced)
        self._finalizer.atexit = False
        try:
            self._thread.start()
            self.directory: Final = self._thread.directory
        except BaseException:
            # After a second Ctrl-C it ends by itself.
            self._thread.stop()
            raise

    def __enter__(self) -> Broker:
        """Return the broker, which runs already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the broker."""
        self.stop()

    @property
    def endpoint(self) -> str:
        """host:port to connect to."""
        assert self._thread.running is not None
        return self._thread.running.endpoint

    def create_topic(
        self, name: str, *, message_type: MessageType | str = MessageType.NORMAL, queues: int = 8
    ) -> None:
        """Create a topic or change one; durable on return.

        Raises:
            BrokerError: the name, the type or the number of queues cannot be used; or the broker
                is stopped, or runs in the process that this one was forked from.
        """
        request = pb.PutTopicRequest(
            name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            set_attributes={"message.type": str(message_type)},
        )
        self._put(put_topic, request)

    def create_group(
        self,
        name: str,
        *,
        fifo: bool = False,
        lock_unit: LockUnit | str | None = None,
        retries: int = 16,
        retry_queues: int = 1,
        backoff: Backoff | None = None,
        consume_enabled: bool = True,
        attributes: Mapping[str, str] = NO_ATTRIBUTES,
    ) -> None:
        """Create a consumer group or change one; durable on return.

        Takes the options of `mqadmin updateSubGroup` that have an effect here.

        Args:
            name: the group.
            fifo: deliver in order: no message of a lock unit while another one of it is in flight.
            lock_unit: what a FIFO group locks, `QUEUE` unless `MESSAGE_GROUP` is given.
            retries: deliveries after the first one, before a message is a dead letter.
            retry_queues: queues of the group's `%RETRY%` topic, should a client make it.
            backoff: how long a message waits between two of them, where the broker decides;
                RocketMQ's list of 1 s to 2 h if not given.
            consume_enabled: whether the group may receive.
            attributes: others, by RocketMQ's names.

        Raises:
            BrokerError: as `create_topic`.
        """
        config = GroupConfig(name, backoff=DEFAULT_BACKOFF if backoff is None else backoff)
        sets = dict(attributes)
        if lock_unit is not None:
            sets[FIFO_LOCK_UNIT_ATTRIBUTE] = str(lock_unit)
        request = pb.PutGroupRequest(
            name=name,
            consume_enable=consume_enabled,
            consume_message_orderly=fifo,
            retry_max_times=retries,
            retry_queue_nums=retry_queues,
            group_retry_policy=json.dumps(encode_group(config)["groupRetryPolicy"]),
            set_attributes=sets,
        )
        self._put(put_group, request)

    def _put(
        self,
        handler: Callable[[AdminContext, Request], Awaitable[object]],
        request: Request,
    ) -> None:
        """Have a handler of the operators' service serve a request. Raises as `create_topic`."""
        assert self._thread.running is not None
        try:
            self._thread.run(handler, self._thread.running.context, request)
        except RpcError as error:
            raise BrokerError(error.message) from None

    def stop(self) -> None:
        """Answer what is in flight, close the store, end the thread. A second call does nothing.

        Ctrl-C meanwhile is raised when that is done; a second one at once, and the broker then
        ends by itself. In a forked child nothing is stopped: the broker is the parent's.

        Raises:
            StoreError: the store failed, while the broker ran or while it was closed.
        """
        try:
            self._thread.stop()
            self._finalizer.detach()
        except KeyboardInterrupt:
            self._thread.stop()
            raise
