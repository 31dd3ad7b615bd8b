"""One step of breaking in numbers: what steps 7 to 12 derive, by quadrature for weights torn between two targets.

One field, no teacher, loss = min over targets t of (x - t)^2 / 2, a ridge: the proximal point jumps half way between
the targets, M is quadratic on either side, and every average is an integral in one dimension.
"""

import re
from functools import cache, partial, reduce
from operator import add, mul
from types import SimpleNamespace

import numpy as np
import pytest
import sympy as sp
from scipy.optimize import brentq
from scipy.special import ndtr

from saddleforge.derive.calculus.averages import CHANNEL, Average, Jacobian, MatrixAverage
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.errors import ModelError
from saddleforge.derive.replicas.algebra.levels import BLOCK, TILTED
from saddleforge.derive.replicas.algebra.objects import LogDet
from saddleforge.derive.replicas.steps.derivation import replica_calculation
from saddleforge.derive.report.latex import latex_document
from saddleforge.derive.report.text import report_text

ALPHA, LAMBDA, TARGETS = 3.0, 1.0, (-0.5, 1.0)
MIDDLE = sum(TARGETS) / 2
SHARED, CHANCES = np.polynomial.hermite_e.hermegauss(60)
CHANCES = CHANCES / CHANCES.sum()
NODES, WEIGHTS = np.polynomial.legendre.leggauss(120)
OMEGA = MIDDLE + np.concatenate([-4 * (NODES + 1)[::-1], 4 * (NODES + 1)])  # no node at the jump, panels end there
WEIGHTS = 4 * np.concatenate([WEIGHTS[::-1], WEIGHTS])

derived = cache(partial(replica_calculation, s=1, t=1, rsb=1))


class Numbers:
    """Values of scalar expressions of the derivation at given order parameters."""

    def __init__(self, **values: float) -> None:
        self.at = {"alpha": ALPHA, "Lambda": LAMBDA, "B": 0.0, "m": 0.0, "theta": 0.0, "m_hat": 0.0, "theta_hat": 0.0,
                   "rho_star": 1.0, "gamma": 1.0, "tau": 0.0, "dY": 0.0, "loss": 0.0, **values}  # fmt: skip
        here = self.at
        here |= {"G": here.get("V_hat", 0), "Q": here.get("q_hat", 0), "Q_Delta": here.get("Delta_hat", 0)}
        shared = np.sqrt(here["q"]) * SHARED
        near = np.where(OMEGA > MIDDLE, TARGETS[1], TARGETS[0])
        here |= {"domega": shared, "g": (near - OMEGA) / (1 + here["V"])}
        here |= {"M": (OMEGA - near) ** 2 / (2 * (1 + here["V"]))}
        here |= {"loss": (OMEGA + here["V"] * here["g"] - near) ** 2 / 2}
        gap = OMEGA - shared[:, None]
        self.normal = WEIGHTS * np.exp(-(gap**2) / (2 * here["Delta"])) / np.sqrt(2 * np.pi * here["Delta"])
        tilted = self.normal * np.exp(-here["parisi_parameter"] * here["M"])
        self.gap, self.tilted = gap, tilted / tilted.sum(1)[:, None]

    def __call__(self, e):
        """Arrays over omega under a tilted average, over omega_0 under one of the channel."""
        if isinstance(e, Average | MatrixAverage):
            inside = self(e.summand)
            weights = {TILTED: self.tilted, BLOCK: self.normal, CHANNEL: CHANCES}.get(e.kind)
            if weights is None:
                return inside
            return (weights * inside).sum(-1)
        if isinstance(e, Jacobian):
            if isinstance(e.args[0], MatrixAverage):  # the score of the normal density in its mean
                mean = (self.tilted * self.at["g"]).sum(1)
                return (self.tilted * (self.at["g"] - mean[:, None]) * self.gap).sum(1) / self.at["Delta"]
            return -1 / (1 + self.at["V"]) + 0 * OMEGA  # without its delta part
        if isinstance(e, sp.MatrixSymbol | sp.Symbol):
            return self.at[e.name]
        if isinstance(e, LogDet | sp.log):
            return np.log(self(e.args[0]))
        if isinstance(e, sp.exp):
            return np.exp(self(e.args[0]))
        if isinstance(e, sp.Pow | sp.MatPow | sp.Inverse):
            return self(e.base) ** float(e.exp)
        if isinstance(e, sp.ZeroMatrix):
            return 0.0
        if e.is_number:
            return float(e)
        values = [self(a) for a in e.args]
        return reduce(add if isinstance(e, sp.Add | sp.MatAdd) else mul, values)


