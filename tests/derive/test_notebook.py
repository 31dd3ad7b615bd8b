"""A model's derivation as an object: steps by number, one text, and what a notebook typesets."""

import re
from pathlib import Path

import pytest

import saddleforge as sf
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.report.latex import latex_document
from saddleforge.derive.report.text import report_text

EXAMPLE = Path(__file__).parents[2] / "examples" / "trained_temperature.py"


@pytest.fixture(scope="module")
def found() -> object:
    return sf.derivation("ridge_regression", names={"theta": "T", "u": r"\nu"})


def test_steps_are_counted_from_one_and_hold_expressions(found):
    assert len(found) == 9 and [step.number for step in found] == list(range(1, 10))
    assert {"trace", "entropic", "energetic"} <= set(found[3].after)
    assert found[8].after["q"].shape == found[9].after["D_hat"].shape
    assert all(check.passed for check in found[1].check())
    for number in (0, 10):
        with pytest.raises(IndexError, match="numbered from 1 to 9"):
            found[number]


@pytest.mark.slow
def test_steps_with_broken_symmetry_are_counted_to_twelve():
    broken = sf.derivation("ridge_regression", rsb=1)
    assert len(broken) == 12 and {"q", "Delta", "V_tilde"} <= set(broken[8].after)
    assert r"\left\langle g\right\rangle" in broken[8]._repr_latex_()
    with pytest.raises(sf.InputError, match="rsb = 3 is out of range; allowed are whole numbers from 0 to 2"):
        sf.derivation("ridge_regression", rsb=3)


def test_the_texts_are_those_of_the_command(found):
    model, names = catalogue_model("ridge_regression"), {"theta": "T", "u": r"\nu"}
    assert found.text(steps=False) == report_text(model, names=names)
    assert found.latex(steps=False) == latex_document(model, names=names)
    assert repr(found) == "<derivation of ridge_regression at l1_s1_t1_k1: 9 steps; print it to read it>"


def test_a_step_is_shown_in_the_symbols_asked_for(found):
    shown = [step._repr_latex_() for step in found]
    assert "".join(shown).count(r"$$\begin{aligned}") == 9
    assert r"\operatorname{Tr}\left[\hat{V} \, q\right]" in "".join(shown)
    assert r"\hat{T}" in found[8]._repr_latex_() and r"\theta" not in found[8]._repr_latex_()
    own = found.own._repr_latex_()
    assert r"T: & \quad \sigma^{4} \, R \, \hat{T}" in own and r"\nu + y - x" in own
    assert (found.own.number, found.message_passing.number) == (10, 11)
    large = sf.derivation("attention_on_mixture", clusters=5)
    with pytest.raises(ValueError, match="too large to be written out"):
        large.own  # noqa: B018


@pytest.mark.slow
def test_printing_shows_the_steps_and_check_carries_all_of_them_out(found):
    checks = found.check()
    assert {step.number for step, _ in checks} == set(range(1, 12))
    assert all(check.passed for _, check in checks)
    assert str(found).count("Checked:") == 14  # three of them of Bayes-optimal inference


@pytest.mark.parametrize("name", ["dot_product_attention", "lasso_regression", "value_attention"])
def test_a_notebook_gets_mathematics_that_it_can_typeset(name):
    shown = sf.derivation(name, names={"theta": "T"})
    equations, page = shown._repr_latex_(), shown._repr_html_()
    assert equations.count(r"$$\begin{aligned}") == equations.count(r"\end{aligned}$$") == 2
    overlap = "T &= " if name == "lasso_regression" else "T_{c} &= "
    assert r"\Phi &= " in equations and overlap in equations and r"\theta" not in equations
    for text in (equations, page):
        assert "Average(" not in text and "_hat" not in text and r"\fitted" not in text
        assert text.count(r"\left") - text.count(r"\leftarrow") == text.count(r"\right")
        assert len(re.findall(r"(?<!\\)\{", text)) == len(re.findall(r"(?<!\\)\}", text))
    assert page.count("$$") % 2 == 0 and page.replace("$$", "").count("$") % 2 == 0
    for tag in ("h3", "h4", "p", "table", "tr", "td", "th"):
        assert page.count(f"<{tag}>") == page.count(f"</{tag}>") > 0
    assert not re.search(r"&(?!amp;|lt;|gt;|#x27;|quot;)", page)
    assert "<h4>Stability</h4>" in page


def test_files_models_and_sizes_are_taken_as_everywhere():
    assert sf.derivation(str(EXAMPLE)).model.name == sf.derivation(EXAMPLE).model.name == EXAMPLE.stem
    assert sf.derivation(catalogue_model("dot_product_attention"), tokens=3).structure.tokens == 3
    with pytest.raises(sf.InputError, match="unknown model 'ridge'"):
        sf.derivation("ridge")
    with pytest.raises(sf.InputError, match="not int"):
        sf.derivation(3)
    with pytest.raises(sf.InputError, match="fixed at 1"):
        sf.derivation("ridge_regression", tokens=2)
    with pytest.raises(sf.ModelError, match="rename m, too"):
        sf.derivation("ridge_regression", names={"theta": "m"})
