"""Problems: a model's generated solver with a sample complexity alpha = n / d and values of the model's parameters."""

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
    """Options of the checks of a new problem's loss, which is evaluated at random fields.

    Attributes:
        student_fields: number of random student fields X for each random teacher field Y; more find rarer failures.
        standard_deviations: factors on the standard deviations of teacher fields Y and noise, one random draw for each.
    """

    student_fields: int = 20
    standard_deviations: tuple[float, ...] = (0.5, 1.0, 1.0, 2.0) * 4


@dataclass(frozen=True)
class Problem(AttributeErrorHints):
    """A model with values of its parameters: everything that a solution depends on. Make one with `problem`.

    Attributes:
        sample_complexity: alpha = n / d, or None if it was left open.
        parameters: values of the model's parameters by name, floats or arrays.
        spectrum: one row per spectral atom, with its weight and an eigenvalue of every token covariance; None for the
            model's own.
        given_law: a law of the tokens in place of the model's, or None.
        search: how the proximal map searches the global minimum: 1 by descents from omega and its mirror images, 2 in
            the whole ball that must contain it.
        inverse_temperature: inverse temperature of a Gibbs measure over the weights; None for the minimum of the risk.
        lines: for every position path_A or scale_A, the name of the array parameter A and the line that it moves on.

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
        """The sample complexity alpha = n / d.

        Raises:
            InputError: the problem was made without alpha.
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
        """Number s of columns of the student's weight matrix W, in which all trained matrices stand side by side."""
        return self.solver.structural_sizes["student_rank"]

    @cached_property
    def teacher_rank(self) -> int:
        """Number t of columns of the teacher's weight matrix W*."""
        return self.solver.structural_sizes["teacher_rank"]

    @cached_property
    def clusters(self) -> int:
        """Number of clusters (values of the label) of a token."""
        return self.solver.structural_sizes["clusters"]

    @cached_property
    def contexts(self) -> int:
        """Number of contexts: pairs of a token and a cluster, ordered by token, then by cluster."""
        return self.tokens * self.clusters

    @property
    def sizes(self) -> Sizes:
        """Numbers of contexts, columns of W, columns of W* and trained numbers, which give the shapes of overlaps."""
        return self.contexts, self.student_rank, self.teacher_rank, len(self.trained)

    @cached_property
    def parameter_vector(self) -> np.ndarray:
        """All parameters of the model as one vector, in the order of their declaration."""
        values = [np.ravel(self.parameters[spec["name"]]) for spec in self.solver.model.PARAMETERS]
        return np.concatenate(values) if values else np.zeros(0)

    @cached_property
    def law(self) -> TokenLaw:
        """The law of the tokens: the one passed to `problem`, else the model's; with the spectrum passed to it, if any.

        Raises:
            InputError: the law with this spectrum is not valid.
        """
        law = self.given_law or TokenLaw.from_arrays(
            self.solver.model.law(self.parameter_vector), self.tokens, self.clusters
        )
        if self.spectrum is not None:
            law = law.with_spectrum(self.spectrum)
            law.refuse_invalid_law()
        return law

    def cached_result_of(self, function: Callable[[Problem], Answer]) -> Answer:
        """Return the value of a function of this problem, computed at the first call and cached in the problem."""
        answers = self.__dict__.setdefault("_answers", {})
        if function not in answers:
            answers[function] = function(self)
        return answers[function]

    @property
    def trained(self) -> tuple[Mapping[str, Any], ...]:
        """Declarations (name, start value, ridge) of the scalars phi that are trained together with the weights."""
        return self.solver.model.TRAINED

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the model's metrics if it has several; `test_error` averages the first one."""
        return self.solver.model.METRICS

    @property
    def metric_name(self) -> str:
        """Name of the metric that `test_error` averages; empty if the model has a single, unnamed one."""
        first = self.metric_names[0] if self.metric_names else ""
        return first if self.solver.base is None else self.solver.folder.name.removeprefix("metric_")

    def with_metric(self, name: str) -> Problem:
        """Return the problem with another metric of its model for the test error.

        Raises:
            InputError: the model has no metric of this name.
        """
        if name in self.metric_names[:1]:
            return self if self.solver.base is None else replace(self, solver=self.solver.base)
        if name not in self.solver.metric_solvers:
            raise InputError(describe_unknown_name("metric", name, self.metric_names, self.solver.name))
        return replace(self, solver=self.solver.metric_solvers[name])

    @property
    def parameter_lines_for_json(self) -> dict[str, Any]:
        """End points and position of every array parameter given as a line, as JSON allows."""
        ends = {of: line.end_points for of, line in self.lines.values()}
        return {**ends, **{name: line.position for name, (_, line) in self.lines.items()}}

    @property
    def vanishing_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that the model declares to be vanishing: it is defined by their limit 0."""
        return tuple(spec["name"] for spec in self.solver.model.PARAMETERS if spec["vanishing"])

    @property
    def nonzero_vanishing_parameters(self) -> dict[str, dict[str, float]]:
        """Values of the parameters whose limit 0 defines the model; empty if all are 0, as in the limit."""
        values = {name: float(self.parameters[name]) for name in self.vanishing_parameters}
        return {"not_in_the_limit": values} if any(values.values()) else {}

    @property
    def has_teacher_overlap(self) -> bool:
        """Whether theta may differ from 0, since loss, penalty or token law depend on the teacher."""
        law, contexts = self.law, self.contexts
        return (
            self.solver.channel.FEATURES > 0  # of the teacher's fields and the noise
            or self.regulariser.teacher_column_count_in_penalty > 0
            or bool(np.any(law.gram[:, :contexts, contexts:]) or np.any(law.teacher_means))
        )

    @cached_property
    def regulariser(self) -> Regulariser:
        """The model's regulariser at these parameters.

        Raises:
            InputError: the model declares an unknown kind of regulariser.
        """
        return make_regulariser(self.solver, self.law, self.parameters, self.temperature)

    has_ridge = deprecated_attribute("has_ridge", DeprecatedName("regulariser.is_quadratic", "0.1.0", "0.3.0"))
    has_sphere = deprecated_attribute("has_sphere", DeprecatedName("regulariser.keeps_norms", "0.1.0", "0.3.0"))
    by_metric = deprecated_attribute("by_metric", DeprecatedName("with_metric", "0.1.0", "0.3.0"))

    @property
    def strengths(self) -> np.ndarray:
        """Parameters of the regulariser in order of declaration, such as the ridge strength of every column of W."""
        return self.regulariser.declared_parameter_values

    @property
    def temperature(self) -> float:
        """Temperature of the Gibbs measure over the weights; 0 if they minimise the risk."""
        return 0.0 if self.inverse_temperature is None else 1 / self.inverse_temperature

    def require_zero_temperature(self, what_is_done: str) -> None:
        """Raise InputError at a finite temperature, for calculations implemented at zero temperature only.

        Raises:
            InputError: the temperature is finite; the message begins with `what_is_done`.
        """
        if self.inverse_temperature is not None:
            raise InputError(f"{what_is_done} at zero temperature only; leave inverse_temperature out")

    @cached_property
    def leading_prior_arguments(self) -> tuple[np.ndarray, ...]:
        """First arguments of the generated functions of the weights: token law, then parameters of the regulariser."""
        return self.law.weights, self.law.gamma, self.law.gram, *self.regulariser.prior_arguments_of_regulariser

    def prior_map_at_parameters(self, name: str) -> Callable[..., Any]:
        """Return a generated average over the weights as a function of the conjugates, at this problem's parameters.

        Its name is "overlaps", "free_entropy" or "responses". It is the one at the problem's temperature.
        """
        module = self.solver.prior_functions
        warm = None if self.inverse_temperature is None else getattr(module, f"thermal_{name}", None)
        if warm is None:
            return partial(getattr(module, name), *self.leading_prior_arguments)
        return partial(warm, *self.leading_prior_arguments, self.temperature)

    def multipliers(self, hats: Conjugates) -> np.ndarray | None:
        """Return the ridge strengths (s,) that give the columns of W their fixed norms; None if norms are not fixed.

        Raises:
            DomainError: no strengths give these norms.
        """
        return self.regulariser.norm_multipliers(hats)

    @cached_property
    def noise_scale(self) -> np.ndarray:
        """Standard deviations of the Gaussian variables of the label noise."""
        return np.sqrt(np.asarray(self.solver.model.noise_variances(self.parameter_vector), float).reshape(-1))

    @property
    def has_targets_in_loss(self) -> bool:
        """Whether the loss depends on targets: teacher fields Y, noise or cluster labels."""
        return self.solver.channel.FEATURES > 0 or self.contexts > self.tokens

    @cached_property
    def is_gaussian_noise(self) -> np.ndarray:
        """Mask of the noise variables that are Gaussian, (noise variables,); the others take discrete values."""
        return np.array([gaussian for _, gaussian in self.solver.model.NOISE], bool)

    def kink_planes(self, of: str, constants: np.ndarray) -> np.ndarray:
        """Return the planes on which the loss or the metric has kinks, one per row.

        A row holds the coefficients of student fields, teacher fields and Gaussian noise, and a constant; the plane is
        where their sum vanishes.

        Args:
            of: "loss" or "metric".
            constants: the channel's constants, as the method `constants` returns them.
        """
        rows = self.solver.model.planes(constants)[of]
        return np.array(rows, float).reshape(-1, self.dimension + 1)

    def kinks_along_single_fields(self, constants: np.ndarray) -> list[tuple[int, float]]:
        """Return the kinks of the loss in single student fields, as pairs of the field's index and the position."""
        found = set()
        for row in self.kink_planes("loss", constants):
            held = np.flatnonzero(row[:-1])
            if len(held) == 1 and held[0] < self.tokens * self.student_rank:
                found.add((int(held[0]), float(-row[-1] / row[held[0]])))
        return sorted(found)

    @property
    def dimension(self) -> int:
        """Number of integration variables of channel averages: fields omega, teacher fields Y and Gaussian noise."""
        return self.tokens * (self.student_rank + self.teacher_rank) + len(self.noise_scale)

    @cached_property
    def label_probabilities(self) -> list[tuple[tuple[int, ...], float]]:
        """All assignments of labels to the tokens with positive probability, as pairs (labels, probability)."""
        choices = product(range(self.clusters), repeat=self.tokens)
        return [(k, float(self.law.labels[k])) for k in choices if self.law.labels[k] > 0]

    @cached_property
    def unbounded_rays(self) -> list[tuple[tuple[int, ...], UnboundedRay]]:
        """Rays of student fields along which the loss is unbounded below at random teacher fields, with labels."""
        generator, size = np.random.default_rng(19), self.tokens * self.student_rank
        drawn = self.sample_loss_functions(generator)
        return [(labels, fall) for labels, _, loss in drawn for fall in find_unbounded_rays(loss, size, generator)]

    def draw_teacher_fields(
        self, labels: tuple[int, ...], generator: np.random.Generator, widths: float = 1.0
    ) -> np.ndarray:
        """Return random teacher fields Y, (L, t), drawn independently from their marginal normal laws.

        Args:
            labels: label of every token, (L,).
            generator: generator of the random numbers.
            widths: factor on the standard deviations of the fields.
        """
        contexts = self.token_cluster_indices(labels)
        spread = np.sqrt(np.diagonal(self.law.rho_star, axis1=1, axis2=2))[contexts]
        return self.law.teacher_means[contexts] + widths * spread * generator.standard_normal(spread.shape)

    def sample_loss_functions(
        self, generator: np.random.Generator
    ) -> Iterator[tuple[tuple[int, ...], np.ndarray, Callable[[np.ndarray], Any]]]:
        """Yield labels, random teacher fields Y, and the loss there as a Python function of the student fields X.

        Teacher fields at which the loss overflows are left out.
        """
        channel = self.solver.channel
        gaussian = self.is_gaussian_noise
        for labels, _ in self.label_probabilities:
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

                    def _loss_at_fields(x: np.ndarray, known: Any = known, c: np.ndarray = c) -> Any:
                        return channel.loss.py_func(*x.tolist(), *known, c)

                    yield labels, y.ravel(), _loss_at_fields

    def constants(self, labels: tuple[int, ...], overlaps: Overlaps | None = None) -> np.ndarray:
        """Return the constants that generated channel functions take, as one vector.

        These are the mean eigenvalue and the label of every token, the parameters, and those overlaps q and trained
        numbers that the loss contains.

        Args:
            labels: label of every token, (L,).
            overlaps: overlaps that give q and the trained numbers; by default q = 0 and the numbers' start values.
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
            own = [*q[self.token_cluster_indices(labels)][:, rows, columns], *own]
        return np.concatenate([self._constants_independent_of_solution(labels), *own])

    def _constants_independent_of_solution(self, labels: tuple[int, ...]) -> np.ndarray:
        """Return the part of `constants` that depends on the problem and the labels, not on a solution."""
        if labels not in self._cache_of_channel_constants:
            law, own = self.law.rho[self.token_cluster_indices(labels)], np.asarray(labels, float)
            self._cache_of_channel_constants[labels] = np.concatenate([law, own, self.parameter_vector])
        return self._cache_of_channel_constants[labels]

    def token_cluster_indices(self, labels: tuple[int, ...]) -> np.ndarray:
        """Return the index of the context (token, cluster) of every token at given labels, (L,)."""
        if labels not in self._token_cluster_index_cache:
            self._token_cluster_index_cache[labels] = np.arange(self.tokens) * self.clusters + np.asarray(labels, int)
        return self._token_cluster_index_cache[labels]

    def describe_token_and_cluster(self, context: int) -> str:
        """Return "token 2, cluster 1" for a context, without what the model has only one of."""
        token, cluster = divmod(context, self.clusters)
        counts = ("token", token, self.tokens), ("cluster", cluster, self.clusters)
        return ", ".join(f"{name} {number + 1}" for name, number, count in counts if count > 1)

    @cached_property
    def _cache_of_channel_constants(self) -> dict[tuple[int, ...], np.ndarray]:
        """Cache of the problem's channel constants, by labels."""
        return {}

    @cached_property
    def _token_cluster_index_cache(self) -> dict[tuple[int, ...], np.ndarray]:
        """Cache of the indices of the contexts (token, cluster), by labels."""
        return {}

    def with_(self, **changes: Any) -> Problem:
        """Return a copy of the problem with some parameters changed.

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
                raise InputError(f"parameter {of.rstrip('_')} is given twice, once through {name}; give one of the two")
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
        """Return whether a name is path_A or scale_A: position of an array A on a line, or a factor on it."""
        return self._find_parameter_line(name) is not None

    def _find_parameter_line(self, name: str) -> tuple[str, Between] | None:
        """Return for path_A or scale_A the name A and the line it moves on (for scale_A from 0 to A); else None."""
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
        return of, line.at_position(t)

    def value_of_parameter(self, name: str) -> float:
        """Return the value of a scalar parameter, given its name.

        Args:
            name: a parameter, alpha included (nan if it was left open); a vector whose entries are all equal; an entry
                of an array, counted from 1: sigma[2], A[1,2]; or the position of an array on a line.

        Raises:
            InputError: the problem has no scalar parameter of this name.
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

        def has_equal_entries(value: Any) -> bool:
            return (np.ndim(value) < 2 and len(np.unique(value)) == 1) or np.size(value) == 1

        if name not in self.parameters or not has_equal_entries(self.parameters[name]):
            scalars = [n.rstrip("_") for n, v in self.parameters.items() if has_equal_entries(v)]
            raise InputError(
                f"{name!r} is not a scalar parameter{explain_why_number_is_trained(self.solver, name)}; known are "
                f"{', '.join(['alpha', *scalars, *self.lines])}; for an array A: an entry, as A[1,2], a common factor, "
                "scale_A, or the position path_A on its line"
            )
        return float(np.ravel(self.parameters[name])[0])

    def require_scalar_parameters(self, *names: str) -> None:
        """Raise InputError unless the names are scalar parameters and alpha has a value or is one of them.

        Raises:
            InputError: a name is no scalar parameter, or alpha has no value and is not among the names.
        """
        for name in names:
            self.value_of_parameter(name)
        if "alpha" not in names:
            _ = self.alpha


