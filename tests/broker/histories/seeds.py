"""A seed made a history, on virtual time, the same each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import trio
import trio.testing

from tests.broker.histories.history import History
from tests.broker.histories.oracle import OracleError
from tests.broker.histories.outcome import Outcome

STEPS_SHOWN: Final = 30


def consume(seed: int, directory: Path, *, steps: int = 150, says_all: bool = False) -> Outcome:
    """Make the history of a seed.

    Raises:
        OracleError: the broker broke a promise; with the seed and the last steps.
    """
    clock = trio.testing.MockClock()
    history = History(seed, directory, clock)
    schedule_by(seed)
    try:
        trio.run(history.run, steps, clock=clock)
    except BaseException as error:
        shown = history.said if says_all else history.said[-STEPS_SHOWN:]
        text = "\n".join([*shown, f"python -m tests.broker.histories --seed {seed}"])
        causes = _leaves(error)
        if len(causes) == 1 and isinstance(causes[0], OracleError):
            raise OracleError(f"{causes[0]}\n{text}") from causes[0]
        error.add_note(text)
        raise
    return history.outcome


def schedule_by(seed: int) -> None:
    """Make trio's choice of who runs first, which is random, the same each time."""
    # As hypothesis does it: there is no other way.
    trio_run: Any = trio._core._run
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio_run._r.seed(seed)


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
