"""Serves `grpc.testing.TestService` over the trio transport; prints the port. A script.

Its one argument is a PEM file with a certificate and its key; the port takes plaintext and TLS.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import trio
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.listen.accept import AcceptOptions
from commitbus.broker.rpc.listen.certificate import TlsContexts
from commitbus.broker.rpc.method import Handler, Method, MethodKind
from commitbus.broker.rpc.trio_transport import serve


def load_messages(proto: Path) -> dict[str, Any]:
    """The message classes of a .proto file, by their short names."""
    protoc = importlib.import_module("grpc_tools.protoc")
    with tempfile.NamedTemporaryFile(suffix=".binpb") as output:
        arguments = [f"-I{proto.parent}", f"--descriptor_set_out={output.name}", proto.name]
        assert protoc.main(["protoc", *arguments]) == 0
        files = FileDescriptorSet.FromString(Path(output.name).read_bytes())
    pool = DescriptorPool()
    file = pool.AddSerializedFile(files.file[0].SerializeToString())
    return {name: GetMessageClass(each) for name, each in file.message_types_by_name.items()}


PB = load_messages(Path(__file__).with_name("testing.proto"))


def empty_call(_: Message, __: Call) -> Any:
    return PB["Empty"]()


def unary_call(request: Any, _: Call) -> Any:
    echo_status(request)
    return PB["SimpleResponse"](payload={"body": bytes(request.response_size)})


async def streaming_output_call(request: Any, _: Call, send: Send) -> None:
    echo_status(request)
    await send_payloads(request, send)


async def streaming_input_call(requests: AsyncIterator[Any], _: Call) -> Any:
    size = 0
    async for request in requests:
        size += len(request.payload.body)
    return PB["StreamingInputCallResponse"](aggregated_payload_size=size)


async def full_duplex_call(requests: AsyncIterator[Any], _: Call, send: Send) -> None:
    async for request in requests:
        echo_status(request)
        await send_payloads(request, send)


def echo_status(request: Any) -> None:
    """End the call with the status that the request wants, if any."""
    if request.response_status.code:
        code = StatusCode(request.response_status.code)
        raise RpcError(code, request.response_status.message)


async def send_payloads(request: Any, send: Send) -> None:
    """Send what the request asks for, as slowly as it says."""
    for wanted in request.response_parameters:
        await trio.sleep(wanted.interval_us / 1e6)
        await send(PB["StreamingOutputCallResponse"](payload={"body": bytes(wanted.size)}))


def method(name: str, kind: MethodKind, request: str, response: str, handler: Handler) -> Method:
    path = f"/grpc.testing.TestService/{name}"
    return Method(path, kind, PB[request], PB[response], handler, access=NOTHING)


METHODS = [
    method("EmptyCall", MethodKind.UNARY, "Empty", "Empty", empty_call),
    method("UnaryCall", MethodKind.UNARY, "SimpleRequest", "SimpleResponse", unary_call),
    method(
        "StreamingOutputCall",
        MethodKind.SERVER_STREAM,
        "StreamingOutputCallRequest",
        "StreamingOutputCallResponse",
        streaming_output_call,
    ),
    method(
        "StreamingInputCall",
        MethodKind.CLIENT_STREAM,
        "StreamingInputCallRequest",
        "StreamingInputCallResponse",
        streaming_input_call,
    ),
    method(
        "FullDuplexCall",
        MethodKind.BIDI,
        "StreamingOutputCallRequest",
        "StreamingOutputCallResponse",
        full_duplex_call,
    ),
]


async def main() -> None:
    """Serve until the process is ended."""
    async with trio.open_nursery() as nursery:
        options = AcceptOptions(tls=TlsContexts(Path(sys.argv[1])))
        start = partial(serve, METHODS, listen="127.0.0.1:0", accept_options=options)
        port = await nursery.start(start)
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main)
