"""An adapter of no protocol at all: it receives, pulls and acknowledges plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import trio

from commitbus.broker.consuming.delivering import Recipient
from commitbus.broker.filters.tag_filter import EVERYTHING
from commitbus.broker.receiving.demand import Demand
from commitbus.broker.receiving.encoder import Encode
from commitbus.broker.receiving.poll import Receiving
from commitbus.broker.receiving.pulling import PullDemand, Pulling
from commitbus.broker.settling.settle import acknowledge
from commitbus.commitlog.record_format import CheckedRecord
from commitbus.commitlog.types import QueueOffset

Run = Callable[..., None]


class Toy(NamedTuple):
    """A message of the toy protocol."""

    queue_id: int
    attempt: int | None
    body: bytes
    handle: str


def toy_encoder(queue_id: int, attempt: int | None) -> Encode[Toy]:
    def encode(view: memoryview, parts: CheckedRecord, _: Mapping[str, str], handle: str) -> Toy:
        return Toy(queue_id, attempt, bytes(view[parts[6] : parts[7]]), handle)

    return encode


def test_an_adapter_without_a_protocol_receives_acknowledges_and_pulls(run: Run) -> None:
    async def scenario(bus: Any) -> None:
        await bus.group("G")
        await bus.send(b"0", b"1")
        core, until_s = bus.context.consuming, trio.current_time() + 1
        demand = Demand("G", "T", EVERYTHING, 32, 30_000, "toy", auto_renew=False, connection="")
        receiving = Receiving(core, demand, toy_encoder, until_s)
        with receiving.batch() as batch:
            assert not await receiving.look(batch)
            received = list(batch.messages)
        assert [(toy.attempt, toy.body) for toy in received] == [(1, b"0"), (1, b"1")]
        assert acknowledge(core, "G", "T", [toy.handle for toy in received], {}) == {}
        assert core.progress.get("G", "T", 0).committed_offset == 2
        to = Recipient("G", "toy", "")
        pull = PullDemand("T", 0, EVERYTHING, 32, to, until_s)
        pulling = Pulling(core, pull, toy_encoder, QueueOffset(1))
        with pulling.batch() as pulled:
            assert not await pulling.look(pulled)
            assert pulled.messages == [Toy(0, None, b"1", "")]

    run(scenario)
