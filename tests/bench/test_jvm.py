"""Building the peers' Java programs: what is missing is said, what is built is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers import jvm

MVN = """#!/bin/sh
echo mvn >> "$CALLS"
for word in "$@"; do case "$word" in -DoutputDirectory=*) mkdir -p "${word#*=}";; esac; done
"""
JAVAC = """#!/bin/sh
echo javac >> "$CALLS"
while [ $# -gt 0 ]; do [ "$1" = -d ] && mkdir -p "$2"; shift; done
"""
FAILS = "#!/bin/sh\necho no route to the repository\nexit 1\n"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that stand in for a JDK and Maven and write down their calls."""
    folder, project = tmp_path / "bin", tmp_path / "projects" / "peer"
    source = project / "src/main/java/Program.java"
    source.parent.mkdir(parents=True)
    source.write_text("class Program {}")
    (project / "pom.xml").write_text("<project/>")
    folder.mkdir()
    for name, script in (("mvn", MVN), ("javac", JAVAC), ("java", "#!/bin/sh\n")):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    monkeypatch.setattr(jvm, "PROJECTS", project.parent)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().split()


def test_a_missing_jdk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(jvm.PeerMissingError, match="missing: java, javac, mvn"):
        jvm.class_path("rocketmq")


def test_what_was_built_is_not_built_again(tools: Path, tmp_path: Path) -> None:
    first = jvm.class_path("peer")
    assert calls(tmp_path) == ["mvn", "javac"]
    assert jvm.class_path("peer") == first
    assert calls(tmp_path) == ["mvn", "javac"]


def test_a_changed_program_is_compiled_but_nothing_fetched(tools: Path, tmp_path: Path) -> None:
    first = jvm.class_path("peer")
    (tmp_path / "projects/peer/src/main/java/Program.java").write_text("class Program { int x; }")
    assert jvm.class_path("peer") != first
    assert calls(tmp_path) == ["mvn", "javac", "javac"]


def test_a_download_that_fails_leaves_nothing_behind(tools: Path, tmp_path: Path) -> None:
    (tools / "mvn").write_text(FAILS)
    with pytest.raises(jvm.PeerMissingError, match="no route to the repository"):
        jvm.class_path("peer")
    assert list((tmp_path / "cache/commitbus-bench").iterdir()) == []
