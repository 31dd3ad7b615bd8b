"""The committed solvers are what the generator writes, to the byte; they stand on NumPy, Numba and the loops alone."""

import ast
import getpass
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import saddleforge.generated
from saddleforge.derive.catalogue import SHIPPED, catalogue_model, shipped_structures
from saddleforge.derive.emit import tree

ROOT = Path(saddleforge.generated.__path__[0])
SOLVERS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/**/*.py"))
REDUCED = {
    "reduced_loss": {"model.py", "channel.py", "tangent.py", "thermal.py"},
    "reduced_metric": {"model.py", "metric.py"},
}
PARTS = {"model.py", "channel.py", "bounds.py", "prior.py", "tangent.py", "thermal.py", "metric.py", "reference.py"}


@pytest.fixture
def copy(expected: list[tuple[str, str]], tmp_path: Path) -> Path:
    shutil.copytree(ROOT, tmp_path / "generated", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "generated"


def test_the_committed_tree_is_fresh(expected):
    found = tree.differences(ROOT)
    assert not found, "run `make generate`: " + "; ".join(found)


def test_every_structure_has_all_its_parts(expected):
    folders = {"/".join(path.split("/")[:2]) for path in SOLVERS}
    assert len(folders) == sum(len(structures) for structures in SHIPPED.values())
    with_channel = {
        f"{name}/{structure.key}"
        for name in SHIPPED
        for structure in shipped_structures(name)
        if catalogue_model(name).at(structure).output is not None
    }
    with_ridge = {
        f"{name}/{structure.key}"
        for name in SHIPPED
        for structure in shipped_structures(name)
        if catalogue_model(name).at(structure).regulariser.kind == "ridge"
    }
    for folder in folders:
        own = {"bayes.py"} if folder in with_channel else set()
        own |= {"flow.py"} if folder in with_ridge else set()
        assert {path.name for path in (ROOT / folder).glob("*.py")} == PARTS | own
        for reduced in filter(Path.is_dir, (ROOT / folder).glob("reduced_*")):
            assert {path.name for path in reduced.glob("*.py")} == REDUCED[reduced.name]
    assert {path for path, _ in expected} == {*SOLVERS, "catalogue.py"}


def test_a_stale_file_is_named(copy):
    path = copy / SOLVERS[0]
    path.write_text(path.read_text().replace("0.5", "0.25", 1) + "\n")
    assert tree.differences(copy) == [f"{SOLVERS[0]} is stale"]


def test_line_endings_count(copy):
    path = copy / SOLVERS[-1]
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert tree.differences(copy) == [f"{SOLVERS[-1]} is stale"]


def test_a_missing_file_is_named(copy):
    (copy / SOLVERS[1]).unlink()
    assert tree.differences(copy) == [f"{SOLVERS[1]} is missing"]


def test_orphans_are_named(copy):
    orphans = ["dot_product_attention/l2_s1_t1_k1/old.py", "unknown_model/l1_s1_t1_k1/model.py"]
    for orphan in orphans:
        (copy / orphan).parent.mkdir(parents=True, exist_ok=True)
        (copy / orphan).write_text("")
    assert tree.differences(copy) == [f"{orphan} is an orphan: no model generates it" for orphan in orphans]


def test_bytecode_beside_a_solver_is_no_orphan(copy):
    folder = copy / "ridge_regression" / "l1_s1_t1_k1" / "__pycache__"
    folder.mkdir()
    (folder / "model.cpython-311.pyc").write_bytes(b"")
    assert tree.differences(copy) == []


def test_writing_mends_everything_and_touches_nothing_else(copy):
    (copy / SOLVERS[0]).write_text("stale")
    (copy / SOLVERS[1]).unlink()
    (copy / "orphan.py").write_text("")
    untouched = copy / SOLVERS[2]
    before = untouched.stat().st_mtime_ns
    assert sorted(tree.write_tree(copy)) == sorted([SOLVERS[0], SOLVERS[1], "orphan.py"])
    assert tree.differences(copy) == []
    assert untouched.stat().st_mtime_ns == before
    assert tree.write_tree(copy) == []


GENERATE = """
import hashlib
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.emit.writer import generate
model = catalogue_model("dot_product_attention")
files = generate(model, model.default_structure()).files
print(hashlib.sha256("".join(name + text for name, text in sorted(files.items())).encode()).hexdigest())
"""


def test_generation_does_not_depend_on_the_hash_seed(solvers):
    """Sets and dictionaries of symbols iterate in an order that changes from process to process."""
    seed = next(seed for seed in ("1", "2") if seed != os.environ.get("PYTHONHASHSEED"))
    other = subprocess.run(
        [sys.executable, "-c", GENERATE],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    files = next(s for s in solvers if s.model == "dot_product_attention").files
    here = hashlib.sha256("".join(name + text for name, text in sorted(files.items())).encode()).hexdigest()
    assert other == here + "\n"


@pytest.mark.parametrize("path", SOLVERS)
def test_a_solver_imports_numpy_numba_and_loops_only_and_its_reference_mpmath_only(path):
    modules = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            modules.add(str(node.module))
    compiled = {"math", "numpy", "numba", "saddleforge.loops"}
    assert modules <= ({"mpmath"} if path.endswith("/reference.py") else compiled)


@pytest.mark.parametrize("path", SOLVERS)
def test_a_solver_says_where_it_comes_from(path):
    first = (ROOT / path).read_text().splitlines()[0]
    assert first.startswith("# Generated by saddleforge; do not edit. Model digest ")
    assert "generator digest" in first
    assert "SymPy 1.14.0" in first


@pytest.mark.parametrize("path", [*SOLVERS, "catalogue.py"])
def test_nothing_of_the_machine_it_was_written_on_is_inside(path):
    text = (ROOT / path).read_text()
    for trace in (str(Path.home()) + "/", str(ROOT), os.getcwd(), f"/{getpass.getuser()}/", "/tmp/", "C:\\"):
        assert trace not in text


@pytest.mark.parametrize("path", SOLVERS)
def test_no_flag_that_would_break_the_numbers(path):
    """fastmath makes isnan false; the cache does not see flags kept elsewhere."""
    text = (ROOT / path).read_text()
    assert "fastmath" not in text
    if "@njit" in text:
        assert text.count("@njit(") == text.count('@njit(cache=True, error_model="numpy"')
