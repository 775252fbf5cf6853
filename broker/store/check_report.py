"""What a consistency check found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

LISTED_MAX: Final = 1000
"""Problems that are kept with their place; more are only counted. A store can be damaged in a
million places, and a report of them all must not be what kills the machine."""


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it must be."""

    file: str
    """Relative to the store."""
    position: int
    """In bytes from the file's start."""
    what: str

    def __str__(self) -> str:
        """Return `file, position: what`."""
        return f"{self.file}, position {self.position}: {self.what}"


@final
@dataclass(slots=True)
class CheckReport:
    """The result of `check_store`. Counts are of what was read, sound or not."""

    directory: str
    was_closed_cleanly: bool
    durable_watermark: int | None = None
    log_begin: int = 0
    log_end: int = 0
    log_files: int = 0
    messages: int = 0
    blank_records: int = 0
    manifests: int = 0
    """Of sealed log files."""
    torn_bytes: int = 0
    """Behind the log's end, after an unclean stop: the next start cuts them."""
    queues: int = 0
    queue_units: int = 0
    index_files: int = 0
    index_entries: int = 0
    not_in_queue: int = 0
    """Messages without a unit that should have one."""
    not_in_index: int = 0
    """Keys of messages without an entry that should have one."""
    to_be_recovered: int = 0
    """Units and entries that the next start derives from the log anyway, and therefore no problems:
    those of the last messages before an unclean stop, and those behind the end of the index."""
    of_deleted_topics: int = 0
    """Messages whose topic has no consume queue any more."""
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list)
    """The first `LISTED_MAX`."""

    @property
    def is_sound(self) -> bool:
        """Whether there is no problem."""
        return self.problem_count == 0

    def add(self, path: Path, position: int, what: str) -> None:
        """Note a problem at a position in bytes of a file."""
        self.problem_count += 1
        if len(self.problems) < LISTED_MAX:
            name = path.relative_to(self.directory).as_posix()
            self.problems.append(Problem(name, position, what))

    def to_json(self) -> dict[str, object]:
        """Return the report as values that `json.dumps` takes."""
        report: dict[str, object] = {
            name: getattr(self, name) for name in self.__slots__ if name != "problems"
        }
        report["problems"] = [
            {"file": problem.file, "position": problem.position, "what": problem.what}
            for problem in self.problems
        ]
        return report