def conjugates(q, V, Delta, y):
    """By the conditions of step 8; V^ through the response of a block, which jumps leave smooth."""
    after, at = derived()[8].after, Numbers(q=q, V=V, Delta=Delta, parisi_parameter=y)
    q_hat, Delta_hat, V_tilde_hat = (at(after[name]) for name in ("q_hat", "Delta_hat", "V_tilde_hat"))
    return {"q_hat": q_hat, "Delta_hat": Delta_hat, "V_hat": V_tilde_hat + y * Delta_hat}


@cache
def saddle(y):
    """Order parameters at a Parisi parameter, by iteration of the conditions of step 8.

    To as many digits as there are: Delta is a difference of averages, divided by a y that may be small.
    """
    after, found = derived()[8].after, {"q": 0.01, "V": 0.5, "Delta": 0.1}
    for _ in range(400):
        at = Numbers(**found, **conjugates(**found, y=y), parisi_parameter=y)
        new = {name: float(at(after[name])) for name in found}
        if all(abs(new[name] - old) < max(1e-13, 1e-14 / y) * old for name, old in found.items()):
            return found | conjugates(**found, y=y)
        found = {name: old**0.6 * new[name] ** 0.4 for name, old in found.items()}
    raise AssertionError("the iteration does not end")


def phi(values, y):
    return Numbers(**values, parisi_parameter=y)(derived()[7].after["Phi"])


def slope(function, x, step=1e-4):
    """To fourth order in the step."""
    near, far = ((function(x + k * step) - function(x - k * step)) / (2 * k * step) for k in (1, 2))
    return (4 * near - far) / 3


POINTS = [2.0, 8.0]


@pytest.mark.parametrize("y", POINTS)
@pytest.mark.parametrize("name", ["q", "V", "Delta", "q_hat", "V_hat", "Delta_hat"])
def test_the_free_entropy_is_stationary_where_the_conditions_hold(name, y):
    """The proximal map jumps: V^ of the derivative form would miss it."""
    values = saddle(y)
    at = partial(lambda x: phi({**values, name: x}, y))
    assert slope(at, values[name], 1e-3 * values[name]) == pytest.approx(0, abs=1e-8)
    ordinary = Numbers(**values, parisi_parameter=y)(derived()[8].after["V_hat"])
    assert ordinary - values["V_hat"] > 0.05  # jumps make V^ smaller


@pytest.mark.parametrize("y", POINTS)
def test_the_slope_in_the_parisi_parameter_is_that_along_the_solutions(y):
    """By stationarity; at given V + y Delta and V^ - y Delta^ it is another expression with the same value."""
    values, after = saddle(y), derived()[9].after
    at = Numbers(**values, parisi_parameter=y)
    found = at(after["dPhi_dy"])
    assert found == pytest.approx(slope(lambda x: phi(saddle(x), x), y, 1e-2), rel=1e-6)
    v = SimpleNamespace(**values)
    wide, wide_hat = v.V + y * v.Delta, v.V_hat - y * v.Delta_hat
    logarithms = np.log((LAMBDA + v.V_hat) / (LAMBDA + wide_hat))
    mean, total = (at.tilted * at.at["M"]).sum(1), np.log((at.normal * np.exp(-y * at.at["M"])).sum(1)) / y
    expected = -(wide_hat * wide - v.V_hat * v.V + logarithms) / (2 * y**2) + ALPHA / y * CHANCES @ (-mean - total)
    expected -= (y * (v.q_hat + v.Delta_hat) - v.V_hat) * v.Delta / (2 * y)
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("y", POINTS)
def test_the_energy_is_that_of_loss_and_penalty_at_the_minimisers(y):
    after, at = derived()[9].after, Numbers(**saddle(y), parisi_parameter=y)
    at.at |= {"Phi": phi(saddle(y), y), "dPhi_dy": at(after["dPhi_dy"])}
    assert at(after["training_loss"]) == pytest.approx(at(after["energy"]), rel=1e-10)
    assert at(after["complexity"]) == pytest.approx(y * (at.at["Phi"] + at(after["energy"])), rel=1e-9)


