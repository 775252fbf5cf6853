"""Server reflection, `grpc.reflection.v1` and `v1alpha`, for whatever transport carries it.

What `grpcurl list` and `grpcurl describe` ask. The two versions differ in the name of their package
only, so their messages are the same on the wire, and one handler answers both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, final

from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest as Request
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionResponse as Response

from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call, Send, StatusCode
from commitbus.broker.rpc.defaults import SMALL_REQUEST_BYTES_MAX
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto.pool import POOL

_SERVICES: Final = tuple(
    f"grpc.reflection.{version}.ServerReflection" for version in ("v1", "v1alpha")
)


def _as_v1(alpha: FileDescriptorProto) -> bytes:
    """Return the file of the final version, which grpcio's package does not have."""
    text = text_format.MessageToString(alpha).replace("v1alpha", "v1")
    final_version = text_format.Parse(text, FileDescriptorProto())
    final_version.name = "grpc/reflection/v1/reflection.proto"
    return final_version.SerializeToString()


# Everything that is looked up is looked up in one pool.
for _module in (health_pb2, reflection_pb2):
    POOL.AddSerializedFile(_module.DESCRIPTOR.serialized_pb)
POOL.AddSerializedFile(
    _as_v1(FileDescriptorProto.FromString(reflection_pb2.DESCRIPTOR.serialized_pb))
)


@final
class Reflection:
    """Describes services out of the pool that our messages live in."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = sorted({*services, *_SERVICES})

    def methods(self) -> list[Method]:
        """Return the one method of each version."""
        return [
            Method(
                f"/{service}/ServerReflectionInfo",
                MethodKind.BIDI,
                Request,
                Response,
                self._answer_all,
                SMALL_REQUEST_BYTES_MAX,
                access=NOTHING,
                lasts=True,
            )
            for service in _SERVICES
        ]

    async def _answer_all(self, requests: AsyncIterator[Request], _: Call, send: Send) -> None:
        async for request in requests:
            response = Response(valid_host=request.host, original_request=request)
            try:
                self._answer(request, response)
            except KeyError:
                response.error_response.error_code = StatusCode.NOT_FOUND
                response.error_response.error_message = "not found"
            await send(response)

    def _answer(self, request: Request, response: Response) -> None:
        """Fill in the answer. KeyError: there is no such thing."""
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in self._services:
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                _add_files(response, POOL.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                _add_files(response, _file_of_symbol(request.file_containing_symbol))
            case "file_containing_extension":
                wanted = request.file_containing_extension
                message = POOL.FindMessageTypeByName(wanted.containing_type)
                extension = POOL.FindExtensionByNumber(message, wanted.extension_number)
                _add_files(response, extension.file)  # type: ignore[attr-defined] # in no stub
            case "all_extension_numbers_of_type":
                name = request.all_extension_numbers_of_type
                extensions = POOL.FindAllExtensions(POOL.FindMessageTypeByName(name))
                found = response.all_extension_numbers_response
                found.base_type_name = name
                found.extension_number.extend(extension.number for extension in extensions)
            case _:
                response.error_response.error_code = StatusCode.INVALID_ARGUMENT
                response.error_response.error_message = "the request asks for nothing"


def _file_of_symbol(symbol: str) -> FileDescriptor:
    """Return the file that declares a type, a service, or a member of one.

    Raises:
        KeyError: there is none.
    """
    find: Callable[[str], FileDescriptor] = POOL.FindFileContainingSymbol
    try:
        return find(symbol)
    except KeyError:
        # A method of a service is no symbol to the pool.
        return find(symbol.rpartition(".")[0])


def _add_files(response: Response, file: FileDescriptor) -> None:
    """Add a file and everything that it imports, each once, the file itself first."""
    files = {file.name: file}
    queue = [file]
    while queue:
        for imported in queue.pop().dependencies:
            if imported.name not in files:
                files[imported.name] = imported
                queue.append(imported)
    response.file_descriptor_response.file_descriptor_proto.extend(
        found.serialized_pb for found in files.values()
    )
