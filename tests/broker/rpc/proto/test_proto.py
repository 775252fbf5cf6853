"""The generated modules: up to date, on their own, and the same on the wire as the client's."""

from __future__ import annotations

import datetime as dt
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.rpc.proto import generate
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.pool import Duration, Timestamp


def test_the_committed_modules_are_what_the_proto_files_generate(tmp_path: Path) -> None:
    """Nobody edited one without the other."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    written = generate.generate(tmp_path)
    committed = sorted(generate.FOLDER.glob("*_pb2.py*"))
    assert [path.name for path in written] == [path.name for path in committed]
    for fresh, path in zip(written, committed, strict=True):
        again = f"{path.name}: run python -m commitbus.broker.rpc.proto.generate"
        assert fresh.read_text() == path.read_text(), again


MODULES = ("definition", "service")
ORDERS = {
    "ours first": ("commitbus.broker.rpc.proto", "rocketmq.grpc_protocol"),
    "the client's first": ("rocketmq.grpc_protocol", "commitbus.broker.rpc.proto"),
}
EXCHANGE = """
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as ours
from rocketmq.grpc_protocol import definition_pb2 as theirs
message = ours.Message(body=b"x", user_properties={"k": "v"})
message.system_properties.born_timestamp.FromMilliseconds(1234567)
copy = theirs.Message.FromString(message.SerializeToString(deterministic=True))
assert copy.system_properties.born_timestamp.ToMilliseconds() == 1234567
assert copy.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)
"""


@pytest.mark.parametrize("order", ORDERS)
def test_the_official_client_may_be_imported_into_the_same_process(order: str) -> None:
    """In either order, and each understands the other's bytes."""
    pytest.importorskip("rocketmq", reason="rocketmq-python-client is not installed")
    modules = {
        "commitbus.broker.rpc.proto": "from commitbus.broker.rpc.proto import rocketmq_v2_pb2\n",
        "rocketmq.grpc_protocol": "from rocketmq.grpc_protocol import service_pb2, admin_pb2\n",
    }
    program = "".join(modules[name] for name in ORDERS[order]) + EXCHANGE
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_message_of_the_official_client_has_the_same_fields_here() -> None:
    """Numbers, types, labels and presence; ours may know more, being newer."""
    pytest.importorskip("rocketmq", reason="rocketmq-python-client is not installed")
    client = [importlib.import_module(f"rocketmq.grpc_protocol.{name}_pb2") for name in MODULES]

    def shape(field: Any) -> tuple[Any, ...]:
        named = field.message_type or field.enum_type
        one_of = field.containing_oneof
        return (
            *(field.number, field.type, field.is_repeated, field.has_presence),
            named.full_name if named else None,
            one_of.name if one_of else None,
        )

    def rpc(method: Any) -> tuple[Any, ...]:
        types = method.input_type.full_name, method.output_type.full_name
        return (*types, method.client_streaming, method.server_streaming)

    compared = 0
    for module in client:
        for name, theirs in module.DESCRIPTOR.message_types_by_name.items():
            message = pb.DESCRIPTOR.message_types_by_name[name]
            for field in theirs.fields:
                assert shape(message.fields_by_name[field.name]) == shape(field), field.full_name
                compared += 1
        for name, theirs in module.DESCRIPTOR.enum_types_by_name.items():
            enum = pb.DESCRIPTOR.enum_types_by_name[name]
            for value in theirs.values:
                assert enum.values_by_name[value.name].number == value.number, value.name
                compared += 1
        for name, theirs in module.DESCRIPTOR.services_by_name.items():
            service = pb.DESCRIPTOR.services_by_name[name]
            for method in theirs.methods:
                assert rpc(service.methods_by_name[method.name]) == rpc(method)
                compared += 1
    assert compared > 300


def test_well_known_types_keep_their_conveniences() -> None:
    """Though their classes are those of our own pool."""
    properties = pb.SystemProperties(
        store_timestamp=Timestamp(seconds=3),
        invisible_duration=Duration(seconds=2),
        delivery_timestamp=dt.datetime(1970, 1, 1, 0, 0, 4, tzinfo=dt.UTC),
    )
    properties.born_timestamp.FromMilliseconds(1500)
    assert properties.born_timestamp.ToMilliseconds() == 1500
    assert properties.store_timestamp.ToSeconds() == 3
    assert properties.invisible_duration.ToTimedelta() == dt.timedelta(seconds=2)
    assert properties.delivery_timestamp.ToMilliseconds() == 4000


def test_enums_are_reachable_both_ways() -> None:
    """As protobuf generates them."""
    assert pb.Code.OK == pb.OK == 20000
    assert pb.Code.Name(40402) == "TOPIC_NOT_FOUND"
