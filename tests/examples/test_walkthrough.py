"""docs/derive-your-own-model.md: its commands print what it shows, its Python runs, its model is the example.

The README's first look is what is printed.
"""

import re
import shlex
from pathlib import Path

import pytest

from saddleforge.cli import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "derive-your-own-model.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"(?<![\w.])-?\d+\.?\d*(?:e-?\d+)?(?:\(\d+(?:\.\d+)?\))?")


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def sessions(document: str) -> list[tuple[str, list[str]]]:
    """(command, lines shown below it) of every `$ saddleforge` line in an indented block; `...` leaves lines out."""
    found: list[tuple[str, list[str]]] = []
    for line in re.findall(r"^    .*$", document, re.MULTILINE):
        shown = line[4:].rstrip()
        if shown.startswith("$ saddleforge "):
            found.append((shown.removeprefix("$ saddleforge "), []))
        elif found and shown != "...":
            found[-1][1].append(shown)
    return found


def same(line: str, shown: str) -> bool:
    """The same words, and numbers that agree to six digits; error bars and residuals are not compared."""
    line, shown = (re.sub(r"residual \S+", "residual", text) for text in (line, shown))
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (line, shown)]
    numbers = [[float(number.split("(")[0]) for number in NUMBER.findall(text)] for text in (line, shown)]
    return words[0] == words[1] and numbers[0] == pytest.approx(numbers[1], rel=1e-6)


def test_the_model_shown_is_the_example():
    assert (ROOT / "examples" / "fine_tuning.py").read_text() in python_blocks()


@pytest.mark.slow
def test_commands_print_what_is_shown(monkeypatch, tmp_path, capsys):
    """In order: each line shown is found below the last."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert len(sessions(TEXT)) > 5
    for command, shown in sessions(TEXT):
        with pytest.raises(SystemExit) as left:
            main(shlex.split(command))
        printed = capsys.readouterr()
        assert left.value.code == 0, printed.err
        assert shown, f"nothing is shown of {command}"
        lines = iter(printed.out.splitlines())
        for expected in shown:
            assert any(same(line, expected) for line in lines), f"{command} does not print {expected!r}"


@pytest.mark.slow
def test_the_first_look_of_the_readme_is_what_is_printed(capsys):
    """Every line of it, in order, and none left out; `...` in a line stands for the rest."""
    ((command, shown),) = sessions(README.partition("`saddleforge models`")[0])
    with pytest.raises(SystemExit) as left:
        main(shlex.split(command))
    lines = capsys.readouterr().out.splitlines()
    assert left.value.code == 0 and len(lines) == len(shown) == 10
    for line, expected in zip(lines, shown, strict=True):
        begin, dots, _ = expected.partition("  ...")
        assert begin.strip(), f"{expected!r} shows nothing"
        assert same(line[: len(begin)] if dots else line, begin), expected


def test_the_python_of_the_walkthrough_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    (block,) = [b for b in python_blocks() if "sf.solutions" in b]
    exec(compile(block, "docs/derive-your-own-model.md", "exec"), {})


def test_every_example_is_listed():
    for path in (ROOT / "examples").glob("*.py"):
        assert f"`{path.name}`" in TEXT
