"""The look-up in an adapter's table of errors, and the errors that most tables treat alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from commitbus.broker.metadata import errors as state
from commitbus.broker.store.reput import ReputFailedError
from commitbus.commitlog import errors as store
from commitbus.consumequeue import errors as queues

_Code = TypeVar("_Code")

STORE_FAILURES: Final = (
    *(store.NotAStoreError, store.StoreLockedError, store.StoreDamagedError, state.StateFileError),
    *(store.OutOfResourcesError, store.WriteFailedError, store.FlushFailedError),
    *(store.ThreadDiedError, store.StoreReadOnlyError, store.StoreClosedError),
    *(queues.DispatchError, ReputFailedError),
)
"""The store cannot go on, or not now. Errors of opening and of recovery cannot reach a handler,
because there is no server yet; they are here all the same, so that tests need no exceptions."""


def code_of(table: Mapping[type[Exception], _Code], error: Exception) -> _Code:
    """Return the code of an error in an adapter's table: that of the nearest class.

    Raises:
        LookupError: no class of the error has a row.
    """
    for kind in type(error).__mro__:
        if kind in table:
            return table[kind]
    raise LookupError(f"{type(error).__name__} has no row")
