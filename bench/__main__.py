"""`python -m bench`: what this broker does on this machine."""

from __future__ import annotations

import argparse

from bench.broker import memory_idle, start_to_first_send, unary_send
from bench.measure import Benchmark, report, run_rounds
from bench.read import append_to_visible, look_up, recover_and_rebuild
from bench.store import append_batches, append_one_by_one, sync_flush

BENCHMARKS: dict[str, Benchmark] = {
    "append": append_one_by_one,
    "batch": append_batches,
    "sync-flush": sync_flush,
    "recovery": recover_and_rebuild,
    "lookup": look_up,
    "visible": append_to_visible,
    "send": unary_send,
    "start": start_to_first_send,
    "memory": memory_idle,
}


def main() -> None:
    """Run the chosen benchmarks and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all when none")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is run (3)")
    parser.add_argument("--json", action="store_true", help="every value of every round, as JSON")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(BENCHMARKS)):
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    chosen = [BENCHMARKS[name] for name in arguments.names or BENCHMARKS]
    print(report(run_rounds(chosen, arguments.rounds), as_json=arguments.json))


if __name__ == "__main__":
    main()
