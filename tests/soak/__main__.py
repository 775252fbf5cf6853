"""Load a broker for as long as you like, or kill it all the time, and check what its clients saw.

python -m tests.soak --minutes 60                      both transports side by side
python -m tests.soak --minutes 3 --kill-every 4        killed and started again
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from commitbus.broker.config import Transport
from tests.soak.reign import Options
from tests.soak.run import side_by_side


def main() -> int:
    """Run what the arguments say; return 1 if anything was not as it must be."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=1.0)
    add("--transport", default="grpcio,trio", help="of the brokers, one process each, side by side")
    add("--rate", type=float, default=50.0, help="messages a second, for each broker")
    add("--seed", type=int, default=None, help="of the clients' choices; random if not given")
    add("--kill-every", type=float, metavar="S", help="kill -9 after so many seconds, on average")
    add("--flush", choices=["sync", "async"], default="async")
    add("--directory", type=Path, help="where the stores lie; deleted if all is well")
    arguments = parser.parse_args()
    options = Options(
        seconds=arguments.minutes * 60,
        rate=arguments.rate,
        seed=secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed,
        kill_every_s=arguments.kill_every,
        flush=arguments.flush,
    )
    transports = [Transport(name) for name in arguments.transport.split(",")]
    directory = Path(tempfile.mkdtemp(prefix="commitbus-soak-", dir=arguments.directory))
    summaries = asyncio.run(side_by_side(directory, transports, options))
    print(json.dumps(summaries, indent=2))  # noqa: T201 - a command, whose output this is
    if not all(summary["passed"] for summary in summaries):
        sys.stderr.write(f"failed; the stores and logs are in {directory}\n")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
