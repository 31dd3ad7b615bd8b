"""Files as this release writes them, for every later one to read: `python tests/stored/write.py` before a release.

They go to a folder of the version, which is then never written again.
"""

import subprocess
import sys
from pathlib import Path

from saddleforge import __version__

HERE = Path(__file__).parent
AT = ["--set", "Delta=0.3", "--quiet"]
COMMANDS = {
    "solve.json": ["solve", "ridge_regression", *AT, "--set", "alpha=2"],
    "curve.nc": ["curve", "ridge_regression", *AT, "--over", "alpha=1:2:3"],
    "follow.nc": ["follow", "ridge_regression", *AT, "--over", "alpha=2:1.5"],
    "tune.nc": ["tune", "ridge_regression", *AT, "--over", "lambda=1e-3:10", "--along", "alpha=1:2:2"],
    "simulate.nc": ["simulate", "ridge_regression", *AT, "--set", "alpha=2", "--d", "50", "--seeds", "2"],
    "sweep.nc": ["sweep", "ridge_regression", *AT, "--over", "alpha=2,1", "--processes", "1"],
    "dynamics.nc": ["dynamics", "ridge_regression", *AT, "--rate", "0.5", "--time", "0:2"],
    "line.nc": ["threshold", "tukey_regression", "--kind", "at", "--on", "semantic", "--set", "Delta=1", "--quiet",
                "--over", "alpha=5:14", "--along", "lambda=0.1:0.2"],
}  # fmt: skip


def main() -> None:
    folder = HERE / __version__
    folder.mkdir(exist_ok=True)
    for name, arguments in COMMANDS.items():
        if not (folder / name).exists():
            subprocess.run([Path(sys.executable).with_name("saddleforge"), *arguments, "-o", folder / name], check=True)
    for each in folder.glob("*.records/*"):
        each.unlink()
    for each in folder.glob("*.records"):
        each.rmdir()


if __name__ == "__main__":
    main()
