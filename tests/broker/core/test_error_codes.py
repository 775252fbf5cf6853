"""Every error has a row in the table of every adapter."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

import pytest

from commitbus.broker.admin import status as admin_status
from commitbus.broker.bulk import status as bulk_status
from commitbus.broker.bulk.validate import RecordRefusedError
from commitbus.broker.common.errors import (
    REFUSALS,
    BodyEmptyError,
    IllegalRequestError,
    MissingError,
    RequestError,
    TopicNotFoundError,
)
from commitbus.broker.core.error_codes import code_of
from commitbus.broker.messaging import status as messaging_status
from commitbus.commitlog.errors import StoreError

CAUGHT_BEFORE: Final = {
    "AcceptError": "before a call arrives",
    "AttributeRefusedError": "the admin service refuses by gRPC status",
    "BrokerError": "for who embeds a broker",
    "CertificateError": "before there is a broker",
    "CommandError": "for who types a command",
    "ConfigError": "before there is a broker",
    "ConfigTooLargeError": "is logged, or becomes a StateWriteError",
    "ConversionError": "makes a filter's condition not true",
    "DamagedRecordsError": "becomes the error of a batch, or of a Spark task",
    "DocumentError": "becomes a StateFileError, or a refusal of the admin service",
    "EngineError": "ends the connection",
    "EntryError": "ends the replay of a journal at the start",
    "FilterExpressionError": "becomes an IllegalFilterError",
    "FramesError": "becomes a MessageCorruptedError",
    "ColdPlacesError": "has the places read, and the work done again",
    "HeadRefusedError": "is a response itself",
    "IllegalNameError": "becomes IllegalTopicError or IllegalGroupError",
    "ListenError": "before a call arrives",
    "ManifestError": "is handled where a manifest is read",
    "ProbedError": "before a call arrives",
    "ProxyHeaderError": "before a call arrives",
    "RecordRefusedError": "its cause has a row",
    "RequestError": "the base",
    "IllegalRequestError": "a base",
    "MissingError": "a base",
    "RpcError": "is a gRPC status itself",
    "SmallFileError": "becomes a ConfigError, a CertificateError or a CommandError",
    "StoreError": "the base",
    "TooManyFiltersError": "becomes a TooManyRequestsError",
    "_RowError": "becomes a StateFileError",
    "_StoppedError": "ends the start of a broker that was told to stop",
}
"""Errors without a row, and why they need none."""


def error_classes() -> Iterator[type[Exception]]:
    """Every class of ours in every package that runs in a broker's process."""
    for package in ("broker", "commitlog", "consumequeue", "flush", "indexfile"):
        root = import_module(f"commitbus.{package}")
        for found in pkgutil.walk_packages(root.__path__, f"commitbus.{package}."):
            # Spark's run in other processes; the rest are programs and optional plugins.
            if not re.search(r"\.(spark|proto|kernels|pytest_plugin|demo|export)\b", found.name):
                for kind in vars(import_module(found.name)).values():
                    if isinstance(kind, type) and issubclass(kind, Exception):
                        yield kind


TABLES: Final[Mapping[str, Mapping[type[Exception], object]]] = {
    "messaging and the protocol's Admin": messaging_status.CODES,
    "bulk": bulk_status.CODES,
    "admin": admin_status.CODES,
}


@pytest.fixture(scope="module")
def ours() -> set[type[Exception]]:
    modules = re.compile(r"commitbus\.(?!(broker\.client|flush\.spark)\b)")
    return {kind for kind in error_classes() if modules.match(kind.__module__)}


def test_every_error_is_a_refusal_or_has_a_reason_to_be_none(ours: set[type[Exception]]) -> None:
    """Another one would reach the client as a crash."""
    others = {kind.__name__ for kind in ours if not issubclass(kind, REFUSALS)}
    assert others <= set(CAUGHT_BEFORE)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_refusal_has_a_row_in_the_table_of_each_adapter(
    ours: set[type[Exception]], table: Mapping[type[Exception], object]
) -> None:
    """A row of its own, or one of a class above it; the two roots have none."""
    assert set(table) <= ours
    refusals = {kind for kind in ours if issubclass(kind, REFUSALS)}
    without = {kind for kind in refusals if not any(above in table for above in kind.__mro__)}
    assert {kind.__name__ for kind in without} <= set(CAUGHT_BEFORE)
    abstract = {IllegalRequestError, MissingError}
    assert without - abstract == {RequestError, StoreError, RecordRefusedError}


def test_the_nearest_class_decides() -> None:
    """A table may treat a group of errors alike, and one of them in its own way."""
    table: dict[type[Exception], int] = {RequestError: 1, MissingError: 2}
    assert code_of(table, TopicNotFoundError("T")) == 2
    assert code_of(table, BodyEmptyError()) == 1
    with pytest.raises(LookupError, match="ValueError has no row"):
        code_of(table, ValueError())
