"""One attack, in a process of its own: `python -m tests.attacks.attacker NAME ...`.

It prints a line once it is ready, and begins when it is told for how many seconds: that a dozen
interpreters start is not what is measured. Its last line is the JSON of how its calls ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from typing import Final

from tests.attacks import memory_attacks, stream_attacks, table_attacks, work_attacks
from tests.attacks.target import Attack, Target

ATTACKS: Final[dict[str, Attack]] = {
    attack.name: attack
    for module in (memory_attacks, stream_attacks, work_attacks, table_attacks)
    for attack in module.ATTACKS
}
_NICE: Final = 15
"""What the attacks themselves compute must not slow down what they attack."""


def run(attack: Attack, target: Target) -> None:
    """Do it until the time is over."""
    while target.left_s() > 0:
        try:
            attack.round(target)
        except TimeoutError:
            target.outcomes["timeout"] += 1
        except OSError:
            target.outcomes["closed"] += 1
        target.pause(attack.pause_s)


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.attacker")
    add = parser.add_argument
    add("name", choices=list(ATTACKS))
    add("--port", type=int, required=True)
    add("--metrics-port", type=int, required=True)
    add("--seed", type=int, required=True)
    options = parser.parse_args()
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.nice(_NICE)
    print("ready", flush=True)  # noqa: T201 - what the one who started it waits for
    seconds = float(sys.stdin.readline() or 0)
    target = Target(
        port=options.port,
        metrics_port=options.metrics_port,
        source=f"127.0.1.{2 + list(ATTACKS).index(options.name)}",
        until_s=time.monotonic() + seconds,
        random=random.Random(f"{options.seed} {options.name}"),  # noqa: S311 - repeatable
    )
    run(ATTACKS[options.name], target)
    print(json.dumps(target.outcomes))  # noqa: T201 - what the one who started it reads
    return 0


if __name__ == "__main__":
    sys.exit(main())
