"""Every cell there is: importing a module registers its cells."""

from __future__ import annotations

from tests.broker.matrix import (  # noqa: F401 - see above
    bulk,
    clients,
    handles,
    later,
    names,
    offsets,
    operators,
    operators_v2,
    progress_waits,
    receives,
    routes,
    sends,
    storing,
)
from tests.broker.matrix.registry import CELLS, UNSERVED

__all__ = ["CELLS", "UNSERVED"]
