"""`commitbus` itself and its small commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commitbus.broker.cli.main import COMMANDS, main
from commitbus.broker.common.version import version
from commitbus.broker.config import BrokerConfig, load_config


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    """One number, in one place."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"commitbus {version()}\n"


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Who is lost finds the way."""
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in listed] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`-h` works for each, and loads what it needs."""
    with pytest.raises(SystemExit, match=r"^0$"):
        main([name, "-h"])
    assert capsys.readouterr().out.startswith(f"usage: commitbus {name}")


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The choices are named."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["start"])
    assert "serve" in capsys.readouterr().err


def test_the_printed_settings_are_a_file_that_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `commitbus config` prints is what `--config` takes."""
    assert main(["config"]) == 0
    path = tmp_path / "broker.toml"
    path.write_text(capsys.readouterr().out)
    assert load_config(path) == BrokerConfig()


def test_help_and_plugin_load_nothing_heavy() -> None:
    """A fast start is a promise: gRPC, trio, numpy and Spark are imported where they are used."""
    program = (
        "import sys, commitbus.broker.embedded.pytest_plugin\n"
        "from commitbus.broker.cli import main, mqadmin\n"
        "main.main([]); mqadmin.main([])\n"
        "heavy = {'grpc', 'trio', 'numpy', 'sqlite_utils', 'pyspark', 'rich'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