_MIN_MAGNITUDE = 1e-60  # of non-zero numbers: the fourth power is a normal double; the inverse is the largest
_ENTRY = re.compile(r"(\w+)\[(\d+(?:,\d+)*)\]")


def parse_array_entry(name: str) -> tuple[str, tuple[int, ...]] | None:
    """Return the parameter A and the index (0, 1), from 0, for a name such as A[1,2]; None for any other name."""
    found = _ENTRY.fullmatch(name.replace(" ", ""))
    if found is None:
        return None
    return stored_parameter_name(found[1]), tuple(int(n) - 1 for n in found[2].split(","))


def _array_entry_value(name: str, values: Any, index: tuple[int, ...]) -> Any:
    shape = np.shape(values)
    if values is None or len(index) != len(shape) or not all(0 <= i < n for i, n in zip(index, shape, strict=True)):
        last = ",".join(map(str, shape))
        first = re.sub(r"\d+", "1", last)
        remedy = f"entries are {name.partition('[')[0]}[{first}] to [{last}], counted from 1"
        if not shape:
            remedy = "there is no such parameter" if values is None else "it is one number"
        raise InputError(f"unknown entry {name!r} of an array parameter: {remedy}")
    return np.asarray(values)[index]


def stored_parameter_name(name: str) -> str:
    """Return the name under which a parameter is stored: lambda_ for lambda, which Python reserves."""
    return "lambda_" if name == "lambda" else name


