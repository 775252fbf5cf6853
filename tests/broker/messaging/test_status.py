"""The table of errors and codes."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Final

from commitbus.broker.bulk.validate import RecordRefusedError
from commitbus.broker.messaging.errors import RequestError, TopicNotFoundError
from commitbus.broker.messaging.status import CODES, ok, overall, status_of
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
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
    "RecordRefusedError": "the bulk service refuses by gRPC status",
    "RequestError": "the base",
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


def test_every_error_has_a_row_or_a_reason_to_have_none() -> None:
    """A class without one would reach the client as a crash."""
    modules = re.compile(r"commitbus\.(?!(broker\.client|flush\.spark)\b)")
    ours = {kind for kind in error_classes() if modules.match(kind.__module__)}
    assert set(CODES) <= ours
    without = {kind for kind in ours if kind not in CODES}
    assert {kind.__name__ for kind in without} <= set(CAUGHT_BEFORE)
    bases = {RequestError, StoreError}
    handlers_raise = {kind for kind in without if issubclass(kind, tuple(bases))}
    assert handlers_raise == {*bases, RecordRefusedError}


def test_no_row_says_ok_or_nothing() -> None:
    """Each code is one of the protocol's refusals."""
    assert all(code >= 40000 for code in CODES.values())


def test_a_status_has_the_code_of_the_table_and_the_text_of_the_error() -> None:
    """The text is what an engineer reads in a client's stack trace."""
    status = status_of(TopicNotFoundError("orders"))
    assert (status.code, status.message) == (pb.TOPIC_NOT_FOUND, "no such topic: orders")


def test_the_overall_status_is_the_common_one() -> None:
    """And says so if there is none."""
    refused = status_of(TopicNotFoundError("orders"))
    assert overall([ok(), ok()]).code == pb.OK
    assert overall([refused, refused]).code == pb.TOPIC_NOT_FOUND
    assert overall([ok(), refused]).code == pb.MULTIPLE_RESULTS
