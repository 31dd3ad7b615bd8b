"""The symbols of the theory in text and LaTeX, and what becomes of them where a reader has symbols of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..calculus.averages import COORDINATE
from ..errors import ModelError
from .blocks import Names
from .names import GREEK, RENAMED, both_forms

CONTEXT_INDEX, TOKEN_INDEX, NO_INDEX = "context", "token", ""
Entry = tuple[str, str, str]  # text, LaTeX, index


def _of_steps() -> dict[str, Entry]:
    """What there is one of in each of two steps of breaking."""
    entries: dict[str, Entry] = {}
    for k, sub in ((1, "₁"), (2, "₂")):
        entries |= {
            f"Delta_{k}": (f"Δ{sub}q", rf"\Delta_{{{k}}} q", CONTEXT_INDEX),
            f"Delta_{k}_hat": (f"Δ{sub}q^", rf"\Delta_{{{k}}} \hat{{q}}", CONTEXT_INDEX),
            f"V_tilde_{k}": (f"V{sub}", rf"V_{{{k}}}", CONTEXT_INDEX),
            f"V_tilde_{k}_hat": (f"V{sub}^", rf"\hat{{V}}_{{{k}}}", CONTEXT_INDEX),
            f"Q_Delta_{k}": (f"Δ{sub}Q", rf"\Delta_{{{k}}} Q", NO_INDEX),
            f"R_tilde_{k}": (f"R{sub}", rf"R_{{{k}}}", NO_INDEX),
            f"replicas_of_block_{k}": (f"n{sub}", f"n_{{{k}}}", NO_INDEX),
            f"parisi_parameter_{k}": (f"𝔶{sub}", rf"\mathfrak{{y}}_{{{k}}}", NO_INDEX),
        }
    return entries


THEORY: dict[str, Entry] = {
    "q": ("q", "q", CONTEXT_INDEX),
    "V": ("V", "V", CONTEXT_INDEX),
    "m": ("m", "m", CONTEXT_INDEX),
    "theta": ("θ", r"\theta", CONTEXT_INDEX),
    "q_hat": ("q^", r"\hat{q}", CONTEXT_INDEX),
    "V_hat": ("V^", r"\hat{V}", CONTEXT_INDEX),
    "m_hat": ("m^", r"\hat{m}", CONTEXT_INDEX),
    "theta_hat": ("θ^", r"\hat{\theta}", CONTEXT_INDEX),
    "rho_star": ("ρ⋆", r"\rho^{\star}", CONTEXT_INDEX),
    "m_star": ("m⋆", r"m^{\star}", CONTEXT_INDEX),
    "gamma": ("γ", r"\gamma", CONTEXT_INDEX),
    "tau": ("τ", r"\tau", CONTEXT_INDEX),
    "D": ("D", r"D", CONTEXT_INDEX),
    "D_hat": ("D^", r"\hat{D}", CONTEXT_INDEX),
    "D_prime": ("D'", r"D'", CONTEXT_INDEX),
    "x": ("x", "x", TOKEN_INDEX),
    "g": ("g", "g", TOKEN_INDEX),
    "omega": ("ω", r"\omega", TOKEN_INDEX),
    "Y": ("Y", "Y", TOKEN_INDEX),
    "domega": ("δω", r"\delta\omega", TOKEN_INDEX),
    "dY": ("δY", r"\delta Y", TOKEN_INDEX),
    "z": ("z", "z", TOKEN_INDEX),
    "C": ("C", "C", TOKEN_INDEX),
    "dmean": ("dz̄", r"\mathrm{d}\bar{z}", TOKEN_INDEX),
    "S": ("𝒮", r"\mathcal{S}", TOKEN_INDEX),
    "Delta": ("Δq", r"\Delta q", CONTEXT_INDEX),
    "Delta_hat": ("Δq^", r"\Delta \hat{q}", CONTEXT_INDEX),
    "V_tilde": ("V~", r"\tilde{V}", CONTEXT_INDEX),
    "V_tilde_hat": ("V~^", r"\hat{\tilde{V}}", CONTEXT_INDEX),
    "omega_0": ("ω⁰", r"\omega^{0}", TOKEN_INDEX),
    "b_0": ("b⁰", "b^{0}", NO_INDEX),
    "Q_Delta": ("ΔQ", r"\Delta Q", NO_INDEX),
    "R_tilde": ("R~", r"\tilde{R}", NO_INDEX),
    "replicas_of_block": ("n₁", "n_{1}", NO_INDEX),
    "parisi_parameter": ("𝔶", r"\mathfrak{y}", NO_INDEX),
    **_of_steps(),
    "omega_1": ("ω¹", r"\omega^{1}", TOKEN_INDEX),
    "b_1": ("b¹", "b^{1}", NO_INDEX),
    "mean_block_of_blocks": ("E_ω¹", r"\mathbb{E}_{\omega^{1}}", NO_INDEX),
    "mean_field_between": ("E_b¹", r"\mathbb{E}_{b^{1}}", NO_INDEX),
    "dPhi_dy": ("∂Φ/∂𝔶", r"\tfrac{\partial\Phi}{\partial\mathfrak{y}}", NO_INDEX),
    "complexity": ("Σ(𝔶)", r"\Sigma(\mathfrak{y})", NO_INDEX),
    "energy": ("e(𝔶)", r"e(\mathfrak{y})", NO_INDEX),
    "Phi_symmetric": ("Φ at Δq = 0", r"\Phi|_{\Delta q = 0}", NO_INDEX),
    "Phi_equal": ("Φ at 𝔶 = 0", r"\Phi|_{\mathfrak{y} = 0}", NO_INDEX),
    "outer_field_mean": ("mean of (ω⁰_l, Y_l)", r"\mathbb{E}[(\omega^{0}_{\ell}, Y_{\ell})]", NO_INDEX),
    "outer_field_covariance": ("Cov(ω⁰_l, Y_l)", r"\operatorname{Cov}(\omega^{0}_{\ell}, Y_{\ell})", NO_INDEX),
    "mean_block": ("E_ω", r"\mathbb{E}_{\omega}", NO_INDEX),
    "mean_outer_field": ("E_b⁰", r"\mathbb{E}_{b^{0}}", NO_INDEX),
    "G": ("G", "G", NO_INDEX),
    "B": ("B", "B", NO_INDEX),
    "Q": ("Q", "Q", NO_INDEX),
    "R": ("R", "R", NO_INDEX),
    "H": ("H", "H", NO_INDEX),
    "w": ("w", "w", NO_INDEX),
    "b": ("b", "b", NO_INDEX),
    "N": ("N", r"\mathcal{N}", NO_INDEX),
    "phi": ("φ", r"\varphi", NO_INDEX),
    "Kappa": ("κ", r"\kappa", NO_INDEX),
    "loss_q": ("∂loss/∂q", r"\tfrac{\partial\ell}{\partial q}", CONTEXT_INDEX),
    "loss_phi": ("∂loss/∂φ", r"\tfrac{\partial\ell}{\partial\varphi}", NO_INDEX),
    "penalty": ("r(w)", "r(w)", NO_INDEX),
    "Lambda": ("Λ", r"\Lambda", NO_INDEX),
    "Norms": ("norm²", r"\mathrm{norm}^{2}", NO_INDEX),
    "pi": ("π", r"\pi", NO_INDEX),
    "alpha": ("α", r"\alpha", NO_INDEX),
    "Phi": ("Φ", r"\Phi", NO_INDEX),
    "M": ("M", r"\mathcal{M}", NO_INDEX),
    "loss": ("loss(X, Y, k, u)", r"\ell(X, Y, k, u)", NO_INDEX),
    "loss_gradient": ("∇loss(x)", r"\nabla\ell(x)", NO_INDEX),
    "metric": ("error(h, Y, k, u)", r"\varepsilon(h, Y, k, u)", NO_INDEX),
    "baseline": ("error of B₀", r"\varepsilon_{B_0}(Y, k, u)", NO_INDEX),
    "training_loss": ("e_t", r"e_{\mathrm{t}}", NO_INDEX),
    "replicon": ("replicon", r"\lambda_{\mathrm{R}}", NO_INDEX),
    "beta": ("β", r"\beta", NO_INDEX),
    "Z": ("Z", "Z", NO_INDEX),
    "W": ("W", "W", NO_INDEX),
    "W_star": ("W⋆", r"W^{\star}", NO_INDEX),
    "Sigma": ("Σ", r"\Sigma", CONTEXT_INDEX),
    "mu": ("x̄", r"\bar{\mathbf{x}}", CONTEXT_INDEX),
    "encoding": ("p", "p", TOKEN_INDEX),
    "token": ("𝐱", r"\mathbf{x}", TOKEN_INDEX),
    "sample_loss": ("loss(X^μ, Y^μ, k^μ, u^μ)", r"\ell(X^{\mu}, Y^{\mu}, k^{\mu}, u^{\mu})", NO_INDEX),
    "row_penalty": ("r(w^i)", "r(w^{i})", NO_INDEX),
    "replica_index": ("a", "a", NO_INDEX),
    "replica_pair": ("a≠a'", r"a \neq a'", NO_INDEX),
    "sample_index": ("μ", r"\mu", NO_INDEX),
    "row_index": ("i", "i", NO_INDEX),
    "risk": ("risk", r"\mathcal{R}(W)", NO_INDEX),
    "alpha_d": ("α d", r"\alpha d", NO_INDEX),
    "replicated_action": ("log(E[Zⁿ])/d", r"\tfrac{1}{d} \log \mathbb{E}\left[Z^{n}\right]", NO_INDEX),
    "S_trace": ("S_trace", r"S_{\mathrm{trace}}", NO_INDEX),
    "S_rows": ("S_rows", r"S_{\mathrm{rows}}", NO_INDEX),
    "S_sentences": ("S_sentences", r"S_{\mathrm{sent.}}", NO_INDEX),
    "S_trained": ("S_trained", r"S_{\mathrm{trained}}", NO_INDEX),
    "mean_field": ("E_b", r"\mathbb{E}_{b}", NO_INDEX),
    "field_mean": ("mean of (ω_l, Y_l)", r"\mathbb{E}[(\omega_{\ell}, Y_{\ell})]", NO_INDEX),
    "field_covariance": ("Cov(ω_l, Y_l)", r"\operatorname{Cov}(\omega_{\ell}, Y_{\ell})", NO_INDEX),
    "Phi_beta": ("Φ_β", r"\Phi_{\beta}", NO_INDEX),
    "objective": ("F(X)", "F(X)", NO_INDEX),
    "row_objective": ("f(w)", "f(w)", NO_INDEX),
    "H_w": ("ℋⁿ_w", r"\mathcal{H}^{(n)}_{w}", NO_INDEX),
    "h_w": ("ℋ_w", r"\mathcal{H}_{w}", NO_INDEX),
    "h_x": ("ℋ_X", r"\mathcal{H}_{X}", NO_INDEX),
    "epsilon": ("η", r"\eta", NO_INDEX),
    "Gamma": ("Γ", r"\Gamma", NO_INDEX),
    "second_variation": ("δ²S", r"\delta^{2} S", NO_INDEX),
    "A_row": ("G_i", "G_{i}", NO_INDEX),
    "xi": ("ξ", r"\xi", NO_INDEX),
    "xi_row": ("ξ_i", r"\xi_{i}", NO_INDEX),
    "N_row": ("N_i", "N_{i}", NO_INDEX),
    "penalty_gradient": ("∇r(w)", r"\nabla r(w)", NO_INDEX),
    "omega_mean": ("E[ω_l]", r"\mathbb{E}[\omega_{\ell}]", NO_INDEX),
    "omega_covariance": ("Cov(ω_l)", r"\operatorname{Cov}(\omega_{\ell})", NO_INDEX),
    "omega_teacher": ("Cov(ω_l, Y_l)", r"\operatorname{Cov}(\omega_{\ell}, Y_{\ell})", NO_INDEX),
    "b_mean": ("E[b]", r"\mathbb{E}[b]", NO_INDEX),
    "b_covariance": ("Cov(b)", r"\operatorname{Cov}(b)", NO_INDEX),
    "g_previous": ("g'", "g'", TOKEN_INDEX),
    "fields_X": ("X", "X", NO_INDEX),
    "fields_Y": ("Y", "Y", NO_INDEX),
    "z_vector": ("ζ", r"\zeta", NO_INDEX),
    "gram": ("E[ζᵀ ζ]", r"\mathbb{E}[\zeta^{T} \zeta]", NO_INDEX),
    "gamma_vector": ("γ", r"\gamma", NO_INDEX),
    "teacher_means": ("m⋆ (one row a context)", r"(m^{\star}_c)^{T}_{c}", NO_INDEX),
    "mean_coordinate": ("E_ν", r"\mathbb{E}_{\nu}", NO_INDEX),
    "mean_context": ("E_c", r"\mathbb{E}_{c}", NO_INDEX),
    "Omega": ("Ω", r"\Omega", NO_INDEX),
    "psi": ("ψ", r"\psi", NO_INDEX),
    "psi_star": ("ψ⋆", r"\psi^{\star}", NO_INDEX),
    "moment": ("𝒯", r"\mathcal{T}", NO_INDEX),
    "b_pi": ("E[b πᵀ]", r"\mathbb{E}[b \, \pi^{T}]", NO_INDEX),
    "b_tau": ("E[b τ]", r"\mathbb{E}[b \, \tau]", NO_INDEX),
    "dw/db": ("∂w/∂b", r"\tfrac{\partial w}{\partial b}", NO_INDEX),
    "rho_token": ("ρ_l", r"\rho_{\ell}", NO_INDEX),
    "q_bayes": ("qᴮ", r"q^{\mathrm{B}}", CONTEXT_INDEX),
    "q_hat_bayes": ("q^ᴮ", r"\hat{q}^{\mathrm{B}}", CONTEXT_INDEX),
    "V_bayes": ("Vᴮ", r"V^{\mathrm{B}}", CONTEXT_INDEX),
    "omega_bayes": ("ωᴮ", r"\omega^{\mathrm{B}}", TOKEN_INDEX),
    "g_bayes": ("gᴮ", r"g^{\mathrm{B}}", TOKEN_INDEX),
    "Q_bayes": ("Qᴮ", r"Q^{\mathrm{B}}", NO_INDEX),
    "b_bayes": ("bᴮ", r"b^{\mathrm{B}}", NO_INDEX),
    "pi_mean": ("⟨π⟩", r"\langle\pi\rangle", NO_INDEX),
    "Phi_bayes": ("Φᴮ", r"\Phi^{\mathrm{B}}", NO_INDEX),
    "Z_row": ("Z_π", r"Z_{\pi}", NO_INDEX),
    "Z_out": ("Z_out", r"Z_{\mathrm{out}}", NO_INDEX),
    "Z_any": ("Z_•", r"Z_{\bullet}", NO_INDEX),
    "Z_slope_1": ("(∂₁Z_•)", r"(\partial_{1} Z_{\bullet})", NO_INDEX),
    "Z_slope_2": ("(∂₂Z_•)", r"(\partial_{2} Z_{\bullet})", NO_INDEX),
    "C_any": ("C_•", r"C_{\bullet}", NO_INDEX),
    "Z_log_Z_gradient": (
        "∂E[Z_• log(Z_•)]/∂C_•",
        r"\tfrac{\partial}{\partial C_{\bullet}} \mathbb{E}\left[Z_{\bullet} \log Z_{\bullet}\right]",
        NO_INDEX,
    ),
    "mean_row_field": ("E_bᴮ", r"\mathbb{E}_{b^{\mathrm{B}}}", NO_INDEX),
    "mean_row": ("E_π", r"\mathbb{E}_{\pi}", NO_INDEX),
    "mean_output": ("E_out", r"\mathbb{E}_{\mathrm{out}}", NO_INDEX),
    "mean_output_context": ("E_out,c", r"\mathbb{E}_{\mathrm{out},c}", NO_INDEX),
    "law_row_field": ("-log Pr(bᴮ; π)", r"-\log \Pr(b^{\mathrm{B}} \mid \pi)", NO_INDEX),
    "evidence_power": (
        "log(E[evidenceⁿ])/d",
        r"\tfrac{1}{d} \log \mathbb{E}\left[\mathrm{evidence}^{n}\right]",
        NO_INDEX,
    ),
    "hidden_index": ("hidden", r"\mathrm{hidden}", NO_INDEX),
    "normal_weight": ("normal(Y; ωᴮ, Vᴮ)", r"\operatorname{normal}(Y; \omega^{\mathrm{B}}, V^{\mathrm{B}})", NO_INDEX),
    "output_jacobian": ("log abs(det ∂Y)", r"\log \left|\det \partial Y\right|", NO_INDEX),
    "S_atom": ("𝖲", r"\mathsf{S}", NO_INDEX),
    "T_atom": ("𝖳", r"\mathsf{T}", CONTEXT_INDEX),
    "P_atom": ("𝖯", r"\mathsf{P}", NO_INDEX),
    "A_drift": ("𝖠", r"\mathsf{A}", NO_INDEX),
    "b_drift": ("𝖻", r"\mathsf{b}", NO_INDEX),
    "H_slope": ("𝖧", r"\mathsf{H}", CONTEXT_INDEX),
    "K_slope": ("𝖪", r"\mathsf{K}", CONTEXT_INDEX),
    "dX": ("δX", r"\delta X", TOKEN_INDEX),
    "X_token": ("X", "X", TOKEN_INDEX),
    "loss_slope": ("D", "D", TOKEN_INDEX),
    "rate": ("η", r"\eta", NO_INDEX),
    "rate_trained": ("η_φ", r"\eta_{\varphi}", NO_INDEX),
    "batch": ("B", "B", NO_INDEX),
    "batch_share": ("β", r"\beta", NO_INDEX),
    "mean_atom": ("E_a", r"\mathbb{E}_{a}", NO_INDEX),
    "step_of_row": ("Δw_i", r"\Delta w_{i}", NO_INDEX),
    "step_of_trained": ("Δφ", r"\Delta\varphi", NO_INDEX),
    "rate_of_S": ("d𝖲/dt", r"\tfrac{\mathrm{d}\mathsf{S}}{\mathrm{d}t}", NO_INDEX),
    "rate_of_T": ("d𝖳_c'/dt", r"\tfrac{\mathrm{d}\mathsf{T}_{c'}}{\mathrm{d}t}", NO_INDEX),
    "rate_of_P": ("d𝖯/dt", r"\tfrac{\mathrm{d}\mathsf{P}}{\mathrm{d}t}", NO_INDEX),
    "rate_of_phi": ("dφ/dt", r"\tfrac{\mathrm{d}\varphi}{\mathrm{d}t}", NO_INDEX),
    "mean_drift": ("E[dw]/dt", r"\tfrac{\mathbb{E}[\mathrm{d}w]}{\mathrm{d}t}", NO_INDEX),
    "covariance_drift": ("Cov(dw)/dt", r"\tfrac{\operatorname{Cov}(\mathrm{d}w)}{\mathrm{d}t}", NO_INDEX),
    "covariance_batch": ("Cov(Δw)", r"\operatorname{Cov}(\Delta w)", NO_INDEX),
    "moved_S": ("𝖲'", r"\mathsf{S}'", NO_INDEX),
    "moved_T": ("𝖳'_c'", r"\mathsf{T}'_{c'}", NO_INDEX),
    "moved_P": ("𝖯'", r"\mathsf{P}'", NO_INDEX),
    "output_likelihood": ("log Pr(observed; Y)", r"\log \Pr(\mathrm{observed} \mid Y)", NO_INDEX),
}


_SELF_OVERLAP = {"r": "q", "r_hat": "q_hat"}  # the overlap of a replica with itself is q_aa


def theory_entry(name: str, theory: Mapping[str, Entry]) -> tuple[str, Entry, str] | None:
    """("d" of a change or nothing, its entry, replica indices) of a symbol's name; None if it has none.

    An index of the symbol's own stands behind an @ and replaces that of a generic context or token.
    """
    name, at, own = name.partition("@")
    stem, _, replicas = name.removeprefix("slope_").partition("|")
    if stem in _SELF_OVERLAP:
        stem, replicas = _SELF_OVERLAP[stem], replicas * 2
    replicas = replicas.replace("b", "a'")
    if at:
        replicas = own.rstrip(";").replace(";", "; ")
        entry = theory.get(stem)
        return None if entry is None else ("", (entry[0], entry[1], NO_INDEX), replicas)
    change = "d" if stem not in theory and stem[:1] == "d" and stem[1:] in theory else ""
    entry = theory.get(stem.removeprefix(change))
    return None if entry is None else (change, entry, replicas)


# Of symbols with an index -> their entry.
STEMS = {"tau": "tau", "pi": "pi", "rhostar": "rho_star", "psi": "psi", "psistar": "psi_star"}


def own_entry(stem: str, theory: Mapping[str, Entry], default: str) -> tuple[str, str]:
    """(text, LaTeX) of a symbol of the model, "parameter omega" say: the reader's, or else a default."""
    kind, _, word = stem.rpartition(" ")
    known = word if kind in ("row", "overlap") else stem
    return theory[known][:2] if known in theory else (default, default)