def symmetric():
    """(q, V, training loss) of the replica-symmetric saddle point, by formulas of its own."""
    nodes, q, V = np.linspace(-9, 9, 40001), 0.2, 1.0
    chances = np.exp(-(nodes**2) / 2) / np.exp(-(nodes**2) / 2).sum()
    for _ in range(300):
        omega = np.sqrt(q) * nodes
        near = np.where(omega > MIDDLE, TARGETS[1], TARGETS[0])
        g = (near - omega) / (1 + V)
        q_hat, V_hat = ALPHA * chances @ g**2, -ALPHA * chances @ (g * omega) / q
        R = 1 / (LAMBDA + V_hat)
        q, V = (q * R**2 * q_hat) ** 0.5, (V * R) ** 0.5
    energy = -(V_hat * q - q_hat * V + R * q_hat) / 2 + ALPHA * chances @ (omega - near) ** 2 / (2 * (1 + V))
    return SimpleNamespace(q=q, V=V, q_hat=q_hat, V_hat=V_hat, R=R, energy=energy)


def test_states_of_least_energy_lie_above_the_replica_symmetric_energy():
    """-Phi is greatest where the slope in the Parisi parameter, hence the complexity, vanishes."""
    least = brentq(lambda y: Numbers(**saddle(y), parisi_parameter=y)(derived()[9].after["dPhi_dy"]), 8, 20, xtol=1e-3)
    energies = [-phi(saddle(y), y) for y in (least, 0.7 * least, 1.4 * least, 1e-3)]
    assert max(energies) == energies[0]
    assert energies[3] == pytest.approx(symmetric().energy, abs=1e-4)
    complexity = partial(lambda y: Numbers(**saddle(y), parisi_parameter=y)(-(y**2) * derived()[9].after["dPhi_dy"]))
    assert complexity(0.7 * least) > 0 > complexity(1.4 * least)


def test_without_blocks_the_replica_symmetric_free_entropy_is_left():
    """Stationary in Delta, too: what it misses vanishes faster than Delta, whatever y."""
    rs = symmetric()
    values = {"q": rs.q, "V": rs.V, "q_hat": rs.q_hat, "V_hat": rs.V_hat, "Delta_hat": 0.0}
    for y in (0.1, 2.0):
        wide, narrow = (phi({**values, "Delta": Delta}, y) + rs.energy for Delta in (0.02, 0.01))
        assert abs(narrow) < 1e-3 and wide / narrow > 2.1


def test_states_of_one_weight_are_the_two_copies():
    """The map of the self-overlap loss: half the squared difference of two fields with one q, iterated to rest."""
    rs = symmetric()
    shared, chances = np.polynomial.hermite_e.hermegauss(60)
    Delta = 0.1 * rs.q
    for _ in range(200):
        spread = np.sqrt(Delta)
        gap = MIDDLE - np.sqrt(rs.q - Delta) * shared
        edge = gap / spread
        above = ndtr(-edge)
        density = np.exp(-(edge**2) / 2) / np.sqrt(2 * np.pi)
        jump = TARGETS[1] - TARGETS[0]
        # Var(t - z) with z normal of variance Delta and t the far target where z lies above the edge.
        variance = Delta + jump**2 * above * (1 - above) - 2 * jump * spread * density
        hat = ALPHA * (chances / chances.sum()) @ variance / (1 + rs.V) ** 2
        Delta, before = (Delta * rs.R**2 * hat) ** 0.5, Delta
        if abs(Delta - before) < 1e-10:
            break
    found = saddle(1e-3)
    assert found["Delta"] == pytest.approx(Delta, rel=1e-3)
    assert found["q"] + found["Delta"] == pytest.approx(rs.q, rel=1e-3)
    assert found["V"] == pytest.approx(rs.V, rel=1e-3)


