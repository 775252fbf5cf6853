"""The documents, and how what they show is run."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")])
PORTS = ("8081", "8443", "5557")
"""Ports in the documents; each is replaced by a free one."""
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = "pip install "


class Block(NamedTuple):
    """A fenced block of a document."""

    language: str
    text: str
    install_line: str
    """The last one above it, empty if there is none."""


def all_blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    found, install_line = [], ""
    for match in BLOCK.finditer(document.read_text()):
        found.append(Block(match["language"], match["text"], install_line))
        for line in match["text"].splitlines():
            if match["language"] == "sh" and line.startswith(INSTALL):
                install_line = line
    return found


def blocks(document: Path, language: str) -> list[str]:
    """The texts of the blocks of one language, in order."""
    return [block.text for block in all_blocks(document) if block.language == language]


def free_port() -> int:
    """A free port, instead of the one the document names."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_in_bash(script: str, directory: Path, *, binaries: Path | None = None) -> None:
    """Run a script with the installed commands on the path; its failure is the test's."""
    binaries = binaries or Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    if binaries != Path(sys.executable).parent:
        # Only what is installed there.
        environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-m", "-c", script],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n--- printed\n{done.stdout}\n{done.stderr}"


def run_commands(texts: Sequence[str], directory: Path, *, binaries: Path | None = None) -> None:
    """Run the commands of console blocks one after the other, as a reader would type them."""
    lines = [line for text in texts for line in text.splitlines()]
    script = "\n".join(line[2:] for line in lines if line.startswith("$ "))
    for port in PORTS:
        script = script.replace(port, str(free_port()))
    # However the commands end, no broker that they started may outlive them.
    script = f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"
    run_in_bash(script, directory, binaries=binaries)


def run_program(text: str, directory: Path, *, binaries: Path | None = None) -> None:
    """Run a block of Python: a test with pytest, anything else as a program."""
    is_test = text.startswith("def test_") or "\ndef test_" in text
    path = directory / ("test_shown.py" if is_test else "shown.py")
    path.write_text(text)
    options = "-m pytest -q --import-mode=importlib --rootdir=. -p no:cacheprovider " * is_test
    run_in_bash(f"python {options}{path.name}", directory, binaries=binaries)
