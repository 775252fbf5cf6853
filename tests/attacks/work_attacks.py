"""Attempts to make the broker work long for little: filters, searches, long texts, long lists."""

from __future__ import annotations

import time
from typing import Final

from tests.attacks import requests
from tests.attacks.connection import Connection
from tests.attacks.requests import ADMIN, BULK, MESSAGING, SQL
from tests.attacks.target import NORMAL_TOPIC, Attack, Target

_LENGTHS: Final = (300, 5_000, 60_000, 500_000)
_ECHO_BYTES: Final = 20_000
_FILTER_LENGTH: Final = 8000
_SETTINGS_TOPICS: Final = (100, 1_000, 10_000)
_SETTINGS_S: Final = 0.1
_FORGED_HANDLES: Final = 1000


def sql_filters(target: Target) -> None:
    """Receive with expressions that take long to compile, none of them twice."""
    unique = target.random.randrange(10**9)
    texts = (
        "a=" + "-" * _FILTER_LENGTH + str(unique),
        "(" * 60 + f"a={unique}" + ")" * 60,
        f"a={unique} AND ({' OR '.join(f'b{n}=1' for n in range(600))})",
        "a=" + "-" * _FILTER_LENGTH + f"x{unique}",
        f"a{unique} BETWEEN '" + "'" * _FILTER_LENGTH,
        f"a{unique}=" + "/*" * (_FILTER_LENGTH // 2),
    )
    with target.connect() as connection:
        for expression in texts:
            request = requests.receive(
                NORMAL_TOPIC, "filters", kind=SQL, expression=expression, polling_s=5
            )
            connection.message(
                connection.open(MESSAGING + "ReceiveMessage", client_id="filters"), request
            )
        target.note(connection.read_for(min(2.0, target.left_s())))
        target.note(connection.calls.values())


def searches(target: Target) -> None:
    """Search for offsets by time, and for messages by key and tag."""
    with target.connect() as connection:
        for _ in range(20):
            for path, request in (
                (
                    MESSAGING + "QueryOffset",
                    requests.offset_by_time(
                        NORMAL_TOPIC, target.random.randrange(4), time.time_ns() // 10**9 - 5
                    ),
                ),
                (ADMIN + "QueryMessages", requests.query_messages(NORMAL_TOPIC, "k", by_tag=False)),
                (ADMIN + "QueryMessages", requests.query_messages(NORMAL_TOPIC, "t", by_tag=True)),
                (ADMIN + "ListGroups", b""),
            ):
                target.note([connection.call(path, request, client_id="searches")])
                target.pause(0.05)
            if not target.left_s():
                break


def garbage(target: Target) -> None:
    """Send long nonsense in every field that an answer may repeat."""
    length = target.random.choice(_LENGTHS)
    long, mixed = "g" * length, "\x01'%s{}\u00e9" * (length // 10)
    receive = requests.receive
    for path, request in (
        (MESSAGING + "QueryRoute", requests.query_route(long)),
        (MESSAGING + "QueryRoute", requests.query_route(mixed)),
        (MESSAGING + "Heartbeat", requests.heartbeat(long)),
        (MESSAGING + "SendMessage", requests.send(NORMAL_TOPIC, b"body", "id", tag=mixed)),
        (MESSAGING + "SendMessage", requests.send(NORMAL_TOPIC, b"body", "id", key=mixed)),
        (MESSAGING + "SendMessage", requests.send(NORMAL_TOPIC, b"body", mixed)),
        (MESSAGING + "ReceiveMessage", receive(NORMAL_TOPIC, "garbage", expression=long)),
        (MESSAGING + "ReceiveMessage", receive(NORMAL_TOPIC, "garbage", kind=SQL, expression=long)),
        (MESSAGING + "ReceiveMessage", receive(NORMAL_TOPIC, "garbage", kind=SQL, expression="=é")),
        (MESSAGING + "AckMessage", requests.ack(NORMAL_TOPIC, "garbage", [(long, mixed)])),
        (MESSAGING + "Telemetry", requests.publishing([long])),
        (MESSAGING + "Telemetry", requests.subscribing(mixed, [])),
        (ADMIN + "PutTopic", requests.put_topic(mixed, 1)),
        (ADMIN + "GetMessage", requests.get_message(mixed, 0, 0)),
        (BULK + "Append", requests.append_start(mixed)),
        (BULK + "Fetch", requests.fetch_topic(mixed)),
        (MESSAGING + "Heartbeat", b"\xff" * length),
        ("/" + "x" * 8000, b""),
    ):
        with target.connect() as connection:
            answer = connection.call(path, request, client_id="garbage")
            target.note([answer])
            if answer.size_bytes > _ECHO_BYTES:
                target.outcomes["echoed"] += 1
        target.pause(0.2)


def long_settings(target: Target) -> None:
    """Introduce clients that name thousands of topics, again and again on one stream."""
    count = target.random.choice(_SETTINGS_TOPICS)
    topics = [f"topic-{number}" for number in range(count)]
    commands = requests.publishing(topics), requests.subscribing("settings", topics)
    with target.connect() as connection:
        stream_id = connection.open(MESSAGING + "Telemetry", client_id=target.name("settings"))
        answer = connection.calls[stream_id]
        for number in range(100):
            before = answer.size_bytes
            connection.message(stream_id, commands[number % 2], end=False)
            while answer.size_bytes == before and not answer.is_over:
                connection.read(5.0)
            # Of a long answer the rest comes, or does not: no need to wait for it.
            target.outcomes["settings taken"] += not answer.is_over
            target.pause(_SETTINGS_S)
            if answer.is_over or not target.left_s():
                break
        target.note([answer])


def forged_handles(target: Target) -> None:
    """Acknowledge thousands of deliveries that never were, far more than a receive gives."""
    with target.connect() as connection:
        for _ in range(10):
            genuine = _receive_one(connection)
            start, _, end = genuine.rpartition(" ")
            forged = [("id", f"{start} {int(end) + n}") for n in range(_FORGED_HANDLES)]
            for entries in (
                forged,
                forged * 20,
                [("id", "1 2 3 4 5 6 7 8 9")] * _FORGED_HANDLES,
                [("i" * 1000, "x" * 1000)] * _FORGED_HANDLES,
            ):
                request = requests.ack(NORMAL_TOPIC, "forged", entries)
                answer = connection.call(MESSAGING + "AckMessage", request, client_id="forged")
                target.note([answer])
            target.pause(1.0)
            if not target.left_s():
                break


def _receive_one(connection: Connection) -> str:
    """Return the handle of a delivery; one that is none if there was nothing to receive."""
    request = requests.receive(NORMAL_TOPIC, "forged", batch=1, invisible_s=10)
    answer = connection.call(MESSAGING + "ReceiveMessage", request, client_id="forged")
    received = requests.received_messages(answer.messages())
    return received[0][2] if received else "0 1 2 0 0 broker-a 0 0 0"


ATTACKS: Final = (
    Attack("sql-filters", "F2.6", sql_filters, 2.0),
    Attack("searches", "F2.6", searches, 0.5),
    Attack("garbage", "F2.7", garbage, 1.0),
    Attack("long-settings", "F2.8", long_settings, 0.5),
    Attack("forged-handles", "", forged_handles, 1.0),
)
