"""A sequence multi-index model as its author writes it, and the same model at a given structure.

A `Model` admits several sizes L, s, t, K; `Model.at(structure)` is a `FixedSizeModel`, in which the loss is a SymPy
expression of finitely many symbols. A model holds physics only (docs/theory.md section 1).
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import mpmath as mp
import sympy as sp

from ..calculus.numeric import find_nonzero_point
from ..errors import ModelError, did_you_mean_hint
from .language import CLUSTERS, FieldMatrix, by_label, to_exact_rationals, token_variance_symbol
from .mistakes import explain_author_error
from .outputs import FixedSizeOutput, Output, build_output_channel
from .parameters import (
    STRUCTURAL,
    DiscreteNoise,
    FreeSize,
    GaussianNoise,
    Parameter,
    Start,
    Structure,
    Trained,
    flatten_entries,
    parameter_from_default,
    shape_of_nested_tuples,
)
from .regulariser import FixedSizePenalty, Penalty, Regulariser, Ridge, Sphere
from .tokens import Tokens, unstructured_tokens

DEFAULT_STARTS = {
    "semantic": Start(teacher="3/5"),
    "positional": Start(encodings="2/5"),
    "mixed": Start(teacher="1/2", encodings="2/5"),
    "uninformed": Start(noise="3/5"),
}


@dataclass(frozen=True)
class FixedSizeModel:
    """A model with fixed structural sizes: its symbols, and its loss and metric as SymPy expressions.

    Attributes:
        X, Y: symbol matrices of the fields of student (L x s) and teacher (L x t); in the metric X stands for h.
        noise: name -> (symbol, GaussianNoise or DiscreteNoise with expressions resolved).
        labels: cluster label symbols k_l.
        Q: symbol matrices of the overlaps q of every token, s x s, for losses that depend on them.
        trained: name -> (symbol, Trained), the numbers phi trained with the weights.
        loss: expression in X, Y, noise, labels, token variances rho_l, Q, trained numbers and parameters.
        metric: expression in the same symbols, or None.
        baseline: (expression, B), the error of a constant L x L prediction matrix B, quadratic in B; or None.
        law: arrays of the token law, as nested tuples of expressions in parameters, see `Tokens`.
        loss_kinks, metric_kinks: expressions, affine in fields and noise, at whose zeros the author declares that
            loss or metric is not smooth; other kinks are found from the expressions (`theory.kinks`).
        unbounded: whether the author declares that a loss without a lower bound is stabilised by the regulariser.
        output: output channel through which a Bayes-optimal learner observes Y, or None.
        written: the author's functions by the names "loss", "metric" and "baseline".
        others: further metrics: name -> (expression, kinks, author's function).
        first: name of the metric in `metric` if there are several; else empty.
    """

    name: str
    structure: Structure
    parameters: Mapping[str, Parameter]
    X: sp.Matrix
    Y: sp.Matrix
    noise: Mapping[str, tuple[sp.Symbol, GaussianNoise | DiscreteNoise]]
    labels: tuple[sp.Symbol, ...]
    Q: tuple[sp.Matrix, ...]
    trained: Mapping[str, tuple[sp.Symbol, Trained]]
    loss: sp.Expr
    metric: sp.Expr | None
    baseline: tuple[sp.Expr, sp.Matrix] | None
    law: Mapping[str, Any]
    regulariser: Regulariser
    loss_kinks: tuple[sp.Expr, ...]
    metric_kinks: tuple[sp.Expr, ...]
    unbounded: bool = False
    output: FixedSizeOutput | None = None
    written: Mapping[str, Callable[..., Any] | None] = field(default_factory=dict)
    others: Mapping[str, tuple[sp.Expr, tuple[sp.Expr, ...], Callable[..., Any]]] = field(default_factory=dict)
    first: str = ""

    def with_metric(self, name: str) -> FixedSizeModel:
        """Return the same model with the named metric as its main test error."""
        metric, kinks, written = self.others[name]
        return replace(self, metric=metric, metric_kinks=kinks, written={**self.written, "metric": written}, first=name)

    @property
    def symbols_of_order_parameters(self) -> list[sp.Symbol]:
        """Return the symbols of order parameters in loss and metrics: overlaps q of the tokens, trained numbers."""
        q = [list(dict.fromkeys(matrix)) for matrix in self.Q]
        others = [e for e in (self.metric, *self.loss_kinks, *self.metric_kinks) if e is not None]
        others += [e for metric, kinks, _ in self.others.values() for e in (metric, *kinks)]
        held = self.loss_depends_on_q or any(e.has(*flatten_entries(self.Q)) for e in others)
        return [s for matrix in q for s in matrix if held] + [s for s, _ in self.trained.values()]

    @property
    def loss_depends_on_q(self) -> bool:
        """Return whether the loss depends explicitly on the overlaps q of the student with itself."""
        return self.loss.has(*flatten_entries(self.Q))

    @property
    def norm_multipliers(self) -> tuple[sp.Symbol, ...]:
        """Return the symbols of the Lagrange multipliers for fixed norms of the columns of W; () without them."""
        held = self.regulariser
        return held.row_regulariser.ridge_strength_symbols(self.structure) if isinstance(held, Sphere) else ()

    @property
    def has_discrete_teacher(self) -> bool:
        """Return whether the rows of the teacher's weights take finitely many values."""
        return "rows" in self.law

    @property
    def penalty(self) -> FixedSizePenalty | None:
        """Return the penalty of a row of W if the regulariser is a `Penalty`; None for a ridge or fixed norms."""
        return self.regulariser.at(self.structure) if isinstance(self.regulariser, Penalty) else None

    @property
    def has_average_over_teacher(self) -> bool:
        """Return whether averages over a row of W are taken over the teacher's row as well as the Gaussian field b.

        They are if the penalty depends on the teacher's row, or if that row takes finitely many values.
        """
        penalty = self.penalty
        return penalty is not None and (penalty.depends_on_teacher or self.has_discrete_teacher)

    @property
    def constants_in_channel_averages(self) -> tuple[sp.Symbol, ...]:
        """Return the symbols that are constant in averages over a sample, in the order that generated code expects.

        They are token variances rho_l, labels k_l, parameters, and order parameters in loss or metrics.
        """
        weights = [token_variance_symbol(l) for l in range(self.structure.tokens)]
        return (*weights, *self.labels, *self.parameter_symbols(), *self.symbols_of_order_parameters)

    def parameter_symbols(self) -> list[sp.Symbol]:
        """Return the symbols of all parameters in order of declaration, arrays entry by entry (row by row)."""
        flat: list[sp.Symbol] = []
        for parameter in self.parameters.values():
            flat.extend(flatten_entries(parameter.argument_symbols(self.structure)))
        return flat

    def parameter_defaults(self) -> list[sp.Expr]:
        """Return the default values of all parameters, one for each symbol of `parameter_symbols`, in its order."""
        return [leaf for p in self.parameters.values() for leaf in flatten_entries(p.exact_default(self.structure))]

    def equations_digest(self) -> str:
        """Return a digest (16 hex digits) of the model's equations: loss, metrics, token law, noise and regulariser."""
        parts = [
            self.name,
            self.structure.folder_name,
            [(p.name, p.default_shape(self.structure)) for p in self.parameters.values()],
            sp.srepr(self.loss),
            sp.srepr(self.metric),
            sp.srepr(self.baseline[0]) if self.baseline else None,
            [(n, str(s), repr(law)) for n, (s, law) in self.noise.items()],
            repr(self.law),
            self.regulariser.text_for_digest(self.structure),
            [sp.srepr(e) for e in (*self.loss_kinks, *self.metric_kinks)],
            [(n, str(s), repr(value.ridge)) for n, (s, value) in self.trained.items()],
        ]
        if self.output is not None:
            parts.append(self.output.text_for_digest)
        if self.others:
            parts.append(self.first)
            parts.append([(n, sp.srepr(e), [sp.srepr(k) for k in kinks]) for n, (e, kinks, _) in self.others.items()])
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


_NAME, _ALLOWED_CHARACTERS = r"[^\W\d_][\w +-]*", "a letter, then letters, digits, blanks, _ + -"
_OUTPUT = 'Output(lambda y: y, observed={"y": "real"})'
_FIELDS: tuple[tuple[str, Any, str], ...] = (
    (
        "law",
        Callable,
        "a function of structure and parameters that returns Tokens, as isotropic_tokens (numbers of data go to a "
        "problem, problem(model, law=data.law))",
    ),
    ("regulariser", Regulariser, "Ridge(0.1), Sphere(1) or penalty(lambda w: ...)"),
    ("noise", Mapping, 'a law by the name that the loss takes, {"u": GaussianNoise("Delta")}'),
    (
        "metric",
        Callable | Mapping | None,
        'a function, as lambda h, Y: (Y[0] - h[0]) ** 2, or several by name, {"all": ..., "one": ...}',
    ),
    ("baseline", Callable | None, "a function of B, the constant prediction, and of what else it asks for by name"),
    ("starts", Mapping, 'Starts by name, {"semantic": Start(teacher=0.6)}'),
    ("loss_kinks", Callable | None, "a function that returns expressions, as lambda X, Y: [X[0] - Y[0]]"),
    (
        "metric_kinks",
        Callable | Mapping | None,
        "a function that returns expressions, as lambda h, Y: [h[0] - Y[0]], or several by the names of metrics",
    ),
)
"""Fields of a model: name, allowed kinds, and what to write."""


@dataclass(frozen=True)
class Model:
    """A sequence multi-index model: loss, law of the tokens, noise and regulariser, with metric and starts.

    Create one with the decorator `model`. The arguments of the loss function are, as far as it declares them: the
    fields X of the student (L x s) and Y of the teacher (L x t) as SymPy matrices, noise by name, the tuple `k` of
    cluster labels, the overlaps `Q` of the tokens (L matrices s x s), and parameters: keywords whose defaults are
    numbers, arrays, a `Parameter` or, for numbers trained with W, `trained(start)`.

    `metric` is the test error of a sample, a function of the student's fields h (L x s) and of the same arguments
    except X; or several such functions by name, the first of which is the main test error. `output` is the channel
    through which a Bayes-optimal learner observes Y: an `Output`, or a function of the Structure that returns one.

    Raises:
        ModelError: on construction, when a field does not fit; the message names it.

    Example:
        >>> @sf.model()
        ... def regression(X, Y):
        ...     'Square loss.'
        ...     return sf.half_square(Y - X)
        >>> isinstance(regression, sf.Model), regression.summary
        (True, 'Square loss.')
    """

    name: str
    loss: Callable[..., Any]
    sizes: Mapping[str, int | FreeSize]
    law: Callable[..., Tokens] = unstructured_tokens
    regulariser: Regulariser = field(default_factory=Ridge)
    noise: Mapping[str, GaussianNoise | DiscreteNoise] = field(default_factory=dict)
    metric: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None
    baseline: Callable[..., Any] | None = None
    starts: Mapping[str, Start] = field(default_factory=lambda: dict(DEFAULT_STARTS))
    loss_kinks: Callable[..., Any] | None = None
    metric_kinks: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None
    unbounded: bool = False
    output: Output | Callable[[Structure], Output | None] | None = None
    summary: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(_NAME, self.name):
            raise ModelError(f"the model name {self.name!r} is not allowed: use {_ALLOWED_CHARACTERS}")
        if set(self.sizes) != set(STRUCTURAL):
            raise ModelError(f"model {self.name}: sizes must name {STRUCTURAL}, not {tuple(self.sizes)}")
        for name, kinds, wanted in _FIELDS:
            if not isinstance(getattr(self, name), kinds):
                raise self._field_type_error(name, getattr(self, name), wanted)
        for field_name, functions in (("metric", self.metrics), ("metric_kinks", self._kinks_by_metric)):
            for name, function in functions.items():
                if not callable(function):
                    raise self._field_type_error(field_name, function, "a function, as of a single metric", name)
        for name, value in self.starts.items():
            if not re.fullmatch(_NAME, name):
                raise ModelError(
                    f"model {self.name}: the name {name!r} of a start is not allowed: use {_ALLOWED_CHARACTERS}"
                )
            if not isinstance(value, Start):
                raise self._field_type_error("start", value, "a Start, as Start(teacher=0.6)", name)
        for name, law in self.noise.items():
            if not isinstance(law, GaussianNoise | DiscreteNoise):
                raise self._field_type_error(
                    "noise", law, "GaussianNoise(variance) or DiscreteNoise(values, probabilities)", name
                )
        for name in self.metrics:
            if name and not re.fullmatch(r"[a-z]\w*", name, re.IGNORECASE | re.ASCII):
                raise ModelError(
                    f"model {self.name}: the name {name!r} of a metric is not allowed (a letter, letters, digits, _)"
                )
        if isinstance(self.metric, Mapping) and not self.metric:
            raise ModelError(f"model {self.name}: metric is empty; leave it out where there is none")
        unknown = set(self._kinks_by_metric) - {"", *self.metrics}
        if unknown:
            raise ModelError(
                f"model {self.name}: metric_kinks names {unknown.pop()!r}, which is none of the model's metrics"
            )
        structure = self.default_structure()
        if self.at(structure).equations_digest() != self.at(structure).equations_digest():
            raise ModelError(
                f"model {self.name}: its functions return a different expression at each call, as if they drew random "
                'numbers: declare a noise, as noise={"u": sf.GaussianNoise(0.25)}, and give the loss an argument u'
            )

    def _field_type_error(self, field_name: str, value: object, expected: str, name: str | None = None) -> ModelError:
        """Return the ModelError for a field of the model that has the wrong type."""
        value_type = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        named = field_name if name is None else f"{field_name} {name!r}"
        return ModelError(f"model {self.name}: {named} must be {expected}, not {value_type}")

    @property
    def metrics(self) -> Mapping[str, Callable[..., Any]]:
        """Return the author's metric functions by name, the main test error first; a single one has the name ''."""
        if self.metric is None:
            return {}
        return self.metric if isinstance(self.metric, Mapping) else {"": self.metric}

    @property
    def _kinks_by_metric(self) -> Mapping[str, Callable[..., Any]]:
        """Return the functions that declare kinks of metrics, by the name of the metric."""
        kinks = self.metric_kinks
        if kinks is None:
            return {}
        return kinks if isinstance(kinks, Mapping) else {next(iter(self.metrics), ""): kinks}

    def declared_metric_kinks(self, metric: str) -> Callable[..., Any] | None:
        """Return the author's function that declares the kinks of the named metric; None if there is none."""
        return self._kinks_by_metric.get(metric)

    def default_structure(self) -> Structure:
        """Return the structural sizes with every free size at its default."""
        return Structure(**{n: v.default if isinstance(v, FreeSize) else v for n, v in self.sizes.items()})

    def structure(self, **sizes: int) -> Structure:
        """Return the structural sizes of the model, with the given values for its free sizes.

        Raises:
            ModelError: a size is unknown, fixed by the model, or out of its bounds.
        """
        for name, value in sizes.items():
            spec = self.sizes.get(name)
            if spec is None:
                raise ModelError(f"unknown size {name!r}; the structural sizes are {', '.join(STRUCTURAL)}")
            if not isinstance(spec, FreeSize):
                if value != spec:
                    raise ModelError(f"{name} of model {self.name} is fixed at {spec}; it cannot be set to {value}")
                continue
            high = spec.high if spec.high is not None else float("inf")
            if not isinstance(value, int) or not spec.low <= value <= high:
                raise ModelError(f"{name} = {value!r}: model {self.name} allows whole numbers in [{spec.low}, {high}]")
        return self.default_structure().replace(**sizes)

    def at(self, structure: Structure | None = None) -> FixedSizeModel:
        """Return the model at given structural sizes (default: its own sizes), after checks.

        Raises:
            ModelError: the loss, metric, token law or noise is not well posed at these sizes.
        """
        structure = structure or self.default_structure()
        if structure.teacher_rank < 1:
            raise ModelError(f"model {self.name}: teacher_rank must be a whole number from 1, not 0")
        builder = _FixedSizeModelBuilder(self, structure)
        return builder.build_model()

    def physics_digest(self, structure: Structure | None = None) -> str:
        """Return a digest (16 hex digits) of all that determines a generated solver, except for its metadata.

        It covers the equations and the defaults and ranges of the parameters, but no descriptions.

        Raises:
            ModelError: the model is not well posed at these sizes.
        """
        at = self.at(structure)
        parts = [
            at.equations_digest(),
            [replace(p, default=p.exact_default(at.structure), doc="") for p in at.parameters.values()],
            [(name, value) for name, (_, value) in at.trained.items()],
            [[sp.srepr(kink) for kink in kinks] for kinks in (at.loss_kinks, at.metric_kinks)],
            at.unbounded,
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def metadata_digest(self, structure: Structure | None = None) -> str:
        """Return a digest (16 hex digits) of a solver's metadata: starts, summary, descriptions of parameters.

        Raises:
            ModelError: the model is not well posed at these sizes.
        """
        at = self.at(structure)
        parts = [
            [(p.name, p.doc) for p in at.parameters.values()],
            [(name, list(start.exact_coefficients(at.structure).items())) for name, start in self.starts.items()],
            self.summary,
            self.source,
            *(name for name in self.metrics if name),
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


_GIVEN = ("k", "Q", "structure")


class _FixedSizeModelBuilder:
    """A builder of a `FixedSizeModel`: it calls the model's functions with symbols and checks the results."""

    def __init__(self, model: Model, structure: Structure) -> None:
        self.model, self.structure = model, structure
        self.parameters: dict[str, Parameter] = {}
        tokens, students, teachers = structure.tokens, structure.student_rank, structure.teacher_rank
        self.X = sp.Matrix(tokens, students, lambda l, a: sp.Symbol(f"x_{l}_{a}", real=True))
        self.Y = sp.Matrix(tokens, teachers, lambda l, b: sp.Symbol(f"y_{l}_{b}", real=True))
        self.k = tuple(sp.Symbol(f"k_{l}", integer=True, nonnegative=True) for l in range(tokens))
        self.u = {name: sp.Symbol(f"u_{name}", real=True) for name in model.noise}
        self.Q = tuple(
            sp.Matrix(students, students, lambda a, b, l=l: sp.Symbol(f"q_{l}_{min(a, b)}_{max(a, b)}", real=True))
            for l in range(tokens)
        )
        self.trained: dict[str, tuple[sp.Symbol, Trained]] = {}

    def build_model(self) -> FixedSizeModel:
        """Return the model at the given structural sizes, with all checks passed."""
        model, structure = self.model, self.structure
        law_arrays = self._checked_token_law_arrays()
        loss = self._checked_scalar_expression(
            self.call_model_function_with_symbols("loss", model.loss, X=self.X, Y=self.Y, **self.u), "loss"
        )
        if not loss.has(*self.X):
            raise ModelError(f"model {model.name}: the loss does not depend on X, so nothing can be learned")
        if structure.clusters == 1 and loss.has(*self.k) and not loss.subs(dict.fromkeys(self.k, 0)).has(*self.X):
            raise ModelError(
                f"model {model.name}: the loss does not depend on X, because the label k of the only cluster is 0; "
                "declare more clusters, as @sf.model(clusters=2), or take a label of the teacher, as sp.sign(Y[0])"
            )
        baseline = None
        metrics = {
            metric: (
                self._checked_scalar_expression(
                    self.call_model_function_with_symbols(where, function, h=self.X, Y=self.Y, **self.u), where
                ),
                self._declared_kink_expressions(
                    f"metric_kinks {metric}".strip(), model.declared_metric_kinks(metric), "h"
                ),
                function,
            )
            for metric, function in model.metrics.items()
            for where in (f"metric {metric}".strip(),)
        }
        for metric, (expression, *_) in metrics.items():
            if not expression.has(*self.X, *self.Y, *flatten_entries(self.Q)):
                shown = f"metric {metric}".strip()
                raise ModelError(
                    f"model {model.name}: {shown} is {expression}, which depends on none of h, Y and Q: "
                    "== and != compare expressions and not their values; write sp.Heaviside or sp.sign of them"
                )
        first, *others = metrics or [""]
        if model.baseline is not None:
            B = sp.Matrix(structure.tokens, structure.tokens, lambda i, j: sp.Symbol(f"B_{i}_{j}", real=True))
            expression = self._checked_scalar_expression(
                self.call_model_function_with_symbols("baseline", model.baseline, B=B, Y=self.Y, **self.u),
                "baseline",
                extra=set(B),
            )
            if not _is_quadratic(expression, list(B)):
                raise ModelError(
                    f"model {model.name}: the baseline's error must be quadratic in B, the constant prediction"
                )
            baseline = (expression, B)
        used = sp.Tuple(loss, *[sp.Tuple(e, *kinks) for e, kinks, _ in metrics.values()], *(baseline or ())[:1])
        asking = [f for f in (model.loss, *model.metrics.values()) if "k" in inspect.signature(f).parameters]
        if asking and structure.clusters > 1 and not used.has(*self.k):
            raise ModelError(
                f"model {model.name}: a function takes the labels k, but nothing depends on them: `if k[0] == 0` is "
                "decided before labels have values; write sf.by_label(k[0], one, other)"
            )
        for name, symbol in self.u.items():
            if not used.has(symbol):
                raise ModelError(
                    f"model {model.name}: nothing depends on the noise {name!r}: let the loss take it as an argument "
                    f"and use it, as Y[0] + {name}, or remove it from noise"
                )
        noise = {name: (self.u[name], self._noise_with_model_symbols(name, law)) for name, law in model.noise.items()}
        output = self._build_output_channel()
        parameters = {**self.parameters, **model.regulariser.parameters(structure)}
        overlap = {*self.parameters, *self.trained} & set(model.regulariser.parameters(structure))
        if overlap:
            raise ModelError(
                f"model {model.name}: parameter {overlap.pop()!r} is also the regulariser's: remove it from the "
                "arguments of the loss, or rename it"
            )
        self._check_parameter_symbols_unique(parameters)
        for start, value in model.starts.items():
            try:
                value.exact_coefficients(structure)
            except ModelError as error:
                raise ModelError(f"model {model.name}: start {start!r}: {error}") from None
        return FixedSizeModel(
            name=model.name,
            structure=structure,
            parameters=parameters,
            X=self.X,
            Y=self.Y,
            noise=noise,
            labels=self.k,
            Q=self.Q,
            trained=self.trained,
            loss=loss,
            metric=metrics[first][0] if metrics else None,
            baseline=baseline,
            law=law_arrays,
            regulariser=model.regulariser,
            loss_kinks=self._declared_kink_expressions("loss_kinks", model.loss_kinks, "X"),
            metric_kinks=(
                metrics[first][1]
                if metrics
                else self._declared_kink_expressions("metric_kinks", model.declared_metric_kinks(""), "h")
            ),
            unbounded=model.unbounded,
            output=output,
            written={"loss": model.loss, "metric": model.metrics.get(first), "baseline": model.baseline},
            others={name: metrics[name] for name in others},
            first=first,
        )

    def _check_parameter_symbols_unique(self, parameters: Mapping[str, Parameter]) -> None:
        """Raise ModelError if two parameters get the same symbol, for example `a_0` and entry 0 of an array `a`."""
        owner: dict[sp.Symbol, str] = {}
        named = [(name, flatten_entries(p.argument_symbols(self.structure))) for name, p in parameters.items()]
        for name, symbols in [*named, *((name, [symbol]) for name, (symbol, _) in self.trained.items())]:
            for symbol in symbols:
                if owner.setdefault(symbol, name) != name:
                    both = f"{owner[symbol]!r} and {name!r}"
                    raise ModelError(
                        f"model {self.model.name}: the parameters {both} would be one symbol, {symbol}; rename one"
                    )

    def _build_output_channel(self) -> FixedSizeOutput | None:
        """Return the model's output channel at the structural sizes, or None if it has none."""
        output = self.model.output
        if callable(output):
            try:
                output = output(self.structure)
            except Exception as error:
                raise ModelError(
                    f"model {self.model.name}: output failed ({error}); it must be an Output, as {_OUTPUT}, or a "
                    "function of the sizes that returns one"
                ) from error
        if output is None:
            return None
        if not isinstance(output, Output):
            raise ModelError(
                f"model {self.model.name}: output must be an Output, as {_OUTPUT}, not {type(output).__name__}"
            )

        def _check_output_symbols(used: set[sp.Basic], field_name: str, fields: set[sp.Symbol]) -> None:
            self._check_symbols_declared(used, field_name, fields={*fields, *self.k})

        return build_output_channel(
            self.model.name, output, self.structure, self.call_model_function_with_symbols, _check_output_symbols
        )

    def call_model_function_with_symbols(self, field_name: str, function: Callable[..., Any], **fields: Any) -> Any:
        """Call one of the author's functions with symbols for its arguments, and return its result.

        Args:
            field_name: name of the function in the model, as "loss", for error messages.
            function: the author's function.
            **fields: symbols by the names under which the function may ask for them.

        Raises:
            ModelError: the function has an argument of unknown name, or raises an exception.
        """
        arguments: dict[str, Any] = {}
        for name, spec in inspect.signature(function).parameters.items():
            if spec.kind is inspect.Parameter.VAR_KEYWORD:
                arguments.update({n: value for n, value in fields.items() if n not in arguments})
            elif spec.default is not inspect.Parameter.empty and (name in _GIVEN or name in fields):
                reserved_names = ", ".join([*fields, *_GIVEN])
                raise ModelError(
                    f"model {self.model.name}: {field_name} declares a parameter {name!r}, a name that is reserved for "
                    f"one of its arguments ({reserved_names}); rename the parameter"
                )
            elif name == "structure":
                arguments[name] = self.structure
            elif name == "k":
                arguments[name] = self.k
            elif name == "Q":
                arguments[name] = self.Q
            elif name in self.trained:
                arguments[name] = self.trained[name][0]
            elif isinstance(spec.default, Trained):
                if field_name != "loss":
                    raise ModelError(
                        f"model {self.model.name}: {field_name} declares the trained number {name} (sf.trained); "
                        "declare it in the loss"
                    )
                symbol = parameter_from_default(name, 0).argument_symbols(self.structure)
                self.trained[name] = (symbol, spec.default)
                arguments[name] = symbol
            elif name in fields:
                arguments[name] = fields[name]
            elif spec.default is not inspect.Parameter.empty:
                declared = parameter_from_default(name, spec.default)
                known = self.parameters.setdefault(name, declared)
                if known.exact_default(self.structure) != declared.exact_default(self.structure):
                    raise ModelError(
                        f"model {self.model.name}: the parameter {name!r} has two defaults, {declared.default} in "
                        f"{field_name} and {known.default} elsewhere: rename one, or leave the default out here"
                    )
                arguments[name] = known.argument_symbols(self.structure)
            elif name in self.parameters:
                arguments[name] = self.parameters[name].argument_symbols(self.structure)
            else:
                hint = {
                    "X": " (the student's fields are h there)",
                    "W": " (a penalty of the weights is the model's regulariser)",
                }.get(name) or did_you_mean_hint(name, fields)
                raise ModelError(
                    f"model {self.model.name}: {field_name} asks for {name!r}, which is neither one of "
                    f"{', '.join([*fields, 'k', 'Q'])} nor a parameter with a default, as {name}=0.5{hint}; "
                    f"a random number is a noise, noise={{{name!r}: sf.GaussianNoise(1)}}"
                )
        fields_of = {n: FieldMatrix(v) if isinstance(v, sp.MatrixBase) else v for n, v in arguments.items()}
        clusters = CLUSTERS.set(dict.fromkeys(self.k, self.structure.clusters))
        try:
            return function(**fields_of)
        except ModelError as error:
            raise ModelError(f"model {self.model.name}: {field_name}: {error}") from error
        except Exception as error:
            message = explain_author_error(error, function, {**fields, **arguments})
            raise ModelError(
                f"model {self.model.name}: {field_name} failed at {self.structure.folder_name}: {message}"
            ) from error
        finally:
            CLUSTERS.reset(clusters)

    def _checked_token_law_arrays(self) -> dict[str, Any]:
        """Return the arrays of the token law by name, after checking their shapes and symbols."""
        tokens = self.call_model_function_with_symbols("law", self.model.law)
        structure = self.structure
        contexts = structure.tokens * structure.clusters
        if not isinstance(tokens, Tokens):
            raise ModelError(f"model {self.model.name}: law must return Tokens, not {type(tokens).__name__}")
        expected_shape = len(to_exact_rationals(tokens.weights)), contexts
        if (found := shape_of_nested_tuples(to_exact_rationals(tokens.covariance))) != expected_shape:
            known = ", as sf.clustered_tokens" if self.model.law is unstructured_tokens else ""
            clusters, left = divmod(found[1], structure.tokens) if len(found) == 2 else (0, 0)
            known += f", or @sf.model(clusters={clusters})" if not left and clusters > structure.clusters else ""
            raise ModelError(
                f"model {self.model.name}: law.covariance has shape {found}, expected {expected_shape}: a row for each "
                f"spectral weight, a column for each (token, cluster) pair{known}"
            )
        try:
            arrays = tokens.exact_arrays_of_law()
        except ModelError as error:
            raise ModelError(f"model {self.model.name}: {error}") from None
        atoms = len(arrays["weights"])
        size = contexts + structure.teacher_rank
        expected = {
            "gram": (atoms, size, size),
            "labels": (structure.clusters**structure.tokens,),
            "teacher_means": (contexts, structure.teacher_rank),
        }
        for name, shape in expected.items():
            if shape_of_nested_tuples(arrays[name]) != shape:
                raise ModelError(
                    f"model {self.model.name}: law.{name} has shape {shape_of_nested_tuples(arrays[name])}, "
                    f"expected {shape}"
                )
        if "rows" in arrays:
            expected_rows = [(len(arrays["rows"][0]),), (len(arrays["rows"][0]), structure.teacher_rank)]
            if [shape_of_nested_tuples(part) for part in arrays["rows"]] != expected_rows:
                raise ModelError(
                    f"model {self.model.name}: law.rows must be (probabilities, values) of shapes (n,) and (n, t): n "
                    "values of a row of the teacher, which has t columns"
                )
        try:
            tokens.check_teacher_means()
        except ModelError as error:
            raise ModelError(f"model {self.model.name}: {error}") from None
        for name, value in arrays.items():
            self._check_symbols_declared(
                set().union(*(e.free_symbols for e in flatten_entries(value))), f"law.{name}", fields=set()
            )
        return arrays

    def _noise_with_model_symbols(self, name: str, law: GaussianNoise | DiscreteNoise) -> GaussianNoise | DiscreteNoise:
        """Return a noise with its variance, or its values and probabilities, as expressions in the model's symbols."""
        if isinstance(law, GaussianNoise):
            return GaussianNoise(*self._noise_expressions(f"noise {name}: variance", [law.variance]))
        probabilities = law.probabilities
        if callable(probabilities):
            probabilities = self.call_model_function_with_symbols(f"noise {name}", probabilities, Y=self.Y)
        probabilities = self._noise_expressions(f"noise {name}: probabilities", probabilities, set(self.Y))
        values = self._noise_expressions(f"noise {name}: values", law.values)
        if len(values) != len(probabilities):
            raise ModelError(
                f"model {self.model.name}: noise {name} has {len(values)} values and {len(probabilities)} "
                "probabilities; give one probability for each value"
            )
        if wrong := [p for p in probabilities if p.is_number and not 0 <= p <= 1]:
            raise ModelError(f"model {self.model.name}: noise {name}: the probability {wrong[0]} is not in [0, 1]")
        if (found := find_nonzero_point(sp.Add(*probabilities, -1))) is not None:
            at, excess = found
            where = f" at {', '.join(f'{symbol} = {float(value):g}' for symbol, value in at.items())}" if at else ""
            raise ModelError(
                f"model {self.model.name}: noise {name}: the probabilities add up to {mp.nstr(1 + excess, 6)}{where}; "
                "they must add up to 1 at every Y, so that the last one may be written as 1 minus the others"
            )
        return DiscreteNoise(values, probabilities)

    def _noise_expressions(self, where: str, given: Any, fields: set[sp.Symbol] = frozenset()) -> tuple[sp.Expr, ...]:  # type: ignore[assignment]
        """Return the given numbers and expressions of a noise as SymPy expressions in the model's symbols."""
        try:
            listed = list(to_exact_rationals(given))
        except TypeError:
            listed = []
        if not listed or not all(isinstance(e, sp.Expr) for e in listed):
            raise ModelError(
                f"model {self.model.name}: {where} must be numbers or expressions in names of parameters, one for "
                f"each value, as ('1 - flip', 'flip'), not {given!r}; declare several noises under separate names"
            )
        self._check_symbols_declared(
            set().union(*(self._replace_names_by_parameter_symbols(e).free_symbols for e in listed)), where, fields
        )
        return tuple(map(self._replace_names_by_parameter_symbols, listed))

    def _replace_names_by_parameter_symbols(self, expression: sp.Expr) -> sp.Expr:
        """Return an expression with each symbol named like a parameter replaced by the symbol of that parameter."""
        known = [leaf for p in self.parameters.values() for leaf in flatten_entries(p.argument_symbols(self.structure))]
        names = {str(s).rstrip("_"): s for s in known}
        return expression.xreplace({s: names[str(s)] for s in expression.free_symbols if str(s) in names})

    def _declared_kink_expressions(
        self, field_name: str, function: Callable[..., Any] | None, student: str
    ) -> tuple[sp.Expr, ...]:
        """Return the kinks that an author's function declares, after checking that they are affine."""
        if function is None:
            return ()
        kinks = self.call_model_function_with_symbols(field_name, function, **{student: self.X}, Y=self.Y, **self.u)
        kinks = tuple(to_exact_rationals(e) for e in (kinks if isinstance(kinks, list | tuple) else [kinks]))
        variables = [*self.X, *self.Y, *self.u.values()]
        for kink in kinks:
            inside = [v for v in variables if kink.has(v)]
            if not inside or any(sp.expand(sp.diff(kink, v)).has(*variables) for v in inside):
                raise ModelError(
                    f"model {self.model.name}: {field_name}: the kink {kink} must be affine in the fields {student} "
                    "and Y and the noise, and contain at least one of them"
                )
            self._check_symbols_declared(
                kink.free_symbols,
                field_name,
                fields={*variables, *self.k, *flatten_entries(self.Q), *self._trained_number_symbols()},
            )
        return kinks

    def _checked_scalar_expression(self, value: Any, field_name: str, extra: set[sp.Symbol] = frozenset()) -> sp.Expr:  # type: ignore[assignment]
        """Return the result of an author's function as an exact scalar expression, after checking its symbols."""
        if isinstance(value, sp.MatrixBase):
            if value.shape != (1, 1):
                raise ModelError(
                    f"model {self.model.name}: {field_name} is a {value.shape} matrix, expected a number: X is "
                    f"{self.X.shape}, Y {self.Y.shape}; take entries, as X[0]"
                )
            value = value[0, 0]
        try:
            value = to_exact_rationals(value)
        except (TypeError, sp.SympifyError) as error:
            raise ModelError(
                f"model {self.model.name}: {field_name} returned {value!r}, expected a SymPy expression"
                f"{' (is there a return?)' if value is None else ''}"
            ) from error
        for k in self.k:  # a comparison with a label selects by the label
            if any(relation.has(k) for relation in value.atoms(sp.core.relational.Relational)):
                value = by_label(k, *[value.subs(k, n) for n in range(self.structure.clusters)])
        if value.has(sp.nan):
            raise ModelError(
                f"model {self.model.name}: {field_name} has no value for some labels, which are 0 to "
                f"{self.structure.clusters - 1}; write sf.by_label(k[0], one, other)"
            )
        self._check_symbols_declared(
            value.free_symbols - extra,
            field_name,
            fields={
                *self.X,
                *self.Y,
                *self.k,
                *self.u.values(),
                *flatten_entries(self.Q),
                *self._trained_number_symbols(),
            },
        )
        return value

    def _trained_number_symbols(self) -> set[sp.Symbol]:
        return {symbol for symbol, _ in self.trained.values()}

    def _check_symbols_declared(self, used: set[sp.Basic], field_name: str, fields: set[sp.Symbol]) -> None:
        """Raise ModelError if a used symbol is no field, no parameter and no token variance rho_l."""
        parameters = {s for p in self.parameters.values() for s in flatten_entries(p.argument_symbols(self.structure))}
        weights = {token_variance_symbol(l) for l in range(self.structure.tokens)}
        unknown = used - parameters - weights - fields
        if unknown:
            unknown_names = ", ".join(sorted(str(s) for s in unknown))
            name = min(map(str, unknown)).rstrip("_")
            raise ModelError(
                f"model {self.model.name}: {field_name} uses {unknown_names}, which is not a field, a noise or a "
                f"parameter {did_you_mean_hint(name, self.parameters)}; parameters are arguments of the loss, as "
                f"{name}=0.5 (declared are {', '.join(self.parameters) or 'none'}); a random number is a noise, "
                f"noise={{{name!r}: sf.GaussianNoise(1)}}"
            )


def _is_quadratic(expression: sp.Expr, variables: list[sp.Symbol]) -> bool:
    """Return whether all third derivatives of an expression in the variables are zero."""
    first = [sp.diff(expression, a) for a in variables]
    second = {sp.diff(slope, b) for a, slope in enumerate(first) for b in variables[a:]}
    # Few second derivatives still contain a variable, if any does.
    return all(sp.diff(entry, c) == 0 for entry in second if entry.has(*variables) for c in variables)


def model(
    loss: Callable[..., Any] | None = None,
    /,
    *,
    tokens: int | FreeSize = 1,
    student: int | FreeSize = 1,
    teacher: int | FreeSize = 1,
    clusters: int | FreeSize = 1,
    name: str | None = None,
    **fields: Any,
) -> Any:
    """Turn a loss function into a `Model`: a decorator, with or without arguments.

    The first line of the function's docstring is the summary of the model.

    Args:
        loss: the loss function, if the decorator has no arguments.
        tokens: number L of tokens; an int fixes a size, `structural(n)` lets the user set it.
        student: number s of columns of W.
        teacher: number t of columns of the teacher.
        clusters: number K of clusters of each token.
        name: name of the model; the function's name by default.
        fields: the remaining fields of `Model` (law, regulariser, noise, metric, baseline, starts, kinks).
        **fields: the remaining fields of `Model` (law, regulariser, noise, metric, baseline, starts, kinks).

    Example:
        >>> @sf.model(noise={"u": sf.GaussianNoise("Delta")}, metric=lambda h, Y: sf.square(Y - h))
        ... def regression(X, Y, u, *, Delta=0.1):
        ...     return sf.half_square(Y + sf.Matrix([[u]]) - X)
        >>> sf.solve(sf.problem(regression, alpha=2)).success
        True
    """

    def build_model_from_loss(loss: Callable[..., Any]) -> Model:
        known = [each.name for each in dataclasses.fields(Model) if each.name not in ("loss", "sizes")]
        if unknown := sorted(set(fields) - set(known)):
            sizes = ["tokens", "student", "teacher", "clusters"]
            raise ModelError(f"sf.model has no argument {unknown[0]!r}; it has {', '.join([*sizes, *known])}")
        lines = [line.strip() for line in (inspect.getdoc(loss) or "").splitlines()]
        sources = [line.removeprefix("Source:").strip() for line in lines if line.startswith("Source:")]
        return Model(
            name=name or loss.__name__.strip("<>"),
            loss=loss,
            sizes={"tokens": tokens, "student_rank": student, "teacher_rank": teacher, "clusters": clusters},
            summary=fields.pop("summary", lines[0] if lines else ""),
            source=fields.pop("source", sources[0] if sources else ""),
            **fields,
        )

    return build_model_from_loss if loss is None else build_model_from_loss(loss)
