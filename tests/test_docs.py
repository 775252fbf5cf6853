"""Every command that a document shows is run, in the order in which a reader would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.config import load_config
from tests.documents import (
    DOCUMENTS,
    INSTALL,
    REPOSITORY,
    all_blocks,
    blocks,
    run_commands,
    run_in_bash,
    run_program,
)


def named(language: str) -> list[Any]:
    """The documents that have such a block."""
    with_block = [path for path in DOCUMENTS if blocks(path, language)]
    return [pytest.param(path, id=str(path.relative_to(REPOSITORY))) for path in with_block]


def from_checkout() -> list[str]:
    """The programs that are started in a checkout, without what is said of them."""
    shown = [line for d in DOCUMENTS for block in blocks(d, "sh") for line in block.splitlines()]
    return [line.partition("#")[0].strip() for line in shown if line.startswith("python -m ")]


@pytest.mark.slow
@pytest.mark.parametrize("document", named("console"))
def test_the_commands_of_a_document_work_in_the_order_shown(document: Path, tmp_path: Path) -> None:
    """A reader who types them one after the other sees none fail."""
    run_commands(blocks(document, "console"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("document", named("python"))
def test_the_programs_of_a_document_run(document: Path, tmp_path: Path) -> None:
    """The Python that a document shows is a whole program, or a test."""
    for program in blocks(document, "python"):
        run_program(program, tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_what_has_to_be_installed_is_said_above_what_needs_it(document: Path) -> None:
    """tests/test_install_lines.py makes these environments, and runs the examples there."""
    examples = [block for block in all_blocks(document) if block.language in ("console", "python")]
    assert [block.text for block in examples if not block.install_line] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", from_checkout())
def test_the_programs_of_the_checkout_run_as_shown(command: str) -> None:
    """But for the time that they may take, which is a few seconds here."""
    script = re.sub(r"--minutes [\d.]+", "--minutes 0.02", command)
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
    allowed = ("make ", "python -m ", INSTALL)
    shown = [line for d in DOCUMENTS for block in blocks(d, "sh") for line in block.splitlines()]
    assert [line for line in shown if not line.startswith(allowed)] == []


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
