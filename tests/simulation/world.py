"""What happens to a store while it runs, apart from who uses it: faults, and operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from commitbus.broker.store.message_store import MessageStore
from tests.simulation.disk import PAGE_BYTES, Inode
from tests.simulation.files import PLENTY
from tests.simulation.process import Process
from tests.simulation.scheduler import Shortage
from tests.simulation.themes import Theme

YEAR_MS: Final = 365 * 86_400_000
_THREADS: Final = ("commitbus-flush", "commitbus-reput", "commitbus-checkpoint",
                   "commitbus-housekeeping", "commitlog-preparer")  # fmt: skip


@final
class World:
    """Faults that come and go. All that it draws comes from the scheduler's generator."""

    def __init__(self, process: Process, themes: frozenset[Theme]) -> None:
        self._process, self._themes = process, themes
        self.calm_since_s = 0.0
        """Since when there has been room, memory and descriptors."""

    @property
    def is_calm(self) -> bool:
        """Whether nothing is short now."""
        faults = self._process.faults
        return (
            faults.capacity_pages >= PLENTY
            and faults.descriptors_max >= PLENTY
            and not faults.memory_failure_probability
        )

    def before_the_start(self) -> None:
        """Make it hard to open the store."""
        process, rng, faults = self._process, self._process.scheduler.rng, self._process.faults
        if Theme.FAILING_READS in self._themes:
            faults.cold_probability = rng.choice((0.0, 0.2, 1.0))
            faults.may_populate_memory = rng.random() < 0.7
        if Theme.SHORTAGES in self._themes and rng.random() < 0.2:
            faults.descriptors_max = rng.randrange(12)
        if Theme.FULL_DISK_STARTS in self._themes and rng.random() < 0.4:
            faults.capacity_pages = process.disk.used_pages() + rng.randrange(4)
        if Theme.DYING_THREADS in self._themes and rng.random() < 0.6:
            thread = rng.choice(_THREADS)
            process.scheduler.shortage = Shortage(rng.choice((1, 200, 1000, 3000)), thread)

    def be_calm(self) -> None:
        """End what is short."""
        faults = self._process.faults
        faults.capacity_pages = faults.descriptors_max = PLENTY
        faults.memory_failure_probability = 0.0
        self.calm_since_s = self._process.scheduler.now_s

    def run(self, store: MessageStore, until: Callable[[], bool]) -> None:
        """Let faults come and go."""
        scheduler, rng = self._process.scheduler, self._process.scheduler.rng
        if not self.is_calm:
            scheduler.sleep(rng.uniform(0.0, 1.0))
            self.be_calm()
        kinds: list[Callable[[MessageStore], None]] = [self._set_clock, self._fill_disk]
        if Theme.FAILING_READS in self._themes:
            kinds += [self._break_a_page] * 2
        if Theme.SHORTAGES in self._themes:
            kinds += [self._run_short] * 2
        if Theme.CLOCK_YEARS in self._themes:
            kinds += [self._jump_a_year]
        while not until():
            scheduler.sleep(rng.uniform(0.0, 0.5))
            kind = rng.random()
            if kind < 0.35:
                rng.choice(kinds)(store)
            elif kind < 0.41:
                self._process.faults.sync_failure_probability = 0.5
        self.be_calm()

    def _set_clock(self, store: MessageStore) -> None:
        rng = self._process.scheduler.rng
        self._process.clock.error_ms += rng.choice((-10_000, -50, 30, 5_000))

    def _jump_a_year(self, store: MessageStore) -> None:
        """Set the clock wrong by a year for a while, as a failed time server does."""
        process, rng = self._process, self._process.scheduler.rng
        jump_ms = rng.choice((YEAR_MS, YEAR_MS, -YEAR_MS))
        process.clock.error_ms += jump_ms
        process.scheduler.sleep(rng.choice((0.0, 0.1, 12.0)))
        process.clock.error_ms -= jump_ms

    def _fill_disk(self, store: MessageStore) -> None:
        scheduler, rng = self._process.scheduler, self._process.scheduler.rng
        self._process.faults.capacity_pages = self._process.disk.used_pages() + rng.randrange(6)
        scheduler.sleep(rng.uniform(0.1, 3.0))
        self.be_calm()

    def _run_short(self, store: MessageStore) -> None:
        process, rng = self._process, self._process.scheduler.rng
        if rng.random() < 0.6:
            process.faults.descriptors_max = process.files.descriptors.total() + rng.randrange(3)
        else:
            process.faults.memory_failure_probability = rng.choice((0.3, 1.0))
        process.scheduler.sleep(rng.uniform(0.1, 3.0))
        self.be_calm()

    def _break_a_page(self, store: MessageStore) -> None:
        """Let a page that nobody writes to any more be unreadable."""
        process, rng = self._process, self._process.scheduler.rng
        pages = pages_at_rest(process, min(store.durable_watermark.offset, store.indexed_to))
        if not pages:
            return
        inode, page = rng.choice(pages)
        inode.unreadable.add(page)
        if rng.random() < 0.7:
            process.scheduler.sleep(rng.uniform(0.1, 3.0))
            inode.unreadable.discard(page)


def pages_at_rest(process: Process, log_end: int) -> list[tuple[Inode, int]]:
    """Return (file, page of 4 KiB) of what the kernel may have forgotten, and nobody writes to.

    Of the log that is what lies below `log_end`, of queues the files behind which is another.
    """
    files = list(process.disk.files())
    pages: list[tuple[Inode, int]] = []
    newest = {path.parent: path for path, _ in files}
    for path, inode in files:
        if path.parts[-2] == "commitlog":
            end = min(log_end - int(path.name), len(inode.cache)) // PAGE_BYTES * PAGE_BYTES
        elif "consumequeue" in path.parts and newest[path.parent] != path:
            end = len(inode.cache)
        else:
            continue
        for start in range(0, end, PAGE_BYTES):
            behind = min(start + PAGE_BYTES, end)
            if inode.is_at_rest(start, behind) and any(inode.cache[start:behind]):
                pages.append((inode, start // PAGE_BYTES))
    return pages


def make_readable(process: Process) -> bool:
    """Replace the disk's bad places; return whether there were any."""
    found = False
    for _, inode in process.disk.files():
        found |= bool(inode.unreadable)
        inode.unreadable.clear()
    return found
