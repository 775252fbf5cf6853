"""Parses SQL expressions: the grammar, and which term each of its rules makes.

The language is that of RocketMQ's `filter/src/main/java/.../parser/SelectorParser.jj`: keywords in
any case, names of ASCII letters, no arithmetic, no LIKE. Its loops are left recursions here, which
an LALR parser takes with a stack of its own and in linear time, however deep the parentheses are.
Comments are gone when it gets a text.

Importing this module imports lark and builds its tables (0.1 s, 15 MB): `sql_filter` waits for the
first expression.
"""

from __future__ import annotations

import re
from typing import Final, cast

from lark import (
    Lark,
    Token,
    Transformer,
    UnexpectedCharacters,
    UnexpectedInput,
    UnexpectedToken,
    v_args,
)

from commitbus.broker.filters import sql_terms
from commitbus.broker.filters.errors import FilterExpressionError
from commitbus.broker.filters.sql_terms import Term, shorten

GRAMMAR: Final = r"""
?disjunction: conjunction ("OR"i conjunction)*
?conjunction: equality ("AND"i equality)*

?equality: comparison
    | equality "=" comparison                               -> equal
    | equality "<>" comparison                              -> not_equal
    | equality "IS"i "NULL"i                                -> is_null
    | equality "IS"i "NOT"i "NULL"i                         -> is_not_null

?comparison: unary
    | comparison ">" unary                                  -> greater
    | comparison ">=" unary                                 -> greater_or_equal
    | comparison "<" unary                                  -> less
    | comparison "<=" unary                                 -> less_or_equal
    | comparison "BETWEEN"i unary "AND"i unary              -> between
    | comparison "NOT"i "BETWEEN"i unary "AND"i unary       -> not_between
    | comparison "CONTAINS"i STRING                         -> contains
    | comparison "NOT"i "CONTAINS"i STRING                  -> not_contains
    | comparison "STARTSWITH"i STRING                       -> starts_with
    | comparison "NOT"i "STARTSWITH"i STRING                -> not_starts_with
    | comparison "ENDSWITH"i STRING                         -> ends_with
    | comparison "NOT"i "ENDSWITH"i STRING                  -> not_ends_with
    | comparison "IN"i "(" STRING ("," STRING)* ")"         -> member
    | comparison "NOT"i "IN"i "(" STRING ("," STRING)* ")"  -> not_member

?unary: primary
    | "+" unary
    | "-" unary                                             -> negative
    | "NOT"i unary                                          -> negation

?primary: NAME                                              -> property_
    | STRING                                                -> string
    | INTEGER                                               -> integer
    | DOUBLE                                                -> double
    | "TRUE"i                                               -> true
    | "FALSE"i                                              -> false
    | "NULL"i                                               -> null
    | "(" disjunction ")"

NAME: /[a-z_$][a-z0-9_$]*/i
STRING: /'(?:''|[^'])*'/
DOUBLE.1: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
INTEGER: /0|[1-9][0-9]*l?/i

%ignore /[ \t\n\r\f]+/
"""


@v_args(inline=True)
class _TermBuilder(Transformer[Token, Term]):
    """Makes terms from the bottom up while the parser reduces, so there is no tree to walk."""

    disjunction = staticmethod(sql_terms.disjunction)
    conjunction = staticmethod(sql_terms.conjunction)
    negation = staticmethod(sql_terms.negation)
    equal = staticmethod(sql_terms.equal)
    not_equal = staticmethod(sql_terms.not_equal)
    is_null = staticmethod(sql_terms.is_null)
    is_not_null = staticmethod(sql_terms.is_not_null)
    greater = staticmethod(sql_terms.greater)
    greater_or_equal = staticmethod(sql_terms.greater_or_equal)
    less = staticmethod(sql_terms.less)
    less_or_equal = staticmethod(sql_terms.less_or_equal)
    between = staticmethod(sql_terms.between)
    not_between = staticmethod(sql_terms.not_between)
    contains = staticmethod(sql_terms.contains)
    not_contains = staticmethod(sql_terms.not_contains)
    starts_with = staticmethod(sql_terms.starts_with)
    not_starts_with = staticmethod(sql_terms.not_starts_with)
    ends_with = staticmethod(sql_terms.ends_with)
    not_ends_with = staticmethod(sql_terms.not_ends_with)
    member = staticmethod(sql_terms.member)
    not_member = staticmethod(sql_terms.not_member)
    negative = staticmethod(sql_terms.negative)
    property_ = staticmethod(sql_terms.property_)
    string = staticmethod(sql_terms.string)
    integer = staticmethod(sql_terms.integer)
    double = staticmethod(sql_terms.double)

    def true(self) -> Term:
        return sql_terms.TRUE

    def false(self) -> Term:
        return sql_terms.FALSE

    def null(self) -> Term:
        return sql_terms.NULL


def _unquote(token: Token) -> Token:
    return token.update(value=token[1:-1].replace("''", "'"))


_parser: Final = Lark(
    GRAMMAR,
    start="disjunction",
    parser="lalr",
    lexer="basic",  # a keyword is one everywhere, also where the grammar would take a name
    transformer=_TermBuilder(),
    lexer_callbacks={"STRING": _unquote},
    g_regex_flags=re.ASCII,  # or the Kelvin sign would be a K
    maybe_placeholders=False,
)


def parse(text: str) -> Term:
    """Return the condition that `text` says. Linear in its length.

    Args:
        text: Without comments and of bounded size, as `sql_scan` returns it.

    Raises:
        FilterExpressionError: RocketMQ refuses it too; or RocketMQ would silently ignore what comes
            after a condition; or it is too deep.
    """
    try:
        return sql_terms.as_predicate(cast("Term", _parser.parse(text)))
    except UnexpectedInput as error:
        raise FilterExpressionError(_explain(error)) from None


def _explain(error: UnexpectedInput) -> str:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return "the expression ends too early"
    place = f"at line {error.line}, column {error.column}"
    if isinstance(error, UnexpectedToken):
        return f"unexpected {shorten(repr(str(error.token)))} {place}"
    if isinstance(error, UnexpectedCharacters):
        return f"unexpected {error.char!r} {place}"
    return f"unexpected text {place}"
