"""JSON as RocketMQ's fastjson writes it: tabs, and maps whose integer keys have no quotes.

    {
        "offsetTable":{
            "topic@group":{
                0:17
            }
        },
        "forbiddenTable":{

        }
    }

Strict JSON has no integer keys, so a document here is a `dict` whose keys may be `int`; reading
and writing a file that RocketMQ wrote gives the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, final

Json = dict["str | int", "Json"] | list["Json"] | str | int | float | bool | None
JsonObject = dict[str | int, Json]

INTEGER_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
"""The largest value of most of these numbers in RocketMQ and in our protocols."""

# A string, or an integer in the place of a key. Strings are matched to be stepped over.
_STRING_OR_INTEGER_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])(\s*)(-?\d{1,19})(?=\s*:)')
# U+0000 marks a key that had no quotes; a quoted key cannot hold it raw, only escaped.
_INTEGER_MARK: Final = "\\u0000"


@final
class Formatted(NamedTuple):
    """A value whose text is made already, as `format_document` makes it at its place."""

    text: str


@final
class DocumentError(ValueError):
    """The text is no document, or a field of it is not what it should be."""


def parse_document(data: bytes) -> JsonObject:
    """Return the object that `data` holds.

    Raises:
        DocumentError: It is neither JSON nor fastjson's dialect of it, or no object.
    """
    try:
        document = json.loads(
            _STRING_OR_INTEGER_KEY.sub(_quote_integer_key, data.decode()),
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise DocumentError("it is nested too deeply") from None
    except ValueError as error:
        raise DocumentError(str(error)) from None
    if not isinstance(document, dict):
        raise DocumentError("it is no JSON object")
    return document


def _quote_integer_key(match: re.Match[str]) -> str:
    space, digits = match.group(1), match.group(2)
    return match.group() if digits is None else f'{space}"{_INTEGER_MARK}{digits}"'


def _object(pairs: list[tuple[str, Json]]) -> JsonObject:
    return {int(key[1:]) if key.startswith("\0") else key: value for key, value in pairs}


def _refuse_constant(name: str) -> Json:
    raise DocumentError(f"{name} is no JSON")


def format_document(document: Mapping[str | int, Json | Formatted]) -> bytes:
    """Return the document as fastjson's pretty format has it."""
    parts: list[str] = []
    _format_object(document, "\n", parts)
    return "".join(parts).encode()


def format_member(name: str, value: Json, *, level: int) -> str:
    """Return the text of a name and its value in an object; `level` counts its tabs."""
    parts = [f"{_text(name)}:"]
    _format(value, "\n" + "\t" * level, parts)
    return "".join(parts)


def format_object(members: Iterable[str], *, level: int) -> Formatted:
    """Return an object of members that `format_member` made one level further in."""
    line = "\n" + "\t" * level
    return Formatted(f"{{{line}\t" + f",{line}\t".join(members) + f"{line}}}")


def _format(value: Json | Formatted, line: str, parts: list[str]) -> None:
    """Append the text of `value`; `line` begins a line of the level that holds it."""
    if isinstance(value, Formatted):
        parts.append(value.text)
    elif isinstance(value, dict):
        _format_object(value, line, parts)
    elif isinstance(value, list) and value:
        inner = line + "\t"
        for number, item in enumerate(value):
            parts.append(("," if number else "[") + inner)
            _format(item, inner, parts)
        parts.append(line + "]")
    else:
        parts.append(_text(value))


def _format_object(
    members: Mapping[str | int, Json] | Mapping[str | int, Json | Formatted],
    line: str,
    parts: list[str],
) -> None:
    inner = line + "\t"
    parts.append("{" + inner)
    for number, (key, item) in enumerate(members.items()):
        shown = str(key) if isinstance(key, int) else _text(key)
        parts.append(f",{inner}{shown}:" if number else f"{shown}:")
        _format(item, inner, parts)
    parts.append(line + "}")


def _text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def integer(
    entry: JsonObject, key: str, default: int, *, minimum: int = 0, maximum: int = INTEGER_MAX
) -> int:
    """Return an integer field, or `default` where it is missing.

    Raises:
        DocumentError: It is something else, or outside [`minimum`, `maximum`].
    """
    value = entry.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DocumentError(f"{key} is no integer")
    if not minimum <= value <= maximum:
        raise DocumentError(f"{key} is {value}, outside [{minimum}, {maximum}]")
    return value


def truth(entry: JsonObject, key: str, *, default: bool) -> bool:
    """Return a boolean field, or `default` where it is missing.

    Raises:
        DocumentError: It is something else.
    """
    value = entry.get(key, default)
    if not isinstance(value, bool):
        raise DocumentError(f"{key} is neither true nor false")
    return value


def strings(entry: JsonObject, key: str) -> dict[str, str]:
    """Return a field that maps strings to strings, empty where it is missing or null.

    Raises:
        DocumentError: It is something else.
    """
    found: dict[str, str] = {}
    for name, value in table(entry, key).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise DocumentError(f"{key} maps something else than strings to strings")
        found[name] = value
    return found


def table(entry: JsonObject, key: str) -> JsonObject:
    """Return a field that is an object, an empty one where it is missing or null.

    Raises:
        DocumentError: It is something else.
    """
    value = entry.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DocumentError(f"{key} is no object")
    return value


def from_strings(mapping: Mapping[str, str]) -> JsonObject:
    """Return a map of strings to strings as a field of a document."""
    return dict[str | int, Json](mapping.items())
