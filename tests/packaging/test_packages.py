"""The distribution holds what the checkout holds: packages, package data, and the targets the README promises."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
FOLDERS = {package: ROOT / folder for package, folder in SETUPTOOLS["package-dir"].items()}


def records_folder(package: str) -> Path:
    """Return the folder of a package: that of its nearest mapped ancestor, then the remaining names."""
    mapped = max((name for name in FOLDERS if f"{package}.".startswith(f"{name}.")), key=len)
    return FOLDERS[mapped].joinpath(*package.removeprefix(mapped).strip(".").split("."))


def packages_on_disk() -> set[str]:
    """Name every folder with an ``__init__.py`` as it is imported."""
    return {
        ".".join((mapped, *init.parent.relative_to(folder).parts))
        for mapped, folder in FOLDERS.items()
        for init in folder.rglob("__init__.py")
    }


def shipped_files() -> dict[str, Path]:
    """Map the path in the wheel of every file of code (``.py``, ``.pyi``, ``.jinja``, ``sources.json``) to its own."""
    return {
        "/".join((*mapped.split("."), *file.relative_to(folder).parts)): file
        for mapped, folder in FOLDERS.items()
        for pattern in ("*.py", "*.pyi", "*.jinja", "sources.json")
        for file in folder.rglob(pattern)
    }


def targets_named(readme: str) -> set[str]:
    """Collect the targets of every ``make ...`` command found in the code of a Markdown text; prose does not count."""
    fence = re.compile(r"^```.*?\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
    rest = fence.sub("", readme)
    indented = re.findall(r"^(?: {4}|\t)(.*)$", rest, flags=re.MULTILINE)
    code = "\n".join([*fence.findall(readme), *indented, *re.findall(r"`([^`]+)`", rest)])
    commands = re.findall(r"(?:^|[;&|(]|\$ )[ \t]*make[ \t]+([^\n;&|#)]*)", code, flags=re.MULTILINE)
    # Words in lower case up to the first gap of two blanks, where an unmarked comment may follow.
    words = (word for command in commands for word in re.split(r"[ \t]{2,}", command)[0].split())
    return {word for word in words if re.fullmatch(r"[a-z][a-z-]*", word)}


def test_the_package_list_is_the_folders():
    listed = SETUPTOOLS["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == packages_on_disk()


@pytest.mark.parametrize(
    ("package", "pattern"),
    [(package, pattern) for package, patterns in SETUPTOOLS["package-data"].items() for pattern in patterns],
)
def test_a_package_data_pattern_matches_a_file(package, pattern):
    assert any(file.is_file() for file in records_folder(package).glob(pattern))


def test_the_sympy_that_is_tested_is_the_oldest_allowed_and_the_pinned_one_wrote_the_solvers():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (allowed,) = [r for r in project["dependencies"] if r.startswith("sympy")]
    (pinned,) = [r for r in project["optional-dependencies"]["dev"] if r.startswith("sympy")]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    oldest = re.search(r"^OLDEST_SYMPY := (\S+)$", makefile, flags=re.MULTILINE)[1]
    low, high = re.fullmatch(r"sympy>=([\d.]+),<([\d.]+)", allowed).groups()
    assert re.fullmatch(rf"{re.escape(low)}(\.0)*", oldest), "`make test-oldest-sympy` tests another one"
    version = pinned.removeprefix("sympy==")
    numbers = [tuple(map(int, v.split("."))) for v in (low, version, high)]
    assert numbers == sorted(numbers)
    header = next(FOLDERS["saddleforge.generated"].glob("*/*/model.py")).read_text(encoding="utf-8").splitlines()[0]
    assert header.endswith(f"SymPy {version}.")


def test_the_readme_names_only_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, flags=re.MULTILINE))
    named = targets_named((ROOT / "README.md").read_text(encoding="utf-8"))
    assert named, "README.md names no make target in its code"
    assert named <= targets, f"README.md names targets the Makefile lacks: {sorted(named - targets)}"


def test_targets_are_read_from_code_and_not_from_prose():
    readme = (
        "Do make sure to run `make check`.\n\n    make test      the default suite\n\n"
        "```sh\ncd here && make -j PYTHON=python3 bench  # make nothing\n```\n"
    )
    assert targets_named(readme) == {"check", "test", "bench"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy, so that a build/ left in the checkout cannot lend it files."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in FOLDERS.values():
        shutil.copytree(folder, source / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    build = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    (file,) = out.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        yield archive


def test_the_wheel_holds_every_source_file_unchanged(wheel):
    files = shipped_files()
    assert set(files) <= set(wheel.namelist()), f"missing: {sorted(set(files) - set(wheel.namelist()))}"
    changed = [name for name, file in files.items() if wheel.read(name) != file.read_bytes()]
    assert not changed


def test_the_wheel_installs_one_package_and_no_other(wheel):
    version = re.search(r'"(.+)"', (ROOT / "runtime" / "_version.py").read_text(encoding="utf-8").split("=")[1])[1]
    assert {name.split("/")[0] for name in wheel.namelist()} == {"saddleforge", f"saddleforge-{version}.dist-info"}
