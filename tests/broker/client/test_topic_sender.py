"""Acknowledgements and refusals that a sender gets in an order of the test's choice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from commitbus.broker.client import (
    ClientError,
    DeliveryUnknownError,
    ProducerOptions,
    Receipt,
    RefusedError,
)
from commitbus.broker.client.topic_sender import TopicSender
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb

Run = Callable[..., None]
NO_LIMITS = pb.AppendLimits(batch_bytes_max=1000)


class ScriptedCall:
    """An Append call that answers when the last of so many requests is sent, which fails.

    Without an error that request succeeds, and the call goes on.
    """

    def __init__(
        self,
        *,
        requests: int,
        acknowledged: int,
        error: RpcError | None = None,
        limits: pb.AppendLimits = NO_LIMITS,
    ) -> None:
        self._requests_left, self._error, self._limits = requests, error, limits
        self.batches: list[pb.AppendBatch] = []
        self._answers = trio.Event()
        self._started = False
        self._acks = [pb.AppendAck(sequence=number) for number in range(acknowledged)]

    async def send(self, *pieces: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        request = pb.AppendRequest.FromString(b"".join(pieces))
        if request.HasField("batch"):
            self.batches.append(request.batch)
        self._requests_left -= 1
        if self._requests_left == 0:
            self._answers.set()
            if self._error is not None:
                raise self._error

    async def receive(self) -> bytes:
        """Each acknowledgement comes in a response of its own."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._started:
            self._started = True
            return pb.AppendResponse(started=self._limits).SerializeToString()
        await self._answers.wait()
        if self._acks:
            return pb.AppendResponse(acks=[self._acks.pop(0)]).SerializeToString()
        if self._error is None:
            await trio.sleep_forever()
        assert self._error is not None
        raise self._error


class ScriptedLink:
    """A link whose connection makes these calls, one after the other."""

    def __init__(self, *calls: ScriptedCall) -> None:
        self._calls = list(calls)
        self.failure = ""

    async def connection(self) -> ScriptedLink:
        return self

    @asynccontextmanager
    async def call(self, _path: str) -> AsyncIterator[ScriptedCall]:
        yield self._calls.pop(0)


async def told_of(count: int, options: ProducerOptions, *calls: ScriptedCall) -> list[object]:
    """Send so many messages; return the queue offset of each, or the kind of error."""
    told: dict[int, object] = {}

    def tell(number: int, error: ClientError | None, receipt: Receipt | None) -> None:
        told[number] = type(error) if receipt is None else receipt.queue_offset

    link: Any = ScriptedLink(*calls)
    sender = TopicSender(
        "topic",
        0,
        link,
        options,
        wake=lambda sender: sender.work_arrived(),
        on_failure=lambda _: None,
    )
    for number in range(count):
        sender.add(b"%d" % number, b"", partial(tell, number))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.run)
        await sender.flush()
        nursery.cancel_scope.cancel()
    return [told[number] for number in range(count)]


def test_a_refusal_is_of_the_batch_behind_the_last_acknowledgement(run: Run) -> None:
    """Also if a send learns first that the call is over, with acknowledgements still to be read.

    Else a batch that is stored would be said to be refused, and the next one stored twice.
    """

    async def main() -> None:
        refused = RpcError(StatusCode.INVALID_ARGUMENT, "batch 2: record 0: it is wrong")
        # A start and batches 0 to 3; then a start and what was batch 3.
        told = await told_of(
            4,
            ProducerOptions(batch_bytes=1),
            ScriptedCall(requests=5, acknowledged=2, error=refused),
            ScriptedCall(requests=2, acknowledged=1),
        )
        assert told == [0, 0, RefusedError, 0]

    run(main, 10)


def test_messages_behind_a_refused_one_get_their_own_receipts(run: Run) -> None:
    async def main() -> None:
        refused = RpcError(StatusCode.INVALID_ARGUMENT, "batch 0: record 1: it is wrong")
        told = await told_of(
            4,
            ProducerOptions(),
            ScriptedCall(requests=2, acknowledged=0, error=refused),
            ScriptedCall(requests=2, acknowledged=1),
        )
        assert told == [0, RefusedError, 1, 2]

    run(main, 10)


def test_what_a_broker_has_forgotten_may_be_stored_or_not(run: Run) -> None:
    """It does not know the batches before, so it takes none behind them, and nothing is refused."""

    async def main() -> None:
        unknown = RpcError(StatusCode.FAILED_PRECONDITION, "batch 7: the next one is 0")
        call = ScriptedCall(requests=2, acknowledged=0, error=unknown)
        assert await told_of(2, ProducerOptions(), call) == [DeliveryUnknownError] * 2

    run(main, 10)


def test_batches_keep_to_the_limits_of_a_response_that_is_younger_than_they_are(run: Run) -> None:
    """They were gathered before the broker said how large they may be."""

    async def main() -> None:
        limits = pb.AppendLimits(body_bytes_max=3, batch_bytes_max=5, batch_records_max=2)
        call = ScriptedCall(requests=5, acknowledged=4, limits=limits)
        # Bodies of one byte each.
        assert await told_of(7, ProducerOptions(), call) == [0, 1, 0, 1, 0, 1, 0]
        assert [batch.records for batch in call.batches] == [b"01", b"23", b"45", b"6"]
        assert [batch.sequence for batch in call.batches] == [0, 1, 2, 3]

    run(main, 10)


def test_a_message_that_is_too_long_is_refused_alone_and_not_sent(run: Run) -> None:
    async def main() -> None:
        limits = pb.AppendLimits(body_bytes_max=1, batch_bytes_max=1000)
        call = ScriptedCall(requests=2, acknowledged=1, limits=limits)
        # The last two have bodies of two bytes.
        told = await told_of(12, ProducerOptions(), call)
        assert told == [*range(10), RefusedError, RefusedError]
        assert [batch.records for batch in call.batches] == [b"0123456789"]

    run(main, 10)


def test_unacknowledged_batches_beyond_a_new_limit_may_be_stored_or_not(run: Run) -> None:
    """Split, they would have other numbers than those under which the broker may know them."""

    async def main() -> None:
        lost = RpcError(StatusCode.UNAVAILABLE, "the connection was lost")
        smaller = pb.AppendLimits(body_bytes_max=2, batch_bytes_max=2)
        told = await told_of(
            3,
            ProducerOptions(),
            ScriptedCall(requests=2, acknowledged=0, error=lost),
            ScriptedCall(requests=2, acknowledged=0, limits=smaller),
        )
        assert told == [DeliveryUnknownError] * 3

    run(main, 10)
