"""The broker as a whole."""

from __future__ import annotations

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.messaging.route import MASTER_ID
from commitbus.broker.observe.queue_times import earliest_store_timestamp
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb


async def get_broker(context: AdminContext, _request: pb.GetBrokerRequest) -> pb.Broker:
    """Return the broker's name, rates and state."""
    rates = context.rates
    earliest_ms = await run_in_worker(earliest_store_timestamp, context.store)
    total, free = await run_in_worker(
        context.file_system.disk_usage, context.config.store_directory
    )
    return pb.Broker(
        cluster=context.config.cluster_name,
        name=context.config.broker_name,
        id=MASTER_ID,
        address=context.address,
        version=context.version,
        in_tps=rates.put_tps(),
        out_tps=rates.consume_tps(),
        in_total_yesterday=rates.yesterday.messages_in,
        out_total_yesterday=rates.yesterday.messages_out,
        in_total_today=rates.today.messages_in,
        out_total_today=rates.today.messages_out,
        earliest_message_ms=earliest_ms,
        disk_ratio=(total - free) / total if total else 0.0,
        boot_ms=context.boot_ms,
        commit_log_min_offset=context.store.min_physical_offset,
        commit_log_max_offset=context.store.end_offset,
        flush_behind_bytes=context.store.flush_behind_bytes,
        dispatch_behind_bytes=context.store.dispatch_behind_bytes,
    )


async def seal_segment(
    context: AdminContext, _request: pb.SealSegmentRequest
) -> pb.SealSegmentResponse:
    """End the log file that is written and answer when its manifest is there."""
    try:
        segment = await run_in_worker(context.store.seal_segment)
    except OSError as error:
        raise RpcError(StatusCode.UNAVAILABLE, f"the manifest is not written: {error}") from None
    response = pb.SealSegmentResponse()
    if segment is not None:
        response.segment.base_offset = segment.base_offset
        response.segment.end_offset = segment.end_offset
        response.segment.records_end = segment.records_end
        response.segment.record_count = segment.record_count
        response.segment.first_ms = segment.min_store_timestamp
        response.segment.last_ms = segment.max_store_timestamp
    return response
