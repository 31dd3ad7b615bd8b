"""Problems: a generated solver, a sample complexity and values of the model's parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from keyword import iskeyword
from typing import Any, TypeVar

import numpy as np

from ..base.deprecation import DeprecatedName, deprecated_attribute
from ..base.errors import InputError, convert_to_number_array, describe_unknown_name, require_in_interval
from ..base.hints import AttributeErrorHints
from ..base.options import AlgorithmOptions
from ..derive.errors import ModelError, did_you_mean_hint
from ..derive.report.names import GREEK
from .catalogue import STRUCTURAL
from .interpolation import Between, parse_scale_factor_name
from .law import TokenLaw
from .loss_growth import UnboundedRay, find_unbounded_rays, loss_with_signed_overflow
from .overlaps import Conjugates, Overlaps, Sizes, upper_triangle_indices
from .regulariser import Regulariser, make_regulariser
from .solver import Solver, load_solver

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class LossCheckOptions(AlgorithmOptions):
    """Options of the checks of a new problem's loss at random fields.

    Attributes:
        student_fields: random fields X tried for each random Y; more find rarer failures.
        standard_deviations: widths of the random fields Y and noise, in their standard deviations; one draw each.
    """

    student_fields: int = 20
    standard_deviations: tuple[float, ...] = (0.5, 1.0, 1.0, 2.0) * 4


@dataclass(frozen=True)
class Problem(AttributeErrorHints):
    """A model with its numbers: everything a solution depends on, checked on construction (use `problem`).

    Attributes:
        sample_complexity: alpha = n / d, or None where it was left open; see `alpha`.
        parameters: name -> value as float or array of the parameter's shape.
        spectrum: (atoms, 1 + C) weights and eigenvalues of the token covariances in place of the model's own, or None.
        given_law: a law of the tokens in place of the model's, or None.
        search: how the proximal map finds the global minimum: 1 from omega and mirror images, 2 all over the ball
            that contains it (see `search.searched`).
        inverse_temperature: inverse temperature of a Gibbs measure over the weights; None for the minimum of the risk.
        lines: name of a position, path_A or scale_A -> the parameter that moves along a line, and that line.

    Example:
        >>> problem = sf.problem("ridge_regression", alpha=2)
        >>> other = problem.with_(Delta=0.5)
        >>> problem.parameters["Delta"], other.parameters["Delta"], other.alpha
        (0.25, 0.5, 2.0)
    """

    solver: Solver
    sample_complexity: float | None
    parameters: Mapping[str, Any]
    spectrum: np.ndarray | None = None
    given_law: TokenLaw | None = None
    search: int = field(default=1, compare=False)
    inverse_temperature: float | None = None
    lines: Mapping[str, tuple[str, Between]] = field(default_factory=dict, compare=False)

    @property
    def alpha(self) -> float:
        """The sample complexity n / d.

        Raises:
            InputError: it was not given.
        """
        if self.sample_complexity is None:
            raise InputError(
                f"alpha = n / d is not given, and {self.solver.name} cannot be solved without it: set "
                "`--set alpha=2`, or sf.problem(..., alpha=2)"
            )
        return self.sample_complexity

    @cached_property
    def tokens(self) -> int:
        """Number of tokens L of a sample."""
        return self.solver.structural_sizes["tokens"]

    @cached_property
    def student_rank(self) -> int:
        """Number of columns s of W, all trainable matrices side by side."""
        return self.solver.structural_sizes["student_rank"]

    @cached_property
    def teacher_rank(self) -> int:
        """Number of columns t of W*."""
        return self.solver.structural_sizes["teacher_rank"]

    @cached_property
    def clusters(self) -> int:
        """Number of labels K of a token."""
        return self.solver.structural_sizes["clusters"]

    @cached_property
    def contexts(self) -> int:
        """Number C = L K of (token, cluster) pairs, the cluster fastest."""
        return self.tokens * self.clusters

    @property
    def sizes(self) -> Sizes:
        """Sizes (C, s, t, P) of the overlaps."""
        return self.contexts, self.student_rank, self.teacher_rank, len(self.trained)

    @cached_property
    def parameter_vector(self) -> np.ndarray:
        """All parameters as one vector, in the order of the generated SYMBOLS."""
        values = [np.ravel(self.parameters[spec["name"]]) for spec in self.solver.model.PARAMETERS]
        return np.concatenate(values) if values else np.zeros(0)

    @cached_property
    def law(self) -> TokenLaw:
        """The law of the tokens: the given one, else the model's at these parameters; with `spectrum` where given.

        Raises:
            InputError: with this spectrum it is not a valid law.
        """
        law = self.given_law or TokenLaw.from_arrays(
            self.solver.model.law(self.parameter_vector), self.tokens, self.clusters
        )
        if self.spectrum is not None:
            law = law.with_spectrum(self.spectrum)
            law.refuse_invalid_law()
        return law

    def compute_once(self, function: Callable[[Problem], Answer]) -> Answer:
        """Return function(problem), computed at the first call and cached in the problem."""
        answers = self.__dict__.setdefault("_answers", {})
        if function not in answers:
            answers[function] = function(self)
        return answers[function]

    @property
    def trained(self) -> tuple[Mapping[str, Any], ...]:
        """Name, start and ridge of every scalar phi that is trained together with the weights."""
        return self.solver.model.TRAINED

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the metrics, where there are several; the first is the one of `test_error`."""
        return self.solver.model.METRICS

    @property
    def metric_name(self) -> str:
        """Name of the metric of `test_error`; empty if the only metric has no name."""
        first = self.metric_names[0] if self.metric_names else ""
        return first if self.solver.base is None else self.solver.folder.name.removeprefix("metric_")

    def with_metric(self, name: str) -> Problem:
        """Return the problem with another one of its metrics for the test error.

        Raises:
            InputError: there is no metric of this name.
        """
        if name in self.metric_names[:1]:
            return self if self.solver.base is None else replace(self, solver=self.solver.base)
        if name not in self.solver.metric_solvers:
            raise InputError(describe_unknown_name("metric", name, self.metric_names, self.solver.name))
        return replace(self, solver=self.solver.metric_solvers[name])

    @property
    def line_parameters(self) -> dict[str, Any]:
        """End points and position, for JSON, of every parameter that moves along a line."""
        ends = {of: line.ends for of, line in self.lines.values()}
        return {**ends, **{name: line.position for name, (_, line) in self.lines.items()}}

    @property
    def vanishing_parameters(self) -> tuple[str, ...]:
        """Names of the parameters whose limit 0 defines the model; error bars include the effect of finite values."""
        return tuple(spec["name"] for spec in self.solver.model.PARAMETERS if spec["vanishing"])

    @property
    def limits_not_taken(self) -> dict[str, dict[str, float]]:
        """Values of `vanishing_parameters` unless all are 0, for results whose error bars leave out their limit."""
        values = {name: float(self.parameters[name]) for name in self.vanishing_parameters}
        return {"not_in_the_limit": values} if any(values.values()) else {}

    @property
    def has_teacher_overlap(self) -> bool:
        """Whether theta may differ from 0: the loss, the penalty or the law depends on the teacher."""
        law, contexts = self.law, self.contexts
        return (
            self.solver.channel.FEATURES > 0  # of the teacher's fields and the noise
            or self.regulariser.teacher_columns_in_penalty > 0
            or bool(np.any(law.gram[:, :contexts, contexts:]) or np.any(law.teacher_means))
        )

    @cached_property
    def regulariser(self) -> Regulariser:
        """The regulariser at these parameters: its formulas and properties.

        Raises:
            InputError: its kind is unknown.
        """
        return make_regulariser(self.solver, self.law, self.parameters, self.temperature)

    has_ridge = deprecated_attribute("has_ridge", DeprecatedName("regulariser.is_quadratic", "0.1.0", "0.3.0"))
    has_sphere = deprecated_attribute("has_sphere", DeprecatedName("regulariser.keeps_norms", "0.1.0", "0.3.0"))
    by_metric = deprecated_attribute("by_metric", DeprecatedName("with_metric", "0.1.0", "0.3.0"))

    @property
    def strengths(self) -> np.ndarray:
        """Parameters of the regulariser in the order of its declaration: lambda_a of a ridge or given norms, (s,)."""
        return self.regulariser.declared_parameter_values

    @property
    def temperature(self) -> float:
        """Temperature of the Gibbs measure; 0 for the minimum of the risk."""
        return 0.0 if self.inverse_temperature is None else 1 / self.inverse_temperature

    def require_zero_temperature(self, what: str) -> None:
        """Raise InputError at a finite temperature, for calculations implemented at zero temperature only.

        Raises:
            InputError: the temperature is finite; the message begins with `what`.
        """
        if self.inverse_temperature is not None:
            raise InputError(f"{what} at zero temperature only; leave inverse_temperature out")

    @cached_property
    def prior_law(self) -> tuple[np.ndarray, ...]:
        """Arguments of the generated prior: law of the coordinates of W*, then parameters of the regulariser."""
        return self.law.weights, self.law.gamma, self.law.gram, *self.regulariser.prior_arguments

    def bound_prior_map(self, name: str) -> Callable[..., Any]:
        """Return a map of the generated prior (overlaps, free_entropy, responses) with its leading arguments filled in.

        With a ridge, a finite temperature changes the free entropy only.
        """
        module = self.solver.prior_functions
        warm = None if self.inverse_temperature is None else getattr(module, f"thermal_{name}", None)
        if warm is None:
            return partial(getattr(module, name), *self.prior_law)
        return partial(warm, *self.prior_law, self.temperature)

    def multipliers(self, hats: Conjugates) -> np.ndarray | None:
        """Return the multipliers lambda_a (s,) of given norms at conjugates; None for any other regulariser.

        Raises:
            DomainError: no multipliers satisfy the norms.
        """
        return self.regulariser.norm_multipliers(hats)

    @cached_property
    def noise_scale(self) -> np.ndarray:
        """Standard deviations of the Gaussian noise variables u."""
        return np.sqrt(np.asarray(self.solver.model.noise_variances(self.parameter_vector), float).reshape(-1))

    @property
    def has_targets(self) -> bool:
        """Whether the loss depends on Y, noise or labels."""
        return self.solver.channel.FEATURES > 0 or self.contexts > self.tokens

    @cached_property
    def is_gaussian(self) -> np.ndarray:
        """Mask of the noise variables u that are Gaussian, (U,); the others take discrete values."""
        return np.array([gaussian for _, gaussian in self.solver.model.NOISE], bool)

    def kink_planes(self, of: str, constants: np.ndarray) -> np.ndarray:
        """Return the kink planes of the loss or the metric, (K, D + L t + U + 1).

        A row holds the coefficients of X, Y (rows first) and Gaussian noise, and a constant; the sum is 0 on the plane.

        Args:
            of: "loss" or "metric".
            constants: constants of the channel, see `constants`.
        """
        rows = self.solver.model.planes(constants)[of]
        return np.array(rows, float).reshape(-1, self.dimension + 1)

    def single_field_kinks(self, constants: np.ndarray) -> list[tuple[int, float]]:
        """Return the kinks of the loss along a single field X_la: index of the field (tokens slowest) and position."""
        found = set()
        for row in self.kink_planes("loss", constants):
            held = np.flatnonzero(row[:-1])
            if len(held) == 1 and held[0] < self.tokens * self.student_rank:
                found.add((int(held[0]), float(-row[-1] / row[held[0]])))
        return sorted(found)

    @property
    def dimension(self) -> int:
        """Dimension of the integrals over omega, Y and Gaussian noise."""
        return self.tokens * (self.student_rank + self.teacher_rank) + len(self.noise_scale)

    @cached_property
    def label_choices(self) -> list[tuple[tuple[int, ...], float]]:
        """Every label assignment of positive probability, as (labels, probability)."""
        choices = product(range(self.clusters), repeat=self.tokens)
        return [(k, float(self.law.labels[k])) for k in choices if self.law.labels[k] > 0]

    @cached_property
    def unbounded_rays(self) -> list[tuple[tuple[int, ...], UnboundedRay]]:
        """Labels and rays of X along which the loss was found unbounded below, at random teacher fields and noise."""
        generator, size = np.random.default_rng(19), self.tokens * self.student_rank
        drawn = self.sample_loss_functions(generator)
        return [(labels, fall) for labels, _, loss in drawn for fall in find_unbounded_rays(loss, size, generator)]

    def draw_teacher_fields(
        self, labels: tuple[int, ...], generator: np.random.Generator, widths: float = 1.0
    ) -> np.ndarray:
        """Return random fields Y of the teacher, (L, t), with independent entries.

        Args:
            labels: label of every token, (L,).
            generator: generator of the random numbers.
            widths: factor on the standard deviations.
        """
        contexts = self.context_indices(labels)
        spread = np.sqrt(np.diagonal(self.law.rho_star, axis1=1, axis2=2))[contexts]
        return self.law.teacher_means[contexts] + widths * spread * generator.standard_normal(spread.shape)

    def sample_loss_functions(
        self, generator: np.random.Generator
    ) -> Iterator[tuple[tuple[int, ...], np.ndarray, Callable[[np.ndarray], Any]]]:
        """Yield labels, random teacher fields Y, and the loss there as an uncompiled function of X.

        Fields at which the features of the loss overflow are left out.
        """
        channel = self.solver.channel
        gaussian = self.is_gaussian
        for labels, _ in self.label_choices:
            c = self.constants(labels)
            for values in channel.LABELLED_NOISE or ((),):
                for widths in LossCheckOptions.current().standard_deviations:
                    y = self.draw_teacher_fields(labels, generator, widths)
                    u = np.zeros(len(gaussian))
                    u[gaussian] = widths * self.noise_scale * generator.standard_normal(len(self.noise_scale))
                    u[~gaussian] = values
                    try:
                        known = channel.features.py_func(*y.ravel().tolist(), *u.tolist(), c)
                    except (ArithmeticError, ValueError):
                        continue

                    def _loss_at(x: np.ndarray, known: Any = known, c: np.ndarray = c) -> Any:
                        return channel.loss.py_func(*x.tolist(), *known, c)

                    yield labels, y.ravel(), _loss_at

    def constants(self, labels: tuple[int, ...], overlaps: Overlaps | None = None) -> np.ndarray:
        """Return the constants of the generated channel: rho_l, k_l, parameters, and overlaps that the loss contains.

        Args:
            labels: label of every token, (L,).
            overlaps: source of q of every token and of phi; by default zeros and the starts of phi.
        """
        if not self.solver.model.HOLDS_Q and not self.trained:
            return self._constants_independent_of_solution(labels)
        own = [np.array([number["start"] for number in self.trained]) if overlaps is None else overlaps.phi]
        if self.solver.model.HOLDS_Q:
            rows, columns = upper_triangle_indices(self.student_rank)
            q = np.zeros((self.contexts, *[self.student_rank] * 2))
            if overlaps is not None:
                # Overlap of one replica with itself. A minimum found by simulation has no V.
                q = overlaps.q + self.temperature * overlaps.V if self.temperature else overlaps.q
            own = [*q[self.context_indices(labels)][:, rows, columns], *own]
        return np.concatenate([self._constants_independent_of_solution(labels), *own])

    def _constants_independent_of_solution(self, labels: tuple[int, ...]) -> np.ndarray:
        """Return the constants of the generated channel that do not depend on a solution."""
        if labels not in self._channel_constants_by_labels:
            law, own = self.law.rho[self.context_indices(labels)], np.asarray(labels, float)
            self._channel_constants_by_labels[labels] = np.concatenate([law, own, self.parameter_vector])
        return self._channel_constants_by_labels[labels]

    def context_indices(self, labels: tuple[int, ...]) -> np.ndarray:
        """Return the context index of every token, (L,)."""
        if labels not in self._context_indices_by_labels:
            self._context_indices_by_labels[labels] = np.arange(self.tokens) * self.clusters + np.asarray(labels, int)
        return self._context_indices_by_labels[labels]

    def describe_context(self, context: int) -> str:
        """Return a context in words: its token and its cluster, each if there are several; else an empty text."""
        token, cluster = divmod(context, self.clusters)
        counts = ("token", token, self.tokens), ("cluster", cluster, self.clusters)
        return ", ".join(f"{name} {number + 1}" for name, number, count in counts if count > 1)

    @cached_property
    def _channel_constants_by_labels(self) -> dict[tuple[int, ...], np.ndarray]:
        """Cache of constants by labels."""
        return {}

    @cached_property
    def _context_indices_by_labels(self) -> dict[tuple[int, ...], np.ndarray]:
        """Cache of context indices by labels."""
        return {}

    def with_(self, **changes: Any) -> Problem:
        """Return the problem with some parameters changed.

        Args:
            changes: new values by name, alpha included; an entry of an array, as `**{"A[1,2]": 0.3}`; path_A, the
                position of an array on its line (`Between`); scale_A, a factor on the present array.

        Raises:
            InputError: a value is out of range, or there is no such entry or line.
        """
        own = {name: changes.pop(name) for name in list(changes) if self._find_parameter_line(name)}
        lines: dict[str, tuple[str, Between]] = {}
        given = {stored_parameter_name(name) for name in changes} | {
            place[0] for name in changes if (place := parse_array_entry(name))
        }
        for name, position in own.items():
            of, line = self._move_parameter_along_line(name, position)
            if of in given or any(of == other for other, _ in lines.values()):
                raise InputError(f"{of.rstrip('_')} is given twice, once through {name}; give it once")
            lines[name] = of, line
        changes |= {of: line.value for of, line in lines.values()}
        given |= set(changes)
        lines = {name: line for name, line in self.lines.items() if line[0] not in given} | lines
        alpha = changes.pop("alpha", self.sample_complexity)
        spectrum, law = changes.pop("spectrum", self.spectrum), changes.pop("law", self.given_law)
        beta = changes.pop("inverse_temperature", self.inverse_temperature)
        known = {
            **self.parameters,
            **{stored_parameter_name(n): v for n, v in changes.items() if parse_array_entry(n) is None},
        }
        for name, value in changes.items():
            if (place := parse_array_entry(name)) is not None:
                of, index = place
                _array_entry_value(name, known.get(of), index)
                known[of] = np.array(known[of], float)
                known[of][index] = value
        return _build_problem(self.solver, alpha, known, spectrum, law, beta, lines)

    def is_line_parameter(self, name: str) -> bool:
        """Return whether a name is the position of an array on a line: path_A, scale_A."""
        return self._find_parameter_line(name) is not None

    def _find_parameter_line(self, name: str) -> tuple[str, Between] | None:
        """Return the parameter A and its line for path_A, or for scale_A (from 0 to A); None for other names."""
        if name in self.lines:
            return self.lines[name]
        of = stored_parameter_name(parse_scale_factor_name(name) or "")
        if name in self.parameters or not np.ndim(self.parameters.get(of, 0.0)):
            return None
        array = self.parameters[of]
        return of, Between(np.zeros_like(array), array, 1.0)

    def _move_parameter_along_line(self, name: str, position: Any) -> tuple[str, Between]:
        of, line = self._find_parameter_line(name) or ("", Between(0, 0))
        t = _convert_to_number(name, position)
        if not np.isfinite(t):
            raise InputError(f"{name} = {position!r} is out of range; allowed is (-inf, inf)")
        return of, line.at(t)

    def value_of(self, name: str) -> float:
        """Return the value of a scalar parameter by name.

        Args:
            name: a parameter, alpha included (nan if it was left open); a vector whose entries are all equal; an entry
                of an array, counted from 1: sigma[2], A[1,2]; or the position of an array on a line.

        Raises:
            InputError: no such scalar parameter.
        """
        place = parse_array_entry(name)
        if place is not None:
            return float(_array_entry_value(name, self.parameters.get(place[0]), place[1]))
        if (known := self._find_parameter_line(name)) is not None:
            return known[1].position
        name = stored_parameter_name(name)
        if name == "alpha":
            return np.nan if self.sample_complexity is None else self.sample_complexity
        if name == "inverse_temperature":
            return np.inf if self.inverse_temperature is None else self.inverse_temperature

        def has_single_value(value: Any) -> bool:
            return (np.ndim(value) < 2 and len(np.unique(value)) == 1) or np.size(value) == 1

        if name not in self.parameters or not has_single_value(self.parameters[name]):
            scalars = [n.rstrip("_") for n, v in self.parameters.items() if has_single_value(v)]
            raise InputError(
                f"{name!r} is not a scalar parameter{explain_why_number_is_trained(self.solver, name)}; known are "
                f"{', '.join(['alpha', *scalars, *self.lines])}, entries of arrays, as A[1,2], a factor on an array A, "
                "as scale_A, and its position path_A if A is given as a line"
            )
        return float(np.ravel(self.parameters[name])[0])

    def require_scalar_parameters(self, *names: str) -> None:
        """Check that these are scalar parameters and that alpha is given or among them.

        Raises:
            InputError: one is not, or alpha is neither given nor among them.
        """
        for name in names:
            self.value_of(name)
        if "alpha" not in names:
            _ = self.alpha