# Entries that are written with the symbol of another.
_MADE_OF = {
    "loss_q": "q", "loss_phi": "phi", "D_prime": "D", "domega": "omega", "field_mean": "omega", "H_w": "w", "h_w": "w",
    "field_covariance": "omega", "penalty": "w", "row_penalty": "w", "row_objective": "w", "penalty_gradient": "w",
    "mean_field": "b", "b_mean": "b", "b_covariance": "b", "b_pi": ("b", "pi"), "b_tau": ("b", "tau"),
    "dw/db": ("w", "b"), "alpha_d": "alpha", "Phi_beta": ("Phi", "beta"), "teacher_means": "m_star",
    "gamma_vector": "gamma", "gram": "z_vector", "risk": "W", "sample_loss": "sample_index", "A_row": "G",
    "xi_row": "xi", "g_previous": "g", "omega_mean": "omega", "omega_covariance": "omega", "omega_teacher": "omega",
    "outer_field_mean": "omega", "outer_field_covariance": "omega", "omega_0": "omega", "mean_block": "omega",
    "b_0": "b", "mean_outer_field": "b", "V_tilde": "V", "V_tilde_hat": "V",
    "R_tilde": "R", "Q_Delta": "Q", "Delta": "q", "Delta_hat": "q", "dPhi_dy": "Phi", "Phi_equal": "Phi",
    "Phi_symmetric": ("Phi", "q"),
    "q_bayes": "q", "q_hat_bayes": "q", "V_bayes": "V", "omega_bayes": "omega", "g_bayes": "g", "Q_bayes": "Q",
    "b_bayes": "b", "mean_row_field": "b", "Phi_bayes": "Phi", "pi_mean": "pi", "Z_row": "pi", "mean_row": "pi",
    "law_row_field": ("b", "pi"), "normal_weight": ("omega", "V"),
    "step_of_trained": "phi", "rate_of_phi": "phi", "rate_trained": "phi", "step_of_row": "w", "mean_drift": "w",
    "covariance_drift": "w", "covariance_batch": "w",
}  # fmt: skip
# What a formula may hold that keeps its symbol: fields, labels, noise, sizes, indices, rho of a token and the like.
_FIXED = (*"XYhxykuLKstdnlciIEZSCHzJUNr", r"\ell", r"\rho")
TEXT, LATEX = 0, 1


