"""Every command that a document shows is run, in the order in which a reader would."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.config import load_config

REPOSITORY = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")])
PORTS = ("8081", "8443", "5557")
"""What the documents name; each is replaced by a free one."""
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: Path, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    found = BLOCK.finditer(document.read_text())
    return [match["text"] for match in found if match["language"] == language]


def named(language: str) -> list[Any]:
    """The documents that have such a block."""
    with_block = [path for path in DOCUMENTS if blocks(path, language)]
    return [pytest.param(path, id=str(path.relative_to(REPOSITORY))) for path in with_block]


def from_checkout() -> list[str]:
    """The programs that are started in a checkout, without what is said of them."""
    shown = [line for d in DOCUMENTS for block in blocks(d, "sh") for line in block.splitlines()]
    return [line.partition("#")[0].strip() for line in shown if line.startswith("python -m ")]


def free_port() -> int:
    """A port that nobody listens on, instead of the one the document names."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_in_bash(script: str, directory: Path) -> None:
    """Run a script with the installed commands on the path; its failure is the test's."""
    binaries = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
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


@pytest.mark.slow
@pytest.mark.parametrize("document", named("console"))
def test_the_commands_of_a_document_work_in_the_order_shown(document: Path, tmp_path: Path) -> None:
    """A reader who types them one after the other sees none fail."""
    lines = [line for block in blocks(document, "console") for line in block.splitlines()]
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    script = "\n".join(commands)
    for port in PORTS:
        script = script.replace(port, str(free_port()))
    # However the commands end, no broker that they started may outlive them.
    run_in_bash(f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("document", named("python"))
def test_the_programs_of_a_document_run(document: Path, tmp_path: Path) -> None:
    """The Python that a document shows is a whole program."""
    for number, program in enumerate(blocks(document, "python")):
        path = tmp_path / f"program_{number}.py"
        path.write_text(program)
        run_in_bash(f"{sys.executable} {path}", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("command", from_checkout())
def test_the_programs_of_the_checkout_run_as_shown(command: str) -> None:
    """But for the time that they may take, which is a few seconds here."""
    script = re.sub(r"--minutes \d+", "--minutes 0.02", command)
    run_in_bash(script.replace("python ", f"{sys.executable} ", 1), REPOSITORY)


@pytest.mark.parametrize("document", named("toml"))
def test_the_settings_of_a_document_are_accepted(document: Path, tmp_path: Path) -> None:
    """By name, type and value, and together."""
    for settings in blocks(document, "toml"):
        path = tmp_path / "broker.toml"
        path.write_text(settings)
        load_config(path)


def test_every_make_command_of_a_document_is_a_target() -> None:
    """CI itself runs `make test`; the other targets at least exist under the name shown."""
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    shown = {
        line.split()[1]
        for document in DOCUMENTS
        for block in blocks(document, "sh")
        for line in block.splitlines()
        if line.startswith("make ")
    }
    assert shown
    assert shown <= targets


def test_shell_blocks_show_commands_of_the_checkout_only() -> None:
    """Anything else belongs into a console block, where it is run."""
    shown = [line for d in DOCUMENTS for block in blocks(d, "sh") for line in block.splitlines()]
    assert [line for line in shown if not line.startswith(("make ", "python -m "))] == []


def test_no_command_is_shown_where_it_is_not_run() -> None:
    """A block that is only text has none."""
    shown = [line for d in DOCUMENTS for block in blocks(d, "text") for line in block.splitlines()]
    assert [
        line for line in shown if line.startswith(("$ ", "make ", "python ", "commitbus "))
    ] == []


def test_links_between_documents_lead_somewhere() -> None:
    """A relative link names a file of the checkout."""
    link = re.compile(r"\]\((?!https?:)([^)#]+)")
    for document in DOCUMENTS:
        for target in link.findall(document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


@pytest.mark.slow
def test_the_demo_runs() -> None:
    """`make demo`, as the README's first command, ends well."""
    done = subprocess.run(
        ["make", "demo"], cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Spark's start is announced as what it is, and its own warnings are not between our lines.
    assert "up to a minute" in done.stdout
    assert "WARN" not in done.stdout + done.stderr
