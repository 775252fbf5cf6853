"""Telemetry, Heartbeat and NotifyClientTermination. Telemetry refuses by ending its stream."""

from __future__ import annotations

from commitbus.broker.filters import sql_filter
from commitbus.broker.filters.filter_cache import SHORT_LENGTH_MAX
from commitbus.broker.messaging import telemetry
from commitbus.broker.rpc.call import StatusCode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.matrix.registry import MESSAGING, cell
from tests.broker.matrix.stage import NOT_SAVED, Stage

TELEMETRY = MESSAGING + "Telemetry"
HEARTBEAT = MESSAGING + "Heartbeat"
TERMINATION = MESSAGING + "NotifyClientTermination"


def subscription(group: str, expression: str = "*") -> list[pb.TelemetryCommand]:
    command = pb.TelemetryCommand()
    command.settings.client_type = pb.PUSH_CONSUMER
    command.settings.subscription.group.name = group
    entry = command.settings.subscription.subscriptions.add()
    entry.topic.name = "T"
    entry.expression.type, entry.expression.expression = pb.SQL, expression
    return [command]


@cell(TELEMETRY, pb.OK, changes=("clients",))
async def settings_merged(_stage: Stage) -> list[pb.TelemetryCommand]:
    """The request is granted."""
    return subscription("G", "a > 1")


@cell(TELEMETRY, StatusCode.INVALID_ARGUMENT, headers={"client_id": ""})
async def nameless(_stage: Stage) -> list[pb.TelemetryCommand]:
    """The header `x-mq-client-id` is missing, blank or too long."""
    return subscription("G", "a > 1")


@cell(TELEMETRY, StatusCode.INVALID_ARGUMENT)
async def settings_of_nobody(_stage: Stage) -> list[pb.TelemetryCommand]:
    """Settings name neither what is published nor what is subscribed to."""
    return [pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER))]


@cell(TELEMETRY, StatusCode.INVALID_ARGUMENT)
async def settings_with_illegal_group(_stage: Stage) -> list[pb.TelemetryCommand]:
    """The settings' group has an illegal name."""
    return subscription("no/group")


@cell(TELEMETRY, StatusCode.INVALID_ARGUMENT)
async def settings_with_illegal_topic(_stage: Stage) -> list[pb.TelemetryCommand]:
    """One of the settings' topics has an illegal name."""
    command = pb.TelemetryCommand()
    command.settings.publishing.topics.add(name="no/topic")
    return [command]


@cell(TELEMETRY, StatusCode.INVALID_ARGUMENT)
async def settings_with_many_topics(stage: Stage) -> list[pb.TelemetryCommand]:
    """The settings have more topics than any client has."""
    stage.patch.setattr(telemetry, "TOPICS_MAX", 0)
    return subscription("G", "a > 1")


@cell(TELEMETRY, StatusCode.INVALID_ARGUMENT)
async def settings_of_many_bytes(stage: Stage) -> list[pb.TelemetryCommand]:
    """The settings are larger than any client's."""
    stage.patch.setattr(telemetry, "SETTINGS_BYTES_MAX", 0)
    return subscription("G", "a > 1")


@cell(TELEMETRY, StatusCode.INVALID_ARGUMENT)
async def settings_with_bad_filter(_stage: Stage) -> list[pb.TelemetryCommand]:
    """One of the settings' filters cannot be understood."""
    return subscription("G", "a >")


@cell(TELEMETRY, StatusCode.INVALID_ARGUMENT)
async def settings_with_one_filter_too_many(stage: Stage) -> list[pb.TelemetryCommand]:
    """Consumers wait with too many long filters already."""
    stage.patch.setattr(sql_filter.cache, "length_max", -1)
    return subscription("G", f"only < 2{' ' * SHORT_LENGTH_MAX}")


@cell(TELEMETRY, StatusCode.INVALID_ARGUMENT)
async def settings_with_one_group_too_many(stage: Stage) -> list[pb.TelemetryCommand]:
    """The settings' group would have to be created, and clients have created too many."""
    stage.no_room()
    return subscription("New", "a > 1")


@cell(TELEMETRY, StatusCode.INTERNAL)
async def settings_not_saved(stage: Stage) -> list[pb.TelemetryCommand]:
    """The settings' group would have to be created, and that could not be saved."""
    stage.fails(stage.context.metadata, "add_group", NOT_SAVED)
    return subscription("New", "a > 1")


@cell(HEARTBEAT, pb.OK, changes=("clients",))
async def heartbeat(_stage: Stage) -> pb.HeartbeatRequest:
    """The request is granted."""
    return pb.HeartbeatRequest(client_type=pb.SIMPLE_CONSUMER, group=pb.Resource(name="G"))


@cell(TERMINATION, pb.OK, changes=("clients",))
async def goodbye(stage: Stage) -> pb.NotifyClientTerminationRequest:
    """The request is granted."""
    await stage.bus.unary("Heartbeat", await heartbeat(stage))
    return pb.NotifyClientTerminationRequest()


@cell(TERMINATION, pb.UNRECOGNIZED_CLIENT_TYPE)
async def goodbye_of_a_stranger(_stage: Stage) -> pb.NotifyClientTerminationRequest:
    """The client is not known, or has said goodbye before."""
    return pb.NotifyClientTerminationRequest()
