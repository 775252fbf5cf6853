"""Messages as lines of text: what `commitbus produce` reads and `commitbus consume` writes.

A JSON line has `body`, or `body_base64` where the body is no UTF-8, and may have `tag`, `keys` and
`properties`. What is consumed has its place and times too, which producing ignores.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from commitbus.broker.cli.output import CommandError
from commitbus.broker.client.batch import Message, MessageBatch
from commitbus.broker.core.properties import HIDDEN_KEYS


@final
class ToProduce(NamedTuple):
    """A message as a line says it."""

    body: bytes
    tag: str
    keys: tuple[str, ...]
    properties: Mapping[str, str]


def from_line(line: bytes) -> ToProduce:
    """Return the message whose body a line is."""
    return ToProduce(line, "", (), {})


def from_json_line(line: bytes, number: int) -> ToProduce:
    """Return the message that a JSON line describes.

    Raises:
        CommandError: it describes none.
    """
    try:
        fields = json.loads(line)
        return _from_fields(fields)
    except (ValueError, TypeError) as error:
        raise CommandError(f"line {number} is no message: {error}") from None
    except RecursionError:
        raise CommandError(f"line {number} is no message: it is nested too deeply") from None


def _from_fields(fields: Any) -> ToProduce:  # noqa: ANN401 - whatever JSON has
    if not isinstance(fields, dict):
        raise TypeError("it is no JSON object")
    keys, properties = fields.get("keys") or [], fields.get("properties") or {}
    if not isinstance(keys, list) or not isinstance(properties, dict):
        raise TypeError("keys must be a list, and properties an object")
    body, packed, tag = fields.get("body", ""), fields.get("body_base64", ""), fields.get("tag", "")
    if not all(isinstance(text, str) for text in (body, packed, tag, *keys, *properties.values())):
        raise TypeError("body, body_base64, tag, keys and properties must be text")
    data = base64.b64decode(packed, validate=True) if packed else body.encode()
    if not data:
        raise ValueError("it has neither body nor body_base64")
    return ToProduce(data, tag, tuple(keys), properties)


def to_lines(batch: MessageBatch, count: int) -> bytes:
    """Return the bodies of the first `count` messages, a line each."""
    bodies = batch.bodies()[:count]
    return b"\n".join((*bodies, b""))


def to_json_lines(batch: MessageBatch, count: int) -> bytes:
    """Return the first `count` messages, a JSON object each."""
    texts = [_json(message) for message, _ in zip(batch, range(count), strict=False)]
    return "".join(texts).encode()


def _json(message: Message) -> str:
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    fields = {
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
        "tag": message.tag,
        "keys": message.keys,
        "properties": {k: v for k, v in message.properties.items() if k not in HIDDEN_KEYS},
        **body,
    }
    return json.dumps(fields, ensure_ascii=False) + "\n"
