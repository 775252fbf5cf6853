"""Random histories of consuming, seed after seed, until the time is over or one fails.

python -m tests.broker.histories --minutes 30       from a random seed on
python -m tests.broker.histories --seed 17          one seed, with all its steps
python -m tests.broker.histories --planted          how soon each planted bug is found
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.broker.histories.oracle import OracleError
from tests.broker.histories.outcome import Outcome
from tests.broker.histories.planted import BUGS, find
from tests.broker.histories.seeds import consume

SAID_EVERY_S = 30.0


def main() -> int:
    """Run what the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.broker.histories")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--first", type=int, help="the first seed; random if not given")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--planted", action="store_true", help="plant each bug, and find it")
    arguments = parser.parse_args()
    # What the broker logs of kills is of no interest, and a failure says its steps.
    logging.disable(logging.CRITICAL)
    if arguments.planted:
        return _find_planted()
    try:
        if arguments.seed is not None:
            _say(_consume(arguments.seed, says_all=True))
        else:
            first = secrets.randbelow(1 << 40) if arguments.first is None else arguments.first
            _run_long(first, arguments.minutes * 60)
    except OracleError as error:
        _say(error)
        return 1
    return 0


def _say(text: object) -> None:
    print(text, flush=True)  # noqa: T201 - a command, whose output this is


def _consume(seed: int, *, says_all: bool = False) -> Outcome:
    with TemporaryDirectory(prefix="commitbus-consuming-") as directory:
        return consume(seed, Path(directory), says_all=says_all)


def _run_long(first: int, seconds: float) -> None:
    began_s = said_s = time.monotonic()
    seed, total = first, Outcome()
    while (now_s := time.monotonic()) - began_s < seconds:
        total.add(_consume(seed))
        seed += 1
        if now_s - said_s > SAID_EVERY_S:
            said_s = now_s
            _say(f"seeds {first} to {seed - 1}: {total}")
    took_s = time.monotonic() - began_s
    _say(f"no failure: {seed - first:,} seeds from {first} on in {took_s:.0f} s: {total}")


def _find_planted() -> int:
    missed = 0
    for bug in BUGS:
        began_s = time.process_time()
        with pytest.MonkeyPatch.context() as patch:
            seed = find(bug, patch)
        missed += seed is None
        _say(f"| {bug.name} | {bug.mistake} | {seed} | {time.process_time() - began_s:.1f} s |")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