@pytest.mark.parametrize("y", POINTS)
def test_blocks_answer_as_a_whole_in_type_i_and_states_singly_in_type_ii(y):
    values, at = saddle(y), Numbers(**saddle(y), parisi_parameter=y, D=1.0)
    R, wide = 1 / (LAMBDA + values["V_hat"]), 1 / (LAMBDA + values["V_hat"] - y * values["Delta_hat"])
    eigenvalues = []
    for number in (11, 12):
        after = derived()[number].after
        at.at["Gamma"] = at(after["D_hat"])
        eigenvalues.append(at(after["D_prime"]))
    # Type I: two copies of a block at fields that differ, by differences of the tilted field.
    step = 1e-4
    moved = []
    for sign in (1, -1):
        weights = WEIGHTS * np.exp(-((at.gap - sign * step) ** 2) / (2 * values["Delta"]) - y * at.at["M"])
        moved.append((weights * at.at["g"]).sum(1) / weights.sum(1))
    response = (moved[0] - moved[1]) / (2 * step)
    assert eigenvalues[0] == pytest.approx(ALPHA * CHANCES @ response**2 * wide**2, rel=1e-6)
    assert eigenvalues[1] == pytest.approx(ALPHA * R**2 / (1 + values["V"]) ** 2, rel=1e-12)
    assert -ALPHA * CHANCES @ response == pytest.approx(values["V_hat"] - y * values["Delta_hat"], rel=1e-6)


def with_needed_indices(equation, chosen):
    """The equation without indices of tokens and contexts where the model has one of them."""
    return equation if chosen.structure().tokens > 1 else re.sub("Σ_l' |_l'?|_c", "", equation)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dot_product_attention", "lasso_regression", "value_attention", "perceptron"])
def test_the_document_with_blocks_says_every_step_and_no_failure(name):
    chosen = catalogue_model(name)
    shown, source = report_text(chosen, steps=True, rsb=1), latex_document(chosen, steps=True, rsb=1)
    assert "FAILED" not in shown and shown.count("Checked:") == 12
    assert max(len(line) for line in shown.splitlines()) <= 100 and source.isascii()
    for leftover in ("Average(", "_hat", "|", "LogIntegral", "parisi", "replicas_of"):
        assert leftover not in shown[shown.index("Step 1") :]
    type_one = "D^_c = α E_c[Σ_l' ∂⟨g_l⟩/∂ω⁰_l' D_l' (∂⟨g_l⟩/∂ω⁰_l')ᵀ]"
    for said in ("q^_c = α E_c[⟨g_l⟩ ⟨g_lᵀ⟩]", "Σ(𝔶) = -𝔶² ∂Φ/∂𝔶", type_one):
        assert with_needed_indices(said, chosen) in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dot_product_attention", "lasso_regression"])
def test_the_document_with_blocks_of_blocks_says_every_step_and_no_failure(name):
    chosen = catalogue_model(name)
    shown, source = report_text(chosen, steps=True, rsb=2), latex_document(chosen, steps=True, rsb=2)
    assert "FAILED" not in shown and shown.count("Checked:") == 8
    assert max(len(line) for line in shown.splitlines()) <= 100 and source.isascii()
    for leftover in ("Average(", "_hat", "|", "LogIntegral", "parisi", "replicas_of", "Delta_"):
        assert leftover not in shown[shown.index("Step 1") :]
    for said in ("Δ₁q^_c = α E_c[⟨⟨g_l⟩ ⟨g_lᵀ⟩⟩] - α E_c[⟨⟨g_l⟩⟩ ⟨⟨g_lᵀ⟩⟩]", "V₁_c = 𝔶₁ Δ₁q_c + 𝔶₂ Δ₂q_c + V_c"):
        assert with_needed_indices(said, chosen) in shown


def test_breaking_thrice_or_without_steps_is_refused():
    with pytest.raises(ModelError, match="rsb = 3 is out of range"):
        replica_calculation(rsb=3)
    with pytest.raises(ModelError, match="ask for the steps as well"):
        report_text(catalogue_model("ridge_regression"), rsb=1)
