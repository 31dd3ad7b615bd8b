"""What the files of a generated solver offer to the runtime, as types: functions by their arguments, and constants.

A protocol that stands on another is of what only some solvers have; `Solver` gives a part as that type only where it is
there. L, s and t are tokens, student and teacher columns, D = L s fields X, F features of teacher and noise, U
coordinates of the noise, C contexts; c are the constants of `Problem.constants`. Printed functions of single numbers
take X, omega and the like entry by entry, as many as the structure has: their arguments have no names here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Rows = tuple[np.ndarray, ...]


class Compiled(Protocol):
    """A function of single numbers that Numba compiles, and the Python that it is made from."""

    py_func: Callable[..., Any]

    def __call__(self, *numbers: Any) -> Any:
        """At entries, then the constants."""


class ModelFacts(Protocol):
    """model.py: what is known of the model beside its kernels."""

    NAME: str
    DIGEST: str
    STRUCTURE: Mapping[str, int]
    PARAMETERS: Sequence[Mapping[str, Any]]
    STARTS: Mapping[str, Mapping[str, Any]]
    TRAINED: tuple[Mapping[str, Any], ...]
    NOISE: Sequence[tuple[str, bool]]
    STRENGTHS: Sequence[str]
    HOLDS_Q: bool
    METRICS: tuple[str, ...]
    NONNEGATIVE: bool
    UNBOUNDED: bool
    BOUNDED_BY: Sequence[str]
    REGULARISER: str
    NO_PROXIMAL_MAP: str
    LOSS_JUMPS: bool
    CURVED: Mapping[str, Any]
    METRIC_IS_STEPS: bool

    def law(self, p: Any) -> dict[str, Any]:
        """Law of the tokens at parameters p: weights, covariance, gram, labels, teacher_means, and perhaps rows."""

    def noise_variances(self, p: Any) -> tuple[Any, ...]:
        """Of the Gaussian coordinates of u."""

    def planes(self, c: Any) -> Mapping[str, Any]:
        """Of loss and metric: where they are not smooth, and in the middle of what may be narrow, rows of coefficients
        and a constant."""

    def scales(self, v: np.ndarray, c: Any) -> Mapping[str, Mapping[str, Any]]:
        """Arguments of functions and bases of powers in the loss, where they hold no X, and in the metric, at fields
        (., N)."""


class ReducedFacts(Protocol):
    """model.py of a reduced problem: which combinations of the fields of another its own are."""

    STRUCTURE: Mapping[str, int]
    LABELS: Sequence[tuple[int, ...]]
    TRAINED: tuple[Mapping[str, Any], ...]
    NOISE: Sequence[tuple[str, bool]]
    HOLDS_Q: bool
    NO_PROXIMAL_MAP: str
    CURVED: Mapping[str, Any]
    METRIC_IS_STEPS: bool

    def planes(self, c: Any) -> Mapping[str, Any]:
        """As of `ModelFacts`, in (z, y)."""

    def scales(self, v: np.ndarray, c: Any) -> Mapping[str, Mapping[str, Any]]:
        """As of `ModelFacts`, of (z, y)."""

    def combinations(self, c: Any) -> Mapping[str, Any]:
        """Rows A, B, E, F, H and the share of its labels, of every case."""


class Channel(Protocol):
    """What a channel says at any temperature: its layout, and the loss at single numbers."""

    FIELDS: int
    TOKENS: int
    FEATURES: int
    MOMENTS: Sequence[tuple[str, tuple[int, ...], int]]
    ROW: int
    TOTALS: Sequence[str]
    LABELLED_NOISE: Sequence[tuple[float, ...]]
    features: Compiled
    loss: Compiled


class ProximalChannel(Channel, Protocol):
    """channel.py: the channel at zero temperature, through the proximal map; absent where a loss has none."""

    HAS_PROX_SPACE: bool
    CORNERS: bool
    TEACHER_STEPS: bool
    SUM: int
    derivatives: Compiled
    loss_hessian: Compiled

    def sample(
        self, first: int, last: int, chunks: int, nodes: np.ndarray, weights: np.ndarray, teacher_mean: np.ndarray,
        teacher_factor: np.ndarray, field_mean: np.ndarray, field_from_teacher: np.ndarray, field_factor: np.ndarray,
        precision: np.ndarray, noise_scale: np.ndarray, c: np.ndarray, flip: int, out: np.ndarray,
    ) -> None:  # fmt: skip
        """Sums over nodes (N, L (t + s) + Gaussian noise) with weights (N,): token rows, then totals, a row a chunk."""

    def proximal_points(
        self, first: int, last: int, nodes: np.ndarray, weights: np.ndarray, teacher_mean: np.ndarray,
        teacher_factor: np.ndarray, field_mean: np.ndarray, field_from_teacher: np.ndarray, field_factor: np.ndarray,
        precision: np.ndarray, noise_scale: np.ndarray, c: np.ndarray, flip: int, chosen: int, out: np.ndarray,
    ) -> None:  # fmt: skip
        """Row a node: omega (D), features, minimiser (D), value, gap, minima, residual, probability of the noise."""

    def all_minima(
        self, omega: np.ndarray, precision: np.ndarray, known: np.ndarray, c: np.ndarray, most: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers (N,) and rows (x, value), (N, most, D + 1), of the minima at omega (N, D) and features (N, F)."""

    def field_slopes(
        self, first: int, last: int, nodes: np.ndarray, weights: np.ndarray, teacher_mean: np.ndarray,
        teacher_factor: np.ndarray, field_mean: np.ndarray, field_from_teacher: np.ndarray, field_factor: np.ndarray,
        precision: np.ndarray, variance: np.ndarray, noise_scale: np.ndarray, c: np.ndarray, flip: int,
        determinants: np.ndarray, weight_of: np.ndarray, slopes: np.ndarray,
    ) -> None:  # fmt: skip
        """det(I + V H) (M,), weights (M,) and dg/domega (M, D, D), a row a node and value of labelled noise."""

    def features_at(self, teachers: np.ndarray, noise: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Features (N, F) of teacher fields (N, L t) and noise (N, U)."""

    def losses_at(self, fields: np.ndarray, known: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses (N,) and gradients (N, D) at student fields (N, D) and features (N, F)."""

    def proximal_at(
        self, omega: np.ndarray, precision: np.ndarray, variance: np.ndarray, known: np.ndarray, c: np.ndarray,
        flip: int,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Minimisers (N, D) of the Moreau objective and dg/domega (N, D, D) at omega (N, D)."""


class PiecesChannel(ProximalChannel, Protocol):
    """Of a single student field."""

    def panels(
        self, known: np.ndarray, centre: np.ndarray, spread: np.ndarray, steep: np.ndarray, precision: np.ndarray,
        c: np.ndarray, cells: int, t: np.ndarray, weights: np.ndarray, last: np.ndarray, tolerance: float,
        squares: float, reach: float, longest: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
        """Row, z and weight of nodes for omega = centre + spread z, between jumps and bends of the proximal map."""


class SteppedChannel(PiecesChannel, Protocol):
    """Where the loss knows of the teacher field between which steps it lies (TEACHER_STEPS)."""

    def steps(self, c: np.ndarray) -> np.ndarray:
        """Where what the loss knows of the teacher field changes."""


class ProxSpaceChannel(ProximalChannel, Protocol):
    """Of few enough fields for a grid in X (HAS_PROX_SPACE)."""

    LAW: int

    def student_table(self, grid: np.ndarray, c: np.ndarray) -> np.ndarray:
        """What depends on X alone, at grid points (N, D)."""

    def teacher_table(
        self, nodes: np.ndarray, weights: np.ndarray, copies: np.ndarray, teacher_mean: np.ndarray,
        teacher_factor: np.ndarray, field_mean: np.ndarray, field_from_teacher: np.ndarray, noise_scale: np.ndarray,
        c: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """What depends on Y and noise alone, at nodes (N, L t + Gaussian noise), for every labelled value."""

    def prox_space(
        self, first: int, last: int, chunks: int, grid: np.ndarray, students: np.ndarray, teachers: np.ndarray,
        variance: np.ndarray, precision: np.ndarray, field_mean: np.ndarray, field_precision: np.ndarray,
        norms: np.ndarray, c: np.ndarray, cutoff: float, blur: np.ndarray, out: np.ndarray,
    ) -> None:  # fmt: skip
        """Sums over the grid, a row a chunk: token rows, then Moreau objective, loss, bistable, mass, unresolved."""

    def prox_space_slopes(
        self, first: int, last: int, chunks: int, grid: np.ndarray, students: np.ndarray, teachers: np.ndarray,
        variance: np.ndarray, precision: np.ndarray, field_mean: np.ndarray, field_precision: np.ndarray,
        norms: np.ndarray, c: np.ndarray, slope: np.ndarray, square: np.ndarray, tangents: np.ndarray,
    ) -> None:  # fmt: skip
        """A chunk each: E[G_ll] (L, s, s), E[G_ll' (x) G_ll'] (L, L, s, s, s, s), tangents of rows (L ROW, LAW)."""


class JumpChannel(ProxSpaceChannel, Protocol):
    """Of a loss that holds neither overlaps nor trained numbers, besides."""

    def prox_space_jump_slopes(
        self, first: int, last: int, chunks: int, grid: np.ndarray, students: np.ndarray, teachers: np.ndarray,
        variance: np.ndarray, precision: np.ndarray, field_mean: np.ndarray, field_precision: np.ndarray,
        norms: np.ndarray, c: np.ndarray, cutoff: float, blur: np.ndarray, tangents: np.ndarray,
    ) -> None:  # fmt: skip
        """What jumps of the proximal map add to the tangents, (chunks, L ROW, LAW)."""


class LabelledChannel(ProximalChannel, Protocol):
    """Of a model with labelled noise."""

    def noise_law_at(self, teachers: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Probabilities (N, values) given teacher fields (N, L t)."""


class OwnChannel(ProximalChannel, Protocol):
    """Of a loss that holds overlaps or trained numbers."""

    def own_gradients_at(self, fields: np.ndarray, known: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Derivatives (N, n) of the losses in these: upper triangles of q, then phi."""


class FlowEquations(Protocol):
    """flow.py: one-pass descent; arrays of atoms first, then contexts."""

    def drift(
        self, gamma: np.ndarray, ridge: np.ndarray, mean: np.ndarray, H: np.ndarray, K: np.ndarray, in_q: np.ndarray,
        A: np.ndarray, b: np.ndarray,
    ) -> None:  # fmt: skip
        """Fill A (A, s, s) and b (A, s, C + t) of the drift of a row, -(A w + b)."""

    def slope(
        self, rate: float, batch: float, gamma: np.ndarray, gram: np.ndarray, A: np.ndarray, mean: np.ndarray,
        K: np.ndarray, square: np.ndarray, S: np.ndarray, T: np.ndarray, P: np.ndarray, new_S: np.ndarray,
        new_T: np.ndarray, new_P: np.ndarray,
    ) -> None:  # fmt: skip
        """Fill the derivatives of the moments S (A, s, s), T (A, C, s) and P (A, s, t) in time."""

    def step(
        self, rate: float, batch_share: float, gamma: np.ndarray, gram: np.ndarray, A: np.ndarray, b: np.ndarray,
        mean: np.ndarray, K: np.ndarray, square: np.ndarray, S: np.ndarray, T: np.ndarray, P: np.ndarray,
        new_S: np.ndarray, new_T: np.ndarray, new_P: np.ndarray,
    ) -> None:  # fmt: skip
        """Fill them after a step with a batch of order d."""


class OwnFlow(FlowEquations, Protocol):
    """Of a model with numbers that are trained with the weights."""

    def trained_slope(
        self, rate: float, in_phi: np.ndarray, own_ridge: np.ndarray, phi: np.ndarray, new_phi: np.ndarray
    ) -> None:
        """Fill their derivatives in time."""


class ThermalChannel(Channel, Protocol):
    """thermal.py: the channel at a finite temperature."""

    HAS_AVERAGES: bool


class ThermalAverages(ThermalChannel, Protocol):
    """Of few enough fields for the integral over them at every node (HAS_AVERAGES)."""

    def averages(
        self, first: int, last: int, chunks: int, nodes: np.ndarray, weights: np.ndarray, teacher_mean: np.ndarray,
        teacher_factor: np.ndarray, field_mean: np.ndarray, field_from_teacher: np.ndarray, field_factor: np.ndarray,
        precision: np.ndarray, variance: np.ndarray, norm: float, noise_scale: np.ndarray, c: np.ndarray,
        temperature: float, kinks: np.ndarray, rule: np.ndarray, out: np.ndarray,
    ) -> None:  # fmt: skip
        """As `sample`; kinks (K, 2) of the loss: field and place; rule (M, 2): Gauss-Legendre nodes and weights."""

    def field_slopes(
        self, first: int, last: int, nodes: np.ndarray, weights: np.ndarray, teacher_mean: np.ndarray,
        teacher_factor: np.ndarray, field_mean: np.ndarray, field_from_teacher: np.ndarray, field_factor: np.ndarray,
        precision: np.ndarray, variance: np.ndarray, noise_scale: np.ndarray, c: np.ndarray, temperature: float,
        kinks: np.ndarray, rule: np.ndarray, weight_of: np.ndarray, slopes: np.ndarray,
    ) -> None:  # fmt: skip
        """Weights (M,) and dg/domega (M, D, D), a row a node and value of labelled noise."""


class Bounds(Protocol):
    """bounds.py: interval bounds of the Moreau objective."""

    def shortfalls(
        self, omega: np.ndarray, precision: np.ndarray, spread: np.ndarray, known: np.ndarray, c: np.ndarray,
        best: np.ndarray, values: np.ndarray, tolerance: float, budget: int,
    ) -> np.ndarray:  # fmt: skip
        """By how much the objective may fall below its values (N,) at best (N, D), and boxes, (N, 2)."""


class Prior(Protocol):
    """prior.py: the side of the weights; `Problem.of_prior` fills in the leading arguments of its other maps."""

    def conjugates(
        self, alpha: float, moments: np.ndarray, q: np.ndarray, V: np.ndarray, m: np.ndarray, theta: np.ndarray,
        rho_star: np.ndarray, q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray,
    ) -> bool:  # fmt: skip
        """Fill the conjugates from averages (C, ROW); False where the overlaps leave their domain."""


class RidgePrior(Prior, Protocol):
    """Of a ridge: closed forms."""

    def overlaps(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, ridge: np.ndarray, q_hat: np.ndarray,
        V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, q: np.ndarray, V: np.ndarray, m: np.ndarray,
        theta: np.ndarray,
    ) -> bool:  # fmt: skip
        """Fill the overlaps from the conjugates; False where Lambda + G is not positive definite."""

    def free_entropy(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, ridge: np.ndarray, q: np.ndarray,
        V: np.ndarray, m: np.ndarray, theta: np.ndarray, q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray,
        theta_hat: np.ndarray,
    ) -> tuple[float, float, float]:  # fmt: skip
        """Trace and entropic parts of Phi, and the regulariser's part of the loss."""

    def thermal_free_entropy(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, ridge: np.ndarray, temperature: float,
        q: np.ndarray, V: np.ndarray, m: np.ndarray, theta: np.ndarray, q_hat: np.ndarray, V_hat: np.ndarray,
        m_hat: np.ndarray, theta_hat: np.ndarray,
    ) -> tuple[float, float, float]:  # fmt: skip
        """The same at a finite temperature, which changes nothing else."""

    def responses(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, ridge: np.ndarray, q_hat: np.ndarray,
        V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, out: np.ndarray,
    ) -> bool:  # fmt: skip
        """Fill E[J (x) J], J = dw/db, (atoms, s, s, s, s)."""


class SpherePrior(Prior, Protocol):
    """Under given norms: as of the ridge at their multipliers."""

    def multipliers(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, norm: np.ndarray, temperature: float,
        q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, ridge: np.ndarray,
    ) -> bool:  # fmt: skip
        """Fill the strengths (s,) of that ridge; False where none keep the norms."""

    def overlaps(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, norm: np.ndarray, q_hat: np.ndarray,
        V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, q: np.ndarray, V: np.ndarray, m: np.ndarray,
        theta: np.ndarray,
    ) -> bool:  # fmt: skip
        """As of `RidgePrior`; False where there are no multipliers."""

    def free_entropy(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, norm: np.ndarray, q: np.ndarray,
        V: np.ndarray, m: np.ndarray, theta: np.ndarray, q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray,
        theta_hat: np.ndarray,
    ) -> tuple[float, float, float]:  # fmt: skip
        """As of `RidgePrior`, without a penalty."""

    def responses(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, norm: np.ndarray, q_hat: np.ndarray,
        V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, out: np.ndarray,
    ) -> bool:  # fmt: skip
        """As of `RidgePrior`."""

    def thermal_overlaps(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, norm: np.ndarray, temperature: float,
        q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, q: np.ndarray, V: np.ndarray,
        m: np.ndarray, theta: np.ndarray,
    ) -> bool:  # fmt: skip
        """The overlaps at a finite temperature, where samples have the norms."""

    def thermal_free_entropy(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, norm: np.ndarray, temperature: float,
        q: np.ndarray, V: np.ndarray, m: np.ndarray, theta: np.ndarray, q_hat: np.ndarray, V_hat: np.ndarray,
        m_hat: np.ndarray, theta_hat: np.ndarray,
    ) -> tuple[float, float, float]:  # fmt: skip
        """The free entropy at a finite temperature."""

    def thermal_responses(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, norm: np.ndarray, temperature: float,
        q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, out: np.ndarray,
    ) -> bool:  # fmt: skip
        """The responses at a finite temperature."""


class PenaltyPrior(Prior, Protocol):
    """Of any other convex penalty: averages over a row of W; rule (M, 2) holds Gauss-Legendre nodes and weights."""

    CORNERS: int
    KNOWN: int
    GIVEN: int
    regulariser: Compiled
    slopes: Compiled

    def penalties_at(self, rows: np.ndarray, known: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Penalties (N,) and gradients (N, s) at rows w (N, s), known: rows (N, KNOWN) of the teacher."""

    def minimisers_at(
        self, fields: np.ndarray, stiffness: np.ndarray, known: np.ndarray, c: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """w (N, s) least in r(w) + w^T G w / 2 - w^T b, and dw/db (N, s, s), at b (N, s) and G (N, s, s)."""

    def overlaps(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, strengths: np.ndarray, rule: np.ndarray,
        q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, q: np.ndarray, V: np.ndarray,
        m: np.ndarray, theta: np.ndarray,
    ) -> bool:  # fmt: skip
        """As of `RidgePrior`; False where the penalty with G is not strictly convex."""

    def free_entropy(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, strengths: np.ndarray, rule: np.ndarray,
        q: np.ndarray, V: np.ndarray, m: np.ndarray, theta: np.ndarray, q_hat: np.ndarray, V_hat: np.ndarray,
        m_hat: np.ndarray, theta_hat: np.ndarray,
    ) -> tuple[float, float, float]:  # fmt: skip
        """As of `RidgePrior`."""

    def responses(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, strengths: np.ndarray, rule: np.ndarray,
        q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, out: np.ndarray,
    ) -> bool:  # fmt: skip
        """As of `RidgePrior`."""

    def thermal_overlaps(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, strengths: np.ndarray, rule: np.ndarray,
        temperature: float, q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray,
        q: np.ndarray, V: np.ndarray, m: np.ndarray, theta: np.ndarray,
    ) -> bool:  # fmt: skip
        """The overlaps at a finite temperature."""

    def thermal_free_entropy(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, strengths: np.ndarray, rule: np.ndarray,
        temperature: float, q: np.ndarray, V: np.ndarray, m: np.ndarray, theta: np.ndarray, q_hat: np.ndarray,
        V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray,
    ) -> tuple[float, float, float]:  # fmt: skip
        """The free entropy at a finite temperature."""

    def thermal_responses(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, strengths: np.ndarray, rule: np.ndarray,
        temperature: float, q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray,
        out: np.ndarray,
    ) -> bool:  # fmt: skip
        """The responses at a finite temperature."""


class Tangent(Protocol):
    """tangent.py: how moments and conjugates answer to small changes, n directions at once."""

    OWN: bool

    def moment_slopes(self, g: np.ndarray, dw: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the rows in g and dw of their token, (N, L, ROW, s) each; g, dw (N, L, s), dy (N, L, t)."""

    def conjugates(
        self, alpha: float, moments: np.ndarray, q: np.ndarray, V: np.ndarray, m: np.ndarray, theta: np.ndarray,
        rho_star: np.ndarray, d_alpha: np.ndarray, d_moments: np.ndarray, d_q: np.ndarray, d_V: np.ndarray,
        d_m: np.ndarray, d_theta: np.ndarray,
    ) -> Rows:  # fmt: skip
        """Changes of q_hat, V_hat (n, C, s, s), m_hat (n, C, s), theta_hat (n, C, s, t)."""


class RidgeTangent(Tangent, Protocol):
    """The overlaps' answer is printed for a ridge only."""

    def overlaps(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, ridge: np.ndarray, q_hat: np.ndarray,
        V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, d_ridge: np.ndarray, d_q_hat: np.ndarray,
        d_V_hat: np.ndarray, d_m_hat: np.ndarray, d_theta_hat: np.ndarray,
    ) -> Rows:  # fmt: skip
        """Changes of q, V (n, C, s, s), m (n, C, s), theta (n, C, s, t); d_ridge (n, s)."""


class SphereTangent(Tangent, Protocol):
    """The same under given norms, at zero temperature."""

    def overlaps(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, norm: np.ndarray, ridge: np.ndarray,
        q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, d_norm: np.ndarray,
        d_q_hat: np.ndarray, d_V_hat: np.ndarray, d_m_hat: np.ndarray, d_theta_hat: np.ndarray,
    ) -> Rows:  # fmt: skip
        """As of `RidgeTangent`, ridge being the multipliers, which answer as well; d_norm (n, s)."""


class Metric(Protocol):
    """metric.py: whether there is a test error, and a linear baseline of so many entries."""

    HAS_METRIC: bool
    HAS_BASELINE: bool
    BASELINE_SIZE: int


class ErrorMetric(Metric, Protocol):
    """Of a model with a test error.

    Attributes:
        metric: of one sentence: the student's fields, the teacher's and the noise, entry by entry, then the constants.
    """

    metric: Compiled

    def test_error(
        self, first: int, last: int, chunks: int, nodes: np.ndarray, weights: np.ndarray, teacher_mean: np.ndarray,
        teacher_factor: np.ndarray, field_mean: np.ndarray, field_from_teacher: np.ndarray, field_factor: np.ndarray,
        noise_scale: np.ndarray, c: np.ndarray, out: np.ndarray,
    ) -> None:  # fmt: skip
        """Sums over nodes, one a chunk."""


class BaselineMetric(Metric, Protocol):
    """Of a model with a linear baseline B."""

    def baseline_terms(
        self, nodes: np.ndarray, weights: np.ndarray, teacher_mean: np.ndarray, teacher_factor: np.ndarray,
        noise_scale: np.ndarray, c: np.ndarray,
    ) -> tuple[float, np.ndarray, np.ndarray]:  # fmt: skip
        """Error at B = 0, its gradient (n,) and Hessian (n, n) in the entries of B."""


class Reference(Protocol):
    """reference.py: the equations for mpmath, in the order of the compiled ones; arrays hold numbers of any kind."""

    NOISE_VALUES: Sequence[tuple[Any, ...]]
    GAUSSIAN: Sequence[bool]
    DRIVES: Mapping[str, str]
    DIFFERENCES: Sequence[str]
    features: Callable[..., Any]
    derivatives: Callable[..., Any]
    moments: Callable[..., Any]

    def law(self, p: Any) -> dict[str, Any]:
        """As of `ModelFacts`."""

    def noise_variances(self, p: Any) -> tuple[Any, ...]:
        """As of `ModelFacts`."""

    def conjugates(
        self, alpha: Any, moments: np.ndarray, q: np.ndarray, V: np.ndarray, m: np.ndarray, theta: np.ndarray,
        rho_star: np.ndarray, q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray,
    ) -> None:  # fmt: skip
        """Fill the conjugates; ValueError where the overlaps leave their domain."""


class RidgeReference(Reference, Protocol):
    """The side of the weights, too."""

    def resolvents(
        self, gamma: np.ndarray, gram: np.ndarray, ridge: Any, q_hat: np.ndarray, V_hat: np.ndarray,
        m_hat: np.ndarray, theta_hat: np.ndarray,
    ) -> list[Any]:  # fmt: skip
        """R = dw/db of every spectral atom, (s, s)."""

    def overlaps(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, ridge: Any, q_hat: np.ndarray,
        V_hat: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray, q: np.ndarray, V: np.ndarray, m: np.ndarray,
        theta: np.ndarray,
    ) -> None:  # fmt: skip
        """Add to the overlaps; ValueError where Lambda + G is not positive definite."""

    def free_entropy(
        self, weights: np.ndarray, gamma: np.ndarray, gram: np.ndarray, ridge: Any, q: np.ndarray, V: np.ndarray,
        m: np.ndarray, theta: np.ndarray, q_hat: np.ndarray, V_hat: np.ndarray, m_hat: np.ndarray,
        theta_hat: np.ndarray,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """As of `RidgePrior`."""


class PreciseReference(RidgeReference, Protocol):
    """Where the averages over the loss have two dimensions at most ("loss" in DRIVES)."""

    CORNERS: bool
    loss_kinks: Callable[..., Any]
    piece: Callable[..., Any]

    def loss_weights(self, c: Any) -> tuple[Any, ...]:
        """Coefficients of Y and Gaussian noise in the combination that the loss holds."""

    def loss_steps(self, c: Any) -> tuple[Any, ...]:
        """Where it may not be smooth in that combination."""


class ErrorReference(Reference, Protocol):
    """Of a model with a test error."""

    metric: Callable[..., Any]


class LabelledReference(Reference, Protocol):
    """Of a model with labelled noise."""

    probabilities: Callable[..., Any]


class Bayes(Protocol):
    """bayes.py: the output channel; absent where a model declares none."""

    FIELDS: int
    OBSERVED: Sequence[tuple[Any, ...]]
    HIDDEN: Sequence[tuple[Any, ...]]
    FREE: Sequence[int]
    AFFINE: bool
    NEEDS: str

    def needs_at(self, c: np.ndarray) -> float:
        """Positive where the channel is the one declared."""

    def fields_at(self, observed: np.ndarray, hidden: np.ndarray, c: np.ndarray) -> Rows:
        """Fields (N, H, L t), log |det dPsi| and log P(observed | Y) (N, H)."""

    def averages_by_fields(
        self, first: int, last: int, fields: np.ndarray, measure: np.ndarray, log_weights: np.ndarray,
        mean: np.ndarray, gain: np.ndarray, factor: np.ndarray, precision: np.ndarray, log_norm: float,
        nodes: np.ndarray, weights: np.ndarray, curved: int, out: np.ndarray,
    ) -> None:  # fmt: skip
        """Rows (1, log Z, g_l g_l^T, with `curved` squares of dg/domega), one a node of the observed, where all that is
        hidden is discrete; nodes (M, R) and weights (M,) of omega given the fields."""

    def posterior_at(
        self, first: int, last: int, observed: np.ndarray, omega: np.ndarray, precision: np.ndarray, log_norm: float,
        choices: np.ndarray, free: np.ndarray, factor: np.ndarray, nodes: np.ndarray, log_weight: float,
        c: np.ndarray, values: np.ndarray, slopes: np.ndarray, curvatures: np.ndarray,
    ) -> None:  # fmt: skip
        """log Z (N,), g (N, L t) and, unless empty, dg/domega (N, L t, L t) at points (N, .) and (N, L t)."""

    def rows_at(
        self, fields: np.ndarray, shares: np.ndarray, Q: np.ndarray, means: np.ndarray, factors: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log Z_w (N,), posterior means (N, t) and covariances (N, t, t) of rows exposed to fields (N, t)."""


class ReadBayes(Bayes, Protocol):
    """Of a channel whose model gives what is observed as functions of the fields."""

    def observed_at(self, fields: np.ndarray, c: np.ndarray) -> np.ndarray:
        """What is observed (N, .) of fields (N, L t)."""


class ErrorBayes(Bayes, Protocol):
    """Of a model with a test error."""

    def errors_at(
        self, answers: np.ndarray, fields: np.ndarray, noise: np.ndarray, weights: np.ndarray, c: np.ndarray
    ) -> np.ndarray:
        """Averaged metric (K,) of predictions (K, .)."""
