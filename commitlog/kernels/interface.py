"""What every implementation of the kernels does, byte for byte the same."""

from __future__ import annotations

from typing import Protocol

from commitbus.commitlog.kernels.columns import (
    DispatchColumns,
    Int32s,
    Int64s,
    RecordColumns,
    TopicTable,
)


class Kernels(Protocol):
    """Loops over many records. Stateless, so safe on any thread."""

    name: str

    def scan(
        self,
        view: memoryview,
        base_offset: int,
        position: int,
        topics: TopicTable,
        *,
        max_records: int,
        verify_crc: bool,
    ) -> RecordColumns:
        """Return the records from `position` on, up to the first that `check_record` refuses.

        Args:
            view: A log file up to where it is to be read.
            base_offset: Physical offset of the view's first byte.
            position: Where the first record begins.
            topics: Numbers the topics; new ones are added.
            max_records: At most so many are returned.
            verify_crc: Whether bodies are compared with their checksums.
        """

    def dispatch(
        self, view: memoryview, base_offset: int, records: RecordColumns
    ) -> DispatchColumns:
        """Return what consume queues and index take from records that `scan` found in `view`."""

    def append_index_entries(
        self,
        slots: memoryview,
        changed_pages: memoryview,
        entries: memoryview,
        *,
        start: int,
        key_hashes: Int32s,
        physical_offsets: Int64s,
        store_timestamps: Int64s,
        begins: tuple[int, int],
    ) -> int:
        """Make index entries, each at the head of its slot's chain.

        A slot that leads to an entry at or beyond `start` counts as empty: a process that died
        left it behind.

        Args:
            slots: All slots of the file, as they are in it; changed.
            changed_pages: A byte for each 4096 bytes of the file as far as slots reach; set to 1
                where a slot is changed.
            entries: Gets the entries as they are to be in the file; 20 * n bytes.
            start: Index of the first new entry.
            key_hashes: Shape (n,), each in [0, 2^31).
            physical_offsets: Shape (n,).
            store_timestamps: Shape (n,), milliseconds.
            begins: From when on the seconds of the first entry count, and those of the others, in
                milliseconds. They are kept within [0, 2^31).

        Returns:
            How many slots were empty before.
        """

    def append_records(
        self,
        view: memoryview,
        records: bytes | memoryview,
        body_bytes: Int64s,
        properties_bytes: Int64s,
        *,
        last_properties: bytes,
        header: bytes,
        topic: bytes,
        queue_offset: int,
        physical_offset: int,
    ) -> None:
        """Store records next to each other, the size of the first one as 0: that hides them.

        Args:
            view: Where they are to lie, exactly as long as they are together; writable.
            records: Of each record its body, then its properties.
            body_bytes: Shape (n,); with the next they add up to the length of `records`.
            properties_bytes: Shape (n,), each at most 65,535.
            last_properties: What the last record has behind those.
            header: Of all records, with 0 as size, body CRC, both offsets and body length.
            topic: As it follows each body, its length included.
            queue_offset: Of the first record; the others follow.
            physical_offset: Of the first record.
        """
