"""The storage wired together: one store of log, consume queues and index, behind threads only."""
