"""Peak memory of every model of the catalogue, as the table of docs/trust.md.

    python .ci/memory.py [MODEL ...]          all of them, or some; the rows of others stay

Each is solved twice at its defaults with alpha = 2 on one thread: in an empty cache, where it is compiled, and again.
Rows are written as they come; a star says that the time limit came first, or less accuracy. What fails has no row, and
is said.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "trust.md"
HEAD = "| model | first run | next |\n|---|---|---|\n"
PROGRAM = str(Path(sys.executable).with_name("saddleforge"))
LONGEST = "420"  # seconds: what is needed most is there after the first iterates
NOT_CONVERGED = 3


class Failed(Exception):
    """What `solve` said."""


def peak(model: str, cache: str) -> str:
    """Megabytes that `solve` takes at most, in its largest process."""
    arguments = [PROGRAM, "solve", model, "--set", "alpha=2", "--json", "--threads", "1", "--time-limit", LONGEST]
    environment = {**os.environ, "SADDLEFORGE_CACHE": cache, "NUMBA_NUM_THREADS": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    with tempfile.TemporaryFile() as said:
        running = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=said, env=environment)
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if running.returncode not in (0, NOT_CONVERGED):
            raise Failed(said.read().decode().strip().splitlines()[-1])
    megabytes = round(used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6)
    return f"{megabytes}{'*' * bool(running.returncode)}"


def write(model: str, first: str, following: str, page: Path = PAGE) -> None:
    """One row, in its place in the alphabet."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(HEAD)
    rows, _, after = rest.partition("\n\n")
    known = {found[1]: row for row in rows.splitlines() if (found := re.match(r"\| (\w+) \|", row))}
    known[model] = f"| {model} | {first} | {following} |"
    page.write_text(f"{before}{HEAD}{chr(10).join(known[name] for name in sorted(known))}\n\n{after}", encoding="utf-8")


def main(models: list[str]) -> None:
    """Measure and write."""
    from saddleforge.derive.catalogue import SHIPPED

    failed = 0
    for model in models or sorted(SHIPPED):
        with tempfile.TemporaryDirectory() as cache:
            os.chmod(cache, 0o700)
            try:
                first, following = peak(model, cache), peak(model, cache)
            except Failed as error:
                failed += 1
                print(f"{model}: {error}", file=sys.stderr, flush=True)
                continue
        print(model, first, following, flush=True)
        write(model, first, following)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
