"""Filters alone, for messages as they lie in the log, and in receives: CPU time."""

from __future__ import annotations

import time

from bench.measure import Row
from bench.scans import message_properties, scans
from commitbus.broker.filters.message_filter import MessageFilter
from commitbus.broker.filters.sql_filter import compile_sql
from commitbus.broker.filters.tag_filter import parse_tags
from commitbus.commitlog.record_format import decode_properties

MESSAGES = 100_000


def filters() -> list[Row]:
    """Look through messages of eleven properties by tag and by an SQL expression of two terms."""
    sql = compile_sql("region = 'eu' AND amount > 100")
    return [
        ("filter by tag", "msg/s", _scanned_per_s(parse_tags("vip || new")), ""),
        (
            "filter by SQL, two terms",
            "msg/s",
            _scanned_per_s(sql),
            "region = 'eu' AND amount > 100",
        ),
        ("  after decoding all properties", "msg/s", _decoded_per_s(sql), "what it saves not to"),
        *scans(),
    ]


def _scanned_per_s(wanted: MessageFilter) -> float:
    view = memoryview(message_properties("vip", "250"))
    begin = time.thread_time()
    accepted = sum(wanted.accepts_encoded(view) for _ in range(MESSAGES))
    assert accepted == MESSAGES, "the message fits"
    return MESSAGES / (time.thread_time() - begin)


def _decoded_per_s(wanted: MessageFilter) -> float:
    data = message_properties("vip", "250")
    begin = time.thread_time()
    accepted = sum(wanted.accepts(decode_properties(data)) for _ in range(MESSAGES))
    assert accepted == MESSAGES, "the message fits"
    return MESSAGES / (time.thread_time() - begin)
