"""Attack a broker of its own beside a normal load, and say which bounds were broken.

python -m tests.attacks --minutes 10                      all attacks together
python -m tests.attacks --minutes 1 --only bombs,resets   some of them
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.attacks.attacker import ATTACKS
from tests.attacks.run import Options, run


def main() -> int:
    """Run what the arguments say; return 1 if a bound was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.attacks", formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=1.0)
    add("--only", metavar="NAMES", help=f"with commas between; there are\n{', '.join(ATTACKS)}")
    add("--each", action="store_true", help="one after the other, each with a server of its own")
    add("--transport", choices=["trio", "grpcio"], default="trio")
    add("--seed", type=int, help="of the attackers' choices; random if not given")
    add("--directory", type=Path, help="where the stores lie; deleted if all is well")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(ATTACKS)
    if unknown := set(names) - set(ATTACKS):
        parser.error(f"no such attack: {', '.join(sorted(unknown))}")
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    is_well = True
    for attacks in [[name] for name in names] if arguments.each else [names]:
        options = Options(arguments.minutes * 60, attacks, arguments.transport, seed)
        is_well &= _run_one(options, arguments.directory)
    return 0 if is_well else 1


def _run_one(options: Options, parent: Path | None) -> bool:
    directory = Path(tempfile.mkdtemp(prefix="commitbus-attacks-", dir=parent))
    report = run(directory, options)
    sys.stdout.write(f"seed {options.seed}, {options.transport}\n{report.text()}\n\n")
    sys.stdout.flush()
    broken = report.broken()
    if broken:
        sys.stdout.write("broken:\n" + "".join(f"- {each}\n" for each in broken))
        sys.stderr.write(f"failed; the store and the log are in {directory}\n")
        return False
    shutil.rmtree(directory)
    return True


if __name__ == "__main__":
    sys.exit(main())
