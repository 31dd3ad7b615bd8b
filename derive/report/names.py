"""Names of the theory's symbols that a reader may replace, and Greek letters; importable without SymPy."""

from __future__ import annotations

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eta": "η", "kappa": "κ", "lambda": "λ",
    "mu": "μ", "nu": "ν", "rho": "ρ", "sigma": "σ", "tau": "τ", "omega": "ω", "Delta": "Δ", "pi": "π", "chi": "χ",
    "theta": "θ", "phi": "φ", "psi": "ψ", "xi": "ξ", "zeta": "ζ",
    "Gamma": "Γ", "Theta": "Θ", "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π", "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω",
}  # fmt: skip

# Symbols of a reader's own may stand for these; a conjugate follows its overlap.
RENAMED = (
    "q", "V", "m", "theta", "rho_star", "m_star", "gamma", "tau", "pi", "omega", "g", "G", "B", "Q", "R", "w", "b", "W",
    "W_star", "Sigma", "mu", "encoding", "token", "alpha", "beta", "Phi", "M", "N", "Lambda", "phi", "Kappa", "D",
    "epsilon", "Gamma", "training_loss", "sample_index", "Omega", "psi", "psi_star", "moment", "xi", "z_vector",
)  # fmt: skip


def symbol_in_text_and_latex(symbol: str) -> tuple[str, str]:
    r"""Return a symbol given in LaTeX as a pair (plain text, LaTeX); Greek letters need no backslash."""
    latex = rf"\{symbol}" if symbol in GREEK else symbol
    return GREEK.get(latex.removeprefix("\\"), latex.replace("\\", "")), latex
