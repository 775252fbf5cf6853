"""One run: a server, a normal load, first alone and then beside the attacks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from tests.attacks.processor import moment, share
from tests.attacks.report import Report, latencies
from tests.attacks.server import Server
from tests.attacks.watcher import Watcher

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
_WARM_UP_S: Final = 2.0
_UNDISTURBED_SHARE: Final = 0.25
_UNDISTURBED_S_MAX: Final = 60.0
_AFTERWARDS_S: Final = 3.0
_END_S: Final = 30.0
"""For a process that was asked to end."""


@final
@dataclass(frozen=True, slots=True)
class Options:
    """What is to be done."""

    seconds: float
    """With the time without attacks, a quarter and at most a minute."""
    attacks: Sequence[str]
    transport: str
    seed: int


def run(directory: Path, options: Options) -> Report:
    """Do it; the store and the log stay in the directory."""
    undisturbed_s = min(options.seconds * _UNDISTURBED_SHARE, _UNDISTURBED_S_MAX)
    server = Server(directory, options.transport)
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.prepare()
        watcher = stack.enter_context(Watcher(server))
        attackers = _attackers(stack, server, options)
        load = _start(stack, "tests.attacks.normal_load", "--port", str(server.port))
        time.sleep(min(_WARM_UP_S, options.seconds))
        begin = moment(server.pid)
        time.sleep(undisturbed_s)
        attack = moment(server.pid)
        outcomes = _attack(attackers, options.seconds - undisturbed_s)
        end = moment(server.pid)
        time.sleep(min(_AFTERWARDS_S, options.seconds))
        load.terminate()
        seen = _output(load)
        memory = watcher.memory
    return Report(
        peak_mb=max((size for _, size in memory), default=0.0),
        undisturbed_mb=max((size for at_s, size in memory if at_s < attack.at_s), default=0.0),
        afterwards_mb=memory[-1][1] if memory else 0.0,
        undisturbed=latencies(seen["calls"], begin.at_s, attack.at_s),
        attacked=latencies(seen["calls"], attack.at_s, end.at_s),
        failures=[(what, times) for what, times in seen["failures"]],
        sent=seen["sent"],
        lost=seen["lost"],
        probes={
            kind: (len(probe.answers_s), max(probe.answers_s, default=0.0), probe.failures)
            for kind, probe in watcher.probes.items()
        },
        outcomes=outcomes,
        alarms=server.alarms(),
        processor=(share(begin, attack), share(attack, end)),
        log_kb=server.log.stat().st_size / 1024,
        exit_status=server.stop(),
    )


def _attackers(
    stack: ExitStack, server: Server, options: Options
) -> dict[str, subprocess.Popen[str]]:
    """Start the attackers, and wait until all of them are ready."""
    ports = ["--port", str(server.port), "--metrics-port", str(server.metrics_port)]
    attackers = {
        name: _start(stack, "tests.attacks.attacker", name, *ports, "--seed", str(options.seed))
        for name in options.attacks
    }
    for attacker in attackers.values():
        assert attacker.stdout is not None
        attacker.stdout.readline()
    return attackers


def _attack(
    attackers: dict[str, subprocess.Popen[str]], seconds: float
) -> dict[str, dict[str, int]]:
    """Run the attacks together, and return how their calls ended."""
    for attacker in attackers.values():
        assert attacker.stdin is not None
        attacker.stdin.write(f"{seconds}\n")
        attacker.stdin.close()
        attacker.stdin = None
    time.sleep(seconds)
    return {name: _output(attacker) for name, attacker in attackers.items()}


def _start(stack: ExitStack, module: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _output(process: subprocess.Popen[str]) -> Any:
    """Return what a process printed, once it has ended."""
    printed, _ = process.communicate(timeout=_END_S)
    return json.loads(printed)
