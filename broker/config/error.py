"""How a setting is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from commitbus.broker.common.shown import shown

_SHOWN_MAX: Final = 80


class ConfigError(ValueError):
    """A setting is unknown, or its value cannot be used."""

    def __init__(self, key: str, reason: str, *, source: str = "") -> None:
        self.key, self.reason, self.source = key, reason, source
        name = key if len(key) <= _SHOWN_MAX else f"{key[:_SHOWN_MAX]}..."
        super().__init__(f"{source}: {name}: {reason}" if source else f"{name}: {reason}")


def is_name(text: str) -> bool:
    """Return whether a text is printable, without blanks, and not empty."""
    return bool(text) and text.isprintable() and " " not in text


def shown_value(value: object) -> str:
    """Return a value as an error shows it, on one line."""
    if isinstance(value, str):
        return shown(value)
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def check_length(key: str, length: int, length_max: int, unit: str) -> None:
    """Raise ConfigError for a text that is too long for the name it becomes part of."""
    require(key, length <= length_max, f"has {length} {unit}, at most {length_max} are possible")


def require(key: str, condition: bool, reason: str) -> None:  # noqa: FBT001 - as in assert
    """Raise ConfigError unless a condition holds."""
    if not condition:
        raise ConfigError(key, reason)


def checked(key: str, text: str, parse: Callable[[str], object]) -> None:
    """Raise ConfigError where `parse` raises ValueError."""
    try:
        parse(text)
    except ValueError as error:
        raise ConfigError(key, str(error)) from None
