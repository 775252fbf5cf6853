"""What can be wrong with a filter expression."""

from __future__ import annotations


class FilterExpressionError(ValueError):
    """A consumer's expression cannot be understood, or is too long or too deep. Its text says why.

    Whose fault: the consumer's. The protocol's code for it is ILLEGAL_FILTER_EXPRESSION.
    """
