"""The official clients, unmodified, against a broker of ours in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitbus.broker.rpc.listen import certificate

CHECKS = (
    "normal_roundtrip",
    "big_body",
    "body_too_large",
    "unknown_topic",
    "type_mismatch",
    "tag_filter",
    "sql_filter",
    "fifo_order_simple",
    "push_consumer",
    "push_retry_dlq",
    "async_send",
    "unacked_redelivered",
    "change_invisible",
)
"""Those that both suites know by the same name: all but delayed messages and transactions."""
TOPIC_TYPES = {"Normal": "NORMAL", "Fifo": "FIFO", "Delay": "DELAY", "Tx": "TRANSACTION"}

pytestmark = [pytest.mark.slow, pytest.mark.shared]


def command(name: str) -> str:
    """The console script that was installed beside this interpreter."""
    return str(Path(sys.executable).with_name(name))


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of our own, with its key: the Python client must be able to verify it."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(certificate._self_signed_pem())
    return path


@pytest.fixture(scope="module", params=["grpcio", "trio", "trio with TLS"])
def environment(request: pytest.FixtureRequest, pem: Path) -> dict[str, str]:
    """How the suites reach the broker; grpcio knows no TLS."""
    if not request.param.endswith("TLS"):
        return {"TRANSPORT": request.param}
    return {"TRANSPORT": "trio", "TLS": "1", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(pem)}


@pytest.fixture(scope="module")
def endpoint(
    environment: dict[str, str], pem: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A broker started as a user would, with the topics and groups that the suites expect."""
    store = tmp_path_factory.mktemp("interop") / "store"
    arguments = ["--store", str(store), "--listen", "127.0.0.1:0"]
    arguments += ["--transport", environment["TRANSPORT"]]
    if "TLS" in environment:
        arguments += ["--tls-certificate", str(pem)]
    server = subprocess.Popen(
        [command("commitbus"), "serve", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        ready = next(line for line in server.stdout if "listening on" in line)
        address = ready.rsplit("listening on", 1)[1].split()[0]
        for prefix in ("Py", "Jv"):
            for name, message_type in TOPIC_TYPES.items():
                mqadmin(address, "updateTopic", "-t", prefix + name, "-r", "4", "-w", "4",
                        "-a", f"+message.type={message_type}")  # fmt: skip
            mqadmin(address, "updateSubGroup", "-g", f"{prefix}GFifo", "-o", "true")
            mqadmin(address, "updateSubGroup", "-g", f"{prefix}GDlq", "-r", "1")
            mqadmin(address, "updateTopic", "-t", f"%DLQ%{prefix}GDlq", "-r", "1", "-w", "1",
                    "-p", "6")  # fmt: skip
        yield address
    finally:
        server.terminate()
        assert server.wait(timeout=30) == 0
        assert server.stdout is not None
        server.stdout.close()


def mqadmin(address: str, *arguments: str) -> None:
    """Run one mqadmin command; its failure is the test's."""
    name, *rest = arguments
    subprocess.run(
        [command("mqadmin"), name, "-n", address, *rest], check=True, capture_output=True
    )


def pass_suite(
    arguments: list[str],
    checks: tuple[str, ...],
    endpoint: str,
    environment: dict[str, str],
    directory: Path,
) -> None:
    """Run a suite against the broker: every check passes, and none is left out."""
    variables = {
        **os.environ,
        **environment,
        "ENDPOINT": endpoint,
        "ONLY": ",".join(checks),
        "INTEROP_WORK": str(directory / "interop-work"),
    }
    done = subprocess.run(
        arguments, env=variables, capture_output=True, text=True, timeout=400, check=False
    )
    expected = f"{len(checks)} passed, 0 failed"
    assert done.stdout.splitlines()[-1:] == [expected], done.stdout + done.stderr


def test_the_official_python_client_passes_its_suite(
    endpoint: str, environment: dict[str, str], shared_dir: Path, tmp_path: Path
) -> None:
    """Sending, receiving, order, filters, retries and limits work with rocketmq-python-client."""
    suite = [sys.executable, str(shared_dir / "interop" / "python" / "suite.py")]
    pass_suite(suite, (*CHECKS, "push_fifo_retry"), endpoint, environment, tmp_path)


def test_the_official_java_client_passes_its_suite(
    endpoint: str,
    environment: dict[str, str],
    shared_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The same with rocketmq-client-java."""
    missing = [tool for tool in ("javac", "mvn") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"the Java suite is built with javac and mvn; missing: {', '.join(missing)}")
    suite = ["bash", str(shared_dir / "interop" / "java" / "run.sh")]
    work = tmp_path_factory.mktemp("java")
    pass_suite(suite, (*CHECKS, "fifo_push_retry"), endpoint, environment, work)
