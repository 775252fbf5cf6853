"""A whole broker but for its transport, and what any of its RPCs answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, final

import pytest
import trio
from google.protobuf.message import Message

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.methods import admin_methods
from commitbus.broker.admin.v2.methods import admin_v2_methods
from commitbus.broker.bulk.methods import bulk_methods
from commitbus.broker.common import worker_lines
from commitbus.broker.common.worker_lines import WorkerLines
from commitbus.broker.core.durability import Durability
from commitbus.broker.messaging.methods import messaging_methods
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.observe.rates import Rates
from commitbus.broker.rpc.call import Call, Pieces, Response, RpcError, StatusCode
from commitbus.broker.rpc.exchange import encoded
from commitbus.broker.rpc.interceptor import intercepted
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.commitlog.errors import DiskFullError, FlushFailedError, ReadFailedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.watermark import Watermark
from tests.broker.messaging.bus import Bus
from tests.broker.rpc.carried import carried

Request = Message | Sequence[Message] | Sequence[bytes]
"""What a client sends: several messages where it sends a stream."""
DISK_FULL = DiskFullError(Path("log"), 1)
NOT_SAVED = StateWriteError(Path("state"), "no space")
UNREADABLE = ReadFailedError(Path("log"), 0, OSError(5, "Input/output error"))


@final
class Stage:
    """What a scenario has: a broker with topic T of one queue and group G, and ways to spoil it."""

    def __init__(self, bus: Bus, patch: pytest.MonkeyPatch, beside: trio.Nursery) -> None:
        """Work in `beside` goes on while the call is made, and ends with it."""
        self.bus, self.patch, self.beside = bus, patch, beside
        self.reads_for_s = 0.0
        """How long the client takes to read a response."""
        self.context = bus.context
        rates = Rates(bus.context.counters, bus.context.clock)
        self.admin = AdminContext(bus.context, rates, "1.0", 0, RealFileSystem())
        methods = [
            *messaging_methods(bus.context),
            *admin_methods(self.admin),
            *admin_v2_methods(self.admin),
            *bulk_methods(bus.context.broker),
        ]
        self.methods: dict[str, Method] = {
            method.path: method for method in intercepted(methods, [bus.context.clients.intercept])
        }
        self.told: set[str] = set()
        """The fields of the responses, but for the status, and commands to other clients."""

    def state(self) -> dict[str, object]:
        """What RPCs change, by its parts, to be compared."""
        context = self.context
        return {
            "log": context.store.end_offset,
            "topics": {topic.name: topic for topic in context.metadata.topics()},
            "groups": {group.name: group for group in context.metadata.groups()},
            "progress": {
                key: (progress.next_offset, repr(progress.in_flight))
                for key, progress in context.progress.items()
            },
            "clients": {
                client.client_id: (client.group, client.introduction)
                for client in context.clients.all()
            },
        }

    async def answer(self, path: str, requests: Request, call: Call) -> int:
        """Return the code that a client gets: the protocol's, or gRPC's where the call fails."""
        method = self.methods[path]
        codes: list[int] = []

        async def send(*responses: Response | Pieces) -> None:
            if self.reads_for_s:
                await self.bus.sleep(self.reads_for_s)
            for response in responses:
                parsed: Any = method.response_type.FromString(encoded(response))
                codes.append(_code(parsed))
                self.told |= {field.name for field, _ in parsed.ListFields()} - {"status"}

        try:
            if method.kind is MethodKind.UNARY:
                await send(await carried(method, requests, call))
            elif method.kind is MethodKind.SERVER_STREAM:
                await carried(method, requests, call, send)
            else:
                assert isinstance(requests, Sequence)
                async with aclosing(_sent(method, requests)) as stream:
                    await carried(method, stream, call, send)
        except RpcError as error:
            return error.code
        return codes[0]

    def no_room(self) -> None:
        """Let clients create no more topics and groups."""
        self.patch.setattr("commitbus.broker.core.broker.CREATED_BY_CLIENTS_MAX", 0)

    def no_workers(self) -> None:
        """Have every worker thread taken, and the caller's line full."""
        self.patch.setattr(WorkerLines, "_may_begin", lambda *_: False)
        self.patch.setattr(worker_lines, "WAITING_MAX", 0)

    def flush_fails(self) -> None:
        """Have everybody wait for the disk, and in vain."""
        watermark = Watermark(PhysicalOffset(0))
        disk = Durability(watermark, self.context.broker.trio_thread)
        watermark.fail(FlushFailedError(Path("log"), OSError(5, "Input/output error")))
        for owner in (self.context, self.context.broker):
            self.patch.setattr(owner, "durability", disk)

    def fails(self, owner: object, name: str, error: Exception) -> None:
        """Have a method of a part of the broker raise an error."""
        self.patch.setattr(owner, name, partial(_raise, error))


def _code(response: Any) -> int:
    if "status" not in response.DESCRIPTOR.fields_by_name:
        return StatusCode.OK
    code: int = response.status.code
    return code


async def _sent(method: Method, requests: Sequence[Any]) -> AsyncGenerator[Message | bytes, None]:
    for request in requests:
        as_bytes = method.request_type is None and isinstance(request, Message)
        yield request.SerializeToString() if as_bytes else request


def _raise(error: Exception, *_: object, **__: object) -> Any:
    raise error
