"""The derivation as text and as LaTeX says what was derived, for every model that ships."""

import re
import shutil
import subprocess

import pytest
import sympy as sp

from saddleforge.derive.authoring.model import model
from saddleforge.derive.authoring.parameters import DiscreteNoise, Parameter
from saddleforge.derive.authoring.tokens import Tokens
from saddleforge.derive.calculus.averages import CONTEXTS, Average
from saddleforge.derive.catalogue import SHIPPED, catalogue_model, structures_with_shipped_solver
from saddleforge.derive.errors import ModelError
from saddleforge.derive.report import text
from saddleforge.derive.report.compose import compose_report
from saddleforge.derive.report.latex import latex_document, render_report_as_latex
from saddleforge.derive.report.sections import theory
from saddleforge.derive.report.sections.references import Bibliography
from saddleforge.derive.report.text import report_text
from saddleforge.derive.report.text_printer import WIDTH
from saddleforge.derive.theory.free_entropy import FreeEntropy, free_entropy

SHIPPED_CASES = [
    pytest.param((name, structure), id=f"{name}-{structure.folder_name}")
    for name in SHIPPED
    for structure in structures_with_shipped_solver(name)
]
COMMON = [
    "q^_c = α E_c[g_l g_lᵀ]",
    "V^_c = -α E_c[∂g_l/∂ω_l]",
    "V^_c = θ^_c θ_cᵀ q_c⁻¹ - α E_c[g_l δω_lᵀ] q_c⁻¹",
    "m^_c = α E_c[g_l]",
    "θ^_c = α E_c[∂g_l/∂Y_l]",
    "θ^_c = α (E_c[g_l δY_lᵀ] - E_c[g_l δω_lᵀ] q_c⁻¹ θ_c) (ρ⋆_c - θ_cᵀ q_c⁻¹ θ_c)⁻¹",
    "V_c = E_ν[γ_c R]",
    "∂M/∂V_c = -1/2 g_l g_lᵀ",
    "e_t = -Φ",
    "∂g/∂ω = -H (V H + I)⁻¹",
    "D^_c = α E_c[Σ_l' ∂g_l/∂ω_l' D_l' (∂g_l/∂ω_l')ᵀ]",
]
EQUATIONS = {
    "ridge": [
        *COMMON,
        "R = (G + Λ)⁻¹",
        "q_c = E_ν[γ_c R (B Bᵀ + Q) R]",
        "m_c = E_ν[τ_c R B]",
        "θ_c = E_ν[γ_c R B πᵀ]",
        "D'_c = E_ν[γ_c R (Σ_c' γ_c' D^_c') R]",
    ],
    "penalty": [
        *COMMON,
        "N = max_w { Tr[wᵀ b] - r(w) - Tr[wᵀ G w]/2 }",
        "R = ∂w/∂b",
        "q_c = E_ν[γ_c w wᵀ]",
        "m_c = E_ν[τ_c w]",
        "θ_c = E_ν[γ_c w πᵀ]",
        "D'_c = E_ν[γ_c R (Σ_c' γ_c' D^_c') Rᵀ]",
    ],
}
EQUATIONS["sphere"] = [*EQUATIONS["ridge"], "E_ν[R Q R + R B Bᵀ R] = norm²"]
LATEX_EQUATIONS = [
    r"\hat{q}_{c} &= \alpha \, \mathbb{E}_{c}\left[g_{\ell} \, g_{\ell}^{T}\right]",
    r"\hat{m}_{c} &= \alpha \, \mathbb{E}_{c}\left[g_{\ell}\right]",
    r"\hat{V}_{c} &= -\alpha \, \mathbb{E}_{c}\left[\frac{\partial g_{\ell}}{\partial \omega_{\ell}}\right]",
    r"\hat{V}_{c} &= \hat{\theta}_{c} \, \theta_{c}^{T} \, q_{c}^{-1} - \alpha",
    r"V_{c} &= \mathbb{E}_{\nu}\left[\gamma_{c} \, R\right]",
    r"\mathcal{M} &= \min_{X}",
    r"\hat{D}_{c} &= \alpha",
]
LATEX_EQUATIONS_OF = {
    "ridge": [
        r"m_{c} &= \mathbb{E}_{\nu}\left[\tau_{c} \, R \, B\right]",
        r"\theta_{c} &= \mathbb{E}_{\nu}\left[\gamma_{c} \, R \, B \, \pi^{T}\right]",
    ],
    "penalty": [
        r"m_{c} &= \mathbb{E}_{\nu}\left[\tau_{c} \, w\right]",
        r"\theta_{c} &= \mathbb{E}_{\nu}\left[\gamma_{c} \, w \, \pi^{T}\right]",
    ],
}
LATEX_EQUATIONS_OF["sphere"] = [
    *LATEX_EQUATIONS_OF["ridge"],
    r"\mathbb{E}_{\nu}\left[R \, Q \, R + R \, B \, B^{T} \, R\right] &= \mathrm{norm}^{2}",
]