_MIN_MAGNITUDE = 1e-60  # of non-zero numbers: the fourth power is a normal double; the inverse is the largest
_ENTRY = re.compile(r"(\w+)\[(\d+(?:,\d+)*)\]")


def parse_array_entry(name: str) -> tuple[str, tuple[int, ...]] | None:
    """Return parameter and index (from 0) of an entry A[1,2] (from 1); None for any other name."""
    found = _ENTRY.fullmatch(name.replace(" ", ""))
    if found is None:
        return None
    return stored_parameter_name(found[1]), tuple(int(n) - 1 for n in found[2].split(","))


def _array_entry_value(name: str, values: Any, index: tuple[int, ...]) -> Any:
    shape = np.shape(values)
    if values is None or len(index) != len(shape) or not all(0 <= i < n for i, n in zip(index, shape, strict=True)):
        last = ",".join(map(str, shape))
        first = re.sub(r"\d+", "1", last)
        known = f"entries are {name.partition('[')[0]}[{first}] to [{last}], counted from 1"
        if not shape:
            known = "there is no such parameter" if values is None else "it is one number"
        raise InputError(f"unknown entry {name!r}: {known}")
    return np.asarray(values)[index]


def stored_parameter_name(name: str) -> str:
    """Return the name under which a parameter is stored: lambda_ for lambda, a keyword of Python."""
    return "lambda_" if name == "lambda" else name


