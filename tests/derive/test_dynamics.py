"""One-pass descent: the derivation's checks hold and see likely mistakes; its page says what closes."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.replicas import dynamics
from saddleforge.derive.report.latex import latex_document
from saddleforge.derive.report.text import report_text
from saddleforge.derive.theory import descent
from saddleforge.problems.model_file import load_symbolic_model

KINDS = {"plain": (0, False), "trained numbers and a loss that holds q": (2, True)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_check_holds_at_sizes_that_are_symbols(kind):
    assert [check for check in dynamics.descent_step(*KINDS[kind]).check() if not check.passed] == []


@pytest.mark.parametrize(
    ("name", "wrong", "seen"),
    [
        ("noise", lambda e: e.subs(descent.RATE, sp.sqrt(descent.RATE)), "moments of a step for large d"),
        ("dS", lambda e: sp.MatAdd(*[a for a in e.args if not a.has(descent.BATCH)]), "moments of rows that drift"),
        ("theta", lambda e: e.xreplace({e.summand: e.summand / sp.Symbol("gamma", positive=True)}),
         "fields of the rows"),
    ],
    ids=["noise of first order in the rate", "without noise", "without the eigenvalue"],
)  # fmt: skip
def test_a_likely_mistake_is_seen(name, wrong, seen):
    step = dynamics.descent_step(s=2, t=2)
    mutant = replace(step, after={**step.after, name: wrong(step.after[name])})
    assert seen in {check.name for check in mutant.check() if not check.passed}


@cache
def page(name, latex=False):
    return (latex_document if latex else report_text)(catalogue_model(name), dynamics=True)


def test_the_page_has_the_equations_of_the_moments():
    text = " ".join(page("dot_product_attention").split())
    assert "d𝖯/dt = -η (𝖠 𝖯 + Σ_c E_c[D_l] E_a[τ_c πᵀ] + Σ_c γ_c 𝖪_c E_a[π πᵀ])" in text
    assert "- η 𝖠 𝖲 - η 𝖲 𝖠ᵀ" in text and "Checked:" in text and "FAILED" not in text
    assert max(map(len, page("dot_product_attention").splitlines())) <= 100


def test_trained_numbers_move_along():
    model = load_symbolic_model(Path(__file__).parents[2] / "examples" / "trained_temperature.py")
    assert "dφ/dt = -η_φ (κ φ + E[∂loss/∂φ])" in report_text(model, dynamics=True)


@pytest.mark.parametrize("name", ["dot_product_attention", "tempered_attention"])
def test_latex_is_balanced(name):
    source = page(name, latex=True)
    assert source.isascii() and not re.search(r"loss_slope|_atom|_drift|rate_of", source)
    assert len(re.findall(r"(?<!\\)\{", source)) == len(re.findall(r"(?<!\\)\}", source))
    assert len(re.findall(r"\\left\b", source)) == len(re.findall(r"\\right\b", source))
    assert source.count("$") % 2 == 0


@pytest.mark.parametrize("name", ["lasso_regression", "elastic_net_regression"])
def test_models_without_closed_equations_of_motion_are_refused(name):
    with pytest.raises(sf.ModelError, match="the equations of motion close for a ridge"):
        report_text(catalogue_model(name), dynamics=True)