def needed(equations: list[str], structure, content) -> list[str]:
    """Equations without the indices and the teacher's symbols that a model does not need."""
    removed = []
    if structure.tokens == 1:
        equations = [e.replace("D_l'", "D_c") for e in equations]
        removed += [r"Σ_l' ", "_l'?", r"_\{\\ell\}"]
    if structure.tokens * structure.clusters == 1:
        equations = [e.replace("γ_c R (Σ_c' γ_c' D^_c')", "γ² R D^") for e in equations]
        removed += ["_c", r"_\{c\}"]
    if not content.vocabulary.has_teacher:
        equations = [e for e in equations if not re.search(r"θ|\\theta|π", e)]
    return [re.sub("|".join(removed), "", e) if removed else e for e in equations]


def lines_of(shown: str) -> list[str]:
    return [re.sub(r"   \(.*\)$", "", line.strip()) for line in shown.splitlines()]


@pytest.fixture(scope="module", params=SHIPPED_CASES)
def shipped(request):
    """A model that ships, its structure, and the report of it; pytest has text and LaTeX follow each other."""
    name, structure = request.param
    model = catalogue_model(name)
    return model, structure, compose_report(model, structure)


def test_text_holds_the_equations(shipped):
    model, structure, content = shipped
    shown = text.render_report_as_text(content)
    lines = lines_of(shown)
    equations = needed(EQUATIONS[model.regulariser.kind], structure, content)
    assert [equation for equation in equations if equation not in lines] == []
    assert max(len(line) for line in shown.splitlines()) <= WIDTH
    assert model.source in shown.replace("\n", " ")
    for parameter in model.at(structure).parameters.values():
        name = parameter.name.rstrip("_")
        row = rf"^    {name} .*{re.escape(parameter.allowed)}"
        assert re.search(row, shown, re.MULTILINE), name
    for leftover in ("Average", "_hat", "theta", "x_0", "y_0", "lambda__", "frozen", "\u00a0"):
        assert leftover not in shown


def check_words(shown: str, structure, has_teacher: bool) -> None:
    shown = shown.partition("\nReferences\n")[0]
    foreign = [r"(?i:token|sentence|encoding|semantic)", r"_l'?(?!\w)|_\{?\\ell"] if structure.tokens == 1 else []
    foreign += [r"_c'?(?!\w)|_\{c'?\}|Σ_c"] if structure.tokens * structure.clusters == 1 else []
    foreign += [] if has_teacher else [r"(?i:teacher)|theta(?! *\\left)|θ|⋆|star|π"]
    assert [re.findall(f".*(?:{pattern}).*", shown) for pattern in foreign] == [[]] * len(foreign)


def test_words_and_indices_follow_the_model(shipped):
    model, structure, content = shipped
    has_teacher = content.vocabulary.has_teacher
    assert has_teacher == (model.name != "mixture_classification")
    check_words(text.render_report_as_text(content), structure, has_teacher)
    check_words(render_report_as_latex(content).partition(r"\tableofcontents")[2], structure, has_teacher)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ridge_regression", "mixture_classification"])
@pytest.mark.parametrize("options", [{"steps": True}, {"steps": True, "rsb": 1}, {"dynamics": True}], ids=str)
def test_words_of_derivations_follow_the_model(name, options):
    chosen = catalogue_model(name)
    check_words(report_text(chosen, **options), chosen.structure(), name == "ridge_regression")


