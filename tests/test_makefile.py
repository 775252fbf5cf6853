"""What `make` says on a machine that lacks something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
LACKING = {
    "ensurepip": ('sys.modules["ensurepip"] = None', "lacks ensurepip"),
    "version": ("sys.version_info = (3, 10, 9)", "needs Python 3.11"),
}


@pytest.mark.parametrize("lacks", LACKING)
def test_a_python_that_will_not_do_is_refused_in_a_sentence(lacks: str, tmp_path: Path) -> None:
    """And leaves no half-made environment, which the next `make` would take for a whole one."""
    code, sentence = LACKING[lacks]
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{code}\n")
    environment = tmp_path / "environment"
    done = subprocess.run(
        ["make", f"PYTHON={sys.executable}", f"VENV={environment}", f"{environment}/bin/python"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert sentence in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr
    assert not environment.exists()