def _refuse_attribute_change(self: Problem, name: str, value: Any) -> None:
    raise AttributeError(f"a problem cannot be changed; problem.with_({name}={value!r}) returns a changed copy")


Problem.__setattr__ = _refuse_attribute_change  # type: ignore[assignment, method-assign]  # in place of FrozenInstanceError


def require_problem(given: object) -> None:
    """Raise InputError unless the argument is a Problem.

    Raises:
        InputError: it is not a problem; the message says what to write instead.
    """
    if not isinstance(given, Problem):
        shown = repr(given) if isinstance(given, str) else "MODEL"
        raise InputError(
            f"a Problem (a model with values of its parameters) is expected, not {type(given).__name__}; "
            f"make one by sf.problem({shown}, alpha=2)"
        )


def problem(
    model: Any,
    *,
    alpha: float | None = None,
    spectrum: Any = None,
    law: Any = None,
    inverse_temperature: float | None = None,
    **values: Any,
) -> Problem:
    """Return a problem: a model with values of its parameters.

    Args:
        model: a catalogue name, a path to a model file, or a Model.
        alpha: sample complexity n / d, positive; it may be left out where it is varied or searched for.
        spectrum: a discrete joint spectrum of the token covariances in place of the model's own: rows of a weight and
            an eigenvalue, or of a weight and one eigenvalue per context (token, cluster), cluster fastest; the latter
            may be followed by a factor on the variance of the teacher's rows. See `power_law`, `random_features`.
        law: `Tokens` with numbers, as `Tokens.from_arrays` makes them from data, in place of the model's law.
        inverse_temperature: b of the Gibbs measure exp(-b risk) over the weights, positive; None (the default) for the
            minimum of the risk. A loss whose slope jumps has a solver at finite temperatures only.
        values: parameters and structural sizes (tokens, student_rank, teacher_rank, clusters); the rest keep defaults.
            For an array also a line (`Between`), single entries, as `**{"A[1,2]": 0.3}`, or a factor, as scale_A=0.5.

    Raises:
        InputError: a name is unknown or a value out of range; the message lists what is allowed.

    Example:
        >>> sf.problem("ridge_regression", alpha=2, lambda_=0.5).alpha
        2.0
    """
    sizes = {name: values.pop(name) for name in STRUCTURAL if name in values}
    for name, value in sizes.items():
        if isinstance(value, bool) or not _convert_to_number(name, value).is_integer():
            raise InputError(f"{name} = {value!r}: a whole number is expected")
    solver = load_solver(model, **sizes)
    whole = {spec["name"] for spec in solver.model.PARAMETERS}
    given = {
        stored_parameter_name(name): value for name, value in values.items() if stored_parameter_name(name) in whole
    }
    parts = {name: value for name, value in values.items() if stored_parameter_name(name) not in whole}
    built = _build_problem(solver, alpha, given, spectrum, law, inverse_temperature)
    return built.with_(**parts) if parts else built


