"""Named parameters of a model, and the structural sizes that decide which solver is generated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import sympy as sp

from ..errors import ModelError
from .language import to_exact_rationals

STRUCTURAL = ("tokens", "student_rank", "teacher_rank", "clusters")
_SHORT = {"tokens": "l", "student_rank": "s", "teacher_rank": "t", "clusters": "k"}
# Names that arguments of a model's functions, or of a problem, already have.
_RESERVED = {
    *("alpha", "lambda", "inverse_temperature", "spectrum", "law", "model", *STRUCTURAL),
    *("X", "Y", "h", "B", "k", "Q", "structure"),
}


@dataclass(frozen=True)
class Structure:
    """The structural sizes of a model: tokens L, columns s of student and t of teacher, clusters K of each token."""

    tokens: int
    student_rank: int
    teacher_rank: int
    clusters: int = 1

    def __post_init__(self) -> None:
        for name in STRUCTURAL:
            value = getattr(self, name)
            lowest = 0 if name == "teacher_rank" else 1  # a reduced loss may depend on no combination of Y alone
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ModelError(f"{name} = {value!r} is out of range; allowed are whole numbers from {lowest}")

    @property
    def folder_name(self) -> str:
        """Return the name of the generated solver's folder, for example l2_s1_t1_k1."""
        return "_".join(f"{_SHORT[name]}{getattr(self, name)}" for name in STRUCTURAL)

    def replace(self, **changes: int) -> Structure:
        """Return a copy with some sizes changed; unlike `Model.structure`, without checking a model's bounds.

        Raises:
            ModelError: a size is not a positive whole number.
        """
        return replace(self, **changes)


@dataclass(frozen=True)
class FreeSize:
    """A structural size that the user may set, with its default and bounds."""

    default: int
    low: int = 1
    high: int | None = None


def structural(default: int, low: int = 1, high: int | None = None) -> FreeSize:
    """Mark a structural size of a model as free: `@model(tokens=structural(2))`.

    Args:
        default: size where the user sets none.
        low: lowest value allowed.
        high: highest value allowed; None for no bound.

    Example:
        >>> @sf.model(student=sf.structural(2, high=3))
        ... def sum_of_columns(X, Y):
        ...     return sf.half_square(Y - sf.Matrix([[sum(X)]]))
        >>> sum_of_columns.structure(student_rank=3).student_rank
        3
    """
    return FreeSize(default, low, high)


@dataclass(frozen=True)
class Parameter:
    """A named number or array that a model depends on; changing it never regenerates a solver.

    Args:
        default: a number, a nested list, or a function of the Structure that returns one of these.
        low, high: range allowed for every entry.
        open_low, open_high: whether the lower or upper end is excluded from the range.
        doc: a short description, for tables of parameters.
        name: name of the parameter, set by the model.
        vanishing: whether the intended model is the limit of a vanishing parameter, as for a width that rounds a
            corner; error bars then include the shift due to its nonzero value.

    Example:
        >>> steepness = sf.Parameter(1, low=0, open_low=True, doc="of the teacher's labels")
        >>> @sf.model()
        ... def regression(X, Y, *, steepness=steepness):
        ...     return sf.half_square(sf.Matrix([[sp.tanh(steepness * Y[0])]]) - X)
        >>> steepness.allowed, sf.problem(regression, alpha=2).parameters["steepness"]
        ('(0, inf)', 1.0)
    """

    default: Any
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    doc: str = ""
    name: str = ""
    vanishing: bool = False

    def with_name(self, name: str) -> Parameter:
        """Return a copy of the parameter with a name, its keyword in the model's function.

        Raises:
            ModelError: the name contains other characters than letters, digits and _, or is reserved.
        """
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name in _RESERVED:
            reserved_names = ", ".join(sorted(_RESERVED))
            raise ModelError(
                f"the parameter name {name!r} is not allowed: use letters, digits and _, and none of the reserved "
                f"names {reserved_names}"
            )
        return replace(self, name=name)

    def exact_default(self, structure: Structure) -> Any:
        """Return the default value as an exact SymPy number, or a nested tuple of such numbers.

        Raises:
            ModelError: the default is neither a finite number nor a nested list of numbers.
        """
        default = self.default(structure) if callable(self.default) else self.default
        return to_exact_numbers(default, f"the default of the parameter {self.name.rstrip('_')!r}")

    def default_shape(self, structure: Structure) -> tuple[int, ...]:
        """Return the shape of the parameter's default value; () for a number."""
        value, shape = self.exact_default(structure), []
        while isinstance(value, tuple):
            shape.append(len(value))
            value = value[0] if value else None
        return tuple(shape)

    def argument_symbols(self, structure: Structure) -> Any:
        """Return the symbols that stand for the parameter: a Symbol, a nested tuple, or a Matrix for two axes.

        Their names end in an underscore, to be distinct from all names in generated code.
        """
        shape = self.default_shape(structure)

        def _nested_symbols(prefix: str, rest: tuple[int, ...]) -> Any:
            if not rest:
                return sp.Symbol(f"{prefix.rstrip('_')}_", real=True)
            return tuple(_nested_symbols(f"{prefix}_{i}", rest[1:]) for i in range(rest[0]))

        built = _nested_symbols(self.name, shape)
        return sp.Matrix(built) if len(shape) == 2 else built

    @property
    def allowed(self) -> str:
        """Return the allowed range of the parameter as text, for example "(0, inf)"."""
        left = "(" if self.open_low or self.low is None else "["
        right = ")" if self.open_high or self.high is None else "]"
        low = "-inf" if self.low is None else f"{self.low:g}"
        high = "inf" if self.high is None else f"{self.high:g}"
        return f"{left}{low}, {high}{right}"


