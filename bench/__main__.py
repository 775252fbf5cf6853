"""`python -m bench`: what this broker does on this machine, its store beside RocketMQ's."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack

from bench import store_process
from bench.broker import memory_idle, start_to_first_send, unary_send
from bench.bulk import bulk_awaited, bulk_streams
from bench.consuming import nack_to_redelivery, single_acks
from bench.filters import filters
from bench.front import front
from bench.handlers import handlers
from bench.large_state import large_state
from bench.measure import OURS, Benchmark, Row, clean_up_when_terminated, report, run_rounds
from bench.peers.jvm import PeerMissingError
from bench.peers.rocketmq_store import REMARK, RocketmqStore, ours_beside_pool
from bench.progress import commits
from bench.read import append_to_visible, look_up, recover_and_rebuild
from bench.store import append_batches, append_framed, append_one_by_one, sync_flush


def recovery() -> list[Row]:
    """The work of a recovery as CPU time, and whole starts by the clock."""
    return [*recover_and_rebuild(), *store_process.restart()]


BENCHMARKS: Mapping[str, Benchmark] = {
    "append": append_one_by_one,
    "batch": append_batches,
    "framed": append_framed,
    "pool": ours_beside_pool,
    "sync-flush": sync_flush,
    "recovery": recovery,
    "lookup": look_up,
    "visible": append_to_visible,
    "store-memory": store_process.memory_idle,
    "filters": filters,
    "handlers": handlers,
    "commits": commits,
    "front": front,
    "send": unary_send,
    "acks": single_acks,
    "nack": nack_to_redelivery,
    "bulk": bulk_streams,
    "bulk-awaited": bulk_awaited,
    "start": start_to_first_send,
    "memory": memory_idle,
    "large-state": large_state,
}
ONLY_BESIDE_ROCKETMQ = frozenset({"pool"})


def main() -> None:
    """Run the chosen benchmarks and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all when none")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is run (3)")
    parser.add_argument("--json", action="store_true", help="every value of every round, as JSON")
    parser.add_argument("--alone", action="store_true", help="without RocketMQ's store beside")
    arguments = parser.parse_args()
    clean_up_when_terminated()
    if unknown := sorted(set(arguments.names) - set(BENCHMARKS)):
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    names = arguments.names or list(BENCHMARKS)
    theirs: Mapping[str, Benchmark] = {}
    remarks = []
    with ExitStack() as stack:
        if not arguments.alone:
            try:
                theirs = stack.enter_context(RocketmqStore()).benchmarks()
                remarks.append(REMARK)
            except PeerMissingError as missing:
                remarks.append(f"RocketMQ's store was skipped: {missing}")
        contests = [contest(name, theirs) for name in names
                    if name in theirs or name not in ONLY_BESIDE_ROCKETMQ]  # fmt: skip
        print(report(run_rounds(contests, arguments.rounds), remarks, as_json=arguments.json))


def contest(name: str, theirs: Mapping[str, Benchmark]) -> dict[str, Benchmark]:
    """Return our benchmark of that name and, where there is one, RocketMQ's."""
    return {OURS: BENCHMARKS[name]} | ({"RocketMQ": theirs[name]} if name in theirs else {})


if __name__ == "__main__":
    main()