def _refuse_attribute_change(self: Problem, name: str, value: Any) -> None:
    raise AttributeError(f"a problem cannot be changed; problem.with_({name}={value!r}) returns a changed copy")


Problem.__setattr__ = _refuse_attribute_change  # type: ignore[assignment, method-assign]  # in place of FrozenInstanceError


def require_problem(given: object) -> None:
    """Raise InputError unless the argument is a Problem.

    Raises:
        InputError: it is something else; the message says what to write instead.
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
    """Return a problem: a model together with a sample complexity and values of its parameters.

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
    gaussian = [name for name, is_gaussian_noise in solver.model.NOISE if is_gaussian_noise]
    for name, variance in zip(gaussian, solver.model.noise_variances(built.parameter_vector), strict=True):
        if not variance >= 0:
            raise InputError(
                f"the variance of the noise {name} is {variance:g}; choose parameters for which it is at least 0"
            )
    built.regulariser.refuse_invalid_parameters(_parameters_in_words(built, solver.model.STRENGTHS))
    _check_noise_probabilities(built)
    _require_finite_loss(built)
    _require_loss_bounded_below(built)
    return built


def explain_why_number_is_trained(solver: Solver, name: str) -> str:
    """Return the end of an error message if a name is that of a trained number, not of a parameter; else "".

    Args:
        solver: solver of the model.
        name: the name that the user gave as a parameter.
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
    """Return for every parameter A given as a line (`Between`) the name A and the line, under the key path_A."""
    lines = {}
    for of, line in values.items():
        if isinstance(line, Between) and of in specs:
            name = f"path_{of.rstrip('_')}"
            if name in specs:
                raise InputError(
                    f"{of.rstrip('_')} cannot be a line: its position {name} is another parameter's name; rename that"
                )
            for end in (line.first, line.last):
                _check_parameter_value(specs[of], end)
            lines[name] = of, line
    return lines


def _describe_parameter(name: str, words: str) -> str:
    """Return symbol and description of a parameter in brackets: (σ, standard deviation of a label's noise)."""
    letter = GREEK.get(name.rstrip("_"), "")
    return f" ({', '.join(part for part in (letter, words) if part)})" if letter or words else ""


_ALPHA_MEANING = _describe_parameter("alpha", "number of samples over the dimension d")


def _check_inverse_temperature(value: Any, solver: Solver) -> float | None:
    """Return the inverse temperature as a number (None: zero temperature), after checking that the solver supports it.

    Raises:
        InputError: it is out of range, the model has too many fields for it, or the model needs a finite one.
    """
    reduced = solver.solvers_of_reduced_problems.get("loss", solver)
    if value is None:
        # The reduced loss may have a proximal map where the full one has none.
        if solver.model.NO_PROXIMAL_MAP and reduced.model.NO_PROXIMAL_MAP:
            raise InputError(solver.no_proximal_map_message)
        return None
    number = _require_positive_number("inverse_temperature", value)
    thermal = reduced.thermal_channel
    if not thermal.HAS_AVERAGES:
        raise InputError(
            f"a finite temperature needs an integral over {thermal.FIELDS} fields X of {solver.name} at every node; "
            "at most 4 are possible, so leave inverse_temperature out"
        )
    return number


def _parameters_in_words(problem: Problem, names: Iterable[str]) -> str:
    """Return text such as "alpha = 2, Delta = 0.5" for an error message."""
    return ", ".join(f"{name.rstrip('_')} = {problem.parameters[name]}" for name in names)


def _non_default_parameters(problem: Problem) -> list[str]:
    """Return the names of the parameters that differ from their defaults."""
    specs = problem.solver.model.PARAMETERS
    return [each["name"] for each in specs if not np.array_equal(problem.parameters[each["name"]], each["default"])]


def _check_noise_probabilities(problem: Problem) -> None:
    """Raise InputError if a value of discrete noise has a probability outside [0, 1] at random teacher fields."""
    model = problem.solver.model
    if model.NO_PROXIMAL_MAP or all(is_gaussian_noise for _, is_gaussian_noise in model.NOISE):
        return
    channel, generator = problem.solver.proximal, np.random.default_rng(7)
    count = LossCheckOptions.current().student_fields
    for labels, _ in problem.label_probabilities:
        y = np.array([problem.draw_teacher_fields(labels, generator).ravel() for _ in range(count)])
        law = channel.noise_law_at.py_func(y, problem.constants(labels))  # type: ignore[attr-defined]
        wrong = ~((law >= -1e-12) & (law <= 1 + 1e-12)).all(axis=1)
        if wrong.any():
            at = int(np.argmax(wrong))
            noises = ", ".join(name for name, is_gaussian_noise in model.NOISE if not is_gaussian_noise)
            values, found = (", ".join(f"{z:g}" for z in np.ravel(each)) for each in (channel.LABELLED_NOISE, law[at]))
            raise InputError(
                f"probabilities of the values {values} of the noise {noises} are {found} at Y = "
                f"({', '.join(f'{z:.3g}' for z in y[at])}): they must be in [0, 1]"
            )


def _require_finite_loss(problem: Problem) -> None:
    """Raise InputError if the loss is finite at none of a number of random fields."""
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
            f"model {problem.solver.name}: at {_parameters_in_words(problem, changed)} the loss is no finite number "
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
    at = f" at {_parameters_in_words(problem, changed)}" if changed else ""
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
            f"or a weight and {contexts} eigenvalues (one per token and cluster), then perhaps the teacher's variance"
        )
    if not np.isfinite(array).all():
        raise InputError("spectrum contains numbers that are not finite (inf or nan); give finite ones")
    _check_floating_point_range("spectrum", value, array, positive=False)
    array.setflags(write=False)
    return array


