"""The clients that are alive, for operators and for the renewal of what they hold.

Nothing is decided by it that a request needs: after a restart the registry is empty and every
request is served all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

import trio
from google.protobuf.message import Message

from commitbus.broker.common.errors import ClientIdRequiredError
from commitbus.broker.rpc.call import LANGUAGE_HEADER, Call, CallWatch, Send
from commitbus.broker.rpc.method import Begin, Method
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.clock import Clock

_MESSAGING: Final = "/apache.rocketmq.v2.MessagingService"
_GOODBYE: Final = "NotifyClientTermination"
IDLE_S: Final = 120.0
"""After this long without a call a client is gone; RocketMQ's channel expiry."""
DISCONNECT_GRACE_S: Final = 15.0
"""A client whose streams broke is gone sooner; heartbeats come every 10 s if it lives."""
CLIENTS_MAX: Final = 100_000
CLIENTS_BYTES_MAX: Final = 64 * 1024 * 1024
"""All clients together, about, without their introductions. Beyond this or `CLIENTS_MAX` those that
have no stream open are forgotten, the one heard of longest ago first."""
CLIENT_ID_LENGTH_MAX: Final = 1024
"""Official clients need about 60. It is kept with every message in flight."""
INTRODUCTIONS_BYTES_MAX: Final = 64 * 1024 * 1024
"""All clients together, about. Whoever says more is served, but less is shown of it."""
LOOKED_AT: Final = 1_000
"""Clients in one go while the idle ones are looked for."""
HOSTNAME_LENGTH_MAX: Final = 255
WORD_LENGTH_MAX: Final = 64
"""For the name of a language, or a version. More is cut off."""
_CLIENT_BYTES: Final = 500
"""What a client takes beside its texts."""
_ENTRY_BYTES: Final = 256
"""What a topic that a client names takes beside its text."""


def client_id_of(call: Call) -> str:
    """Return the id by which the calling client names itself.

    Raises:
        ClientIdRequiredError: the call has no usable one.
    """
    if not call.client_id.strip() or len(call.client_id) > CLIENT_ID_LENGTH_MAX:
        raise ClientIdRequiredError
    return call.client_id


@final
class Subscription(NamedTuple):
    """Which messages of a topic a client says it wants."""

    kind: pb.FilterType
    expression: str


@final
@dataclass(frozen=True, slots=True)
class Introduction:
    """What a client's settings say of it, for operators."""

    at_ms: int = 0
    """When they came; 0: never, as after a restart of the broker."""
    hostname: str = ""
    published: tuple[str, ...] = ()
    """The topics a producer names."""
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    """By topic, a consumer's."""

    @property
    def size_bytes(self) -> int:
        """Return how much memory its topics take, about."""
        filters = sum(len(topic) + len(s.expression) for topic, s in self.subscriptions.items())
        entries = len(self.published) + len(self.subscriptions)
        return sum(map(len, self.published)) + filters + entries * _ENTRY_BYTES


_NOT_INTRODUCED: Final = Introduction()


@final
@dataclass(slots=True, eq=False)
class Client:
    """A client as its calls and its settings describe it."""

    client_id: str
    language: str
    version: str
    peer: str
    since_ms: int
    """When it was first heard of, or its telemetry stream last broke: what it was given before may
    never have reached it."""
    kind: pb.ClientType = pb.CLIENT_TYPE_UNSPECIFIED
    group: str = ""
    """The consumer group; empty for a producer."""
    introduction: Introduction = _NOT_INTRODUCED
    send: Send | None = None
    """Gives commands to its telemetry stream; None while it has none."""
    streams: int = 0
    """Calls in progress that last: telemetry and receives."""
    gone_at_s: float = 0.0
    """On the monotonic clock: a step of the wall clock says nothing about who lives."""

    @property
    def size_bytes(self) -> int:
        """Return how much memory it takes, about, without its introduction."""
        texts = len(self.client_id) + len(self.language) + len(self.version) + len(self.peer)
        return texts + _CLIENT_BYTES


