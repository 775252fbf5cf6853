"""Java programs of ours that drive a peer's classes: fetched, compiled and started.

What Maven fetches and javac makes is kept in the user's cache, in a folder named after what it was
made from, so that a second run needs neither.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

PROJECTS = Path(__file__).with_name("java")
TOOLS = ("java", "javac", "mvn")


class PeerMissingError(Exception):
    """What a peer needs is not on this machine; the message says what."""


def cache_directory() -> Path:
    """Where downloads and builds of the benchmarks are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "commitbus-bench"


def class_path(project: str) -> str:
    """Build one of the projects beside this file, if that was not done yet; return its class path.

    Raises:
        PeerMissingError: There is no JDK or no Maven, or Maven cannot fetch the jars.
    """
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise PeerMissingError(f"a JDK and Maven are needed; missing: {', '.join(missing)}")
    folder = PROJECTS / project
    listing, sources = folder / "pom.xml", sorted((folder / "src/main/java").glob("*.java"))
    library = _kept(
        f"{project}-jars",
        [listing],
        lambda output: ["mvn", "-q", "-B", "-f", str(listing),
                        "dependency:copy-dependencies", f"-DoutputDirectory={output}"],
    )  # fmt: skip
    parts = [str(folder / "src/main/resources"), f"{library}/*"]
    if sources:
        classes = _kept(
            f"{project}-classes",
            [listing, *sources],
            lambda output: ["javac", "-encoding", "UTF-8", "-cp", f"{library}/*",
                            "-d", str(output), *map(str, sources)],
        )  # fmt: skip
        parts.insert(0, str(classes))
    return ":".join(parts)


def _kept(name: str, inputs: Sequence[Path], command: Callable[[Path], Sequence[str]]) -> Path:
    """Return the folder that a command made from these inputs, having run it if it is missing."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()[:16]
    kept = cache_directory() / f"{name}-{digest}"
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as fresh:
            output = Path(fresh) / name  # renamed when whole: a broken download is never taken
            done = subprocess.run(command(output), capture_output=True, text=True, check=False)
            if done.returncode != 0 or not output.is_dir():
                raise PeerMissingError(
                    f"{name} could not be made: {done.stdout}{done.stderr}"[:500]
                )
            output.rename(kept)
    return kept


def java(classes: str, work: Path, *options: str) -> list[str]:
    """Return the start of a command line for a JVM that writes nothing outside of `work`."""
    return ["java", *options, "-Dfile.encoding=UTF-8", f"-Duser.home={work}",
            f"-Djava.io.tmpdir={work}", "-cp", classes]  # fmt: skip


def tail(file: Path) -> str:
    """Return the end of what a program wrote to a file."""
    return file.read_text(errors="replace")[-3000:]


def run_program(*command: str) -> str:
    """Run a program to its end; return what it printed.

    Raises:
        RuntimeError: It failed; the message has the end of what it said about that.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    return done.stdout
