"""What is generated or computed once is kept under the syntax of all sources that decide it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import saddleforge
import saddleforge.derive
import saddleforge.generated
from saddleforge.derive.digest import (
    all_sources_digest,
    generator_code_digest,
    imported_code_digest,
    source_dependency_closure,
)
from saddleforge.derive.emit.writer import SOURCES

ROOT = Path(saddleforge.derive.__path__[0])
RUNTIME = Path(saddleforge.__path__[0])
LOOPS = RUNTIME / "loops"


@pytest.fixture
def package(tmp_path):
    """Two files that are imported, at the top and inside a function, and one that is not."""
    sources = {
        "top.py": '"""Words."""\nfrom .first import a\n\n\ndef b():\n    """Words."""\n    from .inner import second\n',
        "first.py": "a = 1  # words\n",
        "inner/second.py": "from ..first import a\nc = 2\n",
        "other.py": "d = 3\n",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def changed(package: Path, name: str, old: str, new: str) -> bool:
    """Whether another text of one file is another digest of what top.py needs."""
    before = imported_code_digest(package, "top.py")
    file = package / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    saddleforge.derive.digest._source_digest_and_imports.cache_clear()
    return imported_code_digest(package, "top.py") != before


def test_sources_are_followed_wherever_they_are_imported(package):
    found = {path.relative_to(package).as_posix() for path in source_dependency_closure("top.py", root=package)}
    assert found == {"top.py", "first.py", "inner/second.py"}


@pytest.mark.parametrize(
    ("name", "old", "new", "matters"),
    [
        ("top.py", "Words", "Other words", False),
        ("first.py", "# words", "# other words", False),
        ("inner/second.py", "c = 2", "c = 2  # said", False),
        ("other.py", "3", "4", False),
        ("first.py", "1", "2", True),
        ("inner/second.py", "2", "'2'", True),
        ("top.py", "def b", "def c", True),
    ],
)
def test_syntax_counts_and_words_do_not(package, name, old, new, matters):
    assert changed(package, name, old, new) == matters


def test_renaming_a_source_file_changes_the_digest(package):
    before = imported_code_digest(package, "top.py")
    (package / "first.py").rename(package / "second.py")
    (package / "top.py").write_text((package / "top.py").read_text().replace(".first", ".second"))
    saddleforge.derive.digest._source_digest_and_imports.cache_clear()
    assert imported_code_digest(package, "top.py") != before


def test_all_that_generating_loads_is_in_its_key():
    """In a fresh process: a penalty, a Bayes-optimal channel and a loss with kinks among the models."""
    code = """
import sys
from saddleforge.derive.catalogue import catalogue_model
before = set(sys.modules)
from saddleforge.derive.emit.writer import generate
for name in ("lasso_regression", "hinge"):
    generate(catalogue_model(name))
