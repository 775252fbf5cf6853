"""What an operator asks a client: sent by its telemetry stream, and answered there."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final, final

import trio

from commitbus.broker.common.errors import ClientNotConnectedError, ClientSilentError
from commitbus.broker.messaging.clients import Client
from commitbus.broker.rpc.call import RpcError
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

ANSWER_S_MAX: Final = 30.0
"""For a client to answer: it may be asked to consume a message, which takes what it takes."""
_NONCE_BYTES: Final = 16

Question = Callable[[str], pb.TelemetryCommand]
"""Returns the command with a nonce, which the answer repeats."""


@final
class Questions:
    """The questions that clients have not answered yet. Lives on the trio thread."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, trio.MemorySendChannel[pb.TelemetryCommand]]] = {}
        """By client id, then by nonce: nobody else's answer counts."""

    async def ask(
        self, client: Client, question: Question, *, timeout_s: float = ANSWER_S_MAX
    ) -> pb.TelemetryCommand:
        """Send a question and return the client's answer.

        Raises:
            ClientNotConnectedError: it has no telemetry stream, or the stream ends meanwhile.
            ClientSilentError: it does not answer in time.
        """
        if client.send is None:
            raise ClientNotConnectedError(client.client_id)
        nonce = secrets.token_hex(_NONCE_BYTES)
        answered, answer = trio.open_memory_channel[pb.TelemetryCommand](1)
        self._waiting.setdefault(client.client_id, {})[nonce] = answered
        try:
            with trio.fail_after(timeout_s):
                await client.send(question(nonce))
                return await answer.receive()
        except trio.TooSlowError:
            raise ClientSilentError(client.client_id, timeout_s) from None
        except (trio.EndOfChannel, RpcError):
            raise ClientNotConnectedError(client.client_id) from None
        finally:
            self._taken(client, nonce)

    def _taken(
        self, client: Client, nonce: str
    ) -> trio.MemorySendChannel[pb.TelemetryCommand] | None:
        waiting = self._waiting.get(client.client_id, {})
        found = waiting.pop(nonce, None)
        if found is not None and not waiting:
            del self._waiting[client.client_id]
        return found

    def answered(self, client: Client, nonce: str, answer: pb.TelemetryCommand) -> None:
        """Hand an answer to who asked; one that nobody waits for is dropped."""
        waiting = self._taken(client, nonce)
        if waiting is not None:
            waiting.send_nowait(answer)

    def disconnected(self, client: Client) -> None:
        """Tell those who wait for this client that it will not answer."""
        for waiting in self._waiting.pop(client.client_id, {}).values():
            waiting.close()
