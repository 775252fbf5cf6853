"""Whatever bytes arrive, the answer is a status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from google.protobuf.message import DecodeError, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitbus.broker.messaging.methods import messaging_methods
from commitbus.broker.rpc.call import Response, RpcError
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Run = Callable[..., None]

TEXT = st.one_of(
    st.sampled_from(["T", "G", "Sealed", "%DLQ%G", "", "\0", "a\x01b", "x" * 300, "ünï", "../x"]),
    st.text(max_size=20),
)
NUMBER = st.one_of(st.integers(-2, 40), st.integers(-(2**31), 2**31 - 1))
LARGE = st.one_of(NUMBER, st.integers(-(2**63), 2**63 - 1))


def fill(message: Any, data: st.DataObject, depth: int = 0) -> None:
    """Set some fields of a message to values that are likely to matter, or to hurt."""
    for field in message.DESCRIPTOR.fields:
        if not data.draw(st.booleans()) or depth > 4:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[data.draw(TEXT)] = data.draw(TEXT)
        elif field.message_type is not None:
            target = getattr(message, field.name)
            fill(target.add() if field.is_repeated else target, data, depth + 1)
        else:
            value = data.draw(value_of(field))
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)


def value_of(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.integers(-1, 8)
    if field.type == field.TYPE_BOOL:
        return st.booleans()
    if field.type == field.TYPE_BYTES:
        return st.binary(max_size=50)
    if field.type == field.TYPE_STRING:
        return TEXT
    if field.type == field.TYPE_FLOAT:
        return st.just(0.5)
    return LARGE if field.type == field.TYPE_INT64 else NUMBER


async def call_with(bus: Any, name: str, request: Message) -> pb.Status:
    """Call any method with a request, and return the status it answers with."""
    if name == "Telemetry":
        try:
            answers = await bus.telemetry(request)
        except RpcError as error:
            return pb.Status(code=pb.BAD_REQUEST, message=error.message)
        return answers[0].status if answers else pb.Status(code=pb.OK)
    if name in {"ReceiveMessage", "PullMessage"}:
        statuses: list[pb.Status] = []
        response_type: Any = bus.methods[name].response_type

        async def collect(*responses: Response) -> None:
            found: list[Any] = [
                response_type.FromString(response) if isinstance(response, bytes) else response
                for response in responses
            ]
            statuses.extend(response.status for response in found if response.HasField("status"))

        with trio.move_on_after(0.001) as scope:
            bus.clock.rate = 1000
            await bus.stream(name, request, collect)
        bus.clock.rate = 0
        return pb.Status(code=pb.OK) if scope.cancelled_caught else statuses[0]
    response = await bus.unary(name, request)
    status: pb.Status = response.status
    return status


SERVICE = pb.DESCRIPTOR.services_by_name["MessagingService"]
LATER = {"EndTransaction", "RecallMessage", "SyncLiteSubscription"}
NAMES = sorted({method.name for method in SERVICE.methods} - LATER)


def test_these_are_all_methods(run: Run) -> None:
    """What is not served yet must not stay in the list once it is."""

    async def scenario(bus: Any) -> None:
        assert sorted(bus.methods) == NAMES
        assert len(messaging_methods(bus.context)) == len(NAMES)

    run(scenario)


@pytest.mark.parametrize("name", NAMES)
def test_no_request_makes_a_handler_fail(run: Run, name: str) -> None:
    """Control characters, missing fields, huge and negative numbers, plain noise."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Sealed", perm=2)
        await bus.send(b"a", b"b")
        token = trio.lowlevel.current_trio_token()

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.data(), st.binary(max_size=60))
        def attack(data: st.DataObject, noise: bytes) -> None:
            request: Any = bus.methods[name].request_type()
            if data.draw(st.booleans()):
                fill(request, data)
            else:
                try:
                    request.ParseFromString(noise)
                except DecodeError:
                    return
            status = trio.from_thread.run(call_with, bus, name, request, trio_token=token)
            assert status.code >= 20000
            assert status.code != pb.INTERNAL_SERVER_ERROR

        await trio.to_thread.run_sync(attack)

    run(scenario)
