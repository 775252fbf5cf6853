"""The install lines of the documents: what is shown below one runs with what it installs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import DOCUMENTS, REPOSITORY, all_blocks, run_commands, run_program

CONSTRAINTS = REPOSITORY / ".ci" / "constraints.txt"
NOT_PACKAGED = (".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "bench", "docs")
INSTALL_LINES = sorted(
    {block.install_line for path in DOCUMENTS for block in all_blocks(path)} - {""}
)


def run_pip(line: str, environment: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line with an environment's pip, held to the versions that CI has."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        ["bash", "-c", line],
        cwd=directory,
        env={
            **variables,
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_CONSTRAINT": str(CONSTRAINTS),
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def skip_without_index(environment: Path, directory: Path) -> None:
    """Skip the test where packages cannot be had."""
    got = run_pip("pip download --quiet --no-deps sniffio", environment, directory)
    if got.returncode != 0:
        reason = (got.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"no package index can be reached: {reason}")


@pytest.mark.slow
@pytest.mark.parametrize("line", INSTALL_LINES)
def test_the_examples_below_an_install_line_run(line: str, tmp_path: Path) -> None:
    """In a new environment that has what the line installs, from a clone, and nothing else."""
    environment, clone = tmp_path / "environment", tmp_path / "clone"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    try:
        skip_without_index(environment, tmp_path)
        shutil.copytree(REPOSITORY, clone, ignore=shutil.ignore_patterns(*NOT_PACKAGED))
        installed = run_pip(line, environment, clone)
        assert installed.returncode == 0, installed.stdout + installed.stderr
        shutil.rmtree(clone)
        for document in DOCUMENTS:
            shown = [block for block in all_blocks(document) if block.install_line == line]
            directory = tmp_path / document.stem
            directory.mkdir()
            commands = [block.text for block in shown if block.language == "console"]
            run_commands(commands, directory, binaries=environment / "bin")
            for block in shown:
                if block.language == "python":
                    run_program(block.text, directory, binaries=environment / "bin")
    finally:
        # pytest keeps the folders of three runs, and Spark is large.
        shutil.rmtree(environment)
