"""A toy adapter: a protocol of text lines on the core, with a table of errors of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commitbus.broker.common.errors import (
    REFUSALS,
    IllegalRequestError,
    MissingError,
    NotPermittedError,
)
from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.core.error_codes import code_of
from commitbus.broker.core.sending import new_message_id, send
from commitbus.broker.core.validation import NewMessage, client_topic

CODES: dict[type[Exception], str] = {
    IllegalRequestError: "WRONG",
    MissingError: "MISSING",
    NotPermittedError: "CLOSED",
}


async def answer(broker: BrokerCore, line: str) -> str:
    """Serve `SEND topic body`, or `STATUS topic`."""
    verb, topic, *rest = line.split(" ", 2)
    try:
        config = broker.existing_topic(client_topic(topic))
        if verb == "STATUS":
            return f"OK {config.read_queue_nums} {config.message_type}"
        message = NewMessage("".join(rest).encode(), new_message_id())
        queue_id, place = await send(broker, config, message, peer="192.0.2.1:9")
    except REFUSALS as error:
        return f"{code_of(CODES, error)} {error}"
    return f"OK {queue_id} {place.queue_offset}"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("STATUS T", "OK 1 NORMAL"),
        ("SEND T hello", "OK 0 0"),
        ("SEND T", "WRONG message body cannot be empty"),
        ("SEND a/b x", "WRONG 'a/b' is no topic: only the characters [%|a-zA-Z0-9_-] are allowed"),
        ("SEND Nope x", "MISSING no such topic: Nope"),
        ("SEND Closed x", "CLOSED topic Closed has no writable queue"),
    ],
)
def test_a_line_is_answered(run: Callable[..., None], line: str, expected: str) -> None:
    async def scenario(bus: Any) -> None:
        await bus.topic("Closed", perm=4)
        assert await answer(bus.context.broker, line) == expected

    run(scenario)
