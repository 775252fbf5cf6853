"""Seed after seed, until the time is over or one fails.

python -m tests.simulation.long --minutes 60          from a random seed on
python -m tests.simulation.long --seed 17             one seed, with the store's log
python -m tests.simulation.long --theme retention     likewise with one theme, or several
python -m tests.simulation.long --planted             how soon each planted bug is found
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
from collections.abc import Callable
from itertools import product

import pytest

from commitbus.flush.policy import FlushMode
from tests.simulation.bugs import all_bugs, find
from tests.simulation.images import HISTORIES, crash_everywhere
from tests.simulation.scheduler import SimulationError
from tests.simulation.themes import Theme
from tests.simulation.workload import simulate

_SEEDS_PER_IMAGE_SEED = 200


def main() -> int:
    """Run what the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.long")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument(
        "--first", type=int, default=None, help="the first seed; random if not given"
    )
    parser.add_argument("--seed", type=int, default=None, help="run this one only")
    parser.add_argument("--planted", action="store_true", help="plant each bug, and find it")
    names = [theme.name.lower().replace("_", "-") for theme in Theme]
    parser.add_argument("--theme", action="append", choices=names, help="instead of drawn ones")
    arguments = parser.parse_args()
    if arguments.planted:
        return _find_planted()
    themes = None
    if arguments.theme:
        themes = frozenset(Theme[name.upper().replace("-", "_")] for name in arguments.theme)
    if arguments.seed is not None:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        return _run(lambda: _say(simulate(arguments.seed, themes)))
    # The store's warnings about simulated disks are of no interest as long as no seed fails.
    logging.disable(logging.CRITICAL)
    first = secrets.randbelow(1 << 40) if arguments.first is None else arguments.first
    return _run(lambda: _run_long(first, arguments.minutes * 60, themes))


def _say(text: object) -> None:
    print(text, flush=True)  # noqa: T201 - a command, whose output this is


def _run(function: Callable[[], None]) -> int:
    try:
        function()
    except SimulationError as error:
        _say(error)
        return 1
    return 0


def _run_long(first: int, seconds: float, themes: frozenset[Theme] | None) -> None:
    began_s = said_s = time.monotonic()
    seed, messages, points = first, 0, 0
    while (now_s := time.monotonic()) - began_s < seconds:
        outcome = simulate(seed, themes)
        messages, points = messages + outcome.messages, points + outcome.points
        if (seed - first) % _SEEDS_PER_IMAGE_SEED == 0:
            for history, mode in product(HISTORIES, FlushMode):
                # All of them take half a minute.
                if time.monotonic() - began_s < seconds:
                    crash_everywhere(history, mode, seed=seed, per_moment_max=64, in_all_max=20)
        seed += 1
        if now_s - said_s > 10:
            said_s = now_s
            rate = (seed - first) / (now_s - began_s)
            _say(f"seeds {first} to {seed - 1}: {rate:.1f}/s, {messages} messages")
    _say(
        f"no failure: {seed - first} seeds from {first} on, {messages} messages, {points} points, "
        f"{time.monotonic() - began_s:.0f} s"
    )


def _find_planted() -> int:
    logging.disable(logging.CRITICAL)
    missed = 0
    for bug in all_bugs():
        began_s = time.process_time()
        with pytest.MonkeyPatch.context() as patch:
            seed = find(bug, patch)
        seconds = time.process_time() - began_s
        missed += seed is None
        _say(f"| {bug.name} | {bug.mistake} | {seed} | {seconds:.2f} s |")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
