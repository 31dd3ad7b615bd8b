"""A solver of a model file is that of the model which executing the file now would give."""

import os
import shutil
import sys
from pathlib import Path

import pytest

import saddleforge as sf
import saddleforge.derive.models
from saddleforge.problems.inputs import CachedModelExecution, record_model_file_inputs
from saddleforge.problems.model_file import execute_model_file, load_symbolic_model
from saddleforge.problems.solver import _catalogue_model_sources, load_solver

MODEL = """
import sys
from pathlib import Path

import saddleforge as sf
{imports}
print("executed")

@sf.model(metric=lambda h, Y: (Y[0, 0] - h[0, 0]) ** 2)
def scaled(X, Y):
    return sf.half_square({scale} * Y[0, 0] - X[0, 0])
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """written(scale, imports, **{name: content}): a model file next to other files of its author."""
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path / "cache"))
    before = set(sys.modules)

    def write(scale: str, imports: str = "", folder: str = "work", **files: str) -> Path:
        place = tmp_path / folder
        for name, content in {"scaled.py": MODEL.format(scale=scale, imports=imports), **files}.items():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return place / "scaled.py"

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def scale_of(file: Path) -> float:
    """What the teacher's field is multiplied by in the loss (scale * Y - X)^2 / 2."""
    at = load_symbolic_model(file).at()
    return float(-at.loss.diff(at.X[0], at.Y[0]))


def record_of(file: Path) -> CachedModelExecution:
    return CachedModelExecution.cache_record_of_model_file(file, "", file.parents[1] / "records")


def executed(file: Path) -> bool:
    """Execute a model file and keep that it was; whether it needs to be executed the next time."""
    with record_model_file_inputs() as inputs:
        execute_model_file(file)
    record_of(file).save_result_with_inputs(inputs, "known")
    return record_of(file).load_cached_result() is None


def test_a_changed_helper_is_another_solver_and_the_same_files_are_not_executed_again(written, capsys):
    file = written("helper.C", "import helper", **{"helper.py": "C = 1"})
    first = load_solver(file)
    assert load_solver(file).folder == first.folder
    assert capsys.readouterr().out == "executed\n"
    (file.parent / "helper.py").write_text("C = 3")
    second = load_solver(file)
    assert second.model.DIGEST != first.model.DIGEST
    # What was solved before needs no derivation.
    (file.parent / "helper.py").write_text("C = 1")
    assert load_solver(file).folder == first.folder
    said = capsys.readouterr()
    assert said.out == "executed\n" * 2 and said.err.count("deriving") == 1


@pytest.mark.slow
def test_a_changed_helper_changes_the_numbers(written):
    """q is proportional to C^2 for a ridge regression on C Y."""
    file = written("helper.C", "import helper", **{"helper.py": "C = 1"})
    found = []
    for scale in (1, 3):
        (file.parent / "helper.py").write_text(f"C = {scale}")
        problem = sf.problem(file, alpha=2)
        found.append(sf.solve(problem, accuracy=1e-8).overlaps.q.item())
    assert found[1] == pytest.approx(9 * found[0], rel=1e-7)


@pytest.mark.slow
def test_two_models_that_differ_in_a_default_have_solvers_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path))
    for default in (1.0, 2.0):

        @sf.model()
        def own(X, Y, *, scale=default):
            return sf.half_square(Y[0] - scale * X[0])

        assert sf.problem(own, alpha=1).parameters["scale"] == default


def test_a_helper_changed_within_a_second_is_compiled_again(written):
    """Python takes bytecode for that of a source of the same size and second."""
    file = written("helper.C", "import helper", **{"helper.py": "C = 1"})
    for scale in (1, 2, 3):
        (file.parent / "helper.py").write_text(f"C = {scale}")
        os.utime(file.parent / "helper.py", (1e9, 1e9))
        assert scale_of(file) == scale


def test_the_model_file_itself_is_compiled_again(written):
    for scale in (1, 2, 3):
        file = written(f"{scale}")
        os.utime(file, (1e9, 1e9))
        assert scale_of(file) == scale


def test_the_process_keeps_the_modules_it_had(written, monkeypatch):
    file = written("helper.C", "import helper", **{"helper.py": "C = 1"})
    monkeypatch.syspath_prepend(file.parent)
    import helper

    (file.parent / "helper.py").write_text("C = 2")
    assert scale_of(file) == 2
    assert sys.modules["helper"] is helper and helper.C == 1