def _build_problem(
    solver: Solver,
    alpha: Any,
    values: Mapping[str, Any],
    spectrum: Any,
    law: Any,
    inverse_temperature: Any = None,
    lines: Mapping[str, tuple[str, Between]] | None = None,
) -> Problem:
    specs = {spec["name"]: spec for spec in solver.model.PARAMETERS}
    lines = {**(lines or {}), **_collect_parameter_lines(values, specs)}
    values = {name: value.value if isinstance(value, Between) else value for name, value in values.items()}
    unknown = [name for name in values if name not in specs]
    if unknown:
        known = "; ".join(
            [
                f"alpha in (0, inf){_ALPHA_MEANING}",
                "inverse_temperature in (0, inf)",
                "spectrum as [[weight, eigenvalue], ...]",
                *[
                    f"{_parameter_display_name(n)} in {s['allowed']}{_describe_parameter(n, s['doc'])}"
                    for n, s in specs.items()
                ],
                *[f"{name} (structural, here {value})" for name, value in solver.structural_sizes.items()],
            ]
        )
        remedy = explain_why_number_is_trained(solver, unknown[0]) or did_you_mean_hint(
            unknown[0], ["alpha", "spectrum", *specs]
        )
        raise InputError(f"unknown parameter {unknown[0]!r} of {solver.name}{remedy}; known are {known}")
    checked = {name: _check_parameter_value(spec, values.get(name, spec["default"])) for name, spec in specs.items()}
    number = None if alpha is None else _require_positive_number("alpha", alpha, _ALPHA_MEANING)
    built = Problem(
        solver, number, checked, inverse_temperature=_check_inverse_temperature(inverse_temperature, solver)
    )
    built = replace(
        built, spectrum=_check_spectrum(spectrum, built.contexts), given_law=_check_token_law(law, built), lines=lines
    )
    _ = built.law
    gaussian = [name for name, is_gaussian in solver.model.NOISE if is_gaussian]
    for name, variance in zip(gaussian, solver.model.noise_variances(built.parameter_vector), strict=True):
        if not variance >= 0:
            raise InputError(
                f"the variance of the noise {name} is {variance:g}; choose parameters for which it is at least 0"
            )
    built.regulariser.refuse_invalid_parameters(_list_parameter_values(built, solver.model.STRENGTHS))
    _check_noise_probabilities(built)
    _require_finite_loss(built)
    _require_loss_bounded_below(built)
    return built


