"""The long runner, as docs/testing.md shows it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^python (-m tests\.simulation\.long [^#\n]+)", re.MULTILINE)
SHOWN = COMMAND.findall((REPOSITORY / "docs" / "testing.md").read_text())


def test_the_page_shows_the_runner() -> None:
    """Otherwise the next test would run nothing and pass."""
    assert len(SHOWN) == 4


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [text.strip() for text in SHOWN])
def test_every_command_of_the_page_works(arguments: str) -> None:
    """An hour of seeds is cut to two seconds."""
    words = shlex.split(arguments.replace("--minutes 60", "--minutes 0.03"))
    done = subprocess.run(
        [sys.executable, *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
