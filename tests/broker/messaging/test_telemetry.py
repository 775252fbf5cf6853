"""Telemetry, Heartbeat, NotifyClientTermination: how clients come and go."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.core import validation
from commitbus.broker.messaging import telemetry
from commitbus.broker.messaging.clients import Subscription
from commitbus.broker.messaging.telemetry import SETTINGS_BYTES_MAX, TOPICS_MAX
from commitbus.broker.metadata.groups import CustomizedBackoff, ExponentialBackoff
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.rpc.carried import carried

Run = Callable[..., None]


def producer(*topics: str) -> pb.TelemetryCommand:
    command = pb.TelemetryCommand()
    settings = command.settings
    settings.client_type = pb.PRODUCER
    settings.access_point.scheme = pb.IPv4
    settings.access_point.addresses.add(host="127.0.0.1", port=8081)
    settings.request_timeout.seconds = 3
    settings.user_agent.version = "5.1.2"
    settings.backoff_policy.customized_backoff.next.add(seconds=9)
    settings.publishing.max_body_size = 128 * 1024 * 1024
    for topic in topics:
        settings.publishing.topics.add(name=topic)
    return command


def consumer(group: str = "G", kind: pb.ClientType = pb.PUSH_CONSUMER) -> pb.TelemetryCommand:
    command = pb.TelemetryCommand()
    settings = command.settings
    settings.client_type = kind
    settings.subscription.group.name = group
    settings.subscription.long_polling_timeout.nanos = 5
    entry = settings.subscription.subscriptions.add()
    entry.topic.name, entry.expression.type, entry.expression.expression = "T", pb.TAG, "A || B"
    return command


def test_a_producer_gets_its_settings_back_with_the_brokers_merged_in(run: Run) -> None:
    """Exactly what clients need to leave their start-up."""

    async def scenario(bus: Any) -> None:
        (answer,) = await bus.telemetry(producer("T", "Unheard"))
        assert answer.status.code == pb.OK
        settings = answer.settings
        assert settings.WhichOneof("pub_sub") == "publishing"
        assert [topic.name for topic in settings.publishing.topics] == ["T", "Unheard"]
        assert settings.publishing.max_body_size == bus.context.config.max_body_bytes
        assert settings.publishing.validate_message_type
        assert settings.backoff_policy.max_attempts == 3
        backoff = settings.backoff_policy.exponential_backoff
        assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds()) == (10, 1000)
        assert backoff.multiplier == 2
        assert settings.HasField("metric")
        assert not settings.metric.on
        assert settings.client_type == pb.PRODUCER
        assert settings.access_point.addresses[0].port == 8081
        assert settings.request_timeout.seconds == 3
        assert settings.user_agent.version == "5.1.2"

    run(scenario)


@pytest.mark.parametrize(
    "kind", [pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, pb.PULL_CONSUMER, pb.LITE_SIMPLE_CONSUMER]
)
def test_a_consumer_gets_its_groups_settings(run: Run, kind: pb.ClientType) -> None:
    """Of any kind; an unknown group is created, and an operator sees who consumes what."""

    async def scenario(bus: Any) -> None:
        async with trio.open_nursery() as nursery:
            hold, answers = trio.Event(), list[pb.TelemetryCommand]()

            async def commands() -> Any:
                yield consumer("Unheard", kind)
                await hold.wait()

            async def collect(answer: bytes) -> None:
                answers.append(pb.TelemetryCommand.FromString(answer))

            telemetry = bus.methods["Telemetry"]
            nursery.start_soon(carried, telemetry, commands(), bus.call("c1"), collect)
            with trio.fail_after(60):
                while not answers:
                    await trio.lowlevel.checkpoint()
            (client,) = bus.context.clients.consumers("Unheard")
            assert (client.client_id, client.kind) == ("c1", kind)
            assert client.introduction.subscriptions == {"T": Subscription(pb.TAG, "A || B")}
            assert client.introduction.at_ms == bus.now_ms()
            hold.set()
        settings = answers[0].settings
        assert settings.WhichOneof("pub_sub") == "subscription"
        assert settings.backoff_policy.max_attempts == 17
        steps = [step.seconds for step in settings.backoff_policy.customized_backoff.next]
        assert steps == [ms // 1000 for ms in CustomizedBackoff().next_ms]
        subscription = settings.subscription
        assert (subscription.group.name, subscription.fifo) == ("Unheard", False)
        assert subscription.subscriptions[0].expression.expression == "A || B"
        assert subscription.receive_batch_size == 32
        assert subscription.long_polling_timeout.ToMilliseconds() == 20_000
        assert subscription.lite_subscription_quota == 2000
        assert subscription.max_lite_topic_size == 64
        assert settings.HasField("metric")

    run(scenario)


def test_the_settings_follow_the_groups_configuration(run: Run) -> None:
    """Backoff, attempts and order."""

    async def scenario(bus: Any) -> None:
        await bus.group(
            "Own",
            retry_max_times=-1,
            consume_message_orderly=True,
            backoff=ExponentialBackoff(initial_ms=1500, max_ms=60_000, multiplier=3),
        )
        (answer,) = await bus.telemetry(consumer("Own"))
        policy = answer.settings.backoff_policy
        assert policy.max_attempts == 2**31 - 1
        assert policy.exponential_backoff.initial.ToMilliseconds() == 1500
        assert policy.exponential_backoff.max.ToMilliseconds() == 60_000
        assert policy.exponential_backoff.multiplier == 3
        assert answer.settings.subscription.fifo

    run(scenario)


def test_a_client_that_knows_one_form_of_backoff_is_told_it_in_that_form(run: Run) -> None:
    """Node.js's push consumer knows no list, Python's nothing else."""

    async def policy(bus: Any, group: str, language: pb.Language) -> pb.RetryPolicy:
        command = consumer(group)
        command.settings.user_agent.language = language
        (answer,) = await bus.telemetry(command)
        told: pb.RetryPolicy = answer.settings.backoff_policy
        return told

    async def scenario(bus: Any) -> None:
        backoff = ExponentialBackoff(initial_ms=1000, max_ms=6000, multiplier=2)
        await bus.group("Exponential", retry_max_times=4, backoff=backoff)
        for language, listed in ((pb.JAVA, True), (pb.PYTHON, True), (pb.NODE_JS, False)):
            told = await policy(bus, "G", language)
            assert told.max_attempts == 17
            assert told.HasField("customized_backoff") is listed
            told = await policy(bus, "Exponential", language)
            assert told.max_attempts == 5
            assert told.HasField("exponential_backoff") is (language != pb.PYTHON)

        told = await policy(bus, "G", pb.NODE_JS)
        assert told.exponential_backoff.initial.seconds == 1
        assert told.exponential_backoff.max.seconds == 7200
        assert told.exponential_backoff.multiplier == 2
        told = await policy(bus, "Exponential", pb.PYTHON)
        steps = [step.seconds for step in told.customized_backoff.next]
        assert steps[:5] == [1, 2, 4, 6, 6]
        assert set(steps[5:]) == {6}

    run(scenario)


@pytest.mark.parametrize(
    ("language", "topics", "after_s"),
    [(pb.NODE_JS, 3, 0.4), (pb.NODE_JS, 1, 0.0), (pb.JAVA, 3, 0.0)],
)
def test_a_node_client_is_answered_when_it_listens(
    run: Run, language: pb.Language, topics: int, after_s: float
) -> None:
    """It asks for the routes of its other topics first, and would not notice the answer."""

    async def scenario(bus: Any) -> None:
        command = producer(*(f"T{number}" for number in range(topics)))
        command.settings.user_agent.language = language
        answers: list[pb.TelemetryCommand] = []

        async def introduce() -> None:
            answers.extend(await bus.telemetry(command))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(introduce)
            await bus.sleep(0)
            assert len(answers) == (after_s == 0)
            await bus.sleep(after_s)
            assert len(answers) == 1

    run(scenario)


def test_settings_sent_again_are_answered_again(run: Run) -> None:
    """Clients do so every few minutes; what else they send needs no answer."""

    async def scenario(bus: Any) -> None:
        other = pb.TelemetryCommand()
        other.thread_stack_trace.nonce = "n"
        answers = await bus.telemetry(producer("T"), other, pb.TelemetryCommand(), producer("T"))
        assert len(answers) == 2

    run(scenario)


def bare() -> pb.TelemetryCommand:
    command = pb.TelemetryCommand()
    command.settings.client_type = pb.PRODUCER
    return command


def empty_sql() -> pb.TelemetryCommand:
    command = consumer()
    command.settings.subscription.subscriptions[0].expression.type = pb.SQL
    command.settings.subscription.subscriptions[0].expression.expression = ""
    return command


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (bare(), "there is no publishing or subscription data in settings"),
        (producer("a b"), "no topic"),
        (consumer(""), "no consumer group"),
        (empty_sql(), "SQL"),
    ],
)
def test_bad_settings_close_the_stream(run: Run, command: pb.TelemetryCommand, text: str) -> None:
    """As an invalid argument, which clients show."""

    async def scenario(bus: Any) -> None:
        with pytest.raises(RpcError, match=text) as raised:
            await bus.telemetry(command)
        assert raised.value.code is StatusCode.INVALID_ARGUMENT
        assert raised.value.message.startswith("process client telemetryCommand failed. ")

    run(scenario)


def test_a_stream_without_client_id_is_closed(run: Run) -> None:
    """Nothing could be told to that client later."""

    async def scenario(bus: Any) -> None:
        with pytest.raises(RpcError, match="client id"):
            await bus.telemetry(producer("T"), call=bus.call(""))
        with pytest.raises(RpcError, match="client id"):
            await bus.telemetry(producer("T"), call=bus.call("x" * 2000))

    run(scenario)


async def heartbeat(bus: Any, kind: pb.ClientType, group: str = "", client: str = "c") -> pb.Code:
    request = pb.HeartbeatRequest(client_type=kind)
    if group:
        request.group.name = group
    response = await bus.unary("Heartbeat", request, bus.call(client))
    code: pb.Code = response.status.code
    return code


def test_heartbeats_are_welcome_from_clients_we_do_not_know(run: Run) -> None:
    """No client reacts to anything else, and after a restart we know none."""

    async def scenario(bus: Any) -> None:
        assert await heartbeat(bus, pb.PRODUCER) == pb.OK
        assert await heartbeat(bus, pb.CLIENT_TYPE_UNSPECIFIED) == pb.OK
        assert await heartbeat(bus, pb.SIMPLE_CONSUMER, "Unheard") == pb.OK
        assert await heartbeat(bus, pb.SIMPLE_CONSUMER, "Unheard") == pb.OK
        assert bus.context.metadata.group("Unheard") is not None
        assert [c.client_id for c in bus.context.clients.consumers("Unheard")] == ["c"]
        assert await heartbeat(bus, pb.PUSH_CONSUMER) == pb.ILLEGAL_CONSUMER_GROUP
        assert await heartbeat(bus, pb.PUSH_CONSUMER, "a b") == pb.ILLEGAL_CONSUMER_GROUP
        assert await heartbeat(bus, pb.PRODUCER, client="") == pb.CLIENT_ID_REQUIRED

    run(scenario)


def test_a_client_says_goodbye_once(run: Run) -> None:
    """The second time we do not know it."""

    async def scenario(bus: Any) -> None:
        await heartbeat(bus, pb.PRODUCER)
        request, call = pb.NotifyClientTerminationRequest(), bus.call("c")
        for code in (pb.OK, pb.UNRECOGNIZED_CLIENT_TYPE):
            response = await bus.unary("NotifyClientTermination", request, call)
            assert response.status.code == code
        response = await bus.unary("NotifyClientTermination", request, bus.call(""))
        assert response.status.code == pb.CLIENT_ID_REQUIRED

    run(scenario)


@pytest.mark.parametrize("kind", ["publishing", "subscription"])
def test_settings_with_more_topics_than_anybody_has_are_refused(run: Run, kind: str) -> None:
    """Checking them would hold up everybody else."""

    async def scenario(bus: Any) -> None:
        command = pb.TelemetryCommand()
        if kind == "publishing":
            for _ in range(TOPICS_MAX + 1):
                command.settings.publishing.topics.add(name="T")
        else:
            command.settings.subscription.group.name = "G"
            for _ in range(TOPICS_MAX + 1):
                command.settings.subscription.subscriptions.add().topic.name = "T"
        with pytest.raises(RpcError, match=f"{TOPICS_MAX + 1} topics"):
            await bus.telemetry(command)

    run(scenario)


def test_a_group_with_the_most_retries_there_can_be_is_told_so(run: Run) -> None:
    """One attempt more than retries does not fit into the protocol's number any more."""

    async def scenario(bus: Any) -> None:
        await bus.group("Stubborn", retry_max_times=2**31 - 1)
        command = pb.TelemetryCommand()
        command.settings.subscription.group.name = "Stubborn"
        (answer,) = await bus.telemetry(command)
        assert answer.settings.backoff_policy.max_attempts == 2**31 - 1

    run(scenario)


