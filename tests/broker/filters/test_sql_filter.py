"""SQL filters: what they accept, what they refuse, and that nothing else ever happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.broker.filters.errors import FilterExpressionError
from commitbus.broker.filters.java_values import ConversionError
from commitbus.broker.filters.sql_filter import SQL_EXPRESSION_LENGTH_MAX, compile_sql
from commitbus.broker.filters.sql_terms import DEPTH_MAX
from commitbus.commitlog.record_format import encode_properties
from tests.broker.filters.expressions import (
    WORDS,
    evaluate,
    random_condition,
    random_properties,
    render,
)

ORDER = {"TAGS": "vip", "region": "eu", "amount": "250", "note": "it's late", "paid": "true"}


def accepts(text: str, properties: Mapping[str, str] = ORDER) -> bool:
    """Whether the expression is true for the properties, as they are and as they are stored."""
    sql = compile_sql(text)
    accepted = sql.accepts(properties)
    assert sql.accepts_encoded(encode_properties(properties)) == accepted
    return accepted


@pytest.mark.parametrize(
    "text",
    [
        "amount = 250",
        "amount = '250'",
        "amount <> 251",
        "amount > 249 AND amount < 251.5",
        "amount BETWEEN 250 AND 260",
        "amount NOT BETWEEN -5 AND 249",
        "-5 < amount",
        "paid = TRUE",
        "TAGS IN ('vip', 'other') AND region NOT IN ('us')",
        "note = 'it''s late'",
        "note CONTAINS '''s' AND note STARTSWITH 'it' AND note ENDSWITH 'late'",
        "note NOT CONTAINS 'x' AND note NOT STARTSWITH 'x' AND note NOT ENDSWITH 'x'",
        "missing IS NULL and region is not null",
        "FALSE OR TRUE AND TRUE",
        "amount /* any */ > -- thing\n 1",
    ],
)
def test_a_condition_that_is_true_accepts(text: str) -> None:
    """Each of the operators, beside a message it fits."""
    assert accepts(text)
    assert not accepts(f"NOT ({text})")


@pytest.mark.parametrize(
    "text",
    [
        "missing = 5",
        "missing <> 5",
        "missing > 5 OR missing <= 5",
        "NOT (missing = 5)",
        "missing IN ('x')",
        "missing NOT IN ('x')",
        "missing CONTAINS 'x'",
        "missing NOT CONTAINS 'x'",
        "NULL",
        "TRUE AND NULL",
    ],
)
def test_what_is_missing_fits_no_comparison(text: str) -> None:
    """Unknown is not true, and its opposite is not true either."""
    assert not accepts(text)


@pytest.mark.parametrize("text", ["region > 5", "region = 5", "amount = 250 AND region < 5"])
def test_a_text_that_is_no_number_fits_no_comparison_with_one(text: str) -> None:
    """RocketMQ's exception there means the message is filtered out, whatever stands around it."""
    assert not accepts(text)
    assert not accepts(f"NOT ({text})")
    assert not accepts(f"{text} OR TRUE")
    assert accepts(f"TRUE OR {text}")


def test_a_text_must_fit_the_type_of_the_number_it_is_compared_with() -> None:
    """32 bits beside a number of 32 bits, 64 beside a larger one; a fraction beside a fraction."""
    assert not accepts("amount > 5", {"amount": "3000000000"})
    assert accepts("amount > 2147483648", {"amount": "3000000000"})
    assert not accepts("amount > 2", {"amount": "2.5"})
    assert accepts("amount > 2.0", {"amount": "2.5"})


def test_a_test_for_an_empty_part_does_not_look_at_its_operand() -> None:
    """So a conversion that would fail in there does not."""
    assert accepts("(region > 5) CONTAINS '' OR TRUE")
    assert not accepts("(region > 5) CONTAINS 'x' OR TRUE")


def test_a_comment_at_the_end_needs_no_line_end() -> None:
    """RocketMQ, too, takes what comes before it; but two signs before a number are two signs."""
    assert accepts("amount > 1 -- a comment")
    assert accepts("-amount IS NULL AND amount = --250")


def test_and_binds_stronger_than_or_and_not_stronger_than_a_comparison() -> None:
    """`NOT a = b` negates a, as the original's grammar has it."""
    assert accepts("TRUE OR TRUE AND FALSE")
    assert not accepts("(TRUE OR TRUE) AND FALSE")
    assert not accepts("NOT amount = 5")
    assert accepts("NOT (amount = 5)")


def test_an_empty_property_is_a_missing_one() -> None:
    """RocketMQ's decoder drops it."""
    assert accepts("note IS NULL", {"note": ""})


