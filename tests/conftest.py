"""What every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of fixtures and suites beside the checkout; without it the test is skipped."""
    path = REPOSITORY.parent / "shared"
    if not path.is_dir():
        pytest.skip("the shared folder with fixtures and interop suites is not beside the checkout")
    return path
