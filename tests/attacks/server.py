"""The `commitbus serve` process that is attacked, with the limits that it has by default."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final, final

from tests.attacks import requests
from tests.attacks.connection import Connection
from tests.attacks.requests import ADMIN, MESSAGING
from tests.attacks.target import LARGE_BODY_BYTES, LARGE_MESSAGES, LARGE_TOPIC, TOPICS

_SERVE: Final = "import sys; from commitbus.broker.cli.main import main; sys.exit(main())"
# Its start computes for half a second, which is not to disturb what is measured.
_MQADMIN: Final = """
import os, sys
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
from commitbus.broker.cli.mqadmin import main
sys.exit(main())
"""
_STOP_S: Final = 60
# A full disk is not what is looked for, and small files are made faster.
_CONFIG: Final = """
log_file_bytes = 268435456
index_slots = 100000
index_entries = 400000
disk_refuse_percent = 100
disk_delete_percent = 100
"""


class ServerError(Exception):
    """The server did not start, or did not do what it was prepared with."""


@final
class Server:
    """The process, from its start to its end."""

    def __init__(self, directory: Path, transport: str) -> None:
        """Start it.

        Raises:
            ServerError: it ended at once.
        """
        config = directory / "broker.toml"
        config.write_text(_CONFIG)
        self.log = directory / "broker.log"
        options = ["--config", str(config), "--store", str(directory / "store")]
        options += ["--listen", "127.0.0.1:0", "--metrics-port", "0", "--transport", transport]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, "serve", *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.pid = self._process.pid
        self.metrics_port = self._port_after("metrics at http://127.0.0.1:")
        self.port = self._port_after("listening on 127.0.0.1:")

    def _port_after(self, beginning: str) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(beginning):
                return int(line.removeprefix(beginning).partition("/")[0])
        raise ServerError(self.log.read_text()[-3000:])

    def prepare(self) -> None:
        """Make the topics, and the large messages.

        Raises:
            ServerError: it refuses.
        """
        with Connection(("127.0.0.1", self.port)) as connection:
            for topic, queues in TOPICS.items():
                answer = connection.call(ADMIN + "PutTopic", requests.put_topic(topic, queues))
                if answer.status != 0:
                    raise ServerError(f"topic {topic}: {answer.outcome()}")
            for number in range(LARGE_MESSAGES):
                body = number.to_bytes(4, "big") * (LARGE_BODY_BYTES // 4)
                request = requests.send(LARGE_TOPIC, body, f"large-{number}")
                answer = connection.call(MESSAGING + "SendMessage", request, client_id="prepare")
                if answer.code() != requests.OK:
                    raise ServerError(f"a large message: {answer.outcome()}")

    def mqadmin(self, command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run `mqadmin` against it.

        Raises:
            subprocess.TimeoutExpired: it takes too long.
        """
        return subprocess.run(
            [sys.executable, "-c", _MQADMIN, command, "-n", f"127.0.0.1:{self.port}"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    def stop(self) -> int:
        """Ask it to stop; return its exit status, that of a killed process where it does not."""
        self._process.terminate()
        try:
            return self._process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()

    def alarms(self) -> list[str]:
        """Return what it logged that is worse than a warning, and tracebacks."""
        bad = ('"ERROR"', '"CRITICAL"', "Traceback")
        with self.log.open(errors="replace") as lines:
            return [line[:2000].strip() for line in lines if any(word in line for word in bad)]
