"""Releases: version and changelog by one command; names that have gone say what to write instead."""

import datetime
import importlib.util
import warnings
from pathlib import Path

import pytest

import saddleforge as sf
from saddleforge.base import deprecation
from saddleforge.base.deprecation import DeprecatedName, accept_renamed_arguments

ROOT = Path(__file__).resolve().parents[2]
GONE = DeprecatedName("solve", "0.2.0", "0.4.0")
DAY = datetime.date(2027, 3, 1)


def tool(name):
    spec = importlib.util.spec_from_file_location(f"saddleforge_{name}", ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def release():
    return tool("release")


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "_version.py").write_text('"""The version."""\n\n__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (unreleased)\n\n- All of it.\n")
    (tmp_path / "CITATION.cff").write_text("title: saddleforge\nlicense: MIT\n")
    return tmp_path


def test_a_first_release_takes_its_number_and_the_next_one_what_came_since(release, tree):
    release.write_version("0.1.0", tree, DAY)
    log = tree / "CHANGELOG.md"
    assert log.read_text() == "# Changelog\n\n## Unreleased\n\n## 0.1.0 (2027-03-01)\n\n- All of it.\n"
    with pytest.raises(SystemExit, match="says of nothing unreleased what it is"):
        release.write_version("0.2.0", tree, DAY)
    log.write_text(log.read_text().replace("## Unreleased\n", "## Unreleased\n\n- More.\n"))
    for number, why in (
        ("0.1.0", "not above"),
        ("0.0.9", "not above"),
        ("2", "no version"),
        ("0.2.0rc1", "no version"),
    ):
        with pytest.raises(SystemExit, match=why):
            release.write_version(number, tree, DAY)
    release.write_version("0.2.0", tree, DAY)
    assert log.read_text().startswith("# Changelog\n\n## Unreleased\n\n## 0.2.0 (2027-03-01)\n\n- More.\n\n## 0.1.0")
    assert '__version__ = "0.2.0"' in (tree / "runtime" / "_version.py").read_text()
    assert (tree / "CITATION.cff").read_text().endswith("version: 0.2.0\ndate-released: 2027-03-01\n")


def test_the_changelog_can_be_released(release):
    head = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert head == "## Unreleased" or head == f"## {sf.__version__} (unreleased)"


def test_oldest_dependencies_are_the_lower_bounds(release):
    asked = ["numpy>=2.0", "sympy>=1.13,<1.15", "pandas>=2.2.2", "platformdirs>=4"]
    assert release.oldest(asked) == ["numpy~=2.0.0", "sympy~=1.13.0", "pandas~=2.2.2", "platformdirs~=4.0.0"]


def test_an_old_name_works_and_says_what_to_write(monkeypatch):
    monkeypatch.setitem(deprecation.NAMES, "saddle", GONE)
    sentence = "saddleforge.saddle was renamed solve in saddleforge 0.2.0, and is an error from 0.4.0 on"
    with pytest.warns(DeprecationWarning, match=sentence) as said:
        assert sf.saddle is sf.solve
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sf.solve is not None


def test_an_old_argument_is_passed_on_and_not_next_to_its_new_name():
    @accept_renamed_arguments(tol=DeprecatedName("accuracy", "0.2.0", "0.4.0"))
    def solved(accuracy=1.0):
        return accuracy

    with pytest.warns(DeprecationWarning, match=r"solved\(tol=...\) was renamed accuracy") as said:
        assert solved(tol=2.0) == 2.0
    assert said[0].filename == __file__
    with pytest.raises(TypeError, match="tol was renamed accuracy"):
        solved(tol=1, accuracy=1)
    with pytest.raises(TypeError, match="no argument accuracy"):
        accept_renamed_arguments(tol=DeprecatedName("accuracy", "", ""))(lambda x: x)


def test_an_old_attribute_leads_to_the_new_one():
    solved = sf.problem("perceptron", alpha=2)
    with pytest.warns(DeprecationWarning, match=r"Problem.has_sphere was renamed regulariser.keeps_norms") as said:
        assert solved.has_sphere
    assert said[0].filename == __file__


def test_an_old_option_is_read_as_the_new_one(monkeypatch):
    monkeypatch.setitem(deprecation.OPTIONS, "solve --tol", DeprecatedName("--accuracy", "0.2.0", "0.4.0"))
    new, said = deprecation.replace_deprecated_options(["solve", "m.py", "--tol=1e-3", "--tol", "2"])
    assert new == ["solve", "m.py", "--accuracy=1e-3", "--accuracy", "2"]
    assert said[0] == "--tol was renamed --accuracy in saddleforge 0.2.0, and is an error from 0.4.0 on"
    assert deprecation.replace_deprecated_options(["curve", "--tol", "2"]) == (["curve", "--tol", "2"], [])


def test_a_row_of_the_table_of_memory_takes_its_place_and_leaves_the_rest(tmp_path):
    memory = tool("memory")
    page = tmp_path / "trust.md"
    page.write_text(f"Before.\n\n{memory.HEAD}| hinge | 302 | 181 |\n| lasso | 259 | 183 |\n\nAfter.\n")
    for name in ("zebra", "huber", "hinge"):
        memory.write(name, "1", "2*", page)
    rows = "| hinge | 1 | 2* |\n| huber | 1 | 2* |\n| lasso | 259 | 183 |\n| zebra | 1 | 2* |"
    assert page.read_text() == f"Before.\n\n{memory.HEAD}{rows}\n\nAfter.\n"
