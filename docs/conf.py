"""How the pages are built (`make docs`): Sphinx on docs/*.md, scripts of two folders of examples/ executed.

A script takes a model from a file of examples/ by `from committee import committee  # examples/committee.py`. The page
and the notebook hold the file in the place of that line, so that they stand alone and the model stands in one room.
"""

import os
import re
import shutil
from pathlib import Path

os.environ.setdefault("NUMBA_NUM_THREADS", "1")  # the same bytes whatever their number; the machine stays usable

from saddleforge import __version__
from saddleforge.base import progress

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "build" / "docs" / "scripts"
GALLERIES = ("tutorials", "gallery")
TAKEN = re.compile(r"^from \w+ import \w+  # (examples/\w+\.py)\n", re.MULTILINE)


def complete(script: str) -> str:
    """The script with the model files that it takes in their places."""
    return TAKEN.sub(lambda line: (ROOT / line[1]).read_text(encoding="utf-8"), script)


def lay_out() -> None:
    """Write complete scripts where Sphinx-Gallery reads them; one that did not change is not executed again."""
    for gallery in GALLERIES:
        folder = SCRIPTS / gallery
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for source in (ROOT / "examples" / gallery).iterdir():
            if source.suffix in {".py", ".rst"}:
                (folder / source.name).write_text(complete(source.read_text(encoding="utf-8")), encoding="utf-8")


lay_out()
progress.set_quiet(True)  # pages show results, not how far they are

project = "saddleforge"
author = "the saddleforge developers"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # pages show their equations without a network
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gallery/*.ipynb", "tutorials/*.ipynb", "**/*.py"]
html_theme = "furo"
html_title = f"saddleforge {version}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
html_copy_source = False

# As GitHub reads it: $...$ and $$...$$, links to headings by their words.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_dmath_allow_labels = False

autosummary_generate = False
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True

copybutton_prompt_text = "$ "

sphinx_gallery_conf = {
    "examples_dirs": [str(SCRIPTS / name) for name in GALLERIES],
    "gallery_dirs": list(GALLERIES),
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "min_reported_time": 1e9,  # times say more about the machine than about the page
    "show_signature": False,
    "write_computation_times": False,
    "capture_repr": ("_repr_html_", "__repr__"),
    "reference_url": {},
    "backreferences_dir": None,
    "download_all_examples": True,
}


def escaped(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """Docstrings are plain text: |W|, m* and names that end in _ mean themselves, `code` is code."""
    for i, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...")):
            continue  # an example
        pieces = re.split(r"(``[^`]*``|`[^`]*`)", line)
        for k, piece in enumerate(pieces):
            if k % 2:
                pieces[k] = piece if piece.startswith("``") else f"`{piece}`"
                if re.match(r"\w", pieces[k + 1]):  # a plural of code
                    pieces[k] += "\\ "
            else:
                pieces[k] = re.sub(r"[|*]|(?<=\w)_(?!\w)", lambda match: "\\" + match[0], piece)
        lines[i] = "".join(pieces)


def pages_of_scripts(app, docname, source):  # type: ignore[no-untyped-def]
    """A link to a script leads to its page; on GitHub it leads to the script."""
    source[0] = re.sub(
        r"\]\(\.\./examples/(gallery|tutorials)(?:/(\w+)\.py)?\)",
        lambda link: f"](/{link[1]}/{link[2] or 'index'}.rst)",
        source[0],
    )


def setup(app):  # type: ignore[no-untyped-def]
    """Sphinx calls it."""
    app.connect("source-read", pages_of_scripts)
    app.connect("autodoc-process-docstring", escaped, priority=400)  # before napoleon
