"""Shares of the bytes that are on their way to consumers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.consuming import delivering
from commitbus.broker.consuming.delivering import Delivering, Recipient
from commitbus.broker.rpc.call import Call, Response
from commitbus.broker.rpc.listen.accept import UNIX_PEER
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.rpc.carried import carried

Run = Callable[..., None]
KIB = 1024


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thousandth of the real limits, so that messages of 1 KiB are as those of 1 MiB."""
    monkeypatch.setattr(delivering, "DELIVERING_BYTES_MAX", 256 * KIB)
    monkeypatch.setattr(delivering, "RESERVE_BYTES", 64 * KIB)


def recipient(number: int, *, group: str = "") -> Recipient:
    """Return a client with a connection and, unless it is named, a group of its own."""
    return Recipient(group or f"G{number}", f"client-{number}", f"10.0.0.1:{number}")


def take_all(shares: Delivering, to: Recipient) -> int:
    """Take batches of up to 32 KiB until there is no share left; return the bytes."""
    total = 0
    while (size := min(shares.free_bytes(to), 32 * KIB)) > 0:
        shares.take(to, size)
        total += size
    return total


def test_a_client_has_a_fifth_and_the_next_one_a_fifth_of_the_rest() -> None:
    """None has it all, and none has nothing."""
    shares = Delivering()
    taken = [take_all(shares, recipient(number)) for number in range(9)]
    assert taken[0] == pytest.approx(256 * KIB / 5, rel=0.01)
    for before, after in pairwise(taken):
        assert after == pytest.approx(before * 4 / 5, rel=0.01)
    assert shares.free_bytes(recipient(99)) > 6 * KIB


def test_a_group_has_a_third_however_many_clients_it_has() -> None:
    """The share of one client does not grow with their number either."""
    shares = Delivering()
    taken = sum(take_all(shares, recipient(number, group="G")) for number in range(50))
    assert taken == pytest.approx(256 * KIB / 3, rel=0.01)
    assert shares.free_bytes(recipient(99)) > 32 * KIB


def test_many_client_ids_on_one_connection_have_one_share() -> None:
    """A client chooses its id, and any number of them."""
    shares = Delivering()
    taken = sum(
        take_all(shares, Recipient(f"G{number}", f"client-{number}", "10.0.0.1:1"))
        for number in range(50)
    )
    assert taken == pytest.approx(256 * KIB / 5, rel=0.01)


def test_clients_of_a_unix_socket_do_not_share_one_connection() -> None:
    """Their connections cannot be told apart."""
    shares = Delivering()
    for number in range(9):
        take_all(shares, Recipient(f"G{number}", f"client-{number}", UNIX_PEER))
    assert shares.may_take_one(Recipient("G", "client", UNIX_PEER))
    assert shares.free_bytes(Recipient("G", "client", UNIX_PEER)) > 0


def test_one_message_goes_to_a_client_that_holds_nothing_until_the_reserve_is_used_up() -> None:
    """Beyond the total only to groups that hold nothing."""
    shares = Delivering()
    shares.take(recipient(0), 256 * KIB - 1)
    assert shares.may_take_one(recipient(1, group="G0"))
    assert not shares.may_take_one(recipient(0))
    shares.take(recipient(1), 1)
    assert not shares.may_take_one(recipient(2, group="G0"))
    assert shares.may_take_one(recipient(2))
    shares.take(recipient(2), 64 * KIB)
    assert not shares.may_take_one(recipient(3))
    shares.give_back(recipient(2), 1)
    assert shares.may_take_one(recipient(3))


def test_nothing_is_kept_of_those_who_hold_nothing() -> None:
    """Any client may name a group."""
    shares = Delivering()
    for number in range(10):
        shares.take(recipient(number), 5)
    for number in range(10):
        shares.give_back(recipient(number), 5)
    assert vars(shares) == vars(Delivering())


def call_of(bus: Any, number: int) -> Call:
    """Return a call of one client, on a connection of its own."""
    call: Call = bus.call(f"client-{number}")
    call.peer = f"10.0.0.1:{number}"
    return call


async def never(*_: Response) -> None:
    """Read nothing."""
    await trio.sleep_forever()


@pytest.mark.parametrize("orderly", [False, True])
def test_nine_slow_readers_stop_nobody_else(run: Run, *, orderly: bool) -> None:
    """Another group gets a batch, a smaller one; the slow ones get no more."""

    async def scenario(bus: Any) -> None:
        for number in range(10):
            await bus.group(f"G{number}", consume_message_orderly=orderly)
        await bus.send(*[b"x" * KIB] * 40)
        async with trio.open_nursery() as nursery:
            for number in range(9):

                async def read_slowly(group: str, call: Call) -> None:
                    await bus.receive(group=group, call=call, send=never, invisible_s=600)

                nursery.start_soon(read_slowly, f"G{number}", call_of(bus, number))
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                received = await bus.receive(group="G9", call=call_of(bus, 9))
                assert received.status.code == pb.OK
                assert len(received.bodies) >= 4
                await bus.ack(*received.handles, group="G9")
            nursery.cancel_scope.cancel()
        assert bus.context.consuming.delivering.total_bytes == 0

    run(scenario)


def test_slow_clients_of_a_group_leave_the_others_of_it_one_message(run: Run) -> None:
    """And a client that holds something already is refused until it has read."""

    async def scenario(bus: Any) -> None:
        await bus.send(*[b"x" * KIB] * 200)
        async with trio.open_nursery() as nursery:
            for number in range(9):

                async def read_slowly(call: Call) -> None:
                    await bus.receive(call=call, send=never, invisible_s=600)

                nursery.start_soon(read_slowly, call_of(bus, number))
            await trio.testing.wait_all_tasks_blocked()
            assert len((await bus.receive(call=call_of(bus, 9))).bodies) == 1
            refused = await bus.receive(call=call_of(bus, 0))
            assert refused.status.code == pb.TOO_MANY_REQUESTS
            nursery.cancel_scope.cancel()
        assert bus.context.consuming.delivering.total_bytes == 0

    run(scenario)


def test_pulls_have_the_same_shares(run: Run) -> None:
    """Nine clients that pull and do not read stop no tenth."""

    async def scenario(bus: Any) -> None:
        await bus.group("G")
        await bus.send(*[b"x" * KIB] * 40)
        request = pb.PullMessageRequest(batch_size=32)
        request.message_queue.topic.name = "T"

        async def pull(number: int, send: Any) -> None:
            mine = pb.PullMessageRequest()
            mine.CopyFrom(request)
            mine.group.name = f"G{number}"
            await carried(bus.methods["PullMessage"], mine, call_of(bus, number), send)

        answers: list[pb.PullMessageResponse] = []

        async def take(*responses: Response) -> None:
            for one in responses:
                data = one if isinstance(one, bytes) else one.SerializeToString()
                answers.append(pb.PullMessageResponse.FromString(data))

        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(pull, number, never)
            await trio.testing.wait_all_tasks_blocked()
            await pull(9, take)
            assert answers[0].status.code == pb.OK
            assert sum(answer.HasField("message") for answer in answers) >= 4
            answers.clear()
            nursery.cancel_scope.cancel()
        assert bus.context.consuming.delivering.total_bytes == 0

    run(scenario)
