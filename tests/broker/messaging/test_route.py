"""QueryRoute and QueryAssignment: which queues there are, and the address to reach them by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from commitbus.broker.messaging.route import ADDRESSES_MAX, endpoints_for
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Run = Callable[..., None]


async def route(bus: Any, topic: str, call: Any = None) -> pb.QueryRouteResponse:
    request = pb.QueryRouteRequest()
    request.topic.name = topic
    request.endpoints.scheme = pb.IPv4
    request.endpoints.addresses.add(host="127.0.0.1", port=18081)
    response = await bus.unary("QueryRoute", request, call)
    assert isinstance(response, pb.QueryRouteResponse)
    return response


async def assign(bus: Any, topic: str, group: str) -> pb.QueryAssignmentResponse:
    request = pb.QueryAssignmentRequest()
    request.topic.name, request.group.name = topic, group
    response = await bus.unary("QueryAssignment", request)
    assert isinstance(response, pb.QueryAssignmentResponse)
    return response


def test_a_route_lists_every_queue_with_the_same_broker(run: Run) -> None:
    """Clients key their channels by the endpoints, so these must not differ."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Wide", queues=3)
        response = await route(bus, "Wide")
        assert response.status.code == pb.OK
        assert [queue.id for queue in response.message_queues] == [0, 1, 2]
        for queue in response.message_queues:
            assert (queue.topic.name, queue.permission) == ("Wide", pb.READ_WRITE)
            assert (queue.broker.name, queue.broker.id) == ("broker-a", 0)
            assert list(queue.accept_message_types) == [pb.NORMAL]
            (address,) = queue.broker.endpoints.addresses
            assert (address.host, address.port) == ("127.0.0.1", 18081)

    run(scenario)


@pytest.mark.parametrize(
    ("read", "write", "perm", "expected"),
    [
        (2, 2, 4, [pb.READ, pb.READ]),
        (2, 2, 2, [pb.WRITE, pb.WRITE]),
        (2, 2, 0, [pb.NONE, pb.NONE]),
        (3, 1, 6, [pb.READ, pb.READ, pb.READ_WRITE]),
        (1, 2, 6, [pb.WRITE, pb.READ_WRITE]),
    ],
)
def test_permissions_follow_the_topic(
    run: Run, read: int, write: int, perm: int, expected: list[pb.Permission]
) -> None:
    """What can be both is both and comes last."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Odd", perm=perm)
        config = replace(
            bus.context.metadata.topic("Odd"), read_queue_nums=read, write_queue_nums=write
        )
        await bus.context.metadata.put_topic(config)
        queues = (await route(bus, "Odd")).message_queues
        assert [queue.permission for queue in queues] == expected

    run(scenario)


@pytest.mark.parametrize(
    ("attribute", "accepted"),
    [
        ("NORMAL", [pb.NORMAL]),
        ("FIFO", [pb.FIFO]),
        ("DELAY", [pb.DELAY]),
        ("TRANSACTION", [pb.TRANSACTION]),
        ("PRIORITY", [pb.PRIORITY]),
        ("LITE", [pb.LITE]),
        ("MIXED", [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]),
        ("UNSPECIFIED", [pb.MESSAGE_TYPE_UNSPECIFIED]),
    ],
)
def test_the_accepted_types_follow_the_topics_attribute(
    run: Run, attribute: str, accepted: list[pb.MessageType]
) -> None:
    """Clients refuse other types themselves."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Typed", attributes={"message.type": attribute})
        (queue,) = (await route(bus, "Typed")).message_queues
        assert list(queue.accept_message_types) == accepted

    run(scenario)


def test_unknown_and_illegal_topics_have_no_route(run: Run) -> None:
    """A route alone creates nothing unless that is allowed."""

    async def scenario(bus: Any) -> None:
        assert (await route(bus, "Nope")).status.code == pb.TOPIC_NOT_FOUND
        assert (await route(bus, "")).status.code == pb.ILLEGAL_TOPIC
        assert (await route(bus, "TBW102")).status.code == pb.ILLEGAL_TOPIC
        assert (await route(bus, "T", bus.call(""))).status.code == pb.CLIENT_ID_REQUIRED
        assert bus.context.metadata.topic("Nope") is None

    run(scenario)