def explain_why_number_is_trained(solver: Solver, name: str) -> str:
    """Return the clause of an error message that explains a trained number; empty if the name is none.

    Args:
        solver: solver of the model.
        name: name that is refused as a parameter.
    """
    if name not in [number["name"] for number in solver.model.TRAINED]:
        return ""
    return (
        f": {name} is trained with the weights, so its value is a result (to set it, give the loss a parameter "
        f"{name}=1.0 in place of sf.trained)"
    )


def _collect_parameter_lines(
    values: Mapping[str, Any], specs: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[str, Between]]:
    """Return the parameters given as lines and their lines, by the names of their positions (path_A)."""
    lines = {}
    for of, line in values.items():
        if isinstance(line, Between) and of in specs:
            name = f"path_{of.rstrip('_')}"
            if name in specs:
                raise InputError(
                    f"{of.rstrip('_')} cannot move along a line: its position {name} is already a parameter"
                )
            for end in (line.first, line.last):
                _check_parameter_value(specs[of], end)
            lines[name] = of, line
    return lines


def _describe_parameter(name: str, words: str) -> str:
    """Return letter and description of a parameter in brackets: (σ, standard deviation of a label's noise)."""
    letter = GREEK.get(name.rstrip("_"), "")
    return f" ({', '.join(part for part in (letter, words) if part)})" if letter or words else ""


