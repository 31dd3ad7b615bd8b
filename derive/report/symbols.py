"""The symbols of the theory in text and LaTeX, and their replacement by symbols of a reader's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..errors import ModelError
from .blocks import Names
from .names import GREEK, RENAMED, symbol_in_text_and_latex

CONTEXT_INDEX, TOKEN_INDEX, NO_INDEX = "context", "token", ""
TEXT, LATEX = 0, 1
Entry = tuple[str, str, str]  # text, LaTeX, index
Symbol = tuple[str, str]  # text, LaTeX
Symbols = dict[str, str | Symbol]


def _conjugate_symbols(*names: str) -> Symbols:
    return {f"{name}_hat": (f"<{name}>^", rf"\hat{{<{name}>}}") for name in names}


def _bayes_optimal_symbols(*names: str) -> Symbols:
    return {f"{name}_bayes": (f"<{name}>ᴮ", rf"<{name}>^{{\mathrm{{B}}}}") for name in names}


def _order_parameters_of_breaking_step(k: int, index: str) -> Symbols:
    """Return the printed symbols of the order parameters that step k of replica symmetry breaking adds."""
    return {
        f"Delta_{k}": (f"Δ{index}<q>", rf"\Delta_{{{k}}} <q>"),
        f"Delta_{k}_hat": (f"Δ{index}<q>^", rf"\Delta_{{{k}}} <q_hat>"),
        f"V_tilde_{k}": (f"<V>{index}", f"<V>_{{{k}}}"),
        f"V_tilde_{k}_hat": (f"<V>{index}^", f"<V_hat>_{{{k}}}"),
    }


def _unindexed_symbols_of_breaking_step(k: int, index: str) -> Symbols:
    return {
        f"Q_Delta_{k}": (f"Δ{index}<Q>", rf"\Delta_{{{k}}} <Q>"),
        f"R_tilde_{k}": (f"<R>{index}", f"<R>_{{{k}}}"),
        f"replicas_of_block_{k}": (f"n{index}", f"n_{{{k}}}"),
        f"parisi_parameter_{k}": (f"𝔶{index}", rf"\mathfrak{{y}}_{{{k}}}"),
    }


# The symbols as text and in LaTeX, one string where these are the same but for Greek letters; <name> stands for the
# symbol of another entry, which may be a reader's own. First those with the index of a context, then of a token.
_OF_CONTEXT: Symbols = {
    "q": "q", "V": "V", "m": "m", "theta": r"\theta", "gamma": r"\gamma", "tau": r"\tau", "D": "D", "D_prime": "<D>'",
    "rho_star": ("ρ⋆", r"\rho^{\star}"), "m_star": ("m⋆", r"m^{\star}"),
    "Sigma": r"\Sigma", "mu": ("x̄", r"\bar{\mathbf{x}}"), "T_atom": ("𝖳", r"\mathsf{T}"),
    "H_slope": ("𝖧", r"\mathsf{H}"), "K_slope": ("𝖪", r"\mathsf{K}"),
    "Delta": ("Δ<q>", r"\Delta <q>"), "Delta_hat": ("Δ<q>^", r"\Delta <q_hat>"),
    "V_tilde": ("<V>~", r"\tilde{<V>}"), "V_tilde_hat": ("<V>~^", r"\hat{\tilde{<V>}}"),
    "loss_q": ("∂loss/∂<q>", r"\tfrac{\partial\ell}{\partial <q>}"),
    **_conjugate_symbols("q", "V", "m", "theta", "D"), **_bayes_optimal_symbols("q", "q_hat", "V"),
    **_order_parameters_of_breaking_step(1, "₁"), **_order_parameters_of_breaking_step(2, "₂"),
}  # fmt: skip
_OF_TOKEN: Symbols = {
    "x": "x", "g": "g", "omega": r"\omega", "Y": "Y", "z": "z", "C": "C", "encoding": "p", "X_token": "X",
    "loss_slope": "D", "token": ("𝐱", r"\mathbf{x}"), "S": ("𝒮", r"\mathcal{S}"), "g_previous": "<g>'",
    "omega_0": ("<omega>⁰", "<omega>^{0}"), "omega_1": ("<omega>¹", "<omega>^{1}"),
    "domega": ("δ<omega>", r"\delta<omega>"), "dY": ("δY", r"\delta Y"), "dX": ("δX", r"\delta X"),
    "dmean": ("dz̄", r"\mathrm{d}\bar{z}"), **_bayes_optimal_symbols("omega", "g"),
}  # fmt: skip
_WITHOUT_INDEX: Symbols = {
    # Of the problem: the learner, its loss and its data.
    "alpha": r"\alpha", "beta": r"\beta", "W": "W", "w": "w", "b": "b", "pi": r"\pi", "Lambda": r"\Lambda", "Z": "Z",
    "phi": ("φ", r"\varphi"), "Kappa": r"\kappa", "sample_index": r"\mu", "row_index": "i", "replica_index": "a",
    "W_star": ("W⋆", r"W^{\star}"), "Norms": ("norm²", r"\mathrm{norm}^{2}"), "risk": ("risk", r"\mathcal{R}(<W>)"),
    "alpha_d": ("<alpha> d", "<alpha> d"), "rho_token": ("ρ_l", r"\rho_{\ell}"), "fields_X": "X", "fields_Y": "Y",
    "replica_pair": ("a≠a'", r"a \neq a'"), "penalty": "r(<w>)", "row_penalty": ("r(<w>^i)", "r(<w>^{i})"),
    "penalty_gradient": ("∇r(<w>)", r"\nabla r(<w>)"), "loss": ("loss(X, Y, k, u)", r"\ell(X, Y, k, u)"),
    "loss_gradient": ("∇loss(x)", r"\nabla\ell(x)"),
    "loss_phi": ("∂loss/∂<phi>", r"\tfrac{\partial\ell}{\partial<phi>}"),
    "sample_loss": (
        "loss(X^<sample_index>, Y^<sample_index>, k^<sample_index>, u^<sample_index>)",
        r"\ell(X^{<sample_index>}, Y^{<sample_index>}, k^{<sample_index>}, u^{<sample_index>})",
    ),
    "metric": ("error(h, Y, k, u)", r"\varepsilon(h, Y, k, u)"),
    "baseline": ("error of B₀", r"\varepsilon_{B_0}(Y, k, u)"), "training_loss": ("e_t", r"e_{\mathrm{t}}"),
    "z_vector": r"\zeta", "gram": ("E[<z_vector>ᵀ <z_vector>]", r"\mathbb{E}[<z_vector>^{T} <z_vector>]"),
    "gamma_vector": "<gamma>", "teacher_means": ("<m_star> (one row a context)", "(<m_star>_c)^{T}_{c}"),
    # Of the free entropy, the saddle point and its stability.
    "Phi": r"\Phi", "G": "G", "B": "B", "Q": "Q", "R": "R", "H": "H", "N": ("N", r"\mathcal{N}"),
    "M": ("M", r"\mathcal{M}"), "replicon": ("replicon", r"\lambda_{\mathrm{R}}"), "Omega": r"\Omega",
    "psi": r"\psi", "psi_star": ("ψ⋆", r"\psi^{\star}"), "moment": ("𝒯", r"\mathcal{T}"),
    "b_pi": ("E[<b> <pi>ᵀ]", r"\mathbb{E}[<b> \, <pi>^{T}]"), "b_tau": ("E[<b> <tau>]", r"\mathbb{E}[<b> \, <tau>]"),
    "dw/db": ("∂<w>/∂<b>", r"\tfrac{\partial <w>}{\partial <b>}"),
    "mean_coordinate": ("E_ν", r"\mathbb{E}_{\nu}"), "mean_context": ("E_c", r"\mathbb{E}_{c}"),
    # Of the replica calculation.
    "replicated_action": ("log(E[Zⁿ])/d", r"\tfrac{1}{d} \log \mathbb{E}\left[Z^{n}\right]"),
    "S_trace": ("S_trace", r"S_{\mathrm{trace}}"), "S_rows": ("S_rows", r"S_{\mathrm{rows}}"),
    "S_sentences": ("S_sentences", r"S_{\mathrm{sent.}}"), "S_trained": ("S_trained", r"S_{\mathrm{trained}}"),
    "mean_field": ("E_<b>", r"\mathbb{E}_{<b>}"), "Phi_beta": ("<Phi>_<beta>", "<Phi>_{<beta>}"),
    "field_mean": ("mean of (<omega>_l, Y_l)", r"\mathbb{E}[(<omega>_{\ell}, Y_{\ell})]"),
    "field_covariance": ("Cov(<omega>_l, Y_l)", r"\operatorname{Cov}(<omega>_{\ell}, Y_{\ell})"),
    "objective": "F(X)", "row_objective": "f(<w>)", "H_w": ("ℋⁿ_<w>", r"\mathcal{H}^{(n)}_{<w>}"),
    "h_w": ("ℋ_<w>", r"\mathcal{H}_{<w>}"), "h_x": ("ℋ_X", r"\mathcal{H}_{X}"), "epsilon": r"\eta",
    "Gamma": r"\Gamma", "second_variation": ("δ²S", r"\delta^{2} S"),
    # Of message passing.
    "A_row": ("<G>_i", "<G>_{i}"), "N_row": ("N_i", "N_{i}"), "xi": r"\xi", "xi_row": ("<xi>_i", "<xi>_{i}"),
    "omega_mean": ("E[<omega>_l]", r"\mathbb{E}[<omega>_{\ell}]"), "b_mean": ("E[<b>]", r"\mathbb{E}[<b>]"),
    "omega_covariance": ("Cov(<omega>_l)", r"\operatorname{Cov}(<omega>_{\ell})"),
    "omega_teacher": ("Cov(<omega>_l, Y_l)", r"\operatorname{Cov}(<omega>_{\ell}, Y_{\ell})"),
    "b_covariance": ("Cov(<b>)", r"\operatorname{Cov}(<b>)"),
    # With broken replica symmetry.
    "b_0": ("<b>⁰", "<b>^{0}"), "b_1": ("<b>¹", "<b>^{1}"), "Q_Delta": ("Δ<Q>", r"\Delta <Q>"),
    "R_tilde": ("<R>~", r"\tilde{<R>}"), "replicas_of_block": ("n₁", "n_{1}"),
    "parisi_parameter": ("𝔶", r"\mathfrak{y}"), "complexity": ("Σ(𝔶)", r"\Sigma(\mathfrak{y})"),
    "energy": ("e(𝔶)", r"e(\mathfrak{y})"), "dPhi_dy": ("∂<Phi>/∂𝔶", r"\tfrac{\partial<Phi>}{\partial\mathfrak{y}}"),
    "Phi_symmetric": ("<Phi> at Δ<q> = 0", r"<Phi>|_{\Delta <q> = 0}"),
    "Phi_equal": ("<Phi> at 𝔶 = 0", r"<Phi>|_{\mathfrak{y} = 0}"),
    "mean_block": ("E_<omega>", r"\mathbb{E}_{<omega>}"), "mean_outer_field": ("E_<b>⁰", r"\mathbb{E}_{<b>^{0}}"),
    "mean_block_of_blocks": ("E_<omega>¹", r"\mathbb{E}_{<omega>^{1}}"),
    "mean_field_between": ("E_<b>¹", r"\mathbb{E}_{<b>^{1}}"),
    "outer_field_mean": ("mean of (<omega>⁰_l, Y_l)", r"\mathbb{E}[(<omega>^{0}_{\ell}, Y_{\ell})]"),
    "outer_field_covariance": ("Cov(<omega>⁰_l, Y_l)", r"\operatorname{Cov}(<omega>^{0}_{\ell}, Y_{\ell})"),
    # Of Bayes-optimal inference.
    "pi_mean": ("⟨<pi>⟩", r"\langle<pi>\rangle"), "Z_row": ("Z_<pi>", r"Z_{<pi>}"),
    "hidden_index": ("hidden", r"\mathrm{hidden}"), "Z_out": ("Z_out", r"Z_{\mathrm{out}}"),
    "Z_any": ("Z_•", r"Z_{\bullet}"), "C_any": ("C_•", r"C_{\bullet}"),
    "Z_slope_1": ("(∂₁Z_•)", r"(\partial_{1} Z_{\bullet})"), "Z_slope_2": ("(∂₂Z_•)", r"(\partial_{2} Z_{\bullet})"),
    "Z_log_Z_gradient": (
        "∂E[Z_• log(Z_•)]/∂C_•",
        r"\tfrac{\partial}{\partial C_{\bullet}} \mathbb{E}\left[Z_{\bullet} \log Z_{\bullet}\right]",
    ),
    "mean_row_field": ("E_<b>ᴮ", r"\mathbb{E}_{<b>^{\mathrm{B}}}"), "mean_row": ("E_<pi>", r"\mathbb{E}_{<pi>}"),
    "mean_output": ("E_out", r"\mathbb{E}_{\mathrm{out}}"),
    "mean_output_context": ("E_out,c", r"\mathbb{E}_{\mathrm{out},c}"),
    "law_row_field": ("-log Pr(<b>ᴮ; <pi>)", r"-\log \Pr(<b>^{\mathrm{B}} \mid <pi>)"),
    "evidence_power": ("log(E[evidenceⁿ])/d", r"\tfrac{1}{d} \log \mathbb{E}\left[\mathrm{evidence}^{n}\right]"),
    "normal_weight": (
        "normal(Y; <omega>ᴮ, <V>ᴮ)", r"\operatorname{normal}(Y; <omega>^{\mathrm{B}}, <V>^{\mathrm{B}})",
    ),
    "output_jacobian": ("log abs(det ∂Y)", r"\log \left|\det \partial Y\right|"),
    "output_likelihood": ("log Pr(observed; Y)", r"\log \Pr(\mathrm{observed} \mid Y)"),
    # Of descent.
    "S_atom": ("𝖲", r"\mathsf{S}"), "P_atom": ("𝖯", r"\mathsf{P}"), "A_drift": ("𝖠", r"\mathsf{A}"),
    "b_drift": ("𝖻", r"\mathsf{b}"), "moved_S": ("𝖲'", r"\mathsf{S}'"), "moved_P": ("𝖯'", r"\mathsf{P}'"),
    "moved_T": ("𝖳'_c'", r"\mathsf{T}'_{c'}"), "rate": r"\eta", "rate_trained": ("η_<phi>", r"\eta_{<phi>}"),
    "batch": "B", "batch_share": r"\beta", "mean_atom": ("E_a", r"\mathbb{E}_{a}"),
    "step_of_row": ("Δ<w>_i", r"\Delta <w>_{i}"), "step_of_trained": ("Δ<phi>", r"\Delta<phi>"),
    "rate_of_S": ("d𝖲/dt", r"\tfrac{\mathrm{d}\mathsf{S}}{\mathrm{d}t}"),
    "rate_of_T": ("d𝖳_c'/dt", r"\tfrac{\mathrm{d}\mathsf{T}_{c'}}{\mathrm{d}t}"),
    "rate_of_P": ("d𝖯/dt", r"\tfrac{\mathrm{d}\mathsf{P}}{\mathrm{d}t}"),
    "rate_of_phi": ("d<phi>/dt", r"\tfrac{\mathrm{d}<phi>}{\mathrm{d}t}"),
    "mean_drift": ("E[d<w>]/dt", r"\tfrac{\mathbb{E}[\mathrm{d}<w>]}{\mathrm{d}t}"),
    "covariance_drift": ("Cov(d<w>)/dt", r"\tfrac{\operatorname{Cov}(\mathrm{d}<w>)}{\mathrm{d}t}"),
    "covariance_batch": ("Cov(Δ<w>)", r"\operatorname{Cov}(\Delta <w>)"),
    **_bayes_optimal_symbols("Q", "b", "Phi"),
    **_unindexed_symbols_of_breaking_step(1, "₁"), **_unindexed_symbols_of_breaking_step(2, "₂"),
}  # fmt: skip
_SYMBOLS = {
    name: symbol_in_text_and_latex(symbol) if isinstance(symbol, str) else symbol
    for name, symbol in (_OF_CONTEXT | _OF_TOKEN | _WITHOUT_INDEX).items()
}
_INDEX = dict.fromkeys(_OF_CONTEXT, CONTEXT_INDEX) | dict.fromkeys(_OF_TOKEN, TOKEN_INDEX)


def _build_symbol_table(own: Mapping[str, Symbol]) -> dict[str, Entry]:
    """Return all printed symbols by name, with the reader's symbols inserted, also inside composed symbols."""

    def _printed_symbol(name: str, form: int) -> str:
        if name in own:
            return own[name][form]
        return re.sub(r"<(\w+)>", lambda part: _printed_symbol(part[1], form), _SYMBOLS[name][form])

    return {
        name: (_printed_symbol(name, TEXT), _printed_symbol(name, LATEX), _INDEX.get(name, NO_INDEX))
        for name in {**_SYMBOLS, **own}
    }


