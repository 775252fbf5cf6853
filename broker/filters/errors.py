"""What can be wrong with a filter expression."""

from __future__ import annotations


class FilterExpressionError(ValueError):
    """A consumer's expression cannot be understood, or is too long or too deep. Its text says why.

    Whose fault: the consumer's. The protocol's code for it is ILLEGAL_FILTER_EXPRESSION.
    """


class TooManyFiltersError(Exception):
    """The expressions that consumers wait with are too long together, as one by one they are not.

    Whose fault: nobody's alone. The protocol's code for it is TOO_MANY_REQUESTS.
    """
