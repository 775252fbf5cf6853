"""The version of this package, as operators and clients are told."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Return the installed version; `unknown` for a checkout that is not installed."""
    try:
        return metadata.version("commitbus")
    except metadata.PackageNotFoundError:
        return "unknown"
