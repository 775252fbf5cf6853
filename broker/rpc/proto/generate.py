"""Generates the Python modules and their stubs of every .proto file beside this one.

Run `python -m commitbus.broker.rpc.proto.generate` after a change (needs `grpcio-tools`), and
commit what it writes; a test compares the two.
"""

from __future__ import annotations

import importlib
import importlib.resources
import sys
import tempfile
from pathlib import Path
from typing import final

FOLDER = Path(__file__).resolve().parent
# Protoc sees the files under their import path, so what it generates imports them by that path.
IMPORT_PATH = "commitbus/broker/rpc/proto"

_DEFAULT_POOL_IMPORT = "from google.protobuf import descriptor_pool as _descriptor_pool\n"
_OWN_POOL_IMPORT = "from commitbus.broker.rpc.proto.pool import POOL as _POOL\n"
_DEFAULT_POOL = "_descriptor_pool.Default()"


@final
class GenerationError(Exception):
    """Protoc refused the .proto files; it has said why on stderr."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(f"protoc failed with exit code {exit_code}")


def use_own_pool(generated: str) -> str:
    """Return a generated module's text, registering with our pool instead of the default one."""
    assert generated.count(_DEFAULT_POOL_IMPORT) == 1, "protoc writes other code than it used to"
    assert generated.count(_DEFAULT_POOL) == 1, "protoc writes other code than it used to"
    return generated.replace(_DEFAULT_POOL_IMPORT, _OWN_POOL_IMPORT).replace(_DEFAULT_POOL, "_POOL")


def name_type_arguments(stub: str) -> str:
    """Return a generated stub's text as strict type checking wants it: no bare `Mapping`."""
    return stub.replace(", _Mapping]", ", _Mapping[str, object]]")


def generate(output: Path) -> list[Path]:
    """Write `*_pb2.py` and `*_pb2.pyi` of every .proto file below output/commitbus/...

    Raises:
        GenerationError: protoc refused a file.
    """
    # Imported here and by name: only developers have it, and it has no types.
    protoc = importlib.import_module("grpc_tools.protoc")
    well_known_types = importlib.resources.files("grpc_tools") / "_proto"
    names = sorted(path.name for path in FOLDER.glob("*.proto"))
    exit_code = protoc.main(
        [
            "protoc",
            f"--proto_path={IMPORT_PATH}={FOLDER}",
            f"--proto_path={well_known_types}",
            f"--python_out={output}",
            f"--pyi_out={output}",
            *(f"{IMPORT_PATH}/{name}" for name in names),
        ]
    )
    if exit_code != 0:
        raise GenerationError(exit_code)
    written = sorted((output / IMPORT_PATH).glob("*_pb2.py*"))
    for path in written:
        rewrite = use_own_pool if path.suffix == ".py" else name_type_arguments
        path.write_text(rewrite(path.read_text()))
    return written


def main() -> None:
    """Regenerate the modules of this folder."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for path in generate(Path(scratch)):
                (FOLDER / path.name).write_bytes(path.read_bytes())
    except GenerationError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
