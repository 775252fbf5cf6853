"""A group with as many messages of a queue in flight as `in_flight_max` allows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from commitbus.broker.config import BrokerConfig
from commitbus.broker.consuming.in_flight_cap import LOGGED_EVERY_S
from commitbus.broker.metadata.groups import FIFO_LOCK_UNIT_ATTRIBUTE, LockUnit
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Run = Callable[..., None]


def test_it_is_a_setting_under_rocketmqs_name_too() -> None:
    """By default far above what consumers work on at a time."""
    assert BrokerConfig().in_flight_max == 200_000
    assert BrokerConfig().with_changes({"popInflightMessageThreshold": 5}).in_flight_max == 5


def test_the_answer_says_that_it_is_why_nothing_came(run: Run) -> None:
    """Where there is nothing new it says nothing of it."""

    async def scenario(bus: Any) -> None:
        bus.context.progress.in_flight_max = 2
        await bus.send(b"1", b"2")
        received = await bus.receive(invisible_s=600)
        async with bus.receiving(polling_s=5) as results:
            await bus.sleep(6)
        assert results[0].status.message == "no new message"
        await bus.send(b"3")
        async with bus.receiving(polling_s=5) as results:
            await bus.sleep(6)
        assert results[0].status.code == pb.MESSAGE_NOT_FOUND
        assert results[0].status.message == (
            "no new message: group G has 2 messages of queue 0 in flight, "
            "and in_flight_max allows 2"
        )
        await bus.ack(received.handles[0])
        assert (await bus.receive()).bodies == [b"3"]

    run(scenario)


def test_it_is_logged_once_a_minute_and_counted_each_time(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """For each queue of a group; both are forgotten with the group."""
    caplog.set_level(logging.WARNING)

    async def look(bus: Any) -> None:
        async with bus.receiving(polling_s=5):
            await bus.sleep(6)

    async def scenario(bus: Any) -> None:
        bus.context.progress.in_flight_max = 1
        await bus.send(b"1", b"2")
        await bus.receive(invisible_s=6000)
        for _ in range(4):
            await look(bus)
        cap = bus.context.consuming.in_flight_cap
        assert cap.looks[("G", "T")] >= 4
        assert [record.message for record in caplog.records].count(
            "in_flight_max reached: the group gets nothing new from this queue"
        ) == 1
        assert vars(caplog.records[-1]).items() >= {
            "group": "G", "topic": "T", "queue_id": 0, "in_flight": 1,
        }.items()  # fmt: skip
        await bus.sleep(LOGGED_EVERY_S)
        await look(bus)
        assert len(caplog.records) == 2
        bus.context.broker.forget_group("G")
        assert not cap.looks

    run(scenario)


def test_messages_held_back_in_a_fifo_group_do_not_count(run: Run) -> None:
    """Those of a locked message group have a limit of their own."""

    async def scenario(bus: Any) -> None:
        await bus.group(
            consume_message_orderly=True,
            attributes={FIFO_LOCK_UNIT_ATTRIBUTE: str(LockUnit.MESSAGE_GROUP)},
        )
        bus.context.progress.in_flight_max = 2
        await bus.send(b"1", b"2", b"3", b"4")
        received = await bus.receive(batch=1, invisible_s=600)
        async with bus.receiving(polling_s=5) as results:
            await bus.sleep(6)
        assert results[0].status.message == "no new message"
        await bus.ack(*received.handles)
        assert (await bus.receive(batch=2, invisible_s=600)).bodies == [b"2", b"3"]
        await bus.send(b"5")
        async with bus.receiving(polling_s=5) as results:
            await bus.sleep(6)
        assert "in_flight_max allows 2" in results[0].status.message

    run(scenario)