_ALPHA_MEANING = _describe_parameter("alpha", "number of samples over the dimension d")


def _check_inverse_temperature(value: Any, solver: Solver) -> float | None:
    """Return the inverse temperature, checked against what the solver supports.

    Raises:
        InputError: it is out of range, there are too many fields for a finite temperature, or the model needs one.
    """
    if value is None:
        # The reduced loss may have a proximal map where the full one has none.
        if solver.model.NO_PROXIMAL_MAP and solver.reduced_solvers.get("loss", solver).model.NO_PROXIMAL_MAP:
            raise InputError(solver.no_proximal_map_message)
        return None
    number = _require_positive_number("inverse_temperature", value)
    thermal = solver.reduced_solvers.get("loss", solver).thermal_channel
    if not thermal.HAS_AVERAGES:
        raise InputError(
            f"a finite temperature needs an integral over {thermal.FIELDS} fields X of {solver.name} at every node; "
            "at most 4 are possible, so leave inverse_temperature out"
        )
    return number


def _list_parameter_values(problem: Problem, names: Iterable[str]) -> str:
    """Return parameters with their values, for a message."""
    return ", ".join(f"{name.rstrip('_')} = {problem.parameters[name]}" for name in names)


def _non_default_parameters(problem: Problem) -> list[str]:
    """Return the parameters that differ from their defaults."""
    specs = problem.solver.model.PARAMETERS
    return [each["name"] for each in specs if not np.array_equal(problem.parameters[each["name"]], each["default"])]