def test_each_file_has_the_helper_that_lies_next_to_it(written):
    one = written("helper.C", "import helper", folder="one", **{"helper.py": "C = 1"})
    two = written("helper.C", "import helper", folder="two", **{"helper.py": "C = 2"})
    assert [scale_of(one), scale_of(two), scale_of(one)] == [1, 2, 1]


READ = "float(Path(__file__).with_name('data.txt').read_text())"
PATH = "from pathlib import Path"
IF_THERE = "C = 1\ntry:\n    {}\nexcept {}:\n    pass"
CHANGES = {
    "the file": ("2", "", {}, "scaled.py"),
    "a helper": ("helper.C", "import helper", {"helper.py": "C = 1"}, "helper.py"),
    "a helper's helper": ("a.C", "import a", {"a.py": "from b import C", "b.py": "C = 1"}, "b.py"),
    "a module of a package": ("p.q.C", "import p.q", {"p/__init__.py": "", "p/q.py": "C = 1"}, "p/q.py"),
    "a relative import": ("p.C", "import p", {"p/__init__.py": "from .q import C", "p/q.py": "C = 1"}, "p/q.py"),
    "data": ("C", f"C = {READ}", {"data.txt": "1.5"}, "data.txt"),
    "an array": ("C", f"import numpy as np\nC = np.loadtxt({READ[6:-13]})", {"data.txt": "1"}, "data.txt"),
    "data of a helper": ("h.C", "import h", {"h.py": f"{PATH}\nC = {READ}", "data.txt": "1"}, "data.txt"),
    "a module that was not there": ("C", IF_THERE.format("import h", "ImportError"), {}, "h.py"),
    "data that were not there": ("C", IF_THERE.format(f"C = {READ}", "OSError"), {}, "data.txt"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_is_executed_again_where_what_it_read_has_changed(written, name):
    scale, imports, files, changed = CHANGES[name]
    file = written(scale, imports, **files)
    assert not executed(file)
    path = file.parent / changed
    path.write_text((path.read_text() if path.exists() else "2") + " ")
    assert record_of(file).load_cached_result() is None
    assert not executed(file)


def test_a_file_is_executed_again_where_its_data_may_be_others(written, monkeypatch):
    file = written("C", "C = float(Path('data.txt').read_text())")
    for place, value in (("one", "1"), ("two", "2")):
        (file.parent / place).mkdir()
        (file.parent / place / "data.txt").write_text(value)
        monkeypatch.chdir(file.parent / place)
        assert record_of(file).load_cached_result() is None
        assert not executed(file)


def test_a_module_that_comes_before_the_helper_is_seen(written):
    before = "sys.path.insert(0, str(Path(__file__).with_name('first')))\nimport helper"
    file = written("helper.C", before, **{"helper.py": "C = 1"})
    assert not executed(file)
    written("helper.C", before, **{"first/helper.py": "C = 2"})
    assert record_of(file).load_cached_result() is None
    assert scale_of(file) == 2


@pytest.mark.parametrize(
    "imports",
    [
        "import os\nC = float(os.environ.get('C', 1))",
        "import time\nC = int(time.time()) % 2 + 1",
        "import importlib\nC = 1",
        "import numpy as np\nC = np.random.default_rng(0).integers(1, 9)",
        "C = len(list(Path(__file__).parent.iterdir()))",
        "import pandas\nC = 1",
        "C = int(sys.argv == [])+1",
    ],
)
def test_a_file_whose_inputs_cannot_be_known_is_executed_each_time(written, imports):
    assert executed(written("C", imports))


def test_a_structure_that_is_not_shipped_depends_on_all_sources_of_the_catalogue(tmp_path, monkeypatch):
    """`mixed_target` is imported by several models."""
    before = _catalogue_model_sources()
    copied = shutil.copytree(saddleforge.derive.models.__path__[0], tmp_path / "models")
    monkeypatch.setattr(saddleforge.derive.models, "__path__", [str(copied)])
    assert _catalogue_model_sources() == before
    (copied / "mixed_target.py").write_text("# changed")
    assert _catalogue_model_sources() != before