THEORY = _build_symbol_table({})
_SELF_OVERLAP = {"r": "q", "r_hat": "q_hat"}  # the overlap of a replica with itself is q_aa


def find_theory_symbol(name: str, theory: Mapping[str, Entry]) -> tuple[str, Entry, str] | None:
    """Return how to print the symbol of a name: (prefix, printed symbol, indices); None for an unknown name.

    The prefix is "d" for a differential, else "". In the name, replica indices follow "|" and other indices "@".

    Args:
        name: name of the symbol, as "q|ab".
        theory: printed symbols of the theory by name.
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


def find_model_symbol(stem: str, theory: Mapping[str, Entry], default: str) -> tuple[str, str]:
    """Return a symbol of the model as (text, LaTeX): the one that the reader prefers, or a default.

    Args:
        stem: kind and name of the symbol, as "parameter omega".
        theory: printed symbols by name, including those that the reader prefers.
        default: symbol if the reader has not chosen one.
    """
    kind, _, word = stem.rpartition(" ")
    known = word if kind in ("row", "overlap") else stem
    return theory[known][:2] if known in theory else (default, default)


# Symbols of formulas that are never replaced: fields, labels, noise, sizes, indices, rho of a token and the like.
_FIXED = (*"XYhxykuLKstdnlciIEZSCHzJUNr", r"\ell", r"\rho")


def rename_symbols(names: Mapping[str, str], own: Names, column: int = LATEX) -> dict[str, Entry]:
    r"""Return the printed symbols of a report, some of them replaced by symbols that the reader prefers.

    Args:
        names: name of a parameter or of a symbol of the theory -> its new symbol in LaTeX, as "mu" or r"\chi". Where
            a parameter has the name of the theory's symbol, that symbol is "theory.NAME".
        own: symbols of the model -> (name, indices).
        column: TEXT or LATEX, the form in which a symbol must not stand for two things.

    Raises:
        ModelError: a name is unknown, or a new symbol is empty or already used for something else.
    """
    of_model = {stem.rpartition(" ")[2]: stem for stem, _ in own.values() if stem.startswith(("parameter ", "noise "))}
    new: dict[str, Symbol] = {}
    changed: dict[str, str] = {}  # entry -> the reader's name for it
    for name, symbol in names.items():
        key = name.removeprefix("theory.") if name.startswith("theory.") else of_model.get(name.rstrip("_"), name)
        if key not in RENAMED and key not in of_model.values():
            theory_names, model_names = ", ".join(RENAMED), ", ".join(of_model) or "none"
            raise ModelError(
                f"unknown symbol {name!r}; symbols of the theory are {theory_names}, those of the model {model_names}"
            )
        if not symbol.strip():
            raise ModelError(f"the new symbol for {name} is empty; give one in LaTeX, as in {name}=T")
        if key in changed:
            raise ModelError(f"{name} is renamed twice; give it one new symbol")
        text, symbol = symbol_in_text_and_latex(symbol)
        # An index or exponent of its own is followed by that of a context or of Bayes-optimal inference.
        new[key] = text, f"{{{symbol}}}" if re.search("[_^]", symbol) else symbol
        if f"{key}_hat" in _SYMBOLS:
            new[f"{key}_hat"] = f"{text}^", rf"\hat{{{symbol}}}"
        changed[key] = name
    theory = _build_symbol_table(new)
    for key, name in changed.items():
        taken = _iterate_taken_symbols(theory, of_model, column)
        twins = [other for other, symbol in taken if other != key and symbol == theory[key][column]]
        if twins:
            other = next((called for stem, called in changed.items() if stem == twins[0]), twins[0])
            symbol = theory[key][column]
            if other:
                raise ModelError(f"the symbol {symbol} would stand for {name} and for {other}; rename {other}, too")
            raise ModelError(
                f"the symbol {symbol} would stand for {name}, but has a fixed meaning in all formulas; choose another"
            )
    return theory


def _iterate_taken_symbols(
    theory: Mapping[str, Entry], of_model: Mapping[str, str], column: int
) -> Iterator[tuple[str, str]]:
    """Yield pairs (name, printed symbol) of all symbols that formulas may contain; fixed symbols have the name ""."""
    for name in RENAMED:
        yield name, theory[name][column]
    for name, stem in of_model.items():
        greek = rf"\{name}" if column == LATEX else GREEK.get(name, name)
        yield (stem, theory[stem][column]) if stem in theory else (name, greek if name in GREEK else name)
    for symbol in _FIXED:
        yield "", symbol_in_text_and_latex(symbol)[column]