def _check_noise_probabilities(problem: Problem) -> None:
    """Raise InputError if discrete noise has a probability outside [0, 1] at random fields."""
    model = problem.solver.model
    if model.NO_PROXIMAL_MAP or all(is_gaussian for _, is_gaussian in model.NOISE):
        return
    channel, generator = problem.solver.proximal, np.random.default_rng(7)
    count = LossCheckOptions.current().student_fields
    for labels, _ in problem.label_choices:
        y = np.array([problem.draw_teacher_fields(labels, generator).ravel() for _ in range(count)])
        law = channel.noise_law_at.py_func(y, problem.constants(labels))  # type: ignore[attr-defined]
        wrong = ~((law >= -1e-12) & (law <= 1 + 1e-12)).all(axis=1)
        if wrong.any():
            at = int(np.argmax(wrong))
            noises = ", ".join(name for name, is_gaussian in model.NOISE if not is_gaussian)
            values, found = (", ".join(f"{z:g}" for z in np.ravel(each)) for each in (channel.LABELLED_NOISE, law[at]))
            raise InputError(
                f"probabilities of the values {values} of the noise {noises} are {found} at Y = "
                f"({', '.join(f'{z:.3g}' for z in y[at])}): they must be in [0, 1]"
            )


def _require_finite_loss(problem: Problem) -> None:
    """Raise InputError if the loss is infinite or undefined at all of some random fields."""
    changed = _non_default_parameters(problem)
    if not changed:
        return
    generator, size, seen = np.random.default_rng(31), problem.tokens * problem.student_rank, ""
    count = LossCheckOptions.current().student_fields
    for _, y, loss in problem.sample_loss_functions(generator):
        tried = [3.0 ** (n % 4 - 2) * generator.standard_normal(size) for n in range(count)]
        if any(np.isfinite(loss_with_signed_overflow(loss, x)) for x in tried):
            return
        x_and_y = [", ".join(f"{z:.3g}" for z in fields) for fields in (tried[0], y)]
        seen = seen or "it is {} at X = ({}), Y = ({})".format(loss_with_signed_overflow(loss, tried[0]), *x_and_y)
    if seen:
        raise InputError(
            f"model {problem.solver.name}: at {_list_parameter_values(problem, changed)} the loss is no finite number "
            f"in double precision: {seen}, and not finite at any other fields that were tried; choose other values"
        )


def _require_loss_bounded_below(problem: Problem) -> None:
    """Raise InputError if the loss is unbounded below, or falls faster than its model declares."""
    model = problem.solver.model
    changed = [name for name in model.BOUNDED_BY if name in _non_default_parameters(problem)]
    if not (changed or model.UNBOUNDED):
        return
    falls = [
        (labels, fall)
        for labels, fall in problem.unbounded_rays
        if fall.is_faster_than_quadratic or not model.UNBOUNDED
    ]
    if not falls:
        return
    labels, worst = max(falls, key=lambda found: (found[1].power, -found[1].value))
    at = f" at {_list_parameter_values(problem, changed)}" if changed else ""
    where = f"X = ({', '.join(f'{x:.3g}' for x in worst.distance * worst.ray)})"
    if problem.clusters > 1:
        where += f", k = ({', '.join(map(str, labels))})"
    if worst.is_faster_than_quadratic:
        advice = "faster than |X|^2, so that no penalty and no given norm bounds the risk: choose other values"
    else:
        held = "or declare @model(unbounded=True) if the regulariser bounds the risk"
        advice = f"as |X|^{worst.power:.2g}: choose other values, {held}"
    raise InputError(
        f"model {problem.solver.name}: the loss has no lower bound{at}: it is "
        f"{worst.value:.3g} at {where} and falls {advice}"
    )


