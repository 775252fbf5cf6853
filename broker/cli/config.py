"""`commitbus config`: every setting, documented, as a file to start from."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path

from commitbus.broker.cli.output import EXIT_OK
from commitbus.broker.config import Doc, setting_docs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command: there are none."""
    del parser


def run(options: argparse.Namespace) -> int:
    """Print a configuration file that changes nothing."""
    del options
    print("# Settings of `commitbus serve --config FILE`, with their defaults.")
    for name, default, doc in setting_docs():
        print()
        for line in _comment(doc):
            print(f"# {line}")
        print(f"{name} = {_toml(default)}")
    return EXIT_OK


def _comment(doc: Doc) -> list[str]:
    facts = [f"{doc.unit}. Default: {doc.reason}.", f"Danger: {doc.danger}."]
    if doc.aliases:
        facts.append(f"RocketMQ's name: {', '.join(doc.aliases)}.")
    facts.append("Takes effect at the next start.")
    return [line for fact in facts for line in textwrap.wrap(fact, 96)]


def _toml(value: object) -> str:
    # JSON's texts, numbers and booleans are TOML's as well.
    return json.dumps(str(value or "") if isinstance(value, Path | None) else value)
