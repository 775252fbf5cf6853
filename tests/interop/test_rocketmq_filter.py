"""RocketMQ's own filter says the same of every expression and every message.

The one difference is on purpose: its parser stops where the grammar has come to an end and ignores
the rest of the text (`a = 5 garbage`), ours refuses that.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

import pytest

from commitbus.broker.filters.errors import FilterExpressionError
from commitbus.broker.filters.sql_filter import compile_sql
from commitbus.commitlog.record_format import encode_properties
from tests.broker.filters.expressions import (
    NAMES,
    NUMBERS,
    WORDS,
    quote,
    random_condition,
    random_properties,
    render,
)
from tests.interop.filter_cases import COMPARISONS, EXPRESSIONS, MESSAGES, TEXTS
from tests.interop.java_program import build_java, run_tool

PROJECT: Final = Path(__file__).with_name("rocketmq_filter")
SEED: Final = 20261121
RANDOM_CASES: Final = 10_000

pytestmark = pytest.mark.slow

Case: TypeAlias = tuple[str, Mapping[str, str]]


def ours(case: Case) -> str:
    """Return `refused`, `true`, or `false` for all that is not true."""
    text, properties = case
    try:
        sql = compile_sql(text)
    except FilterExpressionError:
        return "refused"
    return str(sql.accepts_encoded(encode_properties(properties))).lower()


def expected(theirs: str) -> str:
    """Return what ours has to say where RocketMQ's program said `theirs`."""
    extent, _, value = theirs.partition(" ")
    if extent != "whole":
        return "refused"
    return "true" if value == "true" else "false"


@pytest.fixture(scope="module")
def original() -> list[str]:
    """The command that starts RocketMQ's side."""
    return build_java(PROJECT, "FilterProgram")


def compare(original: list[str], cases: Iterable[Case]) -> list[str]:
    """Ask both sides about every case; return RocketMQ's answers when ours are the same."""
    asked = list(cases)
    lines = "".join(
        f"{b64encode(text.encode()).decode()} {b64encode(encode_properties(properties)).decode()}\n"
        for text, properties in asked
    )
    answers = run_tool(*original, text=lines).splitlines()
    assert len(answers) == len(asked)
    different = [
        (case, theirs, said)
        for case, theirs in zip(asked, answers, strict=True)
        if (said := ours(case)) != expected(theirs)
    ]
    assert different == []
    return answers


def test_every_text_converts_alike(original: list[str]) -> None:
    """Each comparison with each text as a property, and with each as a literal."""
    as_properties = ((text, {"a": a, "b": "5.5"}) for text, a in product(COMPARISONS, TEXTS))
    as_literals: Iterator[Case] = (
        (f"{quote(text)} {sign} {number}", {})
        for text, sign, number in product(TEXTS, ("=", "<>"), NUMBERS)
    )
    answers = compare(original, (*as_properties, *as_literals))
    assert {"whole true", "whole false", "whole thrown"} <= set(answers)


def test_every_production_means_the_same(original: list[str]) -> None:
    """And what one refuses the other refuses."""
    answers = compare(original, product(EXPRESSIONS, MESSAGES))
    assert {"refused", "beginning false", "whole null"} <= set(answers)


def test_random_conditions_mean_the_same(original: list[str]) -> None:
    """Whole expressions with blanks, comments and parentheses anywhere."""
    random = Random(SEED)  # noqa: S311 - a fixed choice of cases, no secret

    def cases() -> Iterator[Case]:
        for _ in range(RANDOM_CASES):
            tree = random_condition(random, random.randint(0, 5))
            yield render(tree, random), random_properties(random)

    answers = compare(original, cases())
    assert not any(answer.startswith(("refused", "beginning")) for answer in answers)
    assert min(answers.count(f"whole {value}") for value in ("true", "false", "null")) > 200


def test_random_words_are_refused_alike(original: list[str]) -> None:
    """Most make no sense, and both sides agree which."""
    random = Random(SEED)  # noqa: S311 - a fixed choice of cases, no secret

    def cases() -> Iterator[Case]:
        for _ in range(RANDOM_CASES):
            words = random.choices([*WORDS, *NAMES], k=random.randint(1, 8))
            yield random.choice([" ", ""]).join(words), random_properties(random)

    answers = compare(original, cases())
    assert min(answers.count("refused"), sum(a.startswith("whole") for a in answers)) > 100