def renamed(names: Mapping[str, str], own: Names, column: int = LATEX) -> dict[str, Entry]:
    """The symbols of a report with some replaced by a reader's own, given in LaTeX; \\mu, or mu, is μ in text.

    Args:
        names: the name of a parameter of the model, or else of a symbol of the theory (`theory.NAME`, where a parameter
            has the name) -> its new symbol.
        own: symbols of the model.
        column: TEXT or LATEX, the form in which a symbol must not stand for two things.

    Raises:
        ModelError: a name is unknown, or a symbol would stand for two things.
    """
    theory = dict(THEORY)
    if not names:
        return theory
    of_model = {stem.rpartition(" ")[2]: stem for stem, _ in own.values() if stem.startswith(("parameter ", "noise "))}
    changed: dict[str, str] = {}  # entry -> what the reader calls it
    for name, symbol in names.items():
        key = name.removeprefix("theory.") if name.startswith("theory.") else of_model.get(name.rstrip("_"), name)
        if key not in RENAMED and key not in of_model.values():
            known = f"known are {', '.join(RENAMED)}" + (f" and of the model {', '.join(of_model)}" if of_model else "")
            raise ModelError(f"unknown symbol {name!r}; {known}")
        if not symbol.strip():
            raise ModelError(f"the new symbol for {name} is empty")
        if key in changed:
            raise ModelError(f"{name} is renamed twice")
        text, symbol = both_forms(symbol)
        hat = rf"\hat{{{symbol}}}"
        # An index or exponent of its own is followed by that of a context or of Bayes-optimal inference.
        symbol = f"{{{symbol}}}" if re.search("[_^]", symbol) else symbol
        theory[key] = (text, symbol, THEORY[key][2] if key in THEORY else NO_INDEX)
        if f"{key}_hat" in THEORY:
            theory[f"{key}_hat"] = (f"{text}^", hat, THEORY[key][2])
        changed[key] = name
    for key, parts in _MADE_OF.items():
        new = {part: theory[part] for part in ([parts] if isinstance(parts, str) else parts) if part in changed}
        text, symbol = (
            _put({THEORY[p][i]: entry[i] for p, entry in new.items()}, THEORY[key][i]) for i in (TEXT, LATEX)
        )
        theory[key] = (text, symbol, THEORY[key][2])
    for key, name in changed.items():
        taken = _taken(theory, of_model, column)
        twins = [other for other, symbol in taken if other != key and symbol == theory[key][column]]
        if twins:
            other = next((called for stem, called in changed.items() if stem == twins[0]), twins[0])
            why = f"for {other}; rename {other}, too" if other else "keeps its meaning in every formula"
            raise ModelError(f"{theory[key][column]} would stand for {name} and {why}")
    return theory


