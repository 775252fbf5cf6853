"""What a read of the log can be told, as options of Spark's reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, final

DEFAULT_SPLIT_BYTES: Final = 64 * 1024 * 1024
"""A task of this size takes 0.1 to 0.2 s, well above what starting a task costs."""
MIN_SPLIT_BYTES: Final = 4096
"""Below it there would be more splits than records."""


class OnDamage(StrEnum):
    """How to treat a record that is damaged or cannot be read, in the words of Spark's readers."""

    FAILFAST = "FAILFAST"
    """The read fails and names the file and the place in it."""
    DROPMALFORMED = "DROPMALFORMED"
    """Records that are damaged or cannot be read are left out and logged."""


@final
@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read; the names in Spark are in camel case, `splitBytes` and so on."""

    on_damage: OnDamage = OnDamage.FAILFAST
    """Spark's `mode`."""
    verify: bool = True
    """Whether bodies are checked against their CRC: 0.05 s per GiB with bodies of 1 KB."""
    decompress: bool = True
    """Whether a body that its producer compressed is handed out as it was before that."""
    split_bytes: int = DEFAULT_SPLIT_BYTES
    """How much of the log one task reads, about."""
    topics: frozenset[str] | None = None
    """Only messages of these topics; None for all, RocketMQ's system topics included."""
    starting_offset: int | None = None
    """Only records that lie at or behind this physical offset."""
    ending_offset: int | None = None
    """Only records that lie before this physical offset."""
    starting_timestamp: int | None = None
    """Only messages stored at or after this time, ms since 1970."""
    ending_timestamp: int | None = None
    """Only messages stored before this time, ms since 1970."""


def store_directory(options: Mapping[str, str]) -> Path:
    """Return the directory to read.

    Raises:
        ValueError: There is none.
    """
    path = options.get("path")
    if not path:
        raise ValueError(
            'which store? Give its directory: spark.read.format("commitlog").load(DIR)'
        )
    return Path(path.removeprefix("file://"))


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read. Names that are not ours are Spark's business and ignored.

    Args:
        options: As Spark hands them over, with names that compare case-insensitively.

    Raises:
        ValueError: A value makes no sense; the message names the option.
    """
    topics = options.get("topics")
    return ReadOptions(
        on_damage=_mode(options.get("mode", OnDamage.FAILFAST)),
        verify=_boolean(options, "verify"),
        decompress=_boolean(options, "decompress"),
        split_bytes=_integer(options, "splitBytes", MIN_SPLIT_BYTES) or DEFAULT_SPLIT_BYTES,
        topics=None
        if topics is None
        else frozenset(name for part in topics.split(",") if (name := part.strip())),
        starting_offset=_integer(options, "startingOffset", 0),
        ending_offset=_integer(options, "endingOffset", 0),
        starting_timestamp=_integer(options, "startingTimestamp", 0),
        ending_timestamp=_integer(options, "endingTimestamp", 0),
    )


def _mode(value: str) -> OnDamage:
    try:
        return OnDamage(value.upper())
    except ValueError:
        names = " or ".join(OnDamage)
        raise ValueError(f"option mode is {names}, not {value!r}") from None


def _boolean(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "true").lower()
    if value not in ("true", "false"):
        raise ValueError(f"option {name} is true or false, not {value!r}")
    return value == "true"


def _integer(options: Mapping[str, str], name: str, minimum: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or not minimum <= (value := int(text)) < 1 << 63:
        raise ValueError(f"option {name} is a whole number of at least {minimum}, not {text!r}")
    return value