def _check_token_law(value: Any, problem: Problem) -> TokenLaw | None:
    """Return the user's law of the tokens as arrays, after checking their shapes against the sizes of the problem."""
    if value is None:
        return None
    if isinstance(value, TokenLaw):
        _check_token_law_sizes(value.gamma, value.gram, problem)
        return value
    try:
        arrays = {name: np.asarray(item, float) for name, item in value.exact_arrays_of_law().items()}
    except ModelError as error:
        raise InputError(str(error)) from None
    except (AttributeError, TypeError, ValueError):
        own = getattr(value, "law", None)
        advice = "give law=data.law" if isinstance(own, TokenLaw) else "make them by Tokens.from_arrays(x)"
        raise InputError(
            f"law must be Tokens whose entries are numbers, not {type(value).__name__}; {advice}; a function that "
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
            f"law has {gamma.shape[1]} (token, cluster) pairs and Gram matrices of shape {gram.shape[1:]}; "
            f"{problem.contexts} pairs and shape {(size, size)} are expected (set teacher_rank or clusters to match)"
        )


def _require_positive_number(name: str, value: Any, meaning: str = "") -> float:
    """Return a value as a float; raise InputError unless it is a positive number."""
    number = _convert_to_number(name, value)
    require_in_interval(name, number, f"(0, inf){meaning}")
    _check_floating_point_range(name, value, number, positive=True)
    return number


