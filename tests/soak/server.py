"""A `commitbus serve` process, one after the other on the same store and port."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final, final

from commitbus.broker.config import Transport
from commitbus.broker.rpc.listen import certificate
from commitbus.commitlog.kernels.choice import ENVIRONMENT_VARIABLE

SERVE: Final = "import sys; from commitbus.broker.cli.main import main; sys.exit(main())"
STOP_S: Final = 60
# Files roll all the time, and a full disk is not what is looked for.
CONFIG: Final = """
log_file_bytes = {log_file_bytes}
max_body_bytes = 262144
queue_file_bytes = 80000
index_slots = 5000
index_entries = 20000
disk_refuse_percent = 100
disk_delete_percent = 100
"""


class BrokerDiedError(Exception):
    """The process ended, or did not start."""


@final
class Server:
    """What the clients of one run talk to."""

    def __init__(
        self,
        directory: Path,
        transport: Transport,
        *,
        flush: str,
        log_file_bytes: int,
        kernels: str = "",
    ) -> None:
        config = directory / "broker.toml"
        config.write_text(CONFIG.format(log_file_bytes=log_file_bytes))
        self.store = directory / "store"
        self.endpoint = "127.0.0.1:0"
        """From the first start on with its port."""
        self.trusted: bytes | None = None
        """The certificate in PEM, where the transport knows TLS."""
        self._log = directory / "broker.log"
        self._options = ["--store", str(self.store), "--config", str(config), "--flush", flush]
        self._options += ["--transport", transport]
        if transport is Transport.TRIO:
            pem, path = certificate._self_signed_pem(), directory / "server.pem"
            path.write_bytes(pem)
            self.trusted = pem[pem.index(b"-----BEGIN CERTIFICATE-----") :]
            self._options += ["--tls-certificate", str(path)]
        self._environment = {ENVIRONMENT_VARIABLE: kernels} if kernels else {}
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs.

        Raises:
            BrokerDiedError: None does.
        """
        if self._process is None or self._process.poll() is not None:
            raise BrokerDiedError(self._log.read_text()[-3000:])
        return self._process.pid

    def start(self) -> None:
        """Start a process; it is not ready yet."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVE, "serve", "--listen", self.endpoint, *self._options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self._environment},
            )

    def wait_ready(self) -> None:
        """Return once it takes calls.

        Raises:
            BrokerDiedError: It never will.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("listening on "):
                self.endpoint = line.removeprefix("listening on ").strip()
                return
        raise BrokerDiedError(self._log.read_text()[-3000:])

    def kill(self) -> None:
        """End the process as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def stop(self) -> int:
        """Ask the process to stop; return its exit status."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(timeout=STOP_S)
        finally:
            self.kill()

    def alarms(self) -> list[str]:
        """Return what the processes logged that is worse than a warning."""
        with self._log.open() as lines:
            return [line.strip() for line in lines if '"ERROR"' in line or '"CRITICAL"' in line]