def test_settings_are_no_larger_than_any_client_needs(run: Run) -> None:
    """They are repeated in the answer, with all that we do not know."""

    async def scenario(bus: Any) -> None:
        command = producer("T")
        command.settings.user_agent.hostname = "h" * SETTINGS_BYTES_MAX
        with pytest.raises(RpcError, match=rf"settings of \d+ bytes, at most {SETTINGS_BYTES_MAX}"):
            await bus.telemetry(command)
        command.settings.user_agent.hostname = "h" * (SETTINGS_BYTES_MAX - 1000)
        (answer,) = await bus.telemetry(command)
        assert answer.ByteSize() < 1.1 * SETTINGS_BYTES_MAX

    run(scenario)


def test_a_name_is_checked_once_for_all_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand topics take 2 ms, every time that a client sends them."""

    async def scenario(bus: Any) -> None:
        await bus.telemetry(producer(*(f"T{number}" for number in range(TOPICS_MAX))))
        checked: list[str] = []
        monkeypatch.setattr(validation, "validate_topic", checked.append)
        await bus.telemetry(producer(*(f"T{number}" for number in range(TOPICS_MAX))))
        assert checked == []

    run(scenario)


@pytest.mark.parametrize("kind", ["settings", "thread_stack_trace"])
def test_an_open_stream_keeps_nothing_of_what_came(run: Run, kind: str) -> None:
    """There may be 10,000 streams, open for months, and a command may have 4 MiB."""

    async def scenario(bus: Any) -> None:
        held: list[pb.TelemetryCommand] = []
        references: list[int] = []

        async def commands() -> AsyncIterator[pb.TelemetryCommand]:
            held.append(producer("T"))
            if kind == "thread_stack_trace":
                held[0].thread_stack_trace.thread_stack_trace = "x"
            yield held[0]
            references.append(sys.getrefcount(held[0]))

        async def send(*_answers: object) -> None:
            return

        await telemetry.telemetry(bus.context, commands(), bus.call("c"), send)
        # That of the list here, and that of the call that counts.
        assert references == [2]

    run(scenario)


def test_few_answers_wait_for_clients_that_do_not_listen(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a bound a client is answered at once, whatever it says of itself."""

    async def scenario(bus: Any) -> None:
        command = producer(*("T",) * 100)
        command.settings.user_agent.language = pb.NODE_JS
        monkeypatch.setattr(telemetry, "WAITING_BYTES_MAX", 3 * command.ByteSize())
        answers: list[pb.TelemetryCommand] = []

        async def introduce() -> None:
            answers.extend(await bus.telemetry(command))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(introduce)
            await bus.sleep(0)
            assert 5 - len(answers) == bus.context.waiting_settings_bytes // command.ByteSize() == 2
            await bus.sleep(20)
            assert len(answers) == 5
        assert bus.context.waiting_settings_bytes == 0

    run(scenario)