@dataclass(frozen=True)
class Trained:
    """A number phi of order one that is trained with the weights, as a bias (docs/theory.md (1.3), (5.12)).

    Args:
        start: initial value in iterations.
        ridge: strength of its own penalty 1/2 ridge phi^2, per dimension d.
    """

    start: Any = 1
    ridge: Any = 0
    name: str = ""


def trained(start: Any = 1, ridge: Any = 0) -> Trained:
    """Mark an argument of the loss as trained: `def loss(X, Y, *, beta=trained(1))`.

    Args:
        start: initial value in iterations.
        ridge: strength of its own penalty 1/2 ridge phi^2, per dimension d.

    Example:
        >>> @sf.model()
        ... def with_bias(X, Y, *, bias=sf.trained(0)):
        ...     return sf.half_square(Y + sf.Matrix([[1]]) - X - sf.Matrix([[bias]]))
        >>> found = sf.solve(sf.problem(with_bias, alpha=2))
        >>> [round(float(number), 6) for number in found.overlaps.phi]
        [1.0]
    """
    return Trained(
        *(to_exact_numbers(n, what) for n, what in ((start, "a trained number's start"), (ridge, "its ridge")))
    )


def flatten_entries(value: Any) -> list[Any]:
    """Return a flat list of the entries of a number, nested tuple or matrix, row by row."""
    if isinstance(value, sp.MatrixBase):
        return list(value)
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in flatten_entries(item)]
    return [value]


def to_exact_numbers(value: Any, description: str) -> Any:
    """Convert a number or nested lists of numbers to exact numbers.

    Args:
        value: a number, or nested lists of numbers.
        description: what the value is, for the error message.

    Raises:
        ModelError: the value contains something that is not a finite real number.
    """
    try:
        found = to_exact_rationals(value)
        if all(leaf.is_number and leaf.is_extended_real and leaf.is_finite for leaf in flatten_entries(found)):
            return found
    except (TypeError, AttributeError):
        pass
    raise ModelError(f"{description} is {value!r}, but must be a finite real number or nested lists of such numbers")


def parameter_from_default(name: str, default: Any) -> Parameter:
    """Return the `Parameter` for an argument's default; plain numbers and arrays get an unlimited range.

    Args:
        name: name of the argument.
        default: its default, a Parameter, a number or an array.
    """
    parameter = default if isinstance(default, Parameter) else Parameter(default)
    return parameter.with_name(name)