def test_latex_holds_the_equations_and_compiles(shipped, tmp_path):
    model, structure, content = shipped
    source = render_report_as_latex(content)
    for equation in needed([*LATEX_EQUATIONS, *LATEX_EQUATIONS_OF[model.regulariser.kind]], structure, content):
        assert equation in source
    for leftover in ("Average", "_hat", "x_{0", "operatorname{Sigmoid}", "SoftmaxEntry"):
        assert leftover not in source
    assert source.isascii()
    compiles(source, tmp_path)


def compiles(source, folder):
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed: the document's text was checked, its compilation was not")
    (folder / "model.tex").write_text(source)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "model.tex"]
    run = subprocess.run(command, cwd=folder, capture_output=True, timeout=60, check=False)
    log = run.stdout.decode(errors="replace")
    assert run.returncode == 0, log[-2000:]
    overfull = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log)]
    assert all(points < 6 for points in overfull), log


STEP_KINDS = ["dot_product_attention", "lasso_regression", "value_attention"]


@pytest.mark.slow
@pytest.mark.parametrize("name", STEP_KINDS)
def test_the_steps_compile_and_every_check_holds(name, tmp_path):
    chosen = catalogue_model(name)
    shown, source = report_text(chosen, steps=True), latex_document(chosen, steps=True)
    assert max(len(line) for line in shown.splitlines()) <= WIDTH
    # Nine steps, the model's own equations, message passing, the three steps of Bayes-optimal inference.
    assert "FAILED" not in shown and shown.count("Checked:") == (14 if chosen.at().output else 11)
    for leftover in ("Average(", "_hat", "|", "LogIntegral"):
        assert leftover not in shown[shown.index("Step 1") :]
    assert source.isascii() and "|ab" not in source
    compiles(source, tmp_path)


def own_equations(chosen):
    shown = report_text(chosen)
    return shown[shown.index("The equations of this model") : shown.index("Stability\n---")]


def test_a_model_shows_its_own_saddle_point():
    """Base case: one covariance, hence one q, V and theta; tau_1 and tau_2 keep an m each."""
    lines = lines_of(own_equations(catalogue_model("dot_product_attention")))
    for equation in (
        "V = sigma² R",
        "R = 1/(sigma² V^_1 + sigma² V^_2 + lambda)",
        "θ = sigma⁴ R (θ^_1 + θ^_2)",
        "m_1 = R (encodings_11 m^_1 + encodings_12 m^_2)",
        "q^_1 = α E[g_1²]",
        "V^_1 = (θ θ^_1 - α E[g_1 (ω_1 - m_1)])/q",
    ):
        assert equation in lines
    lines = lines_of(own_equations(catalogue_model("lasso_regression")))
    assert "w = { (b - lambda)/G if b > lambda; (b + lambda)/G if b < -lambda; 0 else }" in lines
    assert "θ = sigma⁴ θ^ E_b,1[∂w/∂b]" in lines  # the teacher's row is zero in the second atom
    assert "m^" not in own_equations(catalogue_model("lasso_regression")).replace("m^ drops out", "")
    lines = lines_of(own_equations(catalogue_model("attention_on_mixture")))
    assert "q^_1,2 = α (labels_3 E_2,1[g_1²] + labels_4 E_2,2[g_1²])" in lines


def test_symmetries_of_a_model_are_said():
    attention = own_equations(catalogue_model("dot_product_attention")).replace("\n", " ")
    assert "unchanged if tokens 1 and 2 are exchanged" in attention and "as at their defaults" in attention
    assert "even in the student's fields" in attention and "even in the teacher's fields, too" in attention
    causal = own_equations(catalogue_model("causal_attention")).replace("\n", " ")
    assert "exchanged" not in causal and "even in the student's fields" in causal
    assert "even" not in own_equations(catalogue_model("ridge_regression"))


def test_text_is_as_wide_as_asked():
    for name in ("dot_product_attention", "lasso_regression"):
        assert max(len(line) for line in report_text(catalogue_model(name), width=80).splitlines()) <= 80


def test_works_are_cited_by_number():
    works = Bibliography()
    assert works.cite("arXiv 2402.03902, Appendix C; R. Price, IRE (1958)") == "[1, Appendix C], [2]"
    assert works.cite("arXiv 2402.03902, eq. C.9") == "[1, eq. C.9]"
    assert len(works.format_works()) == 2 and "Krzakala" in works.format_works()[0]


