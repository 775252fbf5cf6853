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
    """
    for listener in listeners:
        try:
            listener(value)
        except Exception:
            _logger.exception("a listener of the store failed")