def _convert_to_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        advice = "; for several values use sf.curve(problem, alpha=(0.5, 3, 26))" if np.ndim(value) else ""
        raise InputError(f"{name} = {value!r}: a number is expected{advice}") from None


def _check_floating_point_range(name: str, value: Any, numbers: Any, positive: bool) -> None:
    """Raise InputError for numbers so large or small that their fourth powers overflow or underflow.

    Args:
        name: name of the argument, for the message.
        value: the value as the user gave it.
        numbers: the value as an array.
        positive: whether the numbers must be positive, so that tiny ones are refused, too.
    """
    sizes, low = np.abs(numbers), _MIN_MAGNITUDE
    if np.any(np.isfinite(sizes) & (sizes > 1 / low)) or (positive and np.any((sizes > 0) & (sizes < low))):
        raise InputError(
            f"{name} = {value!r} is beyond double precision; sizes from {low:g} to {1 / low:g} are allowed"
        )


def _parameter_display_name(name: str) -> str:
    """Return the name of a parameter for messages; if Python reserves it, with its spelling there: lambda_."""
    bare = name.rstrip("_")
    return f"{bare} (in Python {bare}_=)" if iskeyword(bare) else bare


def _check_parameter_value(spec: Mapping[str, Any], value: Any) -> Any:
    """Return a parameter's value as float or array, after checking shape and range; a scalar fills a vector."""
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
