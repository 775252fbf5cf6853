"""The broker's process."""

from __future__ import annotations

import logging
from typing import Final

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.messaging.status import ok
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

_LEVELS: Final = {
    # Python has nothing below DEBUG.
    pb.ChangeLogLevelRequest.TRACE: logging.DEBUG,
    pb.ChangeLogLevelRequest.DEBUG: logging.DEBUG,
    pb.ChangeLogLevelRequest.INFO: logging.INFO,
    pb.ChangeLogLevelRequest.WARN: logging.WARNING,
    pb.ChangeLogLevelRequest.ERROR: logging.ERROR,
}
_LOGGER: Final = "commitbus"

_log: Final = logging.getLogger(__name__)


def get_proxy_runtime_stats(
    context: AdminContext, _request: pb.GetProxyRuntimeStatsRequest, _call: Call
) -> pb.GetProxyRuntimeStatsResponse:
    """Return the rates of the last minute, and how many clients there are."""
    clients = context.messaging.clients.all()
    consumers = sum(bool(client.group) for client in clients)
    return pb.GetProxyRuntimeStatsResponse(
        status=ok(),
        proxy_name=context.config.broker_name,
        version=context.version,
        in_tps=context.rates.put_tps(),
        out_tps=context.rates.consume_tps(),
        connections=len(clients),
        producers=sum(client.kind == pb.PRODUCER for client in clients),
        consumers=consumers,
    )


def change_log_level(
    _context: AdminContext, request: pb.ChangeLogLevelRequest, _call: Call
) -> pb.ChangeLogLevelResponse:
    """Log more or less from now on, until the process ends.

    The response has no status: what was done is the remark.
    """
    level = _LEVELS.get(request.level)
    if level is None:
        return pb.ChangeLogLevelResponse(remark=f"there is no level {request.level}")
    name = logging.getLevelName(level)
    _log.warning("log level changed", extra={"level": name})
    logging.getLogger(_LOGGER).setLevel(level)
    return pb.ChangeLogLevelResponse(remark=f"the log level is {name} now")
