"""The LaTeX appendix by its structure: numbers, references, brackets and widths; test_report.py runs TeX on it."""

import re

import pytest

from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.report.latex import LINE_WIDTH, latex_document
from saddleforge.derive.report.latex_printer import parameter_latex_symbol
from saddleforge.derive.report.long_lines import break_formula, formula_width


@pytest.fixture(scope="module")
def attention():
    return latex_document(catalogue_model("dot_product_attention"), steps=True)


def rows(source: str) -> list[list[str]]:
    """Of every align, its rows."""
    return [
        [row for row in re.split(r"\\\\\n", block) if row.strip()]
        for block in re.findall(r"\\begin\{align\}\n(.*?)\n\\end\{align\}", source, re.DOTALL)
    ]


def check(source: str) -> None:
    """What TeX would stumble over, or a reader."""
    labels = re.findall(r"\\label\{([^}]*)\}", source)
    assert len(labels) == len(set(labels))
    cited = re.findall(r"\\(?:ref|eqref)\{([^}]*)\}|\\hyperref\[([^\]]*)\]", source)
    assert {one or other for one, other in cited} <= set(labels)
    bare = re.sub(r"\\[{}\\]", "", source)
    assert bare.count("{") == bare.count("}") and source.count(r"\begin{") == source.count(r"\end{")
    assert r"\resizebox" not in source and r"\fitted" not in source and source.isascii()
    for block in rows(source):
        for row in block:
            assert len(re.findall(r"\\label|\\tag|\\notag", row)) == 1, row
            assert len(re.findall(r"\\left(?![a-z])", row)) == len(re.findall(r"\\right(?![a-z])", row)), row
            assert re.fullmatch(r"(?:[^&]|\\&)*&.*", row.split(r"\begin{")[0] + "&"), row
            assert not re.search(r"\}_\{[^{}]*\}_\{", row), row  # TeX refuses a second index


def widest(source: str) -> float:
    """Of the rows of formulas, without notes in words."""
    plain = [
        re.sub(r"\\(?:label|tag)\{(?:[^{}]|\{[^{}]*\})*\}|\\notag", "", row) for block in rows(source) for row in block
    ]
    return max(formula_width(row.replace("&", "")) for row in plain if r"\text{" not in row)


@pytest.mark.slow
def test_equations_are_numbered_and_the_summary_cites_them(attention):
    check(attention)
    labels = re.findall(r"\\label\{(eq:\d+)\}", attention)
    assert labels == [f"eq:{n + 1}" for n in range(len(labels))] and len(labels) > 100
    page = attention[attention.index(r"\section*{Summary") : attention.index(r"\section{Model}")]
    quoted = re.findall(r"(.*) \\tag\{\\ref\{(eq:\d+)\}\}", page)
    assert len(quoted) > 20
    for row, label in quoted:
        assert f"{row} \\label{{{label}}}" in attention  # the same line, under its number
    assert r"\hat{q}_{c} &= \alpha" in page and r"V_{c} &= \mathbb{E}_{\nu}" in page


@pytest.mark.slow
def test_there_is_a_table_of_contents_and_steps_are_links(attention):
    assert r"\tableofcontents" in attention
    assert r"\hyperref[sec:step-9-stability-of-the-replica-symmetric-saddle-point]{Step 9}" in attention


@pytest.mark.slow
def test_no_line_is_wider_than_the_page_and_none_is_shrunk(attention):
    assert widest(attention) < 1.1 * LINE_WIDTH


@pytest.mark.slow
@pytest.mark.parametrize("name", ["value_attention", "tukey_regression", "mixture_classification", "lasso_regression"])
@pytest.mark.parametrize("options", [{"steps": True}, {"steps": True, "rsb": 1}], ids=str)
def test_other_models_and_breaking_have_such_documents(name, options):
    source = latex_document(catalogue_model(name), **options)
    check(source)
    assert widest(source) < 1.25 * LINE_WIDTH


def test_a_parameter_has_a_letter_of_its_own_where_the_theory_has_taken_it():
    assert parameter_latex_symbol("omega") == r"\varpi" and parameter_latex_symbol("lambda") == r"\lambda"
    assert parameter_latex_symbol("q") == r"\check{q}" and parameter_latex_symbol("width") == r"\mathrm{width}"
    assert (
        parameter_latex_symbol("Delta_in") == r"\Delta_{\mathrm{in}}" and parameter_latex_symbol("alpha") == r"\alpha"
    )


def test_a_long_formula_is_broken_between_terms_and_its_brackets_are_fixed():
    text = r"\sum_{c} \left[a_{1} + b - \frac{x + y}{2} + \left(c - d\right)\right] + e"
    lines = break_formula(text, 12)
    assert len(lines) > 2 and all(formula_width(line) <= 14 for line in lines)
    assert "".join(lines).replace(" ", "").replace(r"\Bigl", r"\left").replace(r"\Bigr", r"\right") == text.replace(
        " ", ""
    )
    assert r"\frac{x + y}{2}" in " ".join(lines)  # a fraction stays whole
    assert break_formula("a + b", 12) == ["a + b"]


def test_widths_are_those_of_what_is_seen():
    assert formula_width(r"\left(x\right)") == formula_width(r"\,(x)\,") == pytest.approx(3.7)
    assert formula_width(r"\frac{a + b}{c}") == formula_width("a + b") + 0.5
    assert formula_width(r"\hat{\theta}_{c}") == 1 + 0.65
    assert formula_width(r"\operatorname{Tr}") == 2