def test_overlaps_are_printed_in_chosen_symbols():
    """Overlaps and their conjugates change name together, and two names may be exchanged."""
    chosen = catalogue_model("ridge_regression")
    lines = lines_of(report_text(chosen, names={"theta": "m", "m": r"\mu", "mu": "a", "sample_index": "j"}))
    assert "m = E_ν[γ R B πᵀ]" in lines and "μ = E_ν[τ R B]" in lines and "μ^ = α E[g]" in lines
    assert r"\hat{\mu} &= \alpha \, \mathbb{E}\left[g\right]" in latex_document(
        chosen, names={"m": r"\mu", "mu": "a", "sample_index": "j"}
    )
    with pytest.raises(ModelError, match="rename m, too"):
        report_text(chosen, names={"theta": "m"})
    with pytest.raises(ModelError, match="unknown symbol 'thta'"):
        report_text(chosen, names={"thta": "m"})


def test_parameters_are_printed_in_chosen_symbols():
    """In the loss, in the table, in the words about the model; the theory's symbol of the same name is left alone."""
    chosen = catalogue_model("dot_product_attention")
    shown = report_text(chosen, names={"omega": "a", "A": "P", "lambda": r"\epsilon", "theory.epsilon": "e"})
    assert "learns (1-a) softmax(Y Y^T) + a P." in shown and "(P_11 a" in shown and "g_l = V_c⁻¹ (x_l - ω_l)" in shown
    rows = [line.split()[:2] for line in shown.splitlines()]
    assert ["omega", "a"] in rows and ["A", "P_ij"] in rows and ["lambda", "ε"] in rows
    source = latex_document(chosen, names={"omega": "a", "theory.omega": r"h_\star"})
    assert r"A_{11} \, a" in source and r"\mathtt{omega}" not in source and r"\omega" not in source
    assert r"{h_\star}_{\ell}" in source
    noisy = report_text(catalogue_model("ridge_regression"), names={"u": r"\nu"})
    assert "loss(X, Y, u) = (ν + y - x)²/2" in noisy


@pytest.mark.parametrize("steps", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_words_and_composite_symbols_follow_a_new_name(steps):
    chosen = catalogue_model("lasso_regression")
    names = {"theta": "T", "V": r"\chi", "q": "P", "w": "v", "b": "f", "pi": "z_0", "omega": "o"}
    shown = report_text(chosen, steps=steps, names=names)
    said = ["max_v {", "r(v)", "strictly convex in v.", "Its slope jumps where v = (0).", "strength of |v|"]
    said += ["r(v) = lambda abs(v)", "The proximal condition is χ⁻¹ (x - o)"]
    said += ["T = sigma⁴ T^ E_f,1[∂v/∂f]", "v = { (f - lambda)/G if f > lambda", "Cov(o, y) = [P, T;"]
    said += ["exceeds it by the variance χ.", "condition for conjugate P, χ, m, T,", "E_f["] if steps else []
    for words in said:
        assert words in " ".join(shown.split()), words
    for gone in ("θ", "ω", "V_c", "q_c", "E_b", "π", "theta", "∂w", "/∂b"):
        assert gone not in shown[shown.index("Order parameters") :], gone
    source = latex_document(chosen, names=names)
    assert r"\max_{v}" in source and r"\hat{T} &=" in source


def test_names_given_for_short_follow_a_new_name():
    chosen = catalogue_model("dot_product_attention")
    names = {"psi": "F", "psi_star": "e_0", "Omega": r"\Theta", "z_vector": "j"}
    shown = report_text(chosen, names=names)
    assert "Written for short are F (" in shown and "  F_1 = sigmoid(" in shown and "e_0_1 = omega" in shown
    assert "    Θ = encodings_11 m^_1²" in shown and "E[jᵀ j] = " in shown
    assert not re.search("[ψΩζ]", shown)
    assert r"{e_0}_{1} &= " in latex_document(chosen, names=names)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"theta": "M_0", "omega": "A"}, "A would stand for omega and for A; rename A, too"),
        ({"theta": "sigma"}, r"\\sigma would stand for theta and for sigma; rename sigma, too"),
        ({"theta": "X"}, "X would stand for theta, but has a fixed meaning"),
        ({"theta": r"\mu"}, r"\\mu would stand for theta and for sample_index; rename sample_index, too"),
        ({"theta": r"\psi"}, r"\\psi would stand for theta and for psi; rename psi, too"),
        ({"sigma": r"\Omega"}, r"\\Omega would stand for sigma and for Omega; rename Omega, too"),
        ({"theta": r"\rho"}, r"\\rho would stand for theta, but has a fixed meaning"),
        ({"omega": r"\theta"}, r"\\theta would stand for omega and for theta; rename theta, too"),
        ({"omega": "a", "q": "a"}, "a would stand for omega and for q; rename q, too"),
        ({"omega": " "}, "the new symbol for omega is empty"),
        ({"theta": "a", "theory.theta": "b"}, "theory.theta is renamed twice"),
        ({"thta": "a"}, "unknown symbol 'thta'; symbols of the theory are .*epsilon, .*, those of the model .*omega"),
    ],
)
def test_a_symbol_that_would_stand_for_two_things_is_refused(names, sentence):
    with pytest.raises(ModelError, match=sentence):
        latex_document(catalogue_model("dot_product_attention"), names=names)


