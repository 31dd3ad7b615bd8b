"""Bayes-optimal inference in the document of a model: where it stands, that every symbol has a meaning and only one."""

import re
from functools import cache
from pathlib import Path

import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.report import compose
from saddleforge.derive.report.blocks import Relation, Report, Section, TextWithSymbols, UnindexedExpression
from saddleforge.derive.report.latex import render_report_as_latex
from saddleforge.derive.report.own_symbols import model_symbols
from saddleforge.derive.report.sections.bayes import TITLE, bayes_sections
from saddleforge.derive.report.sections.references import Bibliography
from saddleforge.derive.report.symbols import LATEX, TEXT, THEORY
from saddleforge.derive.report.text import render_report_as_text

WITH_CHANNEL = ["phase_retrieval", "ridge_regression", "logistic_regression", "dot_product_attention"]
# Of the sections before it.
KNOWN = {"alpha", "gamma", "n", "pi", "rho_star", "m_star", "Y", "tau"}
OWN = [
    *[f"{name}_bayes" for name in ("q", "q_hat", "V", "omega", "g", "Q", "b", "Phi")], "pi_mean", "Z_row", "Z_out",
    "Z_any", "C_any", "mean_row_field", "mean_row", "mean_output",
]  # fmt: skip


@cache
def alone(name):
    """The sections as a report of their own, their checks carried out."""
    at = catalogue_model(name).at()
    return Report(name, bayes_sections(at, Bibliography()), model_symbols(at))


@pytest.mark.parametrize(("name", "there"), [("phase_retrieval", True), ("committee_machine", False)])
def test_it_stands_between_message_passing_and_the_references(name, there, monkeypatch):
    for part in ("checked_model_equation_section", "message_passing_section"):  # which take seconds
        monkeypatch.setattr(compose, part, lambda *_, part=part: Section(part, ()))
    steps = {n: Section(f"Step {n}", ()) for n in range(1, 10)}
    monkeypatch.setattr(compose, "derivation_step_sections", lambda *_: steps)
    titles = [section.title for section in compose.compose_report(catalogue_model(name), steps=True).sections]
    after = titles[titles.index("message_passing_section") + 1 :]
    assert after[-1] == "References" and [title[:21] for title in after[1:-1]] == [
        f"Bayes-optimal, step {n}" for n in (1, 2, 3) if there
    ]
    assert (TITLE in after) == there


@pytest.mark.parametrize("name", WITH_CHANNEL)
def test_checks_hold_and_lines_fit(name):
    content = alone(name)
    for width in (80, 100):
        text = render_report_as_text(content, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert text.count("Checked:") == 3 and "FAILED" not in text
        for leftover in ("Average", "_bayes", "_hat", "_any", "|", "\u00a0", " c_"):
            assert leftover not in text


@pytest.mark.parametrize("name", WITH_CHANNEL)
def test_latex_is_balanced(name):
    source = render_report_as_latex(alone(name))
    assert source.isascii() and not re.search(r"Average|_bayes|_any|\\_hat", source)
    assert len(re.findall(r"(?<!\\)\{", source)) == len(re.findall(r"(?<!\\)\}", source))
    assert len(re.findall(r"\\left\b", source)) == len(re.findall(r"\\right\b", source))
    assert source.count(r"\begin{align}") == source.count(r"\end{align}")
    assert source.count("$") % 2 == 0


@pytest.mark.parametrize("name", WITH_CHANNEL)
def test_every_symbol_is_said_in_its_section_or_before(name):
    at = catalogue_model(name).at()
    said = KNOWN | {str(symbol) for symbol, (stem, _) in model_symbols(at).items() if stem.startswith("parameter ")}
    for section in alone(name).sections:
        held = set()
        for item in section.items:
            if isinstance(item, TextWithSymbols):
                given = [a.expression if isinstance(a, UnindexedExpression) else a for a in item.objects]
                said |= names(*[a for a in given if isinstance(a, sp.Basic)])
            elif isinstance(item, Relation):
                said |= names(item.left)
                held |= names(item.right)
            else:
                said |= {str(row[0]) for row in item.rows}
        assert held <= said


def names(*expressions):
    return {a.name for e in expressions for a in e.atoms(sp.Symbol, sp.MatrixSymbol) if str(a) not in ("s", "t")}


@pytest.mark.parametrize("form", [TEXT, LATEX])
def test_no_letter_stands_for_two_things(form):
    for name in OWN:
        assert [other for other in THEORY if THEORY[other][form] == THEORY[name][form]] == [name]


@pytest.mark.parametrize("name", ["committee_machine", "untied_attention"])
def test_without_a_channel_there_is_none(name):
    assert alone(name).sections == () and sf.derivation(name).bayes == ()


def test_the_channel_is_that_of_the_model():
    text = {name: render_report_as_text(alone(name)) for name in WITH_CHANNEL}
    assert "Y = (sign_hid y_obs)" in text["phase_retrieval"]
    assert "is an integral over size_hid." in " ".join(text["logistic_regression"].split())
    assert "= -log(2 pi Delta)/2 - (y_obs - z_hid)²/(2 Delta)" in text["ridge_regression"]
    assert "Y = [sign_hid y_1,obs; sign_hid y_2,obs]" in text["dot_product_attention"]
    product = sf.derivation(Path(__file__).parents[2] / "examples" / "product_of_two.py").model.at()
    written = render_report_as_text(Report("product", bayes_sections(product, Bibliography()), model_symbols(product)))
    assert "log abs(det ∂Y) = u_obs - log(2)" in written
    assert "a sum over e_hid and an integral over v_hid" in " ".join(written.split())


def test_symbols_follow_a_new_name():
    names = {"q": r"P^0", "V": r"\chi", "b": "f", "pi": "z_0", "theory.omega": "o"}
    text, source = (
        render_report_as_text(alone("phase_retrieval"), names),
        render_report_as_latex(alone("phase_retrieval"), names),
    )
    assert "χᴮ_c = ρ⋆_c - P^0ᴮ_c" in text and "⟨z_0⟩ = ∂log(Z_z_0)/∂fᴮ" in text and "E_fᴮ[" in text
    assert not re.search("[πω]", text)
    assert r"{P^0}^{\mathrm{B}}_{c}" in source and r"\langle{z_0}\rangle" in source


def test_a_notebook_gets_the_steps():
    steps = sf.derivation("ridge_regression", names={"q": "P"}).bayes
    assert [step.number for step in steps] == [1, 2, 3]
    assert r"\hat{P}^{\mathrm{B}}: & \quad" in steps[2]._repr_latex_()
