"""What an operator asks a consumer: by its telemetry stream, or what the broker knows of it."""

from __future__ import annotations

from collections.abc import Iterator

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.v2.messages import message_by_id
from commitbus.broker.admin.v2.names import known_group, known_topic, time_for_answer_s
from commitbus.broker.common.errors import ClientNotConnectedError
from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.messaging.clients import Client
from commitbus.broker.messaging.status import ok
from commitbus.broker.progress.progress_rows import Key
from commitbus.broker.progress.queue_progress import InFlight
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb


async def print_thread_stack_trace(
    context: AdminContext, request: pb.PrintThreadStackTraceRequest, call: Call
) -> pb.PrintThreadStackTraceResponse:
    """Return what a consumer's threads are doing, and the status that it answers with.

    Raises:
        RequestError: there is no such group or client, or it does not answer.
    """

    def question(nonce: str) -> pb.TelemetryCommand:
        command = pb.PrintThreadStackTraceCommand(nonce=nonce)
        return pb.TelemetryCommand(print_thread_stack_trace_command=command)

    client = _consumer(context, request.group, request.client_id)
    answer = await context.messaging.questions.ask(
        client, question, timeout_s=time_for_answer_s(call)
    )
    trace = answer.thread_stack_trace
    return pb.PrintThreadStackTraceResponse(
        status=_status(answer),
        thread_stack_trace=trace.thread_stack_trace
        if trace.HasField("thread_stack_trace")
        else None,
    )


async def verify_message(
    context: AdminContext, request: pb.VerifyMessageRequest, call: Call
) -> pb.VerifyMessageResponse:
    """Have one consumer consume a message, whatever its group's progress; return what it says.

    Raises:
        RequestError: there is no such group, client, topic or message, or it does not answer.
    """
    client = _consumer(context, request.group, request.client_id)
    topic = known_topic(context, request.topic)
    message = await run_in_worker(message_by_id, context.store, topic.name, request.message_id)

    def question(nonce: str) -> pb.TelemetryCommand:
        command = pb.VerifyMessageCommand(nonce=nonce, message=message)
        return pb.TelemetryCommand(verify_message_command=command)

    answer = await context.messaging.questions.ask(
        client, question, timeout_s=time_for_answer_s(call)
    )
    return pb.VerifyMessageResponse(status=_status(answer))


def _status(answer: pb.TelemetryCommand) -> pb.Status:
    return answer.status if answer.HasField("status") else ok()


def _consumer(context: AdminContext, group: pb.Resource, client_id: str) -> Client:
    name = known_group(context, group).name
    client = context.messaging.clients.get(client_id)
    if client is None or client.group != name:
        raise ClientNotConnectedError(client_id)
    return client


async def get_consumer_running_info(
    context: AdminContext, request: pb.GetConsumerRunningInfoRequest, _call: Call
) -> pb.GetConsumerRunningInfoResponse:
    """Return what the broker knows of a consumer: the protocol has no question for the rest.

    Raises:
        RequestError: there is no such group or client.
    """
    client = _consumer(context, request.group, request.client_id)
    info = pb.ConsumerRunningInfo(
        properties={
            "clientId": client.client_id,
            "clientType": pb.ClientType.Name(client.kind),
            "language": client.language,
            "version": client.version,
            "address": client.peer,
            "hostname": client.introduction.hostname,
        }
    )
    for topic, subscription in client.introduction.subscriptions.items():
        expression = info.subscriptions[topic]
        expression.type, expression.expression = subscription.kind, subscription.expression
    group, client_id = client.group, client.client_id
    queues = await run_in_worker(lambda: [*_queues(context, group, client_id)])
    info.message_queue_table.extend(queues)
    return pb.GetConsumerRunningInfoResponse(status=ok(), consumer_running_info=info)


def _queues(context: AdminContext, group: str, client_id: str) -> Iterator[pb.MessageQueueItem]:
    """Yield the queues of which a client holds messages.

    It looks at all that is in flight for the group, so it is not for the trio thread.
    """
    for topic in context.progress.topics_of(group):
        for queue_id, progress in context.progress.queues_of(group, topic):
            next_offset, entries = context.progress.snapshot(progress)
            held = [
                entry
                for entry in entries
                if entry.delivery_attempt and entry.client_id == client_id
            ]
            if held:
                committed_offset = entries[0].offset if entries else next_offset
                yield _queue((group, topic, queue_id), committed_offset, held)


def _queue(key: Key, committed_offset: int, held: list[InFlight]) -> pb.MessageQueueItem:
    """Return a queue of which the client holds messages."""
    item = pb.MessageQueueItem()
    _, item.message_queue.topic.name, item.message_queue.id = key
    queue = item.process_queue_info
    queue.commit_offset = committed_offset
    queue.cached_msg_min_offset, queue.cached_msg_max_offset = held[0].offset, held[-1].offset
    queue.cached_msg_count = len(held)
    queue.last_pull_timestamp = max(entry.pop_time_ms for entry in held)
    return item