@final
class ClientRegistry:
    """All clients. Lives on the trio thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._clients: dict[str, Client] = {}
        # Those without a stream, in order of the last call.
        self._silent: dict[str, Client] = {}
        self._by_group: dict[str, dict[str, Client]] = {}
        self._bytes = self._introductions_bytes = 0

    def __len__(self) -> int:
        """Return how many clients are alive."""
        return len(self._clients)

    def all(self) -> Collection[Client]:
        """Return every client that is alive."""
        return self._clients.values()

    def get(self, client_id: str) -> Client | None:
        """Return a client that is alive."""
        return self._clients.get(client_id)

    def consumers(self, group: str) -> list[Client]:
        """Return the clients that consume in a group."""
        return list(self._by_group.get(group, {}).values())

    def intercept(self, method: Method) -> Begin | None:
        """Have each call of MessagingService noted (an interceptor), and each request of a stream.

        A call without a usable client id is refused. The goodbye of a client is not noted.
        """
        service, _, name = method.path.rpartition("/")
        if service != _MESSAGING or name == _GOODBYE:
            return None
        return self._begin_stream if method.kind.streams_requests else self._note

    def _begin_stream(self, call: Call) -> CallWatch:
        self._note(call)
        return _StreamWatch(self._note, call)

    def seen(self, call: Call) -> Client:
        """Note a call and return the client it came from.

        Raises:
            ClientIdRequiredError: the call has no usable client id.
        """
        self._note(call)
        return self.of(call)

    def _note(self, call: Call) -> None:
        client_id = call.client_id
        client = self._clients.get(client_id)
        if client is None:
            client = self._add(call)
        if not client.streams:
            self._silent.pop(client_id, None)
            self._silent[client_id] = client
        client.gone_at_s = self._clock.monotonic_s() + IDLE_S

    def of(self, call: Call) -> Client:
        """Return the client that a call came from, added if it has just said goodbye.

        Raises:
            ClientIdRequiredError: the call has no usable client id.
        """
        return self._clients.get(call.client_id) or self._add(call)

    def _add(self, call: Call) -> Client:
        client = Client(
            client_id_of(call),
            language=call.metadata.get(LANGUAGE_HEADER, "")[:WORD_LENGTH_MAX],
            version=call.metadata.get("x-mq-client-version", "")[:WORD_LENGTH_MAX],
            peer=call.peer,
            since_ms=self._clock.now_ms(),
        )
        self._bytes += client.size_bytes
        while self._silent and (
            len(self._clients) >= CLIENTS_MAX or self._bytes > CLIENTS_BYTES_MAX
        ):
            self.remove(next(iter(self._silent)))
        self._clients[client.client_id] = client
        return client

    def consumes(self, client: Client, group: str, kind: pb.ClientType) -> None:
        """Note in which group a client consumes, and as what."""
        client.kind = kind
        if client.group == group:
            return
        self._leave_group(client)
        client.group = group
        if self._clients.get(client.client_id) is client:
            self._by_group.setdefault(group, {})[client.client_id] = client

    def _leave_group(self, client: Client) -> None:
        members = self._by_group.get(client.group, {})
        if members.get(client.client_id) is client:
            del members[client.client_id]
            if not members:
                del self._by_group[client.group]

    def stream_began(self, client: Client) -> None:
        """Note a call that lasts: until its end the client is alive."""
        client.streams += 1
        if self._silent.get(client.client_id) is client:
            del self._silent[client.client_id]

    def stream_ended(self, client: Client, idle_after_s: float) -> None:
        """Note the end of such a call.

        Args:
            client: the caller.
            idle_after_s: how long the client counts as alive after it. `DISCONNECT_GRACE_S` after a
                cancelled one, its connection being gone; else `IDLE_S`, or less.
        """
        client.streams -= 1
        client.gone_at_s = self._clock.monotonic_s() + idle_after_s
        if not client.streams and self._clients.get(client.client_id) is client:
            self._silent[client.client_id] = client

    @contextmanager
    def streaming(self, client: Client, *, idle_after_s: float = IDLE_S) -> Iterator[None]:
        """Note such a call while its task is in this context."""
        self.stream_began(client)
        try:
            yield
        except trio.Cancelled:
            idle_after_s = DISCONNECT_GRACE_S
            raise
        finally:
            self.stream_ended(client, idle_after_s)

    def is_alive(self, client_id: str) -> bool:
        """Return whether a client has a stream open or was heard of lately."""
        client = self._clients.get(client_id)
        return client is not None and (
            client.streams > 0 or client.gone_at_s > self._clock.monotonic_s()
        )

    def introduced(self, client: Client, introduction: Introduction) -> None:
        """Note what a client says of itself; only its host and time where there is no room."""
        if self._clients.get(client.client_id) is not client:
            return  # It has said goodbye on another call.
        self._forget_introduction(client)
        if self._introductions_bytes + introduction.size_bytes > INTRODUCTIONS_BYTES_MAX:
            introduction = Introduction(introduction.at_ms, introduction.hostname)
        client.introduction = introduction
        self._introductions_bytes += introduction.size_bytes

    def _forget_introduction(self, client: Client) -> None:
        self._introductions_bytes -= client.introduction.size_bytes
        client.introduction = _NOT_INTRODUCED

    def remove(self, client_id: str) -> Client | None:
        """Forget a client that said goodbye; return it if it was known."""
        client = self._clients.pop(client_id, None)
        if client is not None:
            self._silent.pop(client_id, None)
            self._bytes -= client.size_bytes
            self._leave_group(client)
            self._forget_introduction(client)
        return client

    def alive_since_ms(self, client_id: str) -> int | None:
        """Return `since_ms` of a client that is alive; None for any other."""
        return self._clients[client_id].since_ms if self.is_alive(client_id) else None

    def dropping_idle(self) -> Iterator[list[str]]:
        """Forget the clients that are gone, `LOOKED_AT` at a time, and yield their ids."""
        client_ids = list(self._clients)
        for start in range(0, len(client_ids), LOOKED_AT):
            part = client_ids[start : start + LOOKED_AT]
            gone = [client_id for client_id in part if not self.is_alive(client_id)]
            for client_id in gone:
                self.remove(client_id)
            yield gone

    def drop_idle(self) -> list[str]:
        """Forget all clients that are gone, and return their ids."""
        return [client_id for gone in self.dropping_idle() for client_id in gone]


@final
class _StreamWatch(CallWatch):
    """Notes each request of a stream."""

    __slots__ = ("_call", "_note")

    def __init__(self, note: Callable[[Call], None], call: Call) -> None:
        self._note, self._call = note, call

    def received(self, request: Message | bytes) -> None:
        self._note(self._call)