def test_a_property_is_found_by_its_whole_name_only() -> None:
    """Neither part of another name nor a value is taken for it."""
    properties = {"xa": "1", "ax": "2", "b": "a", "c": "3"}
    assert accepts("a IS NULL AND xa = 1 AND ax = 2 AND b = 'a' AND c = 3", properties)


def test_of_equal_names_the_last_counts_and_no_separator_is_needed_at_the_end() -> None:
    """As in the log of a broker that was not ours; any bytes are read, bad UTF-8 as U+FFFD."""
    encoded = b"a\x011\x02a\x012\x02b\x01\xff"
    assert compile_sql("a = 2 AND b = '\ufffd'").accepts_encoded(memoryview(encoded))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("amount >", "too early"),
        ("amount = 5 )", "unexpected '\\)' at line 1, column 12"),
        ("amount > 5 garbage", "unexpected 'garbage'"),
        ("note LIKE 'x%'", "unexpected 'LIKE'"),
        ("amount != 5", "unexpected '!'"),
        ("amount == 5", "unexpected '='"),
        ("amount + 5 > 6", "unexpected '\\+'"),
        ("between = 5", "unexpected 'between'"),
        ("\u212aey = 5", "unexpected"),
        ("note = 'x", 'unexpected "\'"'),
        ("amount = 05", "unexpected '5'"),
        ("amount = 9223372036854775808", "largest integer"),
        ("amount = 0.0", "not between"),
        ("amount = 1e309", "not between"),
        ("amount = NULL", "IS NULL"),
        ("TRUE = 5", "TRUE and FALSE"),
        ("note > 'x'", "order"),
        ("paid >= TRUE", "order"),
        ("(amount > 5) > 3", "order"),
        ("amount BETWEEN 5 AND 3", "nothing is between"),
        ("5 IN ('5')", "property"),
        ("amount IN (5)", "unexpected '5'"),
        ("amount IN ()", "unexpected"),
        ("5", "condition"),
        ("'x' OR TRUE", "condition"),
        ("-amount", "condition"),
    ],
)
def test_what_is_no_condition_is_refused_with_the_reason(text: str, reason: str) -> None:
    """The same from the cache."""
    for _ in range(2):
        with pytest.raises(FilterExpressionError, match=reason):
            compile_sql(text)


def test_length_and_depth_have_limits() -> None:
    """Parentheses and long chains are no depth: nothing is called for them when it is evaluated."""
    half = (SQL_EXPRESSION_LENGTH_MAX - 1) // 2
    assert not accepts("(" * half + "a" + ")" * half)
    assert accepts(f"amount IN ({','.join(['250'.join(chr(39) * 2)] * 1300)})")
    assert accepts("paid = TRUE AND " * 500 + "TRUE")
    assert accepts("NOT " * (DEPTH_MAX - 2) + "FALSE") == (DEPTH_MAX % 2 == 1)
    for text in ("(" * 100_000, "NOT " * DEPTH_MAX + "a", "-" * 8000 + "5", "a = " * 2000 + "a"):
        with pytest.raises(FilterExpressionError, match=r"at most|deep"):
            compile_sql(text)


def test_who_uses_no_sql_does_not_load_the_parser() -> None:
    """It costs a tenth of a second and 15 MB."""
    check = (
        "import sys;"
        "import commitbus.broker.filters.sql_filter, commitbus.broker.filters.tag_filter;"
        "sys.exit('lark' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


@given(st.randoms(use_true_random=False), st.integers(0, 5))
def test_a_compiled_filter_says_what_the_tree_says(random: Random, depth: int) -> None:
    """Whatever the expression, the case of its words, its blanks, comments and parentheses."""
    tree, properties = random_condition(random, depth), random_properties(random)
    try:
        value = evaluate(("and", tree, ("truth", True)), properties)
    except ConversionError:
        value = None
    assert accepts(render(tree, random), properties) == (value is True)


@given(st.one_of(st.text(), st.lists(st.sampled_from(WORDS)).map(" ".join)))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    """Nothing else is raised, and whatever compiles can be evaluated."""
    try:
        sql = compile_sql(text)
    except FilterExpressionError:
        return
    assert isinstance(sql.accepts({"a": "5", "b": "x"}), bool)
    assert isinstance(sql.accepts_encoded(text.encode()), bool)


@pytest.mark.parametrize("text", ["a = '" + "x" * 8000, "'" + "x" * 8000 + "' 'y'", "9" * 8000])
def test_a_refusal_does_not_send_the_whole_text_back(text: str) -> None:
    """It travels in a header."""
    with pytest.raises(FilterExpressionError) as refusal:
        compile_sql(text)
    assert len(str(refusal.value)) < 200