print(*(m.__file__ for n, m in sys.modules.items() if n.startswith("saddleforge.derive.")), sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {path for path in map(Path, done.stdout.split()) if path.name not in ("__init__.py", "catalogue.py")}
    loaded = {path for path in loaded if path.parent.name != "models"}
    assert len(loaded) > 20
    assert loaded <= source_dependency_closure("emit/writer.py")
    assert {path for path in ROOT.rglob("*.jinja")} <= source_dependency_closure("emit/writer.py")


def test_the_loops_that_a_solver_imports_are_in_its_key():
    """Of every committed file: Numba's cache would keep what they were, were the header not another.

    The others are called by rules, or by solvers that are not committed.
    """
    solvers = Path(saddleforge.generated.__path__[0])
    found = set()
    for file, sources in SOURCES.items():
        parts = source_dependency_closure(*sources)
        for solver in solvers.glob(f"*/*/{file}"):
            for line in re.findall(r"^from saddleforge\.loops import (.+)$", solver.read_text(), re.MULTILINE):
                imported = {LOOPS / f"{name}.py" for name in line.split(", ")}
                assert imported <= parts
                found |= imported
    of_rules = {
        LOOPS / f"{name}.py"
        for path in LOOPS.parent.rglob("*.py")
        for name in re.findall(r'\bload_compiled_loops\("(\w+)"\)', path.read_text())
    }
    assert of_rules - found
    # No model of the catalogue has corners in several fields.
    uncommitted = {LOOPS / "corners.py"}
    assert uncommitted <= source_dependency_closure(*SOURCES["channel_loops.py"])
    assert found | of_rules | uncommitted == {path for path in LOOPS.glob("*.py") if path.name != "__init__.py"}


def test_another_loop_is_another_digest_of_what_calls_it_alone(monkeypatch):
    """Another text of smooth_pieces.py: channel and bounds call it, the prior does not."""
    cached = (saddleforge.derive.digest._source_digest_and_imports, generator_code_digest, all_sources_digest)
    digests = {file: generator_code_digest(*sources) for file, sources in SOURCES.items()}
    whole, bytes_ = generator_code_digest(), all_sources_digest()
    path, read = LOOPS / "smooth_pieces.py", Path.read_bytes
    text = read(path).replace(b"_SAME = 1e-10", b"_SAME = 2e-10")
    assert text != read(path)
    monkeypatch.setattr(Path, "read_bytes", lambda self: text if self == path else read(self))
    monkeypatch.setattr(Path, "read_text", lambda self, encoding=None: self.read_bytes().decode())
    for function in cached:
        function.cache_clear()
    changed = {file for file, sources in SOURCES.items() if generator_code_digest(*sources) != digests[file]}
    others = generator_code_digest() != whole, all_sources_digest() != bytes_
    monkeypatch.undo()
    for function in cached:
        function.cache_clear()
    assert changed == {"bounds.py", "bounds_loops.py", "channel.py", "channel_loops.py"}
    assert others == (True, True)


def test_a_file_of_a_solver_is_kept_under_what_writes_it_alone():
    digests = {file: generator_code_digest(*sources) for file, sources in SOURCES.items()}
    assert len(set(digests.values())) == len(digests)
    for file, sources in SOURCES.items():
        parts = source_dependency_closure(*sources)
        assert parts < source_dependency_closure("emit/writer.py")
        assert ROOT / "emit" / "kernel.py" in parts
        if file in ("channel.py", "channel_loops.py", "bounds.py", "metric.py"):
            assert ROOT / "emit" / "sides" / "prior_source.py" not in parts
    rooms = {
        path.relative_to(ROOT).parts[0]
        for path in source_dependency_closure("emit/writer.py")
        if path.is_relative_to(ROOT)
    }
    assert not rooms & {"report", "replicas"}


@pytest.mark.parametrize("name", ["base_case", "transition", "extensions", "stability_map", "finite_size"])
def test_a_step_is_kept_under_what_computes_it_and_not_under_pages_or_other_figures(name):
    found = {
        path.relative_to(RUNTIME).as_posix() for path in source_dependency_closure(f"reproduce/{name}.py", root=RUNTIME)
    }
    assert found >= {"saddle_point/generated_jacobian.py", "integration/sampled.py", "solving/error_bars.py"}
    assert name != "finite_size" or "extensions/simulation/run.py" in found
    figures = {f"reproduce/{figure}.py" for figure in ("transition", "extensions", "stability_map", "finite_size")}
    assert found & figures == {f"reproduce/{name}.py"} & figures
    assert not [path for path in found if path.startswith("reproduce/pages/") or path == "reproduce/jobs.py"]


def test_the_generators_digest_is_kept_for_the_sources_as_they_are(tmp_path, monkeypatch):
    from saddleforge.problems import solver

    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path))
    solver.cached_generator_digest.cache_clear()
    assert solver.cached_generator_digest() == generator_code_digest()
    (kept,) = tmp_path.iterdir()
    assert kept.name == f"generator-{all_sources_digest()}"
    kept.write_text("0123abcd")
    solver.cached_generator_digest.cache_clear()
    assert solver.cached_generator_digest() == "0123abcd"
    solver.cached_generator_digest.cache_clear()
