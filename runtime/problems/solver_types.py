"""Types (protocols) of the modules of a generated solver, one per file.

Arguments of a function are those of the template that writes it, which documents them (derive/emit/templates/). L, s
and t are tokens, student and teacher columns, D = L s fields X, F features of teacher and noise, C contexts (token,
cluster), N points.

Members that only some solvers have are marked with the constant that says so; for other solvers they raise
AttributeError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Array = np.ndarray
Arrays = tuple[np.ndarray, ...]


class CompiledFunction(Protocol):
    """A function of numbers compiled by Numba; `py_func` is the Python function it was compiled from."""

    py_func: Callable[..., Any]

    def __call__(self, *numbers: Any) -> Any:
        """Evaluate the function; its arguments are numbers, followed by the vector of the channel's constants."""


class ModelMetadata(Protocol):
    """The generated module model.py: metadata of a model, or of the reduced problem of its loss or metric."""

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
    # At parameters p: weights, covariance, gram, labels, teacher_means, and perhaps rows.
    law: Callable[[Any], dict[str, Any]]
    # Of the Gaussian coordinates of u, at parameters p.
    noise_variances: Callable[[Any], tuple[Any, ...]]
    # Of loss and metric: coefficients and constant of planes where they are not smooth or may be narrow.
    planes: Callable[[Any], Mapping[str, Any]]
    # Arguments of functions and bases of powers in the loss, where they hold no X, and in the metric, at fields (., N).
    scales: Callable[[Array, Any], Mapping[str, Mapping[str, Any]]]
    # Of a reduced problem: label assignments; rows A, B, E, F, H and the probability of each.
    LABELS: Sequence[tuple[int, ...]]
    combinations: Callable[[Any], Mapping[str, Any]]


class ChannelFunctions(Protocol):
    """The members common to channel.py and thermal.py: layout of averages, loss as a scalar function."""

    FIELDS: int
    TOKENS: int
    FEATURES: int
    MOMENTS: Sequence[tuple[str, tuple[int, ...], int]]
    ROW: int
    TOTALS: Sequence[str]
    LABELLED_NOISE: Sequence[tuple[float, ...]]
    features: CompiledFunction
    loss: CompiledFunction


class ProximalChannelFunctions(ChannelFunctions, Protocol):
    """The generated module channel.py: averages over the fields at zero temperature, by the proximal map."""

    HAS_PROX_SPACE: bool
    CORNERS: bool
    TEACHER_STEPS: bool
    SUM: int
    LAW: int
    derivatives: CompiledFunction
    loss_hessian: CompiledFunction
    # Fill sums over nodes, a row a chunk: moments of tokens, then TOTALS.
    sample: Callable[..., None]
    # Fill a row a node: omega (D), features, minimiser (D), value, gap, minima, residual, probability of the noise.
    proximal_points: Callable[..., None]
    # Fill det(I + V H), weights and dg/domega (D, D), a row a node and value of labelled noise.
    field_slopes: Callable[..., None]
    # Numbers (N,) and rows (x, value), (N, most, D + 1), of the minima at omega (N, D) and features (N, F).
    all_minima: Callable[..., tuple[Array, Array]]
    # Features (N, F) of teacher fields (N, L t) and noise.
    features_at: Callable[..., Array]
    # Losses (N,) and gradients (N, D) at student fields and features.
    losses_at: Callable[..., tuple[Array, Array]]
    # Minimisers (N, D) of the Moreau objective, and dg/domega (N, D, D).
    proximal_at: Callable[..., tuple[Array, Array]]
    # FIELDS = 1: row, z and weight of nodes between jumps and bends of the proximal map.
    panels: Callable[..., tuple[Array, Array, Array]]
    # TEACHER_STEPS: places where what the loss depends on of the teacher's field changes.
    steps: Callable[[Array], Array]
    # HAS_PROX_SPACE: what depends on X alone, on Y and noise alone; sums over the grid; their slopes.
    student_table: Callable[..., Array]
    teacher_table: Callable[..., Array]
    prox_space: Callable[..., None]
    prox_space_slopes: Callable[..., None]
    # The same where the loss holds neither overlaps nor trained numbers: what jumps of the proximal map add.
    prox_space_jump_slopes: Callable[..., None]
    # LABELLED_NOISE: probabilities (N, values) given teacher fields.
    noise_law_at: Callable[..., Array]
    # OWN of the tangent: derivatives (N, n) of losses in upper triangles of q, then in trained numbers.
    own_gradients_at: Callable[..., Array]


class ThermalChannelFunctions(ChannelFunctions, Protocol):
    """The generated module thermal.py: averages over the fields at a finite temperature."""

    HAS_AVERAGES: bool
    # HAS_AVERAGES: as `sample` and `field_slopes` of the proximal channel, averages over the Boltzmann law of X.
    averages: Callable[..., None]
    field_slopes: Callable[..., None]


class FlowEquations(Protocol):
    """The generated module flow.py: equations of one-pass gradient descent with a ridge."""

    # Fill A (A, s, s) and b (A, s, C + t) of the drift of a row, -(A w + b).
    drift: Callable[..., None]
    # Fill the derivatives of the moments S (A, s, s), T (A, C, s) and P (A, s, t) in time; their values after a step.
    slope: Callable[..., None]
    step: Callable[..., None]
    # TRAINED of the model: fill the derivatives of its numbers in time.
    trained_slope: Callable[..., None]


