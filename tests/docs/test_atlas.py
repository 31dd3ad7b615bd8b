"""The atlas: what stands on the page is computed again, theory within its error bars and simulations seed by seed."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp
from scipy.optimize import brentq
from scipy.stats import norm

import saddleforge as sf

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "atlas.md").read_text(encoding="utf-8")
LINE, SEPARABLE = 0.512440, 2.899137876  # of Donoho and Tanner at density 0.2, of Candes and Sur at steepness 2
SEEDS = {"seeds": 16, "threads": 2}


def table(heading: str) -> list[list[str]]:
    """Rows of the table under a heading, without its first two lines."""
    part = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (body,) = [text for text in part if text.startswith(heading)]
    rows = [line.strip("|").split("|") for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def shown(text: str) -> tuple[float, float]:
    """A number with its error in brackets, as 1.248(9); half a digit where there are none. One of a few as 2 x 0.1."""
    times, _, text = text.rpartition(" x ")
    number, error = re.fullmatch(r"(-?[\d.]+(?:e-?\d+)?)(?:\((\d+)\))?", text).groups()  # type: ignore[union-attr]
    digits, _, power = number.partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    factor = float(times or 1)
    return factor * float(number), factor * unit * (float(error) if error else 0.5)


def ours(row: list[str]) -> list[tuple[float, float]]:
    """Return our numbers in a row of the first table, or theirs again, to so many digits where given."""
    same = re.fullmatch(r"the same(?:, to ([\d.e-]+))?", row[3])
    if same is None:
        return [shown(cell) for cell in row[3].split(", ")]
    theirs = [shown(cell) for cell in row[2].split(", ")]
    return [(value, float(same[1] or error)) for value, error in theirs]


def numbers(text: str) -> list[str]:
    """Rows that a cell names: 4, 5, or 20 to 22."""
    first, *last = (int(n) for n in text.split(" to ")) if " to " in text else (None,)
    return [str(n) for n in range(first, last[0] + 1)] if last else re.findall(r"\d+", text)


@sf.model(
    noise={"z": sf.GaussianNoise(1), "v": sf.DiscreteNoise((0, 1), lambda Y, share: (1 - share, share))},
    regulariser=sf.Ridge(0.398),
    metric=lambda h, Y: (h[0] - Y[0]) ** 2,
    starts={"semantic": sf.Start(teacher=0.6)},
)
def among_outliers(X, Y, z, v, *, share=0.3, Delta_in=1.0, Delta_out=5.0, width=0.964):
    inlier, outlier = Y[0] + sp.sqrt(Delta_in) * z, sp.sqrt(Delta_out) * z
    r = (1 - v) * inlier + v * outlier - X[0]
    return (r**2 - sp.Max(0, sp.Abs(r) - width) ** 2) / 2


LABELS = sf.DiscreteNoise((1, -1), lambda Y, steepness: (p := sf.sigmoid(steepness * Y[0, 0]), 1 - p))
STARTS = {"semantic": sf.Start(teacher="3/5", noise=1, susceptibility=30)}


@sf.model(noise={"label": LABELS}, regulariser=sf.Ridge(0), starts=STARTS)
def likelihood(X, Y, label, *, steepness=2.23606797749979):
    return sf.softplus(-label * X[0, 0])


@sf.model(noise={"label": LABELS}, starts=STARTS)
def hinge_on_logistic_labels(X, Y, label, *, steepness=2):
    return sp.Max(0, 1 - label * X[0, 0])


@sf.model(starts={"uninformed": sf.Start(noise="3/5", susceptibility=2)})
def moduli(X, Y):
    return (sp.Abs(Y[0, 0]) - sp.Abs(X[0, 0])) ** 2


@sf.model(starts={"uninformed": sf.Start(noise="3/5", susceptibility=10)})
def margin(X, Y, *, kappa=0.5):
    return sp.Max(0, kappa - X[0, 0])


@sf.model(regulariser=sf.Sphere(), starts={"uninformed": sf.Start(noise=1, susceptibility=5)})
def wrong(X, Y, *, kappa=0):
    return sp.Heaviside(kappa - X[0, 0])


BINARY = ROOT / "examples/binary_perceptron.py"
CAPACITY = 0.96120505280154  # of Gardner at this margin
LASSO = sf.problem("lasso_regression", alpha=0.8, density=0.2, Delta=0.1, lambda_=0.3)
ATTENTION = sf.problem("dot_product_attention", omega=0.3)
ENDS = {"on": "semantic", "accuracy": 1e-5}


def ridge(alpha: float, strength: float) -> Any:
    return sf.problem("ridge_regression", alpha=alpha, Delta=0.25, lambda_=strength)


def maximum_likelihood() -> Any:
    return sf.problem(likelihood, alpha=5)


def of_solution(problem: Any, name: str) -> tuple[float, float]:
    found = sf.solve(problem, accuracy=1e-6)
    assert found.success
    return getattr(found, name), getattr(found, f"{name}_error")


def bias_and_spread(q: Any, theta: Any) -> tuple[Any, Any]:
    """Of an estimate along the teacher and across it, as Sur and Candes measure them: kappa = 1/5, gamma^2 = 5."""
    return theta / np.sqrt(5), np.sqrt(5 * (q - theta**2))


@cache
def likelihood_in_theory() -> tuple[tuple[float, float], tuple[float, float]]:
    found = sf.solve(maximum_likelihood(), accuracy=1e-7)
    assert found.success
    q, theta = found.overlaps.q.item(), found.overlaps.theta.item()
    half = found.error_bars.q.item() + found.error_bars.theta.item()
    return tuple((value, 5 * half) for value in bias_and_spread(q, theta))  # type: ignore[return-value]


def threshold(found: Any) -> tuple[float, float]:
    return found.value, found.error


def of_bayes(model: Any, kind: str) -> tuple[float, float]:
    return threshold(sf.bayes_threshold(sf.problem(model), kind))


def random_labels(alpha: float, **how: Any) -> tuple[float, float]:
    """Errors of a perceptron of given norm: without breaking and with a step of it."""
    found = sf.solve(sf.problem(wrong, alpha=alpha), "uninformed", accuracy=how.pop("accuracy", 1e-7), **how)
    assert found.success
    return found.training_loss, found.training_loss_error


def broken_moduli(strength: float) -> tuple[float, float]:
    problem = sf.problem("amplitude_retrieval", alpha=3, lambda_=strength)
    found = sf.solve(problem, "uninformed", rsb=1, accuracy=1e-6)
    assert found.success and found.steps == 1
    return found.energy, found.energy_error


# Row of the first table -> ours, computed; the others stand in tests that the second table names.
COMPUTED: dict[str, Callable[[], Any]] = {
    "1": lambda: threshold(sf.crossing(ATTENTION, between=("semantic", "positional"), accuracy=1e-4)),
    "2": lambda: threshold(sf.where(ATTENTION, "test_error = baseline_error", **ENDS)),
    "3": lambda: (2 * sf.solve(ATTENTION.with_(alpha=2)).baseline_error, 0.0),
    "4": lambda: of_solution(sf.problem(among_outliers, alpha=10), "test_error"),
    "6": lambda: random_labels(4, accuracy=1e-10),
    "7": lambda: [random_labels(alpha, accuracy=1e-10) for alpha in (6, 10)],
    "8": lambda: random_labels(4, rsb=1),
    "9": lambda: [random_labels(alpha, rsb=1) for alpha in (6, 10)],
    "10": lambda: broken_moduli(0.0),
    "11": lambda: broken_moduli(0.13317552342239194),
    "15": lambda: [of_bayes("phase_retrieval", kind) for kind in ("weak_recovery", "algorithmic")],
    "16": lambda: [of_bayes(BINARY, kind) for kind in ("information_theoretic", "algorithmic")],
    "17": lambda: of_bayes(ROOT / "examples/product_of_two.py", "weak_recovery"),
    "18": lambda: likelihood_in_theory()[0],
    "19": lambda: likelihood_in_theory()[1],
    "20": lambda: of_solution(ridge(2, 1e-7), "test_error"),
    "21": lambda: of_solution(ridge(0.5, 1e-7), "test_error"),
    "22": lambda: of_solution(ridge(2, 0.25), "test_error"),
    "23": lambda: of_solution(LASSO, "test_error"),
}


def runs(problem: Any, d: int, name: str = "", start: str = "semantic", seeds: int = 16) -> Any:
    """Mean and standard error over the seeds of what is named, or all runs."""
    found = sf.simulate(problem, d=d, seeds=seeds, start=start, threads=2)
    assert found.status == "converged"
    return (found.estimate(name).mean, found.estimate(name).standard_error) if name else found


def of_messages(alpha: float, model: Any = "phase_retrieval", seeds: int = 4) -> tuple[float, float]:
    found = sf.bayes_messages(sf.problem(model, alpha=alpha), d=1000, seeds=seeds)
    overlaps = np.array([run.overlaps.item() for run in found.runs])
    return overlaps.mean(), overlaps.std(ddof=1) / np.sqrt(len(overlaps))


@cache
def likelihood_at_finite_d() -> tuple[tuple[float, float], tuple[float, float]]:
    found = runs(maximum_likelihood(), 400)
    values = np.array([bias_and_spread(r.overlaps.q.item(), r.overlaps.theta.item()) for r in found.converged])
    errors = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return tuple(zip(values.mean(axis=0), errors, strict=True))  # type: ignore[return-value]


def lasso(by: float) -> Any:
    return sf.problem("lasso_regression", alpha=LINE + by, Delta=0.0, density=0.2, lambda_=1e-3)


def margins(by: float) -> Any:
    return sf.problem(hinge_on_logistic_labels, alpha=SEPARABLE + by, lambda_=1e-2)


def of_random_labels(by: float) -> Any:
    problem = sf.problem(margin, alpha=CAPACITY + by, lambda_=1e-2)
    return runs(problem, 300, "training_loss", "uninformed", 8)


def at_finite_d(strength: float) -> Any:
    return runs(sf.problem(moduli, alpha=3, lambda_=strength), 400, "training_loss", "uninformed", 8)


def crossing_at_finite_d() -> tuple[float, float]:
    return threshold(sf.finite_transition(ATTENTION, [1.15, 1.25, 1.35], d=400, **SEEDS))


# First cell of the third table -> what it says of a simulation.
SIMULATED: dict[str, Callable[[], tuple[float, float]]] = {
    "1": crossing_at_finite_d,
    "2": lambda: runs(ATTENTION.with_(alpha=1.492271), 400, "test_error", seeds=8),
    "4": lambda: runs(sf.problem(among_outliers, alpha=10), 400, "test_error"),
    "10": lambda: at_finite_d(1e-6),
    "11": lambda: at_finite_d(0.13317552342239194),
    "12, below": lambda: of_random_labels(-0.3),
    "12, above": lambda: of_random_labels(0.3),
    "13, below": lambda: runs(margins(-1), 300, "training_loss", seeds=8),
    "13, above": lambda: runs(margins(1), 300, "training_loss", seeds=8),
    "14, below": lambda: runs(lasso(-0.1), 500, "test_error", seeds=8),
    "14, above": lambda: runs(lasso(0.1), 500, "test_error", seeds=8),
    "15, between": lambda: of_messages(1.0),
    "15, above": lambda: of_messages(1.3),
    "16": lambda: of_messages(1.2, BINARY, 8),
    "18": lambda: likelihood_at_finite_d()[0],
    "19": lambda: likelihood_at_finite_d()[1],
    "20": lambda: runs(ridge(2, 1e-6), 400, "test_error"),
    "21": lambda: runs(ridge(0.5, 1e-6), 400, "test_error"),
    "22": lambda: runs(ridge(2, 0.25), 400, "test_error"),
    "23": lambda: runs(LASSO, 500, "test_error"),
}


def test_every_row_says_where_it_is_executed():
    rows = {row[0] for row in table("Transitions")}
    explained = [(n, row[1]) for row in table("How") for n in numbers(row[0])]
    assert {n for n, _ in explained} == rows and len(explained) == len(rows)
    for number, text in explained:
        files = re.findall(r"(?:tests|examples)/[\w/]+\.py", text)
        assert all((ROOT / file).is_file() for file in files)
        assert number in COMPUTED or files or "saddleforge " in text
    assert set(COMPUTED) <= rows and {row[0] for row in table("Compared")} == set(SIMULATED) and len(SIMULATED) >= 12
    assert len(COMPUTED) >= 12 and len({row.partition(",")[0] for row in SIMULATED}) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("number", COMPUTED)
def test_computed_transitions_agree_with_the_table_of_the_atlas(number):
    (row,) = [row for row in table("Transitions") if row[0] == number]
    found = COMPUTED[number]()
    for (value, error), (said, error_bar) in zip(found if isinstance(found, list) else [found], ours(row), strict=True):
        assert abs(value - said) <= error + error_bar


def risk_of_the_lasso(delta: float, density: float, noise: float, strength: float) -> float:
    """Error of a fresh label, by theorem 1.5 of Bayati and Montanari (arXiv 1008.2581), rows of variance one in all."""

    def threshold_risk(tau: float, times: float, variance: float) -> float:
        """E (eta(X + tau Z; times tau) - X)^2 of Gaussian X."""
        total, at = variance + tau**2, times * tau
        beyond, edge = norm.sf(at / np.sqrt(total)), norm.pdf(at / np.sqrt(total))
        square = 2 * ((total + at**2) * beyond - at * np.sqrt(total) * edge)
        return square - 4 * variance * beyond + variance

    def tau(times: float) -> float:
        def missing(tau: float) -> float:
            kinds = ((density, 1 / density), (1 - density, 0.0))
            risk = sum(weight * threshold_risk(tau, times, variance) for weight, variance in kinds)
            return tau**2 - (noise + risk) / delta

        return brentq(missing, np.sqrt(noise / delta), 50, xtol=1e-15)

    def off(times: float) -> float:
        beyond = density * norm.sf(times * tau(times) / np.hypot(np.sqrt(1 / density), tau(times)))
        active = 2 * (beyond + (1 - density) * norm.sf(times))
        return times * tau(times) * (1 - active / delta) - strength / delta

    return delta * tau(brentq(off, 0.7, 5, xtol=1e-14)) ** 2


def test_the_published_formula_of_the_lasso_is_the_row():
    (row,) = [row for row in table("Transitions") if row[0] == "23"]
    value, half = shown(row[2].removesuffix(" (formula)"))
    assert abs(risk_of_the_lasso(0.8, 0.2, 0.1, 0.3) - value) < 2 * half


@pytest.mark.slow
@pytest.mark.parametrize("number", SIMULATED)
def test_simulations_are_what_the_page_says(number):
    (row,) = [row for row in table("Compared") if row[0] == number]
    mean, error = SIMULATED[number]()
    theory, _ = shown(row[2])
    said, bar = shown(row[4])
    _, rounding = shown(re.sub(r"\(\d+\)", "", row[4]))
    assert abs(mean - said) <= 0.1 * bar + 1.1 * rounding  # seeds give the same data; where descent ends is rounded
    assert bar == pytest.approx(error, rel=0.5, abs=rounding)
    if not row[6].startswith("descent"):
        assert abs(mean - theory) < 4 * error + 1e-6


AT_CROSSING = ATTENTION.with_(alpha=1.2515356)
JUDGED: dict[str, Callable[[], list[Any]]] = {
    "1": lambda: [sf.solve(AT_CROSSING, start, accuracy=1e-3) for start in ("semantic", "positional")],
    "2": lambda: [sf.solve(ATTENTION.with_(alpha=1.492271), "semantic", accuracy=1e-4)],
    "4": lambda: [sf.solve(sf.problem(among_outliers, alpha=10), accuracy=1e-4)],
    "10": lambda: [sf.solve(sf.problem(moduli, alpha=3, lambda_=1e-6), "uninformed", accuracy=1e-4)],
    "11": lambda: [sf.solve(sf.problem(moduli, alpha=3, lambda_=0.13317552342239194), "uninformed", accuracy=1e-4)],
    "12, below": lambda: [
        sf.solve(sf.problem(margin, alpha=CAPACITY - 0.3, lambda_=1e-2), "uninformed", accuracy=1e-4)
    ],
    "12, above": lambda: [
        sf.solve(sf.problem(margin, alpha=CAPACITY + 0.3, lambda_=1e-2), "uninformed", accuracy=1e-4)
    ],
    "13, below": lambda: [sf.solve(margins(-1), accuracy=1e-4)],
    "13, above": lambda: [sf.solve(margins(1), accuracy=1e-4)],
    "14, below": lambda: [sf.solve(lasso(-0.1), accuracy=1e-4)],
    "14, above": lambda: [sf.solve(lasso(0.1), accuracy=1e-4)],
    "18": lambda: [sf.solve(maximum_likelihood(), accuracy=1e-4)],
    "20": lambda: [sf.solve(ridge(2, 1e-6), accuracy=1e-4)],
    "21": lambda: [sf.solve(ridge(0.5, 1e-6), accuracy=1e-4)],
    "22": lambda: [sf.solve(ridge(2, 0.25), accuracy=1e-4)],
    "23": lambda: [sf.solve(LASSO, accuracy=1e-4)],
}


@pytest.mark.slow
@pytest.mark.parametrize("number", JUDGED)
def test_verdicts_are_what_the_page_says(number):
    (row,) = [row for row in table("Compared") if row[0] == number]
    for solution in JUDGED[number]():
        verdict = solution.stability.verdict
        assert verdict.startswith(row[5].split(" (")[0])
        assert ("(jumps)" in row[5]) == ("through proximal jumps" in verdict)
