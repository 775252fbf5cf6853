"""Programs of ours in Java that call RocketMQ's own classes, for tests that compare with them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

BUILD_LIMIT_S: Final = 300


def build_java(project: Path, main_class: str) -> list[str]:
    """Compile a program against the jars of its `pom.xml`; return the command that starts it.

    Jars and classes are kept between runs, in the folder that INTEROP_WORK names, or in a
    temporary one. Without a JDK and Maven the test is skipped.
    """
    if missing := [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]:
        pytest.skip(f"RocketMQ's classes need a JDK and Maven; missing: {', '.join(missing)}")
    default = Path(tempfile.gettempdir()) / "commitbus-interop"
    work = Path(os.environ.get("INTEROP_WORK", default)) / project.name
    library, classes = work / "lib", work / "classes"
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:  # another process of this run may need it too
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.is_dir():
            with tempfile.TemporaryDirectory(dir=work) as fresh:
                output = Path(fresh) / "lib"
                run_tool("mvn", "-q", "-B", "-f", str(project / "pom.xml"),
                         "dependency:copy-dependencies", f"-DoutputDirectory={output}")  # fmt: skip
                output.rename(library)
        source = project / "src" / "main" / "java" / f"{main_class}.java"
        stamp = classes / hashlib.sha256(source.read_bytes()).hexdigest()
        if not stamp.exists():
            run_tool("javac", "-encoding", "UTF-8", "-cp", f"{library}/*", "-d", str(classes),
                     str(source))  # fmt: skip
            stamp.touch()
    class_path = f"{classes}:{project / 'src' / 'main' / 'resources'}:{library}/*"
    small = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    settings = ["-Dfile.encoding=UTF-8", f"-Duser.home={work}"]
    return ["java", *small, *settings, "-cp", class_path, main_class]


def run_tool(*command: str, text: str = "") -> str:
    """Run a program to its end; if it fails, what it printed is the test's failure."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
    )
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr}"
    return done.stdout