def test_a_route_creates_the_topic_where_that_is_allowed(run: Run) -> None:
    """Clients ask for it before they send."""

    async def scenario(bus: Any) -> None:
        assert len((await route(bus, "Fresh")).message_queues) == 8

    run(scenario, auto_create_topics=True)


def test_a_group_has_a_retry_and_a_dead_letter_topic_when_somebody_asks(run: Run) -> None:
    """A consumer may wait for dead letters before there is one. Other groups' do not exist."""

    async def scenario(bus: Any) -> None:
        await bus.group("Wide", retry_queue_nums=3)
        for topic, queues in (("%DLQ%Wide", 1), ("%RETRY%Wide", 3)):
            response = await route(bus, topic)
            assert response.status.code == pb.OK
            assert [queue.id for queue in response.message_queues] == list(range(queues))
            assert list(response.message_queues[0].accept_message_types) == [pb.NORMAL]
        for topic in ("%DLQ%Nobody", "%RETRY%Nobody", "%RETRY%Wide_T"):
            assert (await route(bus, topic)).status.code == pb.TOPIC_NOT_FOUND
        for topic in ("%DLQ%", "%RETRY%"):
            assert (await route(bus, topic)).status.code == pb.ILLEGAL_TOPIC

    run(scenario)
    run(scenario, auto_create_topics=True)


