"""Sending the messages of one topic: gathered into batches, sent, sent again, acknowledged.

    add (any thread) ──> open batch ──(full)──> sealed ──(sent)──> unacknowledged ──> receipts
                              └───────(the stream has room)──────────────^

Batches have the sequence numbers of one producer id, so what is sent again after a lost connection
is stored once. An id is given up when nothing of it is unacknowledged and the stream ends, and when
a batch was refused: the batches behind it get new numbers under a new id.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn, final

import trio

from commitbus.broker.client.arguments import Body, body_bytes
from commitbus.broker.client.errors import (
    BufferFullError,
    ClientClosedError,
    ClientError,
    DeliveryUnknownError,
    RefusedError,
)
from commitbus.broker.client.link import Link
from commitbus.broker.client.options import ProducerOptions
from commitbus.broker.client.outgoing import BatchLimits, OutgoingBatch, too_long
from commitbus.broker.client.receipt import OnDelivery
from commitbus.broker.client.requests import append_request
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.http2.client_call import ClientCall
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.wire.bulk_paths import APPEND
from commitbus.broker.wire.frames import RECORDS_MAX, encode_frames
from commitbus.broker.wire.record_refusal import refused_record
from commitbus.commitlog.clock import SystemClock

_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 1.0
"""Before a call that failed is made again: twice as long each time, until something is stored."""
_MESSAGE_COST_BYTES: Final = 128
"""What a message takes of the buffer beside its bytes."""
_FINAL: Final = {
    StatusCode.INVALID_ARGUMENT,
    StatusCode.NOT_FOUND,
    StatusCode.PERMISSION_DENIED,
    StatusCode.FAILED_PRECONDITION,
    StatusCode.UNIMPLEMENTED,
    StatusCode.UNAUTHENTICATED,
}
"""After these another try would fail as well."""

_clock: Final = SystemClock()


@final
class TopicSender:
    """Sends the messages of one topic, or of one queue of it."""

    def __init__(
        self,
        topic: str,
        queue_id: int | None,
        link: Link,
        options: ProducerOptions,
        *,
        wake: Callable[[TopicSender], None],
        on_failure: Callable[[ClientError], None],
    ) -> None:
        """Begin without messages.

        Args:
            topic: Where the messages go.
            queue_id: Which of its queues; the broker chooses when None.
            link: The connection.
            options: Of the producer.
            wake: Calls `work_arrived` on the trio thread, from any thread.
            on_failure: Told of messages that fail and that have no listener.
        """
        self.topic, self._queue_id = topic, queue_id
        self._link, self._options = link, options
        self._wake, self._on_failure = wake, on_failure
        self._batch_bytes = options.batch_bytes
        self._records_max = RECORDS_MAX
        self._limits = BatchLimits(0, 0, 0)
        """Known from the first response on."""
        self._buffer_bytes = options.buffer_bytes
        # Below: changed by any thread, under the lock.
        self._lock = threading.Lock()
        self._open = OutgoingBatch()
        self._sealed: deque[OutgoingBatch] = deque()
        self.buffered_bytes = 0
        self.added = 0
        self._closed = False
        self._room = threading.Condition(self._lock)
        # Below: the trio thread's.
        self.settled = 0
        """Of the messages that were added, how many were stored or have failed."""
        self._unacknowledged: deque[OutgoingBatch] = deque()
        self._producer_id = secrets.token_bytes(16)
        self._next_sequence = 0
        self._resumes = False
        self._retry_s = _RETRY_S
        self._work = trio.Event()
        self.progress = trio.Event()
        """Set, and replaced, when messages are settled."""
        self._scope = trio.CancelScope()
        self._flushed_to = 0

    # Adding, from any thread

    def add(self, body: Body, properties: bytes, on_delivery: OnDelivery | None) -> None:
        """Take a message. A body that can change is copied.

        Raises:
            BufferFullError: Too many wait already.
            ClientClosedError: The producer is closed.
            TypeError: The body is no bytes-like object.
        """
        if type(body) is not bytes:
            body = body_bytes(body)
        size = len(body) + len(properties)
        with self._lock:
            if self.buffered_bytes >= self._buffer_bytes:
                if self._closed:
                    raise ClientClosedError
                raise BufferFullError(self.topic, self.buffered_bytes)
            batch = self._open
            if batch.size_bytes + size > self._batch_bytes or batch.count >= self._records_max:
                batch = self._seal()
            batch.add(body, properties, on_delivery)
            self.added += 1
            self.buffered_bytes += size + _MESSAGE_COST_BYTES
            is_first = batch.count == 1
            if is_first:
                batch.born_ms, batch.since_s = _clock.now_ms(), _clock.monotonic_s()
        if is_first:
            self._wake(self)

    def wait_for_room(self) -> None:
        """Block until there is less in the buffer, or the producer is closed."""
        with self._lock:
            self._room.wait_for(lambda: self._closed or self.buffered_bytes < self._buffer_bytes)

    def _seal(self) -> OutgoingBatch:
        """Under the lock: begin a new batch, if the open one has a message."""
        if self._open.count:
            self._sealed.append(self._open)
            self._open = OutgoingBatch()
        return self._open

    def close(self) -> None:
        """Take no more messages; those who wait for room learn so."""
        with self._lock:
            self._closed = True
            self._buffer_bytes = -1
            self._room.notify_all()

    # Everything below on the trio thread

    def work_arrived(self) -> None:
        """Note that there may be a batch to send."""
        self._work.set()

    async def flush(self) -> None:
        """Return when all messages that were added before are stored, or have failed."""
        self._flushed_to = target = self.added
        self._work.set()
        while self.settled < target:
            await self.progress.wait()

    async def run(self) -> None:
        """Send what is added until cancelled; what is left then has failed."""
        try:
            while True:
                await self._until_needed()
                with trio.CancelScope() as self._scope:
                    self._set_deadline()
                    await self._attempt()
                if self._scope.cancelled_caught:
                    self._time_out()
        finally:
            self.close()
            with self._lock:
                self._seal()
            self._fail(self._unacknowledged, DeliveryUnknownError("the producer was closed"))
            self._fail(self._sealed, ClientClosedError())

    async def _until_needed(self) -> None:
        while not (self._unacknowledged or self._sealed or self._open.count):
            self._work = trio.Event()
            await self._work.wait()

    async def _attempt(self) -> None:
        """Open a stream and send until it breaks."""
        has_started = False
        try:
            connection = await self._link.connection()
            async with connection.call(APPEND) as call:
                await self._start(call)
                has_started = True
                await self._converse(call)
        except RpcError as error:
            self._resumes = True
            if error.code not in _FINAL:
                self._link.failure = error.message
                await trio.sleep(self._retry_s)
                self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)
            elif not has_started:
                self._refuse_all(error)
            elif error.code is StatusCode.FAILED_PRECONDITION:
                # Its log has forgotten what came before: a power cut took it, or retention.
                self._fail(self._unacknowledged, DeliveryUnknownError(error.message))
            elif self._unacknowledged:
                self._refuse_first(error)

    async def _start(self, call: ClientCall) -> None:
        if not self._unacknowledged:
            self._renumber()
        start = pb.AppendStart(
            topic=self.topic,
            producer_id=self._producer_id,
            resumes=self._resumes,
            durable=self._options.durable,
        )
        await call.send(pb.AppendRequest(start=start).SerializeToString())
        response = await call.receive()
        if response is None:
            raise RpcError(StatusCode.INTERNAL, "the broker ended the stream")
        limits = pb.AppendResponse.FromString(response).started
        self._records_max = limits.batch_records_max or RECORDS_MAX
        self._limits = BatchLimits(
            limits.body_bytes_max or limits.batch_bytes_max,
            limits.batch_bytes_max,
            self._records_max,
        )
        self._batch_bytes = min(self._options.batch_bytes, limits.batch_bytes_max)
        if not all(map(self._limits.admit, self._unacknowledged)):
            # Split, they would have other numbers than those under which they may be stored.
            reason = "the broker takes smaller batches than those that it did not acknowledge"
            self._fail(self._unacknowledged, DeliveryUnknownError(reason))
            raise RpcError(StatusCode.ABORTED, reason)

    async def _converse(self, call: ClientCall) -> NoReturn:
        """Send and receive until the call is over; raise why it is."""

        async def send_batches() -> None:
            # A call that is over ends the receiving, too, but only behind the last acknowledgement.
            with suppress(RpcError):
                await self._send_batches(call)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_batches)
            try:
                await self._receive_acks(call)
            except RpcError as error:
                failure = error
            nursery.cancel_scope.cancel()
        raise failure

    async def _send_batches(self, call: ClientCall) -> NoReturn:
        # A copy: the first of them are acknowledged while the last are still sent.
        for sent_before in tuple(self._unacknowledged):
            await call.send(*self._encode(sent_before))
        while True:
            while len(self._unacknowledged) >= self._options.in_flight_max:
                await self.progress.wait()
            if (batch := self._fitting(await self._next_batch())) is None:
                continue
            batch.sequence = self._next_sequence
            self._next_sequence += 1
            self._unacknowledged.append(batch)
            self._set_deadline()
            await call.send(*self._encode(batch))

    def _fitting(self, batch: OutgoingBatch) -> OutgoingBatch | None:
        """Return what of a batch the broker takes at once, if anything; the rest comes next.

        Batches may be older than the broker's first response, which says how large they may be.
        Messages that it never takes are refused here: it would not even read them.
        """
        fitting, refused = batch.split(self._limits)
        for one in refused:
            self._fail(deque([one]), too_long(one, self._limits))
        with self._lock:
            self._sealed.extendleft(reversed(fitting[1:]))
        return fitting[0] if fitting else None

    async def _next_batch(self) -> OutgoingBatch:
        """Return the next batch: a sealed one, or what there is of the open one after lingering."""
        while True:
            self._work = trio.Event()
            with self._lock:
                if self._sealed:
                    return self._sealed.popleft()
                batch = self._open
                until_s = batch.since_s + self._options.linger_s
                is_due = self._flushed_to > self.settled or until_s <= _clock.monotonic_s()
                if batch.count and is_due:
                    self._open = OutgoingBatch()
                    return batch
            wait_s = until_s - _clock.monotonic_s() if batch.count else math.inf
            with trio.move_on_after(max(0.0, wait_s)):
                await self._work.wait()

    def _encode(self, batch: OutgoingBatch) -> tuple[bytes, bytes]:
        lengths, records = encode_frames(batch.parts)
        head = pb.AppendBatch(
            sequence=batch.sequence,
            queue_id=self._queue_id,
            lengths=lengths,
            born_ms=batch.born_ms,
        )
        return append_request(head, records)

    async def _receive_acks(self, call: ClientCall) -> NoReturn:
        while (response := await call.receive()) is not None:
            for ack in pb.AppendResponse.FromString(response).acks:
                if not self._unacknowledged or ack.sequence != self._unacknowledged[0].sequence:
                    raise RpcError(StatusCode.INTERNAL, "the broker acknowledged out of order")
                batch = self._unacknowledged.popleft()
                self._retry_s = _RETRY_S
                batch.stored(self.topic, ack.queue_id, ack.first_queue_offset, ack.store_ms)
                self._settle(batch)
            self._set_deadline()
        raise RpcError(StatusCode.UNAVAILABLE, "the broker ended the stream")

    # Failing

    def _set_deadline(self) -> None:
        waiting = self._unacknowledged or self._sealed
        oldest_s = waiting[0].since_s if waiting else self._open.since_s
        left_s = oldest_s + self._options.delivery_timeout_s - _clock.monotonic_s()
        self._scope.deadline = trio.current_time() + left_s

    def _time_out(self) -> None:
        """Fail what waits for too long."""
        reason = f"no acknowledgement in {self._options.delivery_timeout_s:g} s"
        error = DeliveryUnknownError(f"{reason}: {self._link.failure}")
        self._fail(self._unacknowledged, error)
        due_s = _clock.monotonic_s() - self._options.delivery_timeout_s
        with self._lock:
            self._seal()
            expired = deque(batch for batch in self._sealed if batch.since_s <= due_s)
            for _ in expired:
                self._sealed.popleft()
        self._fail(expired, error)

    def _refuse_all(self, error: RpcError) -> None:
        with self._lock:
            self._seal()
        if self._unacknowledged:
            self._fail(self._unacknowledged, DeliveryUnknownError(error.message))
        self._fail(self._sealed, RefusedError.of(error))

    def _refuse_first(self, error: RpcError) -> None:
        """Fail the message that the broker names, or its whole batch; send the others again."""
        batch = self._unacknowledged.popleft()
        index = refused_record(error.message)
        if index is not None and batch.count > 1 and index < batch.count:
            self._unacknowledged.appendleft(batch)
            batch = batch.take_out(index)
        self._fail(deque([batch]), RefusedError.of(error))
        self._renumber()

    def _renumber(self) -> None:
        """Go on under a new producer id. What is unacknowledged is known not to be stored."""
        self._producer_id = secrets.token_bytes(16)
        self._resumes = False
        for sequence, batch in enumerate(self._unacknowledged):
            batch.sequence = sequence
        self._next_sequence = len(self._unacknowledged)

    def _fail(self, batches: deque[OutgoingBatch], error: ClientError) -> None:
        while batches:
            batch = batches.popleft()
            batch.failed(error)
            if len(batch.listeners) < batch.count:
                self._on_failure(error)
            self._settle(batch)

    def _settle(self, batch: OutgoingBatch) -> None:
        self.settled += batch.count
        self.progress.set()
        self.progress = trio.Event()
        with self._lock:
            self.buffered_bytes -= batch.size_bytes + batch.count * _MESSAGE_COST_BYTES
            self._room.notify_all()
