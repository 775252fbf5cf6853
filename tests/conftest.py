"""What every test may use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import DispatchRequest, Host, PhysicalOffset
from tests.archives import unpack

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of fixtures and suites beside the checkout; without it the test is skipped."""
    path = REPOSITORY.parent / "shared"
    if not path.is_dir():
        pytest.skip("the shared folder with fixtures and interop suites is not beside the checkout")
    return path


class RocketMqStore(NamedTuple):
    """A directory that RocketMQ wrote, and every message of its log."""

    path: Path
    requests: list[DispatchRequest]


@pytest.fixture(scope="session", params=["broker-store", "directA-store"])
def rocketmq_store(
    request: pytest.FixtureRequest, shared_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> RocketMqStore:
    """One of the two stores that RocketMQ 5.4.0 wrote."""
    fixtures = shared_dir / "fixtures"
    directory = tmp_path_factory.mktemp(request.param)
    unpack(fixtures / f"{request.param}.tar.gz", directory)
    (log_directory,) = directory.rglob("commitlog")
    expected = json.loads((fixtures / f"{request.param}.expected.json").read_text())
    log = CommitLog(
        log_directory,
        expected["mappedFileSizeCommitLog"],
        store_host=Host.parse("127.0.0.1", 10911),
        max_body_bytes=1 << 22,
        clock=SystemClock(),
        file_system=RealFileSystem(),
        writable=False,
    )
    end = PhysicalOffset(expected["commitLogMax"])
    requests, reached = log.dispatch_requests(PhysicalOffset(0), end, 1000)
    log.close()
    assert reached == end
    return RocketMqStore(log_directory.parent, requests)
