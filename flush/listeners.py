"""Telling others, on a thread that has more important things to do than to die of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

_Value = TypeVar("_Value")

_logger = logging.getLogger(__name__)


def tell(listeners: Iterable[Callable[[_Value], None]], value: _Value) -> None:
    """Call each listener. One that raises is logged: it must not stop a flush, nor the others.

    A listener that hands over to an event loop raises whenever that loop has ended first.

    Raises:
        MemoryError: A listener ran out of memory. Then somebody may wait for ever for what it did
            not pass on: the caller's thread has to end, and the store with it.
    """
    out_of_memory: MemoryError | None = None
    for listener in listeners:
        try:
            listener(value)
        except MemoryError as error:
            out_of_memory = error
        except Exception:
            _logger.exception("a listener of the store failed")
    if out_of_memory is not None:
        raise out_of_memory
