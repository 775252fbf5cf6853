"""Which codes each RPC answers with, and what brings it to do so."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, final

from commitbus.broker.rpc.call import StatusCode
from commitbus.broker.rpc.proto import admin_v1_pb2, bulk_v1_pb2, rocketmq_v2_pb2
from tests.broker.matrix.stage import Request, Stage

MESSAGING: Final = "/apache.rocketmq.v2.MessagingService/"
ADMIN_V2: Final = "/apache.rocketmq.v2.Admin/"
ADMIN: Final = "/commitbus.admin.v1.Admin/"
BULK: Final = "/commitbus.bulk.v1.Bulk/"

Scenario = Callable[[Stage], Awaitable[Request]]
"""Brings the broker to where a request gets the answer of the cell, and returns that request."""


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """One answer of one RPC."""

    path: str
    code: int
    """A code of the protocol, or a `StatusCode` of gRPC."""
    when: str
    scenario: Scenario
    changes: tuple[str, ...] = ()
    """Which parts of `Stage.state` are others afterwards. That of the clients is, of any call."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of the call, instead of those that every client sends."""
    deadline_s: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the broker, instead of its defaults."""

    @property
    def code_name(self) -> str:
        return code_name(self.code)

    @property
    def id(self) -> str:
        return f"{self.path.split('.')[-1]}-{self.code_name}-{self.scenario.__name__}"


@final
class Unserved(NamedTuple):
    """An RPC of the protocol that the broker does not have."""

    path: str
    reason: str


S = TypeVar("S", bound=Scenario)
T = TypeVar("T", bound=Callable[[Stage, str], Awaitable[Request]])

CELLS: Final[list[Cell]] = []
UNSERVED: Final[list[Unserved]] = []

_PROTOS: Final = (rocketmq_v2_pb2, admin_v1_pb2, bulk_v1_pb2)
PATHS: Final = MappingProxyType(
    {
        service: [service + method.name for method in descriptor.methods]
        for proto in _PROTOS
        for descriptor in proto.DESCRIPTOR.services_by_name.values()
        for service in [f"/{descriptor.full_name}/"]
    }
)
"""By service: all RPCs of the .proto files."""


def code_name(code: int) -> str:
    """The name of a code, whichever of the two kinds it is."""
    if isinstance(code, StatusCode):
        return code.name
    return rocketmq_v2_pb2.Code.Name(rocketmq_v2_pb2.Code.ValueType(code))


def cell(path: str, code: int, **options: Any) -> Callable[[S], S]:
    """Register a scenario. The first sentence of its docstring says when the RPC answers so."""

    def register(scenario: S) -> S:
        when = (inspect.getdoc(scenario) or "").partition("\n\n")[0]
        CELLS.append(Cell(path, code, " ".join(when.split()), scenario, **options))
        return scenario

    return register


def cells(
    paths: Iterable[str],
    code: int,
    changes: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    **options: Any,
) -> Callable[[T], T]:
    """Register a cell for each of several RPCs; the scenario is told which one it is."""

    def register(scenario: T) -> T:
        for path in paths:

            async def of_path(stage: Stage, path: str = path) -> Request:
                return await scenario(stage, path)

            of_path.__doc__, of_path.__name__ = scenario.__doc__, scenario.__name__
            cell(path, code, changes=changes.get(path, ()), **options)(of_path)
        return scenario

    return register


def unserved(path: str, reason: str) -> None:
    """Note that an RPC answers with gRPC's UNIMPLEMENTED, and why."""
    UNSERVED.append(Unserved(path, reason))


async def good_request(stage: Stage, path: str) -> Any:
    """What the RPC answers with OK: the request of its first cell, to be spoilt by others."""
    first = next(cell for cell in CELLS if cell.path == path)
    assert first.code in (rocketmq_v2_pb2.OK, StatusCode.OK), (
        f"{path} begins with {first.code_name}"
    )
    return await first.scenario(stage)
