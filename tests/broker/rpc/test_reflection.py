"""Reflection, in both of its versions, over both transports, asked by grpcio and by grpcurl."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2

GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3"
SERVICE = "apache.rocketmq.v2.MessagingService"
SERVICES = {
    SERVICE,
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}
# Defined in conftest.py, which a test module cannot import.
Kit = Any
Start = Callable[..., Any]
Connect = Callable[..., Any]

request = reflection_pb2.ServerReflectionRequest


@pytest.fixture(params=["v1", "v1alpha"])
def ask(
    request: pytest.FixtureRequest, kit: Kit, start_server: Start, connect: Connect
) -> Callable[..., list[Any]]:
    """Sends requests to a server, in one stream of one version, and returns the answers."""
    channel = connect(start_server(kit.unary(kit.echo))).channel
    # Both versions have the same messages.
    method = channel.stream_stream(
        f"/grpc.reflection.{request.param}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    return lambda *requests: list(method(iter(requests)))


def test_every_service_is_listed_and_described(ask: Callable[..., list[Any]]) -> None:
    """Reflection itself included."""
    (listed,) = ask(request(list_services=""))
    assert {service.name for service in listed.list_services_response.service} == SERVICES
    for name in [*SERVICES, "apache.rocketmq.v2.Message"]:
        (found,) = ask(request(file_containing_symbol=name))
        first, *_ = found.file_descriptor_response.file_descriptor_proto
        file = FileDescriptorProto.FromString(first)
        names = [one.name for one in file.service] + [one.name for one in file.message_type]
        assert f"{file.package}.{name.rpartition('.')[2]}" == name
        assert name.rpartition(".")[2] in names


def test_the_final_version_is_described_as_itself(ask: Callable[..., list[Any]]) -> None:
    """Its file names no type of the other version."""
    (found,) = ask(request(file_by_filename="grpc/reflection/v1/reflection.proto"))
    (data,) = found.file_descriptor_response.file_descriptor_proto
    file = FileDescriptorProto.FromString(data)
    (method,) = file.service[0].method
    assert method.input_type == ".grpc.reflection.v1.ServerReflectionRequest"
    assert b"v1alpha" not in data


def test_every_question_is_answered(ask: Callable[..., list[Any]]) -> None:
    """Also the ones with nothing to find: the stream goes on."""
    extension = reflection_pb2.ExtensionRequest(
        containing_type="apache.rocketmq.v2.Message", extension_number=99
    )
    by_name, by_symbol, numbers, *nothing = ask(
        request(file_by_filename="google/protobuf/timestamp.proto"),
        request(file_containing_symbol=f"{SERVICE}.SendMessage"),
        request(all_extension_numbers_of_type="apache.rocketmq.v2.Message"),
        request(file_by_filename="nonsense.proto"),
        request(file_containing_symbol="nonsense"),
        request(file_containing_extension=extension),
        request(),
    )
    assert len(by_name.file_descriptor_response.file_descriptor_proto) == 1
    assert len(by_symbol.file_descriptor_response.file_descriptor_proto) > 1
    assert numbers.all_extension_numbers_response.base_type_name == "apache.rocketmq.v2.Message"
    assert [answer.error_response.error_code for answer in nothing] == [5, 5, 5, 3]


@pytest.mark.slow
def test_grpcurl_needs_no_proto_files(
    build_go: Callable[[str], Path], kit: Kit, start_server: Start
) -> None:
    """It lists, describes and calls with what reflection tells it; it asks v1 first."""
    grpcurl, server = build_go(GRPCURL), start_server(kit.unary(kit.echo))

    def run(*arguments: str, options: tuple[str, ...] = ()) -> str:
        address = f"127.0.0.1:{server.port}"
        done = subprocess.run(
            [grpcurl, "-plaintext", *options, address, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert set(run("list").split()) == SERVICES
    assert f"{SERVICE}.SendMessage" in run("list", SERVICE).split()
    for symbol in [*SERVICES, "apache.rocketmq.v2.Message", f"{SERVICE}.SendMessage"]:
        assert run("describe", symbol).startswith(f"{symbol} is a ")
    answer = run("grpc.health.v1.Health/Check", options=("-d", "{}"))
    assert json.loads(answer) == {"status": "SERVING"}
