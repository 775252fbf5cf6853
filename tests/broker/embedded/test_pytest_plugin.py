"""The fixture that the package ships."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TEST = """
def test_it(commitbus_broker):
    commitbus_broker.create_topic("orders")
    assert commitbus_broker.endpoint.startswith("127.0.0.1:")
    assert (commitbus_broker.directory / "commitlog").is_dir()
    before_ms = commitbus_broker.clock.now_ms()
    commitbus_broker.clock.advance(3600)
    assert commitbus_broker.clock.now_ms() - before_ms >= 3_600_000
"""


def test_a_test_gets_a_broker_by_naming_the_fixture(tmp_path: Path) -> None:
    """In a project of its own that knows nothing but the name."""
    (tmp_path / "test_it.py").write_text(TEST)
    # Installed or not: the entry point is blocked, and the module named instead.
    plugin = ("-p", "no:commitbus", "-p", "commitbus.broker.embedded.pytest_plugin")
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", *plugin, "--rootdir", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