def test_an_assignment_names_the_whole_broker_or_each_queue_of_an_orderly_group(run: Run) -> None:
    """Balancing is done by receiving."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Wide", queues=3)
        await bus.topic("Sealed", perm=2)
        await bus.group("Orderly", consume_message_orderly=True)
        for group, ids in [("G", [-1]), ("Unheard", [-1]), ("Orderly", [0, 1, 2])]:
            response = await assign(bus, "Wide", group)
            assert [entry.message_queue.id for entry in response.assignments] == ids
            assert response.assignments[0].message_queue.broker.name == "broker-a"
        assert (await assign(bus, "Nope", "G")).status.code == pb.TOPIC_NOT_FOUND
        assert (await assign(bus, "Sealed", "G")).status.code == pb.FORBIDDEN
        assert (await assign(bus, "T", "")).status.code == pb.ILLEGAL_CONSUMER_GROUP

    run(scenario)


def endpoints(*addresses: tuple[str, int]) -> pb.Endpoints:
    made = pb.Endpoints()
    for host, port in addresses:
        made.addresses.add(host=host, port=port)
    return made


@pytest.mark.parametrize(
    ("requested", "authority", "scheme", "told"),
    [
        (
            [("10.0.0.1", 80), ("10.0.0.2", 81)],
            "x:1",
            pb.IPv4,
            [("10.0.0.1", 80), ("10.0.0.2", 81)],
        ),
        ([("::1", 80)], "x:1", pb.IPv6, [("::1", 80)]),
        ([("mq", 80), ("mq2", 80)], "x:1", pb.DOMAIN_NAME, [("mq", 80)]),
        ([], "mq.example:8081", pb.DOMAIN_NAME, [("mq.example", 8081)]),
        ([("", 80)], "[::1]:8081", pb.IPv6, [("::1", 8081)]),
        ([("mq", 0)], "IPAuthority", pb.IPv4, [("127.0.0.1", 9999)]),
        ([("mq", 2**31 - 1)], None, pb.IPv4, [("127.0.0.1", 9999)]),
        ([], "mq:0", pb.IPv4, [("127.0.0.1", 9999)]),
    ],
)
def test_the_address_is_the_one_by_which_the_client_came(
    run: Run, requested: Any, authority: str | None, scheme: int, told: Any
) -> None:
    """As far as it says; then our own."""

    async def scenario(bus: Any) -> None:
        bus.context.listen_port = 9999
        call = replace(bus.call(), authority=authority)
        answer = endpoints_for(bus.context, endpoints(*requested), call)
        assert answer.scheme == scheme
        assert [(address.host, address.port) for address in answer.addresses] == told

    run(scenario)


def test_the_advertised_address_wins(run: Run) -> None:
    """Whatever the client believes."""

    async def scenario(bus: Any) -> None:
        answer = endpoints_for(bus.context, endpoints(("10.0.0.1", 80)), bus.call())
        assert [(a.host, a.port) for a in answer.addresses] == [("mq.public", 443)]

    run(scenario, advertise="mq.public:443")


@pytest.mark.parametrize(
    ("listen", "peer", "host"),
    [
        ("0.0.0.0:1", "unix:", "127.0.0.1"),
        ("0.0.0.0:1", "127.0.0.1:5", "127.0.0.1"),
        ("[::]:1", "[::1]:5", "::1"),
        ("0.0.0.0:1", "10.0.0.9:5", "0.0.0.0"),  # noqa: S104 - nothing listens here
        ("box:1", "10.0.0.9:5", "box"),
    ],
)
def test_a_wildcard_is_loopback_to_those_on_this_machine(
    run: Run, listen: str, peer: str, host: str
) -> None:
    """Nobody can connect to a wildcard."""

    async def scenario(bus: Any) -> None:
        call = replace(bus.call(), authority=None, peer=peer)
        (address,) = endpoints_for(bus.context, pb.Endpoints(), call).addresses
        assert address.host == host

    run(scenario, listen=listen)


@pytest.mark.parametrize("method", ["QueryRoute", "QueryAssignment"])
def test_a_namespace_is_repeated_if_it_is_no_longer_than_a_name(run: Run, method: str) -> None:
    """An answer repeats it for each queue: a megabyte would become 256."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Wide", queues=3)
        await bus.group("G", consume_message_orderly=True)
        request = getattr(pb, f"{method}Request")()
        request.topic.name, request.topic.resource_namespace = "Wide", "n" * 127
        if method == "QueryAssignment":
            request.group.name = "G"
        response = await bus.unary(method, request)
        queues = (
            response.message_queues
            if method == "QueryRoute"
            else [assignment.message_queue for assignment in response.assignments]
        )
        assert [queue.topic.resource_namespace for queue in queues] == ["n" * 127] * 3
        request.topic.resource_namespace = "n" * 128
        response = await bus.unary(method, request)
        assert response.status.code == pb.ILLEGAL_TOPIC
        assert response.status.message == "namespace of 128 characters, at most 127 are allowed"

    run(scenario)


def test_an_answer_repeats_a_bounded_number_of_addresses(run: Run) -> None:
    """For each queue; the first ones are as good as all. No field beside them is repeated."""

    async def scenario(bus: Any) -> None:
        requested = pb.Endpoints(scheme=pb.IPv4)
        for number in range(ADDRESSES_MAX + 100):
            requested.addresses.add(host=f"10.0.0.{number}", port=8081)
        requested.addresses[1].MergeFromString(b"\x9a\x06\x05extra")
        told = endpoints_for(bus.context, requested, bus.call("c"))
        assert [address.host for address in told.addresses] == [
            f"10.0.0.{number}" for number in range(ADDRESSES_MAX)
        ]
        assert b"extra" not in told.SerializeToString()

    run(scenario)


@pytest.mark.parametrize(
    "host", ["h" * 254, "h" * 100_000, "\u20ac" * 100_000, "a b", "a\n", "a..b"]
)
def test_a_text_that_is_no_host_is_not_repeated(run: Run, host: str) -> None:
    """The client is told the address by which it reached the broker."""

    async def scenario(bus: Any) -> None:
        requested = pb.Endpoints(scheme=pb.DOMAIN_NAME)
        requested.addresses.add(host=host, port=8081)
        call = replace(bus.call("c"), authority="broker.example:18081")
        (address,) = endpoints_for(bus.context, requested, call).addresses
        assert (address.host, address.port) == ("broker.example", 18081)

    run(scenario)
