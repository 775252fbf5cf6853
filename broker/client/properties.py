"""A message's tag, keys and properties as the broker stores them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from commitbus.broker.client.arguments import check_property
from commitbus.broker.client.errors import RefusedError
from commitbus.broker.common.errors import RequestError
from commitbus.broker.core import properties as names
from commitbus.broker.core.stored_properties import check_properties
from commitbus.broker.rpc.call import StatusCode
from commitbus.commitlog.record_format import encode_properties

NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


def encoded_properties(tag: str, keys: Sequence[str], properties: Mapping[str, str]) -> bytes:
    """Return what is stored beside a body.

    Raises:
        RefusedError: The broker would refuse it: a name is reserved, or too much in all, or
            something has control characters, or cannot be encoded as UTF-8.
        TypeError: A tag, key, name or value is no str.
    """
    if not keys and not properties:
        return _encoded_tag(tag)
    stored = dict(properties)
    if tag:
        stored[names.TAGS] = tag
    if isinstance(keys, str):
        keys = (keys,)
    for key in keys:
        check_property(names.KEYS, key)
    if keys:
        stored[names.KEYS] = names.KEY_SEPARATOR.join(keys)
    return _encoded(stored)


@lru_cache(maxsize=1024)
def _encoded_tag(tag: str) -> bytes:
    return _encoded({names.TAGS: tag}) if tag else b""


def _encoded(stored: Mapping[str, str]) -> bytes:
    for name, value in stored.items():
        check_property(name, value)
    try:
        encoded = encode_properties(stored)
        check_properties(encoded)
    except (ValueError, RequestError) as error:
        raise RefusedError(StatusCode.INVALID_ARGUMENT, str(error)) from None
    return encoded
