"""The pages: commands parse, every public name is in the reference, models are short; built, they do not warn."""

import ast
import contextlib
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer._click.exceptions import MissingParameter
from typer.main import get_command

import saddleforge as sf
from saddleforge.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "reference").glob("*.md"))]
SCRIPTS = sorted((ROOT / "examples" / "gallery").glob("*.py")) + sorted((ROOT / "examples" / "tutorials").glob("*.py"))
TAKEN = re.compile(r"^from (\w+) import \w+  # examples/(\w+)\.py$", re.MULTILINE)
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def commands(text: str) -> Iterator[str]:
    """Every `saddleforge ...` in an indented block (a remark follows two blanks), and every one in backticks."""
    text = text.replace("\\\n", " ")
    for line in re.findall(r"^ {4}(?:\$ )?saddleforge (.*)$", text, re.MULTILINE):
        yield re.split(r"\s{2,}", line)[0]
    yield from re.findall(r"`saddleforge ([^`]*)`", text)


def parse(command: str) -> None:
    """Raise what Click raises where an option is unknown, misses its value or is not of its type."""
    words = shlex.split(" ".join(command.split()))
    group = get_command(app)
    context = group.make_context("saddleforge", [], resilient_parsing=True)
    known = group.get_command(context, words[0])  # type: ignore[attr-defined]
    if words[0].startswith("-"):
        group.make_parser(context).parse_args(args=words)
    else:
        assert known is not None, f"no command {words[0]}"
        with contextlib.suppress(MissingParameter):  # prose leaves out models; a missing value is another error
            known.make_context(words[0], words[1:], parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_one(page):
    for command in commands(page.read_text(encoding="utf-8")):
        if not re.search(r"[|…]|\.\.\.", command):
            parse(command)


def test_a_command_that_is_none_is_noticed():
    for wrong in ("solve ridge_regression --sett alpha=2", "sulve ridge_regression", "curve ridge_regression -o"):
        with pytest.raises(Exception, match=r"--sett|sulve|-o"):
            parse(wrong)


def test_names_shown_of_the_package_are_there():
    for page in PAGES:
        for name in re.findall(r"\bsf\.([A-Za-z_]\w*)", page.read_text(encoding="utf-8")):
            assert name in sf.__all__, f"{page.name} shows sf.{name}"


def test_the_reference_has_every_public_name_once():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.parent.name == "reference")
    shown = re.findall(r"^\.\. auto(?:function|class|data):: (\w+)", text, re.MULTILINE)
    assert sorted(shown) == sorted(set(sf.__all__) - {"__version__"})


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_has_a_short_model_a_figure_and_a_check(script):
    text = script.read_text(encoding="utf-8")
    tree = ast.parse(text)
    models = [
        n
        for n in tree.body
        if isinstance(n, ast.FunctionDef) and any("sf.model" in ast.unparse(d) for d in n.decorator_list)
    ]
    assert all((n.end_lineno or 0) - n.decorator_list[0].lineno < 40 for n in models)
    assert all((ROOT / "examples" / f"{file}.py").is_file() and name == file for name, file in TAKEN.findall(text))
    assert any(isinstance(n, ast.Assert) for n in ast.walk(tree)) and "plt.show()" in text


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("sphinx", "myst_parser", "sphinx_gallery", "furo", "sphinx_copybutton", "sphinx-mathjax-offline"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("html")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-d", str(out / "doctrees")]
    done = subprocess.run([*command, str(ROOT / "docs"), str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.slow
def test_every_script_has_a_page_with_a_figure_and_a_notebook(built):
    for script in SCRIPTS:
        page = (built / script.parent.name / f"{script.stem}.html").read_text(encoding="utf-8")
        assert f"sphx_glr_{script.stem}_001.png" in page and f"{script.stem}.ipynb" in page


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("index.html", "The first minute"),
        ("gallery/robust_regression.html", "0.24257"),
        ("gallery/index.html", "Committees on He2 and on z1 z2"),
        ("tutorials/index.html", "Your first model"),
        ("atlas.html", "Compared with simulations"),
        ("theory.html", "mjx-container"),
        ("search.html?q=crossing", "pages matching the search query"),
        ("search.html?q=committee", "Committees on He2 and on z1 z2"),
        *((f"{script.parent.name}/{script.stem}.html", f"sphx_glr_{script.stem}_001.png") for script in SCRIPTS),
    ],
)
def test_a_browser_shows_pages_without_errors(built, tmp_path, page, shown):
    """Equations are set (`mjx-container` is what MathJax makes), the search box finds, and the console stays quiet: it
    would tell of a figure that is missing."""
    done = subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         "--allow-file-access-from-files",
         f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom", f"file://{built}/{page}"],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert shown in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
