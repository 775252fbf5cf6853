"""The document is up to date, and nothing is missing in it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
import trio

from commitbus.broker import messaging
from commitbus.broker.messaging.status import CODES
from tests.broker.matrix.all_cells import CELLS, UNSERVED
from tests.broker.matrix.registry import ADMIN_V2, MESSAGING, PATHS
from tests.broker.matrix.stage import Stage
from tests.broker.matrix.table import render
from tests.conftest import REPOSITORY

Run = Callable[..., None]


def test_the_document_is_what_the_cells_say() -> None:
    """If not: `python -m tests.broker.matrix > docs/status-codes.md`."""
    assert (REPOSITORY / "docs" / "status-codes.md").read_text() == render()


def test_every_code_of_the_table_of_errors_is_answered_by_some_rpc() -> None:
    """A code that nothing gives is dead, or has no test."""
    answered = {cell.code for cell in CELLS if cell.path.startswith((MESSAGING, ADMIN_V2))}
    assert set(CODES.values()) <= answered


def test_every_rpc_is_served_and_tried_or_known_not_to_be(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all services of the .proto files."""
    served: set[str] = set()

    async def scenario(bus: Any) -> None:
        async with trio.open_nursery() as nursery:
            served.update(Stage(bus, monkeypatch, nursery).methods)

    run(scenario)
    unserved = {path for path, _ in UNSERVED}
    assert served.isdisjoint(unserved)
    assert served | unserved == {path for paths in PATHS.values() for path in paths}
    assert {cell.path for cell in CELLS if cell.code_name == "OK"} == served


def test_every_cell_says_when_in_a_sentence_and_once() -> None:
    """The scenarios' docstrings are what users read."""
    said = [(cell.path, cell.code, cell.when) for cell in CELLS]
    assert len(set(said)) == len(said)
    assert all(re.fullmatch(r"[A-Z].*\.", cell.when) for cell in CELLS)


def handlers() -> Iterator[tuple[str, Callable[..., object]]]:
    """The functions that answer the RPCs of the MessagingService, by path."""
    modules = [
        import_module(m.name) for m in iter_modules(messaging.__path__, f"{messaging.__name__}.")
    ]
    for path in PATHS[MESSAGING]:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path.rpartition("/")[2]).lower()
        yield from ((path, vars(module)[name]) for module in modules if name in vars(module))


@pytest.mark.parametrize(
    ("path", "handler"), [pytest.param(*found, id=found[0]) for found in handlers()]
)
def test_every_error_that_a_handler_documents_is_tried(
    path: str, handler: Callable[..., object]
) -> None:
    """By its docstring; bases such as RequestError stand for what its callees raise."""
    raised = set(re.findall(r"^ *(\w+Error):", inspect.getdoc(handler) or "", re.MULTILINE))
    codes = {CODES[kind] for kind in CODES if kind.__name__ in raised}
    assert codes <= {cell.code for cell in CELLS if cell.path == path}
