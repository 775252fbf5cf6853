"""A cheap look at an SQL expression before it is parsed: bounds its parts, and drops its comments.

Every character is looked at a bounded number of times, so the time is linear in the text's length.
What the scan cannot read it leaves to the parser, which says why it is wrong.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, final

from commitbus.broker.filters.errors import FilterExpressionError

PARTS_MAX: Final = 4096
"""Words, values and signs of one expression. Each takes the parser 10 us."""

_PART: Final = re.compile(
    r"""
      (?P<blank>[ \t\n\r\f]+)
    | (?P<line_comment>--)
    | (?P<comment>/\*)
    | (?P<word>[a-z_$][a-z0-9_$]*)
    | (?P<value>'(?:[^']++|'')*+'|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:e[+-]?[0-9]++)?)
    | (?P<open>\()
    | (?P<close>\))
    | (?P<sign>[-+=,]|<[=>]?|>=?)
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_LINE_END: Final = re.compile(r"[\n\r]")
_NOT_LINE_END: Final = re.compile(r"[^\n\r]")
_VALUES: Final = frozenset({"TRUE", "FALSE", "NULL"})
_KEYWORDS: Final = frozenset(
    {"OR", "AND", "NOT", "IS", "IN", "BETWEEN", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)


@final
class Scanned(NamedTuple):
    """An expression that is not too large."""

    text: str
    """The same without comments and needless parentheses: blanks are in their places, so that
    every part has the line and column that it had."""
    names: frozenset[str]
    """Of the properties in it."""


@final
class _Open(NamedTuple):
    """An opening parenthesis."""

    place: int
    is_list: bool
    """Whether it begins the strings of IN."""
    inside: int | None
    """Place of the one directly before it, if there is any."""


def scan(text: str) -> Scanned:
    """Return the expression as the parser takes it.

    Raises:
        FilterExpressionError: It has too many parts.
    """
    scanner = _Scanner(text)
    scanner.run()
    if scanner.count > PARTS_MAX:
        raise FilterExpressionError(
            f"{scanner.count} words, values and signs, at most {PARTS_MAX} are allowed"
        )
    return Scanned("".join(scanner.characters), frozenset(scanner.names))


@final
class _Scanner:
    """One pass over a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.characters = list(text)
        self.names = set[str]()
        self.count = 0
        self._previous = ""
        """Kind of the part before: `value` where an operand has ended, and no sign can follow."""
        self._opens: list[_Open] = []
        self._closed: _Open | None = None
        """The parenthesis that the part before has closed."""
        self._closed_at = 0
        # Only up to there `--` always begins a comment.
        self._last_line = max(text.rfind("\n"), text.rfind("\r")) + 1
        self._has_signs_in_last_line = False

    def run(self) -> None:
        """Look at each part, up to the first that none can be."""
        place, end = 0, len(self._text)
        while place < end and (match := _PART.match(self._text, place)) is not None:
            kind = match.lastgroup
            assert kind is not None, "every alternative has a name"
            if kind == "blank":
                place = match.end()
            elif kind == "comment":
                place = self._end_of_comment(place)
            elif kind == "line_comment" and self._begins_comment(place):
                place = self._end_of_line(place)
            else:
                place = self._take(kind, match)

    def _end_of_comment(self, start: int) -> int:
        end = self._text.find("*/", start + 2)
        if end < 0:
            return len(self._text)  # The parser refuses it at its beginning.
        self._blank_out(start, end + 2)
        return end + 2

    def _begins_comment(self, place: int) -> bool:
        """Return whether `--` is a comment, and not two signs.

        A comment needs a line end behind it, but for the first one of the last line if it follows
        an operand, where a sign would be wrong.
        """
        if place < self._last_line:
            return True
        if self._has_signs_in_last_line:
            return False
        self._has_signs_in_last_line = self._previous != "value"
        return not self._has_signs_in_last_line

    def _end_of_line(self, start: int) -> int:
        line_end = _LINE_END.search(self._text, start)
        end = line_end.end() if line_end else len(self._text)
        self._blank_out(start, end)
        return end

    def _take(self, kind: str, match: re.Match[str]) -> int:
        """Count a part; return where the next one begins."""
        place, end = match.span()
        closed, self._closed = self._closed, None
        if kind == "word":
            kind = self._kind_of_word(match[0])
        elif kind == "line_comment":
            kind, end = "sign", place + 1
        elif kind == "open":
            inside = self._opens[-1].place if self._previous == "open" else None
            self._opens.append(_Open(place, self._previous == "in", inside))
        elif kind == "close":
            self._close(place, closed)
            kind = "value"
        self.count += 1
        self._previous = kind
        return end

    def _kind_of_word(self, word: str) -> str:
        upper = word.upper()
        if upper in _KEYWORDS:
            return "in" if upper == "IN" else "keyword"
        if upper not in _VALUES:
            self.names.add(word)
        return "value"

    def _close(self, place: int, closed: _Open | None) -> None:
        """Drop the pair that was closed just before if it is all that stands in this one."""
        if not self._opens:
            return  # The parser refuses it.
        opened = self._opens.pop()
        if closed is not None and closed.inside == opened.place and not opened.is_list:
            self.characters[closed.place] = self.characters[self._closed_at] = " "
            self.count -= 2
        self._closed, self._closed_at = opened, place

    def _blank_out(self, start: int, end: int) -> None:
        self.characters[start:end] = _NOT_LINE_END.sub(" ", self._text[start:end])
