"""Which kernels run: Python's at once, the compiled ones when they are ready.

Loading the compiled ones takes a quarter of a second and 120 MB, and, where numba's cache is empty,
a few seconds of compiling. So a process begins with Python, loads them on a thread only once it has
read so many records that it pays, and changes over between two batches. Both do the same to the
last byte.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Final, final

from commitbus.commitlog.kernels.interface import Kernels
from commitbus.commitlog.kernels.python_kernels import PythonKernels

ENVIRONMENT_VARIABLE: Final = "COMMITBUS_KERNELS"
"""`python` or `numba` forces one of them, from the first record on."""
WORTH_LOADING_RECORDS: Final = 50_000
"""Python takes about half a second for so many: as long as loading takes."""

_logger = logging.getLogger(__name__)


@final
class UnknownKernelsError(ValueError):
    """The environment asks for kernels that do not exist, or that are not installed."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"{ENVIRONMENT_VARIABLE}={name}: {reason}")


def load_compiled() -> Kernels:
    """Return the compiled kernels; takes seconds if numba's cache is empty.

    Raises:
        ImportError: numba is not installed.
    """
    # Imported here only: it is what takes the time and the memory.
    from commitbus.commitlog.kernels.numba_kernels import NumbaKernels  # noqa: PLC0415 - see above

    return NumbaKernels()


@final
class KernelChoice:
    """What a process uses: see `kernels`. Tests make others."""

    __slots__ = ("_current", "_lock", "_may_load", "_records", "_thread", "on_loaded")

    def __init__(self, forced: str = "") -> None:
        """Begin with Python, or with what is forced.

        Raises:
            UnknownKernelsError: Nothing of this name can be had.
        """
        self._current: Kernels = PythonKernels()
        self._records = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.on_loaded: Callable[[], object] = lambda: None
        """Called on the loading thread once the compiled kernels are ready."""
        if forced == "numba":
            try:
                self._current = load_compiled()
            except ImportError as error:
                raise UnknownKernelsError(forced, f"not installed: {error}") from error
        elif forced not in ("", "python"):
            raise UnknownKernelsError(forced, "neither python nor numba")
        self._may_load = not forced and importlib.util.find_spec("numba") is not None

    def kernels(self, records: int) -> Kernels:
        """Return what to read on with after `records` more records. Safe on any thread."""
        if self._may_load:
            with self._lock:
                self._records += records
                if self._records >= WORTH_LOADING_RECORDS and self._thread is None:
                    self._start_loading()
        return self._current

    def wait(self) -> None:
        """Block until what is being loaded, if anything is, has been."""
        if self._thread is not None:
            self._thread.join()

    def _start_loading(self) -> None:
        self._thread = threading.Thread(target=self._load, name="commitbus-kernels", daemon=True)
        self._thread.start()
        # The interpreter must not end below a compiler that is at work.
        atexit.register(self.wait)

    def _load(self) -> None:
        try:
            self._current = load_compiled()
            self.on_loaded()
        except Exception:
            # Slower is no reason to fail: numba may be too old, or broken on this machine.
            _logger.warning("the compiled kernels cannot be used", exc_info=True)
        finally:
            self._may_load = False


@cache
def _choice() -> KernelChoice:
    return KernelChoice(os.environ.get(ENVIRONMENT_VARIABLE, ""))


def kernels(records: int) -> Kernels:
    """Return this process's kernels; `records` more were read since the last call.

    Raises:
        UnknownKernelsError: The environment asks for what cannot be had.
    """
    return _choice().kernels(records)


def when_loaded(function: Callable[[], object]) -> None:
    """Have a function called if the compiled kernels are loaded from now on, on another thread.

    Raises:
        UnknownKernelsError: As `kernels`.
    """
    _choice().on_loaded = function


def ready_kernels() -> Kernels:
    """Return the fastest kernels of this process, having waited for them. For benchmarks."""
    choice = _choice()
    choice.kernels(WORTH_LOADING_RECORDS)
    choice.wait()
    return choice.kernels(0)