def test_a_model_shows_its_own_loss():
    lines = lines_of(report_text(catalogue_model("ridge_regression")))
    assert "loss(X, Y, u) = (u + y - x)²/2" in lines
    assert "error(h, Y, u) = (u + y - h)²" in lines
    shown = report_text(catalogue_model("logistic_regression"))
    assert "The loss is not smooth where one of these vanishes: y." in shown
    assert "The metric is not smooth where one of these vanishes: h, y." in shown
    assert r"vanishes: $h$, $y$." in latex_document(catalogue_model("logistic_regression"))
    shown = report_text(catalogue_model("dot_product_attention"))
    assert "softmax(x_1², x_1 x_2)" in shown
    assert "ρ_2 (A_12 omega" in shown


def test_printed_equations_follow_from_the_free_entropy(monkeypatch):
    """Half a trace term, and the text shows twice the overlap: the equations are printed, not typed."""

    def wrong(*sizes, **fields) -> FreeEntropy:
        phi = free_entropy(*sizes, **fields)
        p = phi.symbols
        pair = sp.Trace(p.m_hat.T * p.m)
        (old,) = [a for a in phi.expression.atoms(Average) if a.kind == CONTEXTS]
        return FreeEntropy(phi.expression.xreplace({old: Average(CONTEXTS, old.summand + pair / 2)}), p)

    monkeypatch.setattr(theory, "_THEORY_SECTIONS", {})
    monkeypatch.setattr(theory, "free_entropy", wrong)
    lines = lines_of(report_text(catalogue_model("ridge_regression")))
    assert "m^ = α E[g]" not in lines
    assert "m^ = 2 α E[g]" in lines


def two_clusters(structure, *, share=Parameter(0.25, 0, 1)):  # noqa: B008
    return Tokens(
        weights=["1/3", "2/3"],
        covariance=[[1, 2], [3, 4]],
        labels=[share, 1 - share],
        means=sp.eye(2),
        teacher=[[[1]], [[5]]],
        taught=[[0], [1]],
    )


def test_clusters_atoms_and_discrete_noise_are_shown():
    @model(clusters=2, law=two_clusters, noise={"flip": DiscreteNoise((-1, 1), ("0.1", "0.9"))})
    def mixture(X, Y, k, flip, *, q_strength=2.0):
        return (flip * Y[0, 0] - X[0, 0]) ** 2 * (1 + q_strength * k[0])

    shown = report_text(mixture)
    assert "No source was given." in shown
    assert "Spectral atom of weight 1/3:" in shown
    assert "(share, 1 - share)" in shown
    assert re.search(r"^ +-1 +1/10$", shown, re.MULTILINE)
    assert re.search(r"ρ = 7/3 +\(cluster 1\)", shown)
    assert re.search(r"ρ⋆_2 = 14 +\(cluster 2\)", shown)
    source = latex_document(mixture)
    assert r"q_{\mathrm{strength}}" in source
    assert source.isascii()
