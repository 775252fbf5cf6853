"""Which queues a start need not look at, as the last checkpoint has noted how they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, final

from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.types import PhysicalOffset
from commitbus.consumequeue.queue_states import States

_NAME_BYTES_MAX: Final = 255

FoundIds: TypeAlias = Mapping[str, Mapping[int, int]]
"""By topic and queue id, the `names_mark` of the queue's directory."""


@final
class KnownQueues(NamedTuple):
    """What a checkpoint says of the queues that are there."""

    known: States
    """Those whose files need not be opened."""
    others: FoundIds
    """Those that were begun after the checkpoint, got messages while it was taken, or whose
    directory has changed since."""
    ends: Mapping[tuple[str, int], int]
    """Where of `others` those ended that were there at the checkpoint."""


def ids_on_disk(directory: Path, file_system: FileSystem) -> FoundIds:
    """Return the queues that have a directory. OSError: one cannot be read."""
    return {
        topic: {
            int(name): mark
            for name, mark in sorted(file_system.directories(directory / topic).items())
            if name.isascii() and name.isdecimal() and str(int(name)) == name
        }
        for topic in sorted(file_system.directories(directory))
    }


def split_known(
    found: FoundIds,
    states: States,
    *,
    deleted_before: Callable[[str], PhysicalOffset],
    flushed_to: PhysicalOffset | None,
) -> KnownQueues | None:
    """Tell the queues whose files need not be opened from the others.

    None if somebody has removed a queue, or changed one after a clean stop: nothing is known then.

    Args:
        found: Every queue that has a directory.
        states: How the queues ended at the checkpoint.
        deleted_before: Returns from which physical offset on messages of a topic count. A queue
            that ended before it was removed after the checkpoint, and may have been begun again.
        flushed_to: After an unclean stop, the offset from which on any unit may be missing.
    """
    for topic in list(states):
        if before := deleted_before(topic):
            states[topic] = {key: s for key, s in states[topic].items() if s[3] > before}
    if any(not queues.keys() <= found.get(topic, {}).keys() for topic, queues in states.items()):
        return None
    split = KnownQueues(States(), {}, {})
    others: dict[str, dict[int, int]] = {}
    ends: dict[tuple[str, int], int] = {}
    for topic, marks in found.items():
        queues = states.get(topic, {})
        known = {
            queue_id: state
            for queue_id, state in queues.items()
            if state[4] == marks[queue_id] and (flushed_to is None or state[3] <= flushed_to)
        }
        if known:
            split.known[topic] = known
        if rest := {queue_id: mark for queue_id, mark in marks.items() if queue_id not in known}:
            others[topic] = rest
            ends.update({(topic, key): queues[key][1] for key in rest if key in queues})
    if ends and flushed_to is None:
        return None
    return split._replace(others=others, ends=ends)


def is_plain_name(topic: str) -> bool:
    """Return whether a topic names a directory inside the one it is looked for in."""
    return (
        topic not in ("", ".", "..")
        and not {"/", "\\", "\0"} & set(topic)
        and len(topic.encode("utf-8", "surrogatepass")) <= _NAME_BYTES_MAX
    )
