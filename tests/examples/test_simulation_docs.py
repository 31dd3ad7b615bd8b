"""docs/simulation.md: its Python runs."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_python_shown_runs_and_draws_its_figure(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    names: dict = {}
    exec(block, names)
    assert len(names["runs"].converged) == 4
    assert (tmp_path / "compared.png").stat().st_size > 10_000
