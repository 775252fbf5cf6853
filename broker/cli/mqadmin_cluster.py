"""mqadmin's commands about the cluster."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Final

from commitbus.broker.cli.common_options import seconds
from commitbus.broker.cli.mqadmin_command import Command
from commitbus.broker.cli.mqadmin_options import add_cluster, add_place, check_cluster
from commitbus.broker.cli.output import Answer, Table, local_time, print_answer

if TYPE_CHECKING:
    from commitbus.broker.cli.admin_client import AdminClient
    from commitbus.broker.rpc.proto import admin_v1_pb2 as pb

_RATES: Final = {
    "#Cluster Name": "cluster",
    "#Broker Name": "broker_name",
    "#BID": "broker_id",
    "#Addr": "address",
    "#Version": "version",
    "#InTPS(LOAD)": "in_load",
    "#OutTPS(LOAD)": "out_load",
    "#Timer(Progress)": "timer",
    "#PCWait(ms)": "page_cache_wait_ms",
    "#Hour": "hour",
    "#SPACE": "space",
    "#ACTIVATED": "activated",
}
_SEGMENT: Final = {
    "#Base Offset": "base_offset",
    "#End Offset": "end_offset",
    "#Messages": "messages",
    "#First": "first",
    "#Last": "last",
}
_TOTALS: Final = {
    "#Cluster Name": "cluster",
    "#Broker Name": "broker_name",
    "#InTotalYest": "in_total_yesterday",
    "#OutTotalYest": "out_total_yesterday",
    "#InTotalToday": "in_total_today",
    "#OutTotalToday": "out_total_today",
}


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser)
    parser.add_argument(
        "-m", "--moreStats", action="store_true", help="totals of today and yesterday"
    )
    parser.add_argument(
        "-i", "--interval", type=seconds, metavar="SECONDS", help="print again and again"
    )


def _list(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    columns = _TOTALS if options.moreStats else _RATES
    while True:
        rows = [_row(client.broker())]
        answer = Answer(rows, [Table(columns, rows)])
        if options.interval is None:
            return answer
        print_answer(answer, as_json=options.json)
        time.sleep(options.interval)


def _row(broker: pb.Broker) -> dict[str, object]:
    earliest_ms = broker.earliest_message_ms
    hours = (time.time_ns() / 1e6 - earliest_ms) / 3_600_000 if earliest_ms >= 0 else 0.0
    return {
        "cluster": broker.cluster,
        "broker_name": broker.name,
        "broker_id": broker.id,
        "address": broker.address,
        "version": broker.version,
        "in_tps": broker.in_tps,
        "out_tps": broker.out_tps,
        # Behind the rate RocketMQ shows its thread pools' queues, which we do not have.
        "in_load": f"{broker.in_tps:.2f}(0,0ms)",
        "out_load": f"{broker.out_tps:.2f}(0,0ms|0,0ms)",
        "timer": "0-0(0.0w, 0.0, 0.0)",
        "page_cache_wait_ms": 0,
        "hour": round(hours, 2),
        "space": f"{broker.disk_ratio:.4f}",
        # One whose disk failed stops at once: who answers is active.
        "activated": True,
        "in_total_yesterday": broker.in_total_yesterday,
        "out_total_yesterday": broker.out_total_yesterday,
        "in_total_today": broker.in_total_today,
        "out_total_today": broker.out_total_today,
        "boot_ms": broker.boot_ms,
    }


def _status(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    values = _figures(client.broker())
    return Answer(values, [f"{name:<32}: {value}" for name, value in values.items()])


def _figures(broker: pb.Broker) -> dict[str, object]:
    """Return what RocketMQ's brokers say as well, under its names, sorted."""
    values: dict[str, object] = {
        "bootTimestamp": broker.boot_ms,
        "brokerVersionDesc": broker.version,
        "commitLogDiskRatio": round(broker.disk_ratio, 4),
        "commitLogMaxOffset": broker.commit_log_max_offset,
        "commitLogMinOffset": broker.commit_log_min_offset,
        "dispatchBehindBytes": broker.dispatch_behind_bytes,
        "earliestMessageTimeStamp": broker.earliest_message_ms,
        "flushBehindBytes": broker.flush_behind_bytes,
        "getTransferredTps": round(broker.out_tps, 2),
        "msgGetTotalTodayNow": broker.out_total_today,
        "msgGetTotalYesterday": broker.out_total_yesterday,
        "msgPutTotalTodayNow": broker.in_total_today,
        "msgPutTotalYesterday": broker.in_total_yesterday,
        "putTps": round(broker.in_tps, 2),
    }
    return dict(sorted(values.items()))


def _seal(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    response = client.seal_segment()
    if not response.HasField("segment"):
        return Answer([], ["the log file that is written holds no message; nothing was sealed"])
    segment = response.segment
    row = {
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
        "records_end": segment.records_end,
        "messages": segment.record_count,
        "first_ms": segment.first_ms,
        "last_ms": segment.last_ms,
        "first": local_time(segment.first_ms),
        "last": local_time(segment.last_ms),
    }
    return Answer([row], [Table(_SEGMENT, [row])])


COMMANDS: Final = (
    Command("clusterList", _list_arguments, _list),
    Command("brokerStatus", add_place, _status),
    Command("sealSegment", add_place, _seal),
)
