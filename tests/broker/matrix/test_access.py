"""Every method says what its calls do and to what: a toy permission needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import pytest
import trio
from google.protobuf.message import Message

from commitbus.broker.common.errors import NotPermittedError
from commitbus.broker.rpc.access import Action, Resource, ResourceType, group, topics
from commitbus.broker.rpc.call import CallWatch, StatusCode
from commitbus.broker.rpc.interceptor import intercepted
from commitbus.broker.rpc.method import Begin, Method, MethodKind
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin
from commitbus.broker.rpc.proto import bulk_v1_pb2 as bulk
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.wire.bulk_paths import APPEND, FETCH
from tests.broker.matrix.stage import Stage
from tests.broker.messaging.bus import make_message
from tests.broker.rpc.carried import carried

MESSAGING = "/apache.rocketmq.v2.MessagingService/"
(TOPIC,), GROUP = topics(["T"]), group("G")
CLUSTER = Resource(ResourceType.CLUSTER, "")


@final
class Permissions(CallWatch):
    """A toy permission: every action on topic T, none on anything else."""

    def __init__(self, method: Method) -> None:
        self._method = method

    @classmethod
    def intercept(cls, method: Method) -> Begin:
        """Ask about each call of a method."""
        permissions = cls(method)
        return lambda _call: permissions

    def received(self, request: Message | bytes) -> None:
        """Refuse a request that touches anything else."""
        access = self._method.access
        for resource in access.resources(request):
            if resource != TOPIC:
                raise NotPermittedError(f"{access.action.value} {resource.name or 'everything'}")


Run = Callable[..., None]
SETTINGS = pb.TelemetryCommand()
SETTINGS.settings.subscription.group.name = "G"
SETTINGS.settings.subscription.subscriptions.add().topic.name = "T"
IN_GROUP: Any = {"group": pb.Resource(name="G"), "topic": pb.Resource(name="T")}
QUEUE = pb.MessageQueue(topic=pb.Resource(name="T"))
GET_BROKER = admin.GetBrokerRequest()
LOG = bulk.FetchRequest(log=bulk.FetchLog())
CREDIT = bulk.FetchRequest(credit_bytes=1)
START = bulk.AppendRequest(start=bulk.AppendStart(topic="T")).SerializeToString()
BATCH = bulk.AppendRequest(batch=bulk.AppendBatch(sequence=1)).SerializeToString()
ASKED: Sequence[tuple[str, Action, Any, list[Resource]]] = [
    ("SendMessage", Action.PUB, pb.SendMessageRequest(messages=[make_message()] * 2), [TOPIC]),
    ("QueryRoute", Action.ANY, pb.QueryRouteRequest(topic=IN_GROUP["topic"]), [TOPIC]),
    ("AckMessage", Action.SUB, pb.AckMessageRequest(**IN_GROUP), [TOPIC, GROUP]),
    (
        "ReceiveMessage",
        Action.SUB,
        pb.ReceiveMessageRequest(group=IN_GROUP["group"], message_queue=QUEUE),
        [TOPIC, GROUP],
    ),
    ("Heartbeat", Action.SUB, pb.HeartbeatRequest(client_type=pb.PRODUCER), []),
    (
        "Heartbeat",
        Action.SUB,
        pb.HeartbeatRequest(client_type=pb.PUSH_CONSUMER, group=IN_GROUP["group"]),
        [GROUP],
    ),
    ("Telemetry", Action.ANY, SETTINGS, [GROUP, TOPIC]),
    ("Telemetry", Action.ANY, pb.TelemetryCommand(), []),
    (APPEND, Action.PUB, START, [TOPIC]),
    (APPEND, Action.PUB, BATCH, []),
    (FETCH, Action.SUB, bulk.FetchRequest(topic=bulk.FetchTopic(topic="T")), [TOPIC]),
    (FETCH, Action.SUB, LOG, [CLUSTER]),
    (FETCH, Action.SUB, CREDIT, []),
    (
        "/commitbus.admin.v1.Admin/GetMessage",
        Action.GET,
        admin.GetMessageRequest(offset_id="id"),
        topics([""]),
    ),
]


@pytest.fixture
def methods(run: Run, monkeypatch: pytest.MonkeyPatch) -> dict[str, Method]:
    """Every method of a broker, by its path."""
    found: dict[str, Method] = {}

    async def scenario(bus: Any) -> None:
        async with trio.open_nursery() as beside:
            found.update(Stage(bus, monkeypatch, beside).methods)

    run(scenario)
    return found


def test_every_method_can_say_what_any_request_touches(methods: dict[str, Method]) -> None:
    """Also an empty one: no field is misspelt."""
    for method in methods.values():
        request = b"" if method.request_type is None else method.request_type()
        assert all(isinstance(one, Resource) for one in method.access.resources(request))


@pytest.mark.parametrize(("path", "action", "request_", "resources"), ASKED)
def test_a_request_says_what_it_touches(
    methods: dict[str, Method],
    path: str,
    action: Action,
    request_: Any,
    resources: list[Resource],
) -> None:
    """Whatever its shape: in a stream each request has what it names."""
    access = methods[path if path.startswith("/") else MESSAGING + path].access
    assert (access.action, list(access.resources(request_))) == (action, resources)


def test_a_method_without_access_cannot_be_made() -> None:
    """A server with one does not start."""
    make: Any = Method
    with pytest.raises(TypeError, match="access"):
        make("/a.B/C", MethodKind.UNARY, None, pb.TelemetryCommand, lambda *_: None)


def test_what_is_not_permitted_is_refused_as_each_service_refuses(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a status in a response, or by the status of the call; what is permitted goes on."""

    async def scenario(bus: Any) -> None:
        async with trio.open_nursery() as beside:
            stage = Stage(bus, monkeypatch, beside)
            permitted = intercepted(stage.methods.values(), [Permissions.intercept])
            stage.methods = {method.path: method for method in permitted}
            send = stage.methods[MESSAGING + "SendMessage"]

            async def sent_to(topic: str) -> pb.Status:
                request = pb.SendMessageRequest(messages=[make_message(topic=topic)])
                data = await carried(send, request, bus.call())
                return pb.SendMessageResponse.FromString(data).status

            assert (await sent_to("T")).code == pb.OK
            assert (await sent_to("U")) == pb.Status(code=pb.FORBIDDEN, message="Pub U")
            request = pb.ReceiveMessageRequest(group=IN_GROUP["group"], message_queue=QUEUE)
            path = MESSAGING + "ReceiveMessage"
            assert await stage.answer(path, request, bus.call()) == pb.FORBIDDEN
            for path, requests, code in (
                (MESSAGING + "Telemetry", [SETTINGS], StatusCode.INVALID_ARGUMENT),
                (FETCH, [LOG], StatusCode.PERMISSION_DENIED),
                ("/commitbus.admin.v1.Admin/GetBroker", GET_BROKER, StatusCode.FAILED_PRECONDITION),
            ):
                assert await stage.answer(path, requests, bus.call()) == code

    run(scenario)
