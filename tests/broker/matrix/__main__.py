"""`python -m tests.broker.matrix > docs/status-codes.md` writes the document."""

from __future__ import annotations

import sys

from tests.broker.matrix.table import render

sys.stdout.write(render())
