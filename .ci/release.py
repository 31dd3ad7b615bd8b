"""Releases: version and changelog by one command, and a distribution that is tried where it is to run.

    python .ci/release.py version 0.2.0     writes runtime/_version.py, CHANGELOG.md, CITATION.cff
    python .ci/release.py try               what `make release` runs, into build/release

`try` builds sdist and wheel, checks their metadata, and installs both in fresh environments: of every Python that is
allowed and found, with the newest dependencies; of the oldest Python, with the oldest, too. In each it runs `SMOKE`.
PYTHONS names interpreters in place of those on the path.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "build" / "release"
SEEN = ("3.11", "3.12", "3.13", "3.14")  # Pythons for which there is a Numba
NUMBER = re.compile(r"(\d+)\.(\d+)\.(\d+)")

MODEL = """
import saddleforge as sf


@sf.model(starts={"semantic": sf.Start(teacher="1/2")})
def own(X, Y):
    return sf.half_square(2 * Y[0, 0] - X[0, 0])
"""
SMOKE = (
    ("--version",),
    ("models", "--json"),
    ("solve", "ridge_regression", "--set", "alpha=2", "--json", "--threads", "1"),
    ("curve", "ridge_regression", "--over", "alpha=1:2:2", "-o", "curve.nc", "--threads", "1"),
    ("plot", "curve.nc"),
    ("derive", "dot_product_attention", "--format", "latex", "-o", "appendix.tex"),
    ("solve", "own.py", "--set", "alpha=2", "--json", "--threads", "1"),
)
RIDGE_LOSS = 0.181332165776685  # of the third, whatever computes it


def main(arguments: list[str]) -> None:
    """Run one of the two commands."""
    if len(arguments) == 2 and arguments[0] == "version":
        write_version(arguments[1], ROOT)
    elif arguments == ["try"]:
        try_release()
    else:
        sys.exit(__doc__)


def write_version(new: str, root: Path, today: datetime.date | None = None) -> None:
    """The version in its one place, and what was `unreleased` in the changelog under it, with a date.

    Exits where the number is none or not above the present one, unless that one was never released; or where nothing
    has been written down for it.
    """
    file, log = root / "runtime" / "_version.py", root / "CHANGELOG.md"
    text = file.read_text(encoding="utf-8")
    match = re.search(r'"([\d.]+)"', text)
    assert match is not None
    old, number = match[1], NUMBER.fullmatch(new)
    changes = log.read_text(encoding="utf-8")
    head = re.search(r"^## (\S+)(?: \(unreleased\))?$", changes, flags=re.MULTILINE)
    if number is None:
        sys.exit(f"{new} is no version; X.Y.Z is expected")
    if head is None or not (head[1] == "Unreleased" or head[0].endswith("(unreleased)")):
        sys.exit("CHANGELOG.md has nothing unreleased on top")
    if not changes[head.end() :].split("\n## ")[0].strip():
        sys.exit("CHANGELOG.md says of nothing unreleased what it is")
    first = head[1] != "Unreleased"  # the present number was never released
    if not first and tuple(map(int, new.split("."))) <= tuple(map(int, old.split("."))):
        sys.exit(f"{new} is not above {old}")
    date = (today or datetime.date.today()).isoformat()
    changes = changes[: head.start()] + f"## Unreleased\n\n## {new} ({date})" + changes[head.end() :]
    log.write_text(changes, encoding="utf-8")
    file.write_text(text.replace(f'"{old}"', f'"{new}"'), encoding="utf-8")
    citation = root / "CITATION.cff"
    cited = re.sub(r"^(version|date-released):.*\n", "", citation.read_text(encoding="utf-8"), flags=re.MULTILINE)
    citation.write_text(f"{cited.rstrip()}\nversion: {new}\ndate-released: {date}\n", encoding="utf-8")
    print(f"{old} -> {new}, {date}; commit, then tag v{new} where `make release` ends well")


def oldest(dependencies: list[str]) -> list[str]:
    """Of each dependency the oldest version that is allowed, as pip reads it."""
    return [re.sub(r"^([\w.-]+)>=([\d.]+).*$", r"\1~=\2", _full(each)) for each in dependencies]


def _full(dependency: str) -> str:
    """A lower bound with three numbers: ~= then allows its corrections and nothing newer."""
    match = re.match(r"^([\w.-]+)>=([\d.]+)", dependency)
    assert match is not None, dependency
    numbers = match[2].split(".")
    return f"{match[1]}>={'.'.join([*numbers, *['0'] * (3 - len(numbers))])}"


def pythons() -> dict[str, str]:
    """Interpreters by version, those of PYTHONS or else those on the path that start."""
    named = os.environ.get("PYTHONS", "").split() or [f"python{version}" for version in SEEN]
    found = {}
    for name in named:
        try:
            asked = "import sys; print('%d.%d' % sys.version_info[:2])"
            said = subprocess.run([name, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            continue
        if said in SEEN:
            found.setdefault(said, shutil.which(name) or name)
    return found


def try_release() -> None:
    """Build, check and try; exits with 1 where something fails."""
    shutil.rmtree(BUILT, ignore_errors=True)
    dist = BUILT / "dist"
    _run("build", [sys.executable, "-m", "build", "--outdir", str(dist), str(ROOT)])
    files = sorted(dist.iterdir())
    _run("twine", [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)])
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    there = pythons()
    rows = []
    for version, python in there.items():
        rows.append(_tried(version, python, "newest", wheel, []))
        rows.append(_tried(version, python, "newest", sdist, []))
    first = min(there, key=lambda v: tuple(map(int, v.split("."))))
    rows.append(_tried(first, there[first], "oldest", wheel, oldest(project["dependencies"])))
    missing = [version for version in SEEN if version not in there]
    for row in rows:
        print(*row, sep="  ")
    print(f"not here, not tried: Python {', '.join(missing)}" if missing else "every Python was tried")
    if any(row[-1] != "works" for row in rows):
        sys.exit(1)


def _tried(version: str, python: str, which: str, archive: Path, pins: list[str]) -> tuple[str, ...]:
    """One environment: what was installed there, and whether it works."""
    name = f"{version}-{which}-{'wheel' if archive.suffix == '.whl' else 'sdist'}"
    folder, began = BUILT / name, time.monotonic()
    bin_ = folder / ("Scripts" if os.name == "nt" else "bin")
    work = folder / "work folder"
    try:
        _run(name, [python, "-m", "venv", str(folder)])
        _run(name, [str(bin_ / "python"), "-m", "pip", "install", "--quiet", str(archive), *pins])
        work.mkdir()
        (work / "own.py").write_text(MODEL, encoding="utf-8")
        for arguments in SMOKE:
            said = _run(name, [str(bin_ / "saddleforge"), *arguments], work)
            if arguments[:2] == ("solve", "ridge_regression"):
                assert abs(json.loads(said)["training_loss"] - RIDGE_LOSS) < 1e-12, said
        listed = _run(name, [str(bin_ / "python"), "-m", "pip", "list", "--format", "json"])
        versions = {each["name"]: each["version"] for each in json.loads(listed)}
        told = " ".join(f"{each} {versions[each]}" for each in ("numpy", "scipy", "sympy", "numba", "xarray"))
        return name, told, f"{time.monotonic() - began:.0f} s", "works"
    except (AssertionError, subprocess.CalledProcessError) as error:
        return name, str(getattr(error, "stderr", None) or error)[-2000:], "fails"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(name: str, command: list[str], folder: Path = ROOT) -> str:
    print(f"{name}: {' '.join(command)}", file=sys.stderr, flush=True)
    environment = {n: value for n, value in os.environ.items() if n not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    environment["SADDLEFORGE_CACHE"] = str(BUILT / f"cache-{name}")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr or done.stdout)
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
