"""`python -m bench.compare`: this broker beside the original and what else Python users pick.

Each round runs every contender through the same; what is not on this machine is skipped and said.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from bench.measure import OURS, Contest, clean_up_when_terminated, report, run_rounds
from bench.own_client import CommitbusFromPython, bulk
from bench.peers.jvm import PeerMissingError
from bench.peers.kafka import Kafka
from bench.peers.redis import Redis
from bench.peers.rocketmq import Rocketmq
from bench.python_side import Peer, from_python
from bench.wire import Commitbus, Contender, asynchronous, synchronous

PARTS: Final = ("async", "sync", "bulk", "python")
P = TypeVar("P", Rocketmq, Kafka, Redis)


def main() -> None:
    """Run the chosen parts and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all when none")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is run (3)")
    parser.add_argument("--transport", help="of commitbus serve; its default when not given")
    parser.add_argument("--json", action="store_true", help="every value of every round, as JSON")
    parser.add_argument("--output", type=Path, help="write that JSON to a file as well")
    arguments = parser.parse_args()
    clean_up_when_terminated()
    if unknown := sorted(set(arguments.parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}")
    if shutil.which("go") is None:
        parser.error("Go is needed for the load generator: grpcio costs as much as a server")
    remarks = [f"commitbus serve, transport: {arguments.transport or 'its default'}."]
    contests = all_contests(arguments.parts or PARTS, arguments.transport, remarks)
    figures = run_rounds(contests, arguments.rounds)
    if arguments.output:
        arguments.output.write_text(report(figures, remarks, as_json=True) + "\n")
    print(report(figures, remarks, as_json=arguments.json))


def all_contests(parts: Sequence[str], transport: str | None, remarks: list[str]) -> list[Contest]:
    """Return what is to be run, in the order of `PARTS`; add to the remarks how, and what is not.

    Args:
        parts: Some of `PARTS`.
        transport: Of our broker.
        remarks: Gets a line for each peer.
    """
    contests: list[Contest] = []
    if {"async", "sync", "bulk"} & set(parts):
        rocketmq = found(Rocketmq, remarks)
        contenders: list[Contender] = [Commitbus(transport), *([rocketmq] if rocketmq else [])]
        for part, benchmark in (("async", asynchronous), ("sync", synchronous)):
            if part in parts:
                contests.append({one.name: partial(benchmark, one) for one in contenders})
        if "bulk" in parts:
            theirs: Contest = {rocketmq.name: rocketmq.bulk} if rocketmq else {}
            contests.append({OURS: bulk, **theirs})
    if "python" in parts:
        kafka, redis = found(Kafka, remarks), found(Redis, remarks)
        peers: list[Peer] = [CommitbusFromPython()]
        peers += [peer for peer in (kafka, redis) if peer is not None]
        contests.append({peer.name: partial(from_python, peer) for peer in peers})
        remarks.append(CommitbusFromPython.remark)
    return contests


def found(kind: type[P], remarks: list[str]) -> P | None:
    """Return a peer, or None if something for it is missing; the remarks say how it is, or why."""
    try:
        peer = kind()
    except PeerMissingError as missing:
        remarks.append(f"{kind.name} was skipped: {missing}")
        return None
    remarks.append(peer.remark)
    return peer


if __name__ == "__main__":
    main()