def _put(new: Mapping[str, str], whole: str) -> str:
    """A symbol that holds others, old -> new, with these replaced all at once; letters of a word are no symbols."""
    if not new:
        return whole
    ways = [("" if old.startswith("\\") else r"(?<![A-Za-z\\])") + re.escape(old) for old in new]
    return re.sub(rf"(?:{'|'.join(ways)})(?![A-Za-z])", lambda found: new[found[0]], whole)


def _taken(theory: Mapping[str, Entry], of_model: Mapping[str, str], column: int) -> Iterator[tuple[str, str]]:
    """(what it is, symbol) of everything that a formula may hold."""
    for name in RENAMED:
        yield name, theory[name][column]
    for name, stem in of_model.items():
        greek = rf"\{name}" if column == LATEX else GREEK.get(name, name)
        yield (stem, theory[stem][column]) if stem in theory else (name, greek if name in GREEK else name)
    for symbol in _FIXED:
        yield "", both_forms(symbol)[column]


# Kind of a sum -> the entry of its index.
SUMS = {
    "replicas": "replica_index", "pairs": "replica_pair", "samples": "sample_index", "rows": "row_index",
    "hidden": "hidden_index",
}  # fmt: skip
# Kind of an average with a symbol of its own -> the entry of it.
MEANS = {
    COORDINATE: "mean_coordinate", "field": "mean_field", "row field": "mean_row_field", "row law": "mean_row",
    "output": "mean_output", "sentences of a block": "mean_block", "outer field": "mean_outer_field",
    "sentences of a block of blocks": "mean_block_of_blocks", "field between": "mean_field_between",
    "atom": "mean_atom",
}  # fmt: skip
# Kinds of averages that are written in angle brackets: over the states of a block.
TILTED = ("tilted", "row tilted", "outer tilted", "outer row tilted")
# Kinds of averages over fields of a row or of a sentence that are given its context: they bind no index.
FIELDS = ("field", "outer field", "field between", "sentences of a block", "sentences of a block of blocks")