@dataclass(frozen=True)
class GaussianNoise:
    """A Gaussian noise of mean zero, with a variance that may depend on parameters.

    Args:
        variance: an expression in parameter names, or a number.

    Example:
        >>> noise = {"u": sf.GaussianNoise("Delta")}
        >>> @sf.model(noise=noise)
        ... def regression(X, Y, u, *, Delta=0.25):
        ...     return sf.half_square(Y + sf.Matrix([[u]]) - X)
        >>> sf.problem(regression, alpha=2, Delta=0.5).parameters["Delta"]
        0.5
    """

    variance: Any


@dataclass(frozen=True)
class DiscreteNoise:
    """A noise with finitely many values, whose probabilities may depend on Y and on parameters.

    Args:
        values: the values.
        probabilities: numbers, expressions in names of parameters as ("1 - share", "share"), or a function of
            (Y, **parameters) that returns one expression a value.

    Example:
        >>> flips = sf.DiscreteNoise((1, -1), lambda Y, *, share: (1 - share, share))
        >>> @sf.model(noise={"u": flips})
        ... def flipped(X, Y, u, *, share=0.1):
        ...     return sf.softplus(-u * sp.sign(Y[0]) * X[0])
        >>> sf.problem(flipped, alpha=2).parameters["share"]
        0.1
    """

    values: tuple[Any, ...]
    probabilities: Any


@dataclass(frozen=True)
class Start:
    """A start of an iteration: rows w = teacher . pi + encodings . tau + noise of W, and a scale for V.

    Here pi is the teacher's row and tau are the mean coordinates of the contexts (token, cluster).

    Args:
        teacher: coefficients of pi, s x t; a number goes on the diagonal (column a of W learns column a of W*).
        encodings: coefficients of tau, s x L (the same for all clusters of a token) or s x (L K), cluster fastest; a
            number is the coefficient of token 1 in the last column of W.
        noise: standard deviation of an independent Gaussian part.
        susceptibility: initial V over the token's variance rho, on the diagonal.

    Each may also be a function of the Structure.

    Example:
        >>> @sf.model(starts={"informed": sf.Start(teacher=0.9, noise=0), "noisy": sf.Start(noise=1)})
        ... def regression(X, Y):
        ...     return sf.half_square(Y - X)
        >>> sorted(regression.starts)
        ['informed', 'noisy']
    """

    teacher: Any = 0
    encodings: Any = 0
    noise: Any = field(default="1/5")
    susceptibility: Any = 20

    def exact_coefficients(self, structure: Structure) -> dict[str, Any]:
        """Return the start's coefficients (teacher, encodings, noise, susceptibility) by name, as exact numbers.

        Raises:
            ModelError: a matrix of coefficients does not have the shape that the structural sizes require.
        """
        given = {name: getattr(self, name) for name in ("teacher", "encodings", "noise", "susceptibility")}
        values = {
            name: to_exact_numbers(value(structure) if callable(value) else value, f"{name} of a start")
            for name, value in given.items()
        }
        s, tokens = structure.student_rank, structure.tokens
        allowed: dict[str, list[tuple[int, ...]]] = {
            "teacher": [(s, structure.teacher_rank)],
            "encodings": list(dict.fromkeys([(s, tokens), (s, tokens * structure.clusters)])),
        }
        for name, value in values.items():
            shape = shape_of_nested_tuples(value)
            if shape and shape not in allowed.get(name, []):
                expected = " or ".join(["a number", *[f"a {a} x {b} matrix" for a, b in allowed.get(name, [])]])
                raise ModelError(f"{name} of a start has shape {shape}; {expected} is expected")
        return values


def shape_of_nested_tuples(value: Any) -> tuple[int, ...]:
    """Return the shape of a number, nested tuple or matrix, with -1 for an axis of unequal lengths."""
    if isinstance(value, sp.MatrixBase):
        return tuple(value.shape)
    if not isinstance(value, tuple):
        return ()
    inner = {shape_of_nested_tuples(item) for item in value}
    return (len(value), *(inner.pop() if len(inner) == 1 else (-1,)))
