"""The headers of a call as its handler sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, final

from commitbus.broker.rpc.call import CLIENT_ID_HEADER

_KNOWN_MAX: Final = 4096
_KNOWN_BYTES_MAX: Final = 256
"""Of one value: longer ones come from one client only, and would stay when it has gone."""
_KEPT_BYTES: Final = 2048
"""Of the headers of a stream, which may stay open for days. Official clients send 1 KB."""
_CLIENT_ID: Final = CLIENT_ID_HEADER.encode()


@final
class Metadata(Mapping[str, str]):
    """A call's headers by lower-case name, decoded when they are looked at.

    Without gRPC's binary ones (`-bin`), and without what belongs to HTTP/2 and gRPC themselves.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[bytes, bytes]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        return self._fields[_key(name)].decode("latin-1")

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override] # texts only
        """Return a header, as `dict.get`."""
        value = self._fields.get(_key(name))
        return default if value is None else value.decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return (field.decode("latin-1") for field in self._fields if _is_text(field))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def size(self) -> int:
        """Return how many bytes the values take, about."""
        return len(b"".join(self._fields.values()))

    def shrink(self, shared: SharedBytes) -> None:
        """Keep what can be asked for, in as little memory as that takes: the first 2 KB of it."""
        kept, left = {}, _KEPT_BYTES
        for name, value in self._fields.items():
            if _is_text(name):
                left -= len(name) + len(value)
                if left < 0:
                    break
                kept[shared.of(name)] = shared.of(value)
        self._fields = kept

    def shrink_to_client_id(self, shared: SharedBytes) -> None:
        """Keep what is logged of every call that fails, and nothing else."""
        client_id = self._fields.get(_CLIENT_ID)
        self._fields = {} if client_id is None else shared.client(client_id)


@final
class SharedBytes:
    """One copy of what comes again and again: names of headers, and most of their values.

    10,000 streams that stay open have the same 17 names, 1.7 KB each time.
    """

    __slots__ = ("_clients", "_known")

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}
        self._clients: dict[bytes, dict[bytes, bytes]] = {}

    def of(self, value: bytes) -> bytes:
        """Return an equal value, the same one for as long as it is remembered."""
        if len(value) > _KNOWN_BYTES_MAX:
            return value
        found = self._known.get(value)
        if found is None:
            if len(self._known) >= _KNOWN_MAX:
                # Values that never come again have filled it; the others come back at once.
                self._known.clear()
            found = self._known[value] = value
        return found

    def client(self, client_id: bytes) -> dict[bytes, bytes]:
        """Return a client's id as the only header, not to be changed: one for all its calls."""
        if len(client_id) > _KNOWN_BYTES_MAX:
            return {_CLIENT_ID: client_id}
        found = self._clients.get(client_id)
        if found is None:
            if len(self._clients) >= _KNOWN_MAX:
                self._clients.clear()
            found = self._clients[client_id] = {_CLIENT_ID: client_id}
        return found


@lru_cache(maxsize=64)
def _key(name: str) -> bytes:
    """Return under what a header is kept; for one that is not shown, what no header is called."""
    key = name.encode()
    return key if _is_text(key) else b""


def _is_text(name: bytes) -> bool:
    return not (
        name.startswith((b":", b"grpc-"))
        or name.endswith(b"-bin")
        or name in (b"te", b"content-type")
    )
