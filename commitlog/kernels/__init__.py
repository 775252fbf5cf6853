"""Loops over many records, compiled where numba is installed."""

from commitbus.commitlog.kernels.choice import (
    KernelChoice,
    UnknownKernelsError,
    kernels,
    ready_kernels,
    when_loaded,
)
from commitbus.commitlog.kernels.columns import (
    DispatchBatch,
    DispatchColumns,
    QueueUnits,
    RecordColumns,
    TopicTable,
)
from commitbus.commitlog.kernels.interface import Kernels

__all__ = [
    "DispatchBatch",
    "DispatchColumns",
    "KernelChoice",
    "Kernels",
    "QueueUnits",
    "RecordColumns",
    "TopicTable",
    "UnknownKernelsError",
    "kernels",
    "ready_kernels",
    "when_loaded",
]
