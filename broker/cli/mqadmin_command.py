"""A command of mqadmin, as the modules that have them describe it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from commitbus.broker.cli.output import Answer

if TYPE_CHECKING:
    from commitbus.broker.cli.admin_client import AdminClient


@final
@dataclass(frozen=True, slots=True)
class Command:
    """One command of mqadmin. A module of this package defines it under `COMMANDS`."""

    name: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[AdminClient, argparse.Namespace], Answer]
    dash_values: frozenset[str] = frozenset()
    """Options whose value may begin with a dash, which argparse takes for another option."""
