"""Asking a client over its telemetry stream."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.common.errors import ClientNotConnectedError, ClientSilentError
from commitbus.broker.messaging.questions import ANSWER_S_MAX, Questions
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.rpc.carried import carried

Run = Callable[..., None]


def stack_trace(nonce: str) -> pb.TelemetryCommand:
    command = pb.TelemetryCommand()
    command.print_thread_stack_trace_command.nonce = nonce
    return command


def answer_to(command: pb.TelemetryCommand) -> pb.TelemetryCommand:
    answer = pb.TelemetryCommand()
    answer.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
    answer.thread_stack_trace.thread_stack_trace = "main: asleep"
    return answer


class Connected:
    """A client with a telemetry stream; each command it hears is answered by `react`."""

    def __init__(self, bus: Any, react: Callable[[pb.TelemetryCommand], Any]) -> None:
        self.bus, self._react = bus, react
        self._answers, self._requests = trio.open_memory_channel[pb.TelemetryCommand](10)

    async def hear(self, command: pb.TelemetryCommand) -> None:
        answer = self._react(command)
        if answer is not None:
            await self._answers.send(answer)

    def hang_up(self) -> None:
        self._answers.close()

    async def run(self, client_id: str = "c1") -> None:
        telemetry, call = self.bus.methods["Telemetry"], self.bus.call(client_id)
        await carried(telemetry, self._requests, call, self.hear)


def test_an_answer_comes_back_to_who_asked(run: Run) -> None:
    """Two questions at once: each has an answer of its own."""

    async def scenario(bus: Any) -> None:
        connected = Connected(bus, answer_to)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connected.run)
            await trio.testing.wait_all_tasks_blocked()
            client = bus.context.clients.get("c1")
            nonces = []

            async def ask() -> None:
                answer = await bus.context.questions.ask(client, stack_trace)
                assert answer.thread_stack_trace.thread_stack_trace == "main: asleep"
                nonces.append(answer.thread_stack_trace.nonce)

            async with trio.open_nursery() as askers:
                askers.start_soon(ask)
                askers.start_soon(ask)
            assert len(set(nonces)) == 2
            connected.hang_up()
        assert client.send is None

    run(scenario)


def test_a_silent_client_is_waited_for_only_so_long(run: Run) -> None:
    """And what it says later, or what somebody else says, is nobody's answer."""

    async def scenario(bus: Any) -> None:
        heard: list[pb.TelemetryCommand] = []
        connected = Connected(bus, heard.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connected.run)
            await trio.testing.wait_all_tasks_blocked()
            client = bus.context.clients.get("c1")
            refused = []

            async def ask() -> None:
                with pytest.raises(ClientSilentError, match="did not answer within 30 s") as raised:
                    await bus.context.questions.ask(client, stack_trace)
                refused.append(raised.value)

            async with trio.open_nursery() as askers:
                askers.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                nonce = heard[0].print_thread_stack_trace_command.nonce
                await bus.telemetry(answer_to(heard[0]), call=bus.call("another"))
                await bus.sleep(ANSWER_S_MAX)
            assert refused
            bus.context.questions.answered(client, nonce, answer_to(heard[0]))
            connected.hang_up()

    run(scenario)


def test_a_client_that_hangs_up_does_not_answer_any_more(run: Run) -> None:
    """Who asked learns at once."""

    async def scenario(bus: Any) -> None:
        connected = Connected(bus, lambda _: connected.hang_up())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connected.run)
            await trio.testing.wait_all_tasks_blocked()
            client = bus.context.clients.get("c1")
            began_s = trio.current_time()
            for _ in range(2):
                with pytest.raises(ClientNotConnectedError):
                    await bus.context.questions.ask(client, stack_trace)
            assert trio.current_time() == began_s

    run(scenario)


def test_a_stream_that_breaks_under_the_question_is_no_error_of_ours(run: Run) -> None:
    """The transport says so by an error of its own."""

    async def scenario(bus: Any) -> None:
        def broken(_: object) -> None:
            raise RpcError(StatusCode.CANCELLED, "the call is over")

        connected = Connected(bus, broken)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connected.run)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(ClientNotConnectedError):
                await bus.context.questions.ask(bus.context.clients.get("c1"), stack_trace)
            connected.hang_up()

    run(scenario)


def test_the_newest_stream_of_a_client_is_asked(run: Run) -> None:
    """The end of an older one does not make the client unreachable."""

    async def scenario(bus: Any) -> None:
        old, new = Connected(bus, lambda _: pytest.fail("asked")), Connected(bus, answer_to)
        async with trio.open_nursery() as nursery:
            for stream in (old, new):
                nursery.start_soon(stream.run)
                await trio.testing.wait_all_tasks_blocked()
            old.hang_up()
            await trio.testing.wait_all_tasks_blocked()
            await bus.context.questions.ask(bus.context.clients.get("c1"), stack_trace)
            new.hang_up()

    run(scenario)


def test_the_end_of_a_stream_takes_no_look_at_questions_to_others() -> None:
    """Any caller may let thousands of questions wait, and end as many streams."""
    questions = Questions()
    channel, _ = trio.open_memory_channel[pb.TelemetryCommand](1)
    for number in range(5000):
        questions._waiting[f"c{number}"] = {"nonce": channel}
    gone: Any = SimpleNamespace(client_id="gone")
    begin = thread_time()
    for _ in range(1000):
        questions.disconnected(gone)
    assert thread_time() - begin < 0.1
