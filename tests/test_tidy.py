"""Style that no linter knows: where things lie, how long they get, what is shipped."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("commitlog", "consumequeue", "indexfile", "flush", "broker")
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
TOP_LEVEL = {
    *PACKAGES,
    *("tests", "bench", "docs"),
    *("pyproject.toml", "README.md", "Makefile", "LICENSE", "CHANGELOG.md"),
}


def tracked_files() -> list[Path]:
    """Every file of the checkout that git knows, or would take."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout, so there is no list of the files that belong to it")
    names = (REPOSITORY / name for name in listing.stdout.splitlines())
    return [path for path in names if path.is_file()]


def sources() -> Iterator[Path]:
    """The Python files that people write."""
    return (p for p in tracked_files() if p.suffix == ".py" and not p.stem.endswith("_pb2"))


def test_the_top_level_stays_as_it_was_agreed() -> None:
    """A new name in the root is a decision, not an accident."""
    names = {path.relative_to(REPOSITORY).parts[0] for path in tracked_files()}
    assert {name for name in names if not name.startswith(".")} == TOP_LEVEL


def test_every_package_on_disk_is_shipped() -> None:
    """The explicit package list of pyproject.toml cannot forget a folder."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    roots = {path: name for name, path in settings["package-dir"].items()}
    on_disk = set()
    for path in sources():
        folder = path.parent.relative_to(REPOSITORY)
        if folder.parts and folder.parts[0] in PACKAGES:
            name = "commitbus." + ".".join(folder.parts)
            on_disk.add(roots.get(str(folder), name))
    assert sorted(on_disk) == sorted(settings["packages"])


def test_files_and_functions_stay_short() -> None:
    """Nobody should have to scroll through a 3,000-line message store again."""
    too_long = []
    for path in sources():
        text = path.read_text()
        name = path.relative_to(REPOSITORY)
        if (lines := text.count("\n")) > FILE_LINES_MAX:
            too_long.append(f"{name}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    too_long.append(f"{name}:{node.lineno} {node.name}: {length} lines")
    assert too_long == []


def test_every_silenced_check_says_why() -> None:
    """A `noqa` or `type: ignore` names its rule and the reason."""
    silenced = re.compile(r"#\s*(noqa|type:\s*ignore)(?P<rest>.*)")
    reasoned = re.compile(r"^(: [A-Z]+\d+(, ?[A-Z]+\d+)*|\[[a-z, -]+\]) +(-|#) \w.*")
    bare = []
    for path in sources():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = silenced.search(line)
            if found and path != Path(__file__) and not reasoned.match(found["rest"]):
                bare.append(f"{path.relative_to(REPOSITORY)}:{number} {line.strip()}")
    assert bare == []


def test_nothing_names_the_machine_it_was_written_on() -> None:
    """Paths of a developer's machine do not belong in a project that others clone."""
    machine = re.compile(r"(?<![\w.}~])/(work|root|farm|home)/[a-z.]")
    found = []
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(REPOSITORY)}:{number}"
            for number, line in enumerate(text.splitlines(), 1)
            if machine.search(line)
        ]
    assert found == []


def test_tar_archives_are_unpacked_by_our_own_function() -> None:
    """`extractall(filter=...)` is new in Python 3.11.4, and without `filter` 3.12 warns.

    Neither mypy nor ruff knows: typeshed has `filter` for every 3.11.
    """
    newer = {"extract", "extractall", "unpack_archive", "data_filter", "tar_filter"}
    found = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno} {node.attr}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in newer
    ]
    assert found == [], "use tests.archives.unpack"


def test_tests_mirror_the_code() -> None:
    """A test file that lies in a mirrored folder lies where its package is."""
    folders = {p.parent.relative_to(REPOSITORY) for p in sources()}
    code = {folder for folder in folders if folder.parts and folder.parts[0] in PACKAGES}
    tests = {
        folder for folder in folders if folder.parts[:1] == ("tests",) and len(folder.parts) > 1
    }
    mirrored = {Path("tests") / folder for folder in code}
    beside = {"tests/bench", "tests/interop", "tests/interop/rocketmq_store"}
    beside |= {
        "tests/simulation",
        "tests/soak",
        "tests/attacks",
        "tests/broker/matrix",
        "tests/broker/histories",
    }
    assert {str(folder) for folder in tests - mirrored} <= beside