def _check_spectrum(value: Any, contexts: int) -> np.ndarray | None:
    if value is None:
        return None
    array = convert_to_number_array(value, "spectrum = {!r}: rows of numbers [weight, eigenvalue] are expected").copy()
    if array.ndim != 2 or array.shape[1] not in (2, 1 + contexts, 2 + contexts):
        raise InputError(
            f"spectrum has shape {array.shape}; every row must be a weight and an eigenvalue, as [[0.5, 1], [0.5, 4]], "
            f"or a weight and {contexts} (one per context); the teacher's variance may follow"
        )
    if not np.isfinite(array).all():
        raise InputError("spectrum contains numbers that are not finite")
    _check_floating_point_range("spectrum", value, array, positive=False)
    array.setflags(write=False)
    return array


def _check_token_law(value: Any, problem: Problem) -> TokenLaw | None:
    """Return a law of the tokens as numbers, after checking it against the sizes of the problem."""
    if value is None:
        return None
    if isinstance(value, TokenLaw):
        _check_token_law_sizes(value.gamma, value.gram, problem)
        return value
    try:
        arrays = {name: np.asarray(item, float) for name, item in value.exact_law_arrays().items()}
    except ModelError as error:
        raise InputError(str(error)) from None
    except (AttributeError, TypeError, ValueError):
        own = getattr(value, "law", None)
        instead = "give its law, law=data.law" if isinstance(own, TokenLaw) else "as Tokens.from_arrays(x) makes them"
        raise InputError(
            f"law must be Tokens whose entries are numbers, not {type(value).__name__}; {instead}; a function that "
            "returns Tokens is the law of a model, @model(law=...)"
        ) from None
    if arrays["labels"].size != problem.clusters**problem.tokens:
        raise InputError(
            f"law has {arrays['labels'].size} label probabilities; {problem.clusters}^{problem.tokens} are expected"
        )
    _check_token_law_sizes(arrays["covariance"], arrays["gram"], problem)
    try:
        value.check_teacher_means()
    except ModelError as error:
        raise InputError(str(error)) from None
    return TokenLaw.from_arrays(arrays, problem.tokens, problem.clusters)


def _check_token_law_sizes(gamma: np.ndarray, gram: np.ndarray, problem: Problem) -> None:
    size = problem.contexts + problem.teacher_rank
    if gamma.shape[1:] != (problem.contexts,) or gram.shape[1:] != (size, size):
        raise InputError(
            f"law has {gamma.shape[1]} contexts and Gram matrices {gram.shape[1:]}; "
            f"{problem.contexts} contexts and {(size, size)} are expected (set teacher_rank or clusters to match)"
        )


def _require_positive_number(name: str, value: Any, meaning: str = "") -> float:
    """Return a value as a positive float; raise InputError if it is not one."""
    number = _convert_to_number(name, value)
    require_in_interval(name, number, f"(0, inf){meaning}")
    _check_floating_point_range(name, value, number, positive=True)
    return number


def _convert_to_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        several = "; several values are a curve, as sf.curve(problem, alpha=(0.5, 3, 26))" if np.ndim(value) else ""
        raise InputError(f"{name} = {value!r}: a number is expected{several}") from None


def _check_floating_point_range(name: str, value: Any, numbers: Any, positive: bool) -> None:
    """Raise InputError for numbers whose fourth powers overflow or underflow in double precision.

    Args:
        name: name of the argument, for the message.
        value: the value as the user gave it.
        numbers: the value as an array.
        positive: whether zero is excluded, so that tiny numbers are refused as well.
    """
    sizes, low = np.abs(numbers), _MIN_MAGNITUDE
    if np.any(np.isfinite(sizes) & (sizes > 1 / low)) or (positive and np.any((sizes > 0) & (sizes < low))):
        raise InputError(
            f"{name} = {value!r} is beyond double precision; sizes from {low:g} to {1 / low:g} are allowed"
        )


def _parameter_display_name(name: str) -> str:
    """Return the name of a parameter for messages; for a keyword of Python also its spelling there."""
    bare = name.rstrip("_")
    return f"{bare} (in Python {bare}_=)" if iskeyword(bare) else bare


def _check_parameter_value(spec: Mapping[str, Any], value: Any) -> Any:
    """Return a parameter's value after checking its shape and range; a scalar fills a vector."""
    name, shape = spec["name"], tuple(spec["shape"])
    shown = name.rstrip("_")
    array = convert_to_number_array(value, shown + " = {!r}: a number or a nested list of numbers is expected").copy()
    if array.shape == () and len(shape) == 1:
        array = np.full(shape, float(array))
    if array.shape != shape:
        expected = f"an array of shape {shape}" if shape else "a number"
        raise InputError(f"{shown} has shape {array.shape}; {expected} is expected")
    low, high = spec["low"], spec["high"]
    bad = ~np.isfinite(array)
    _check_floating_point_range(shown, value, array, low == 0 and spec["open_low"])
    if low is not None:
        bad |= (array <= low) if spec["open_low"] else (array < low)
    if high is not None:
        bad |= (array >= high) if spec["open_high"] else (array > high)
    if bad.any():
        raise InputError(
            f"{shown} = {value!r} is out of range; allowed is {spec['allowed']}{_describe_parameter(name, spec['doc'])}"
        )
    if not shape:
        return float(array)
    array.setflags(write=False)
    return array
