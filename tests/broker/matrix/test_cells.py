"""Every cell of docs/status-codes.md is what the broker answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.broker.matrix.all_cells import CELLS
from tests.broker.matrix.registry import Cell, code_name
from tests.broker.matrix.stage import Stage

Run = Callable[..., None]


@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.id) for cell in CELLS])
def test_the_rpc_answers_so(run: Run, monkeypatch: pytest.MonkeyPatch, cell: Cell) -> None:
    """With this code and no other; it changes what it should, and who is refused nothing.

    A grant that changes nothing tells somebody something instead.
    """

    async def scenario(bus: Any) -> None:
        async with trio.open_nursery() as beside:
            stage = Stage(bus, monkeypatch, beside)
            request = await cell.scenario(stage)
            call = bus.call(deadline_s=cell.deadline_s, **cell.headers)
            before = stage.state()
            answered = await stage.answer(cell.path, request, call)
            after = stage.state()
            monkeypatch.undo()
            beside.cancel_scope.cancel()
        assert code_name(answered) == cell.code_name
        changed = {part for part in before if before[part] != after[part]}
        assert changed - {"clients"} == set(cell.changes) - {"clients"}
        assert changed >= set(cell.changes)
        if cell.code_name == "OK" and not cell.changes:
            assert stage.told

    run(scenario, **cell.settings)
