"""Programs of others that judge servers: gRPC's own interoperability client, and h2spec."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitbus.broker.rpc.listen import certificate

GRPC_CLIENT = "google.golang.org/grpc/interop/client@v1.85.0"
H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"

# Not here: custom_metadata (a call of ours answers with a status and messages, never with metadata
# of its own), orca_* (load reports), pick_first_unary (a client that chooses between servers), and
# the cases for credentials, which servers other than Google's do not take.
CASES = [
    "cancel_after_begin",
    "cancel_after_first_response",
    "client_streaming",
    "empty_stream",
    "empty_unary",
    "large_unary",
    "ping_pong",
    "server_streaming",
    "special_status_message",
    "status_code_and_message",
    "timeout_on_sleeping_server",
    "unimplemented_method",
    "unimplemented_service",
]

# Each is libnghttp2's own answer, and its bare server fails them too: see
# broker/rpc/http2/adr/0001-libnghttp2.md.
H2SPEC_FAILURES = {
    "closed: Sends a DATA frame",
    "closed: Sends a DATA frame after sending RST_STREAM frame",
    "closed: Sends a HEADERS frame",
    "closed: Sends a HEADERS frame after sending RST_STREAM frame",
    "Sends a PRIORITY frame with 0x0 stream identifier",
    "Sends PRIORITY frame that depend on itself",
    "Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a "
    "stream",
    "Sends stream identifier that is numerically smaller than previous",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of our own, with its key."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(certificate._self_signed_pem())
    return path


@pytest.fixture(scope="module")
def port(pem: Path) -> Iterator[str]:
    """A server of the interoperability service, in a process of its own."""
    command: list[str | Path] = [sys.executable, Path(__file__).with_name("interop_server.py"), pem]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.kill()


@pytest.mark.parametrize("is_tls", [False, True], ids=["plaintext", "TLS"])
def test_grpcs_own_interoperability_cases_pass(
    build_go: Callable[[str], Path], port: str, pem: Path, *, is_tls: bool
) -> None:
    """With grpc-go as the client, on one port."""
    client = build_go(GRPC_CLIENT)
    tls = ["-use_tls", "-use_test_ca", f"-ca_file={pem}"] if is_tls else []
    for case in CASES:
        done = subprocess.run(
            [client, "-server_host=localhost", f"-server_port={port}", f"-test_case={case}", *tls],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{case}: {done.stderr}"


def test_h2spec_finds_nothing_but_what_libnghttp2_does(
    build_go: Callable[[str], Path], port: str
) -> None:
    """145 cases; those that fail are listed above, and explained."""
    h2spec = build_go(H2SPEC)
    failures = run_h2spec(h2spec, port)
    # Many a case sends a good frame and then a bad one, and does not expect that the good one is
    # answered in between, as it is when the machine is busy. Then it passes another time.
    for _ in range(3):
        if not failures <= H2SPEC_FAILURES:
            failures &= run_h2spec(h2spec, port)
    assert failures <= H2SPEC_FAILURES


def run_h2spec(h2spec: Path, port: str) -> set[str]:
    """Run all cases; the names of those that failed."""
    path = "/grpc.testing.TestService/EmptyCall"
    done = subprocess.run(
        [h2spec, "-h", "127.0.0.1", "-p", port, "-P", path, "-o", "3"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "145 tests" in done.stdout, done.stdout + done.stderr
    # A failed case is printed twice: as it fails, and in the summary.
    mark = "\N{MULTIPLICATION SIGN} "
    return {
        line.rpartition(mark)[2].partition(": ")[2]
        for line in done.stdout.splitlines()
        if mark in line
    }