class MoreauObjectiveBounds(Protocol):
    """The generated module bounds.py: interval bounds of the Moreau objective, which prove global minima."""

    # By how much the objective may fall below its values (N,) at given points (N, D), and boxes, (N, 2).
    shortfalls: Callable[..., Array]


class PriorFunctions(Protocol):
    """The generated module prior.py: equations of the weights, such as the overlaps as functions of the conjugates.

    Its functions fill arrays and return False outside their domain.
    """

    conjugates: Callable[..., bool]
    overlaps: Callable[..., bool]
    # Trace and entropic parts of Phi, and the regulariser's part of the loss.
    free_entropy: Callable[..., tuple[float, float, float]]
    thermal_free_entropy: Callable[..., tuple[float, float, float]]
    # E[J (x) J], J = dw/db, (atoms, s, s, s, s).
    responses: Callable[..., bool]
    # Given norms or a penalty other than the ridge: the same maps at a finite temperature.
    thermal_overlaps: Callable[..., bool]
    thermal_responses: Callable[..., bool]
    # Given norms: strengths (s,) of the ridge that keeps them.
    multipliers: Callable[..., bool]
    # A penalty other than the ridge: penalties (N,) and gradients (N, s) at rows (N, s); w (N, s) least in
    # r(w) + w^T G w / 2 - w^T b and dw/db (N, s, s).
    CORNERS: int
    KNOWN: int
    GIVEN: int
    regulariser: CompiledFunction
    slopes: CompiledFunction
    penalties_at: Callable[..., tuple[Array, Array]]
    minimisers_at: Callable[..., tuple[Array, Array]]


class LinearResponseFunctions(Protocol):
    """The generated module tangent.py: derivatives of moments, conjugates and overlaps, for Jacobians."""

    OWN: bool
    # Of the rows in g and dw of their token, (N, L, ROW, s) each.
    moment_slopes: Callable[..., tuple[Array, Array]]
    conjugates: Callable[..., Arrays]
    overlaps: Callable[..., Arrays]


class MetricFunctions(Protocol):
    """The generated module metric.py: the metric, the test error and the linear baseline."""

    HAS_METRIC: bool
    HAS_BASELINE: bool
    BASELINE_SIZE: int
    # HAS_METRIC: of one sample, student's and teacher's fields and noise entry by entry; sums over nodes, one a chunk.
    metric: CompiledFunction
    test_error: Callable[..., None]
    # HAS_BASELINE: error at B = 0, its gradient (n,) and Hessian (n, n) in the entries of B.
    baseline_terms: Callable[..., tuple[float, Array, Array]]


class MultiprecisionFunctions(Protocol):
    """The generated module reference.py: all equations for mpmath, in any precision."""

    NOISE_VALUES: Sequence[tuple[Any, ...]]
    GAUSSIAN: Sequence[bool]
    DRIVES: Mapping[str, str]
    DIFFERENCES: Sequence[str]
    CORNERS: bool
    features: Callable[..., Any]
    derivatives: Callable[..., Any]
    moments: Callable[..., Any]
    law: Callable[[Any], dict[str, Any]]
    noise_variances: Callable[[Any], tuple[Any, ...]]
    conjugates: Callable[..., None]
    # A ridge: R = dw/db of every spectral atom, (s, s); the maps of `PriorFunctions`.
    resolvents: Callable[..., list[Any]]
    overlaps: Callable[..., None]
    free_entropy: Callable[..., tuple[Any, Any, Any]]
    # "loss" in DRIVES: coefficients of Y and noise in the combination that the loss holds; its kinks.
    loss_kinks: Callable[..., Any]
    piece: Callable[..., Any]
    loss_weights: Callable[[Any], tuple[Any, ...]]
    loss_steps: Callable[[Any], tuple[Any, ...]]
    # HAS_METRIC of the metric; NOISE_VALUES.
    metric: Callable[..., Any]
    probabilities: Callable[..., Any]


class BayesFunctions(Protocol):
    """The generated module bayes.py: output channel and posterior of the rows of W, for Bayes-optimal inference."""

    FIELDS: int
    OBSERVED: Sequence[tuple[Any, ...]]
    HIDDEN: Sequence[tuple[Any, ...]]
    FREE: Sequence[int]
    AFFINE: bool
    NEEDS: str
    # Positive where the channel is the one declared.
    needs_at: Callable[[Array], float]
    # Fields (N, H, L t), log |det dPsi| and log P(observed | Y) (N, H).
    fields_at: Callable[..., Arrays]
    # Fill rows (1, log Z, g_l g_l^T), one a node of the observed, where all that is hidden is discrete.
    averages_by_fields: Callable[..., None]
    # Fill log Z (N,), g (N, L t) and dg/domega (N, L t, L t).
    posterior_at: Callable[..., None]
    # log Z_w (N,), posterior means (N, t) and covariances (N, t, t) of rows exposed to fields (N, t).
    rows_at: Callable[..., tuple[Array, Array, Array]]
    # Where the model gives what is observed as functions of the fields: what is observed (N, .) of fields (N, L t).
    observed_at: Callable[[Array, Array], Array]
    # HAS_METRIC of the metric: averaged metric (K,) of predictions (K, .).
    errors_at: Callable[..., Array]
