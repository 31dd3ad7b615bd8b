"""Regularisers behind one protocol, the interface of the prior to the derivation.

`Ridge` has a closed form in second moments; `Sphere` fixes the norms of the columns of W, by a ridge of multipliers.
`Penalty` is any convex r(w), or r(w, pi) that depends on the teacher's row, as an expression; its averages run over the
field b of a row of W (docs/theory.md section 6).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy as sp

from ..calculus.averages import OrderParameterSymbols
from ..calculus.functions import Box
from ..errors import ModelError
from .language import to_exact_rationals
from .mistakes import explain_author_error
from .parameters import Parameter, Structure, flatten_entries, parameter_from_default


class Regulariser(ABC):
    """A regulariser: a penalty r(w), summed over the rows w of W, or a constraint on W (docs/theory.md (6.1))."""

    @abstractmethod
    def parameters(self, structure: Structure) -> dict[str, Parameter]:
        """Return the regulariser's parameters by name, at given structural sizes."""

    @abstractmethod
    def entropic_potential_of_row(self, symbols: OrderParameterSymbols) -> sp.Expr:
        """Return the regulariser's term in the free entropy, per coordinate (docs/theory.md (4.5)).

        It is the mean of max_w {-r(w) - w^T G w / 2 + w^T b} over a Gaussian field b of mean B and covariance Q.
        """

    @property
    @abstractmethod
    def kind(self) -> str:
        """Return the name of the regulariser's kind; all of one kind have the same saddle-point equations."""

    @property
    def row_regulariser(self) -> Regulariser:
        """Return the regulariser that acts on one row of W; for a constraint, the ridge of its Lagrange multipliers."""
        return self

    @abstractmethod
    def text_for_digest(self, structure: Structure) -> str:
        """Return a text of the regulariser's mathematical definition, to be hashed by digests."""


@dataclass(frozen=True)
class Ridge(Regulariser):
    """The ridge r(w) = 1/2 w^T Lambda w, Lambda = diag(lambda_1, ..., lambda_s) of either sign (docs/theory.md (4.10)).

    Example:
        >>> @sf.model(regulariser=sf.Ridge(0.5))
        ... def regression(X, Y):
        ...     return sf.half_square(Y - X)
        >>> sf.problem(regression, alpha=2).strengths
        array([0.5])
    """

    default: float | str = 0.01

    def parameters(self, structure: Structure) -> dict[str, Parameter]:
        """Return the parameter `lambda_` by name: ridge strengths, shape (s,), all with the same default."""
        values = (self.default,) * structure.student_rank
        return {"lambda_": Parameter(values, doc="ridge strength, one a column of W", name="lambda_")}

    def ridge_strength_symbols(self, structure: Structure) -> tuple[sp.Symbol, ...]:
        """Return the symbols of the ridge strengths, one for each column of W."""
        return tuple(flatten_entries(self.parameters(structure)["lambda_"].argument_symbols(structure)))

    def entropic_potential_of_row(self, symbols: OrderParameterSymbols) -> sp.Expr:
        """Return the ridge's term in the free entropy, 1/2 Tr[(Lambda + G)^{-1} (B B^T + Q)] (docs/theory.md (4.6))."""
        p = symbols
        return sp.Trace((p.Lambda + p.G).inv() * (p.B * p.B.T + p.Q)) / 2

    @property
    def kind(self) -> str:
        """Return "ridge", the kind of all ridge regularisers."""
        return "ridge"

    def text_for_digest(self, structure: Structure) -> str:
        """Return "ridge": the text to be hashed does not contain default strengths, which do not change equations."""
        return self.kind


@dataclass(frozen=True)
class Sphere(Regulariser):
    """A constraint without a penalty: |w_a|^2 = norm_a^2 d for every column a of W (docs/theory.md (6.5)).

    Example:
        >>> @sf.model(regulariser=sf.Sphere(1))
        ... def regression(X, Y):
        ...     return sf.half_square(Y - X)
        >>> sf.problem(regression, alpha=2).regulariser.keeps_norms
        True
    """

    default: float | str = 1

    def parameters(self, structure: Structure) -> dict[str, Parameter]:
        """Return the parameter `norm` by name: norms of the columns of W over sqrt(d), shape (s,), with one default."""
        values = (self.default,) * structure.student_rank
        doc = "norm of a column of W over sqrt(d), one a column"
        return {"norm": Parameter(values, low=0, open_low=True, doc=doc, name="norm")}

    def entropic_potential_of_row(self, symbols: OrderParameterSymbols) -> sp.Expr:
        """Return the ridge's term in the free entropy plus that of the Lagrange multipliers (docs/theory.md (6.5))."""
        return self.row_regulariser.entropic_potential_of_row(symbols) + self.norm_multiplier_term(symbols)

    def norm_multiplier_term(self, symbols: OrderParameterSymbols) -> sp.Expr:
        """Return 1/2 Tr[Lambda Norms]: multipliers times the prescribed squared norms of the columns of W."""
        return sp.Trace(symbols.Lambda * symbols.Norms) / 2

    @property
    def kind(self) -> str:
        """Return "sphere", the kind of constraints on the norms of the columns of W."""
        return "sphere"

    @property
    def row_regulariser(self) -> Ridge:
        """Return a ridge, whose strengths stand for the Lagrange multipliers of the norms."""
        return Ridge()

    def text_for_digest(self, structure: Structure) -> str:
        """Return "sphere": the text to be hashed does not contain default norms, which do not change equations."""
        return self.kind


@dataclass(frozen=True)
class FixedSizePenalty:
    """A convex penalty at fixed structural sizes, as an expression.

    Attributes:
        w, pi: symbols of a row of W (s x 1) and of the teacher's row (t x 1).
        parameters: parameters of the penalty by name.
        expression: the penalty r(w, pi).
        kinks: values of w at which the slope of r jumps, as expressions in pi and parameters (s = 1 only).
        bounds: ends of the interval outside of which r is infinite, also in `kinks`; () if r is finite everywhere.
        written: the author's function r.
    """

    w: sp.Matrix
    pi: sp.Matrix
    parameters: Mapping[str, Parameter]
    expression: sp.Expr
    kinks: tuple[sp.Expr, ...]
    bounds: tuple[sp.Expr, ...] = ()
    written: Callable[..., Any] | None = None

    @property
    def expression_where_finite(self) -> sp.Expr:
        """Return the penalty r(w, pi) without the term that is infinite outside of an interval."""
        return self.expression.replace(Box, lambda *_: sp.Integer(0))

    @property
    def depends_on_teacher(self) -> bool:
        """Return whether the penalty depends on the teacher's row pi."""
        return self.expression.has(*self.pi)


@dataclass(frozen=True)
class Penalty(Regulariser):
    """A convex penalty r(w) or r(w, pi) of a row w (s x 1) of W and the teacher's row pi (t x 1).

    Create one with the decorator `penalty`. Convexity is tested numerically, at default and chosen parameters.
    """

    function: Callable[..., Any]
    known: dict[Structure, FixedSizePenalty] = field(default_factory=dict, compare=False, repr=False)

    def at(self, structure: Structure) -> FixedSizePenalty:
        """Return the penalty at fixed structural sizes, after checks.

        Raises:
            ModelError: the author's function fails, or is not a penalty of w of a supported form.
        """
        if structure not in self.known:
            self.known[structure] = self._build_fixed_size_penalty(structure)
        return self.known[structure]

    def _build_fixed_size_penalty(self, structure: Structure) -> FixedSizePenalty:
        """Return the penalty as an expression, from calling the author's function with symbols, after checks."""
        name = getattr(self.function, "__name__", "penalty")
        w = sp.Matrix(structure.student_rank, 1, lambda a, _: sp.Symbol(f"w_{a}", real=True))
        pi = sp.Matrix(structure.teacher_rank, 1, lambda b, _: sp.Symbol(f"pi_{b}", real=True))
        parameters: dict[str, Parameter] = {}
        arguments: dict[str, Any] = {}
        for key, spec in inspect.signature(self.function).parameters.items():
            if key in ("w", "pi"):
                arguments[key] = {"w": w, "pi": pi}[key]
            elif spec.default is not inspect.Parameter.empty:
                parameters[key] = parameter_from_default(key, spec.default)
                arguments[key] = parameters[key].argument_symbols(structure)
            else:
                raise ModelError(
                    f"penalty {name} has an unknown argument {key!r}: give it a default, as {key}=0.5, or use w and pi"
                )
        try:
            expression = to_exact_rationals(self.function(**arguments))
        except ModelError:
            raise
        except Exception as error:
            message = explain_author_error(error, self.function, arguments)
            raise ModelError(f"penalty {name} failed at {structure.folder_name}: {message}") from error
        if isinstance(expression, sp.MatrixBase | tuple):
            raise ModelError(f"penalty {name} returned {expression}; it must return a single number or expression")
        known = {*w, *pi, *[s for p in parameters.values() for s in flatten_entries(p.argument_symbols(structure))]}
        unknown = expression.free_symbols - known
        if unknown:
            first = min(map(str, unknown))
            raise ModelError(
                f"penalty {name} uses {first}, which it does not declare: add {first}=0.5 to its arguments"
            )
        bounds = _penalty_interval_bounds(name, expression, w)
        kinks = tuple(dict.fromkeys(_penalty_kinks(name, expression, w) + bounds))
        return FixedSizePenalty(w, pi, parameters, expression, kinks, bounds, self.function)

    def parameters(self, structure: Structure) -> dict[str, Parameter]:
        """Return the parameters by name: the arguments with a default in the signature of the author's function.

        Raises:
            ModelError: the author's function fails, or is not a penalty of a supported form.
        """
        return dict(self.at(structure).parameters)

    def entropic_potential_of_row(self, symbols: OrderParameterSymbols) -> sp.Expr:
        """Return the symbol `envelope` of the unevaluated term in the free entropy (docs/theory.md (4.5))."""
        return symbols.envelope

    @property
    def kind(self) -> str:
        """Return "penalty", the kind of all penalties given by a function."""
        return "penalty"

    def text_for_digest(self, structure: Structure) -> str:
        """Return the penalty's kind and expression r(w, pi) as text, to be hashed by digests.

        Raises:
            ModelError: the author's function fails, or is not a penalty of a supported form.
        """
        return f"{self.kind} {sp.srepr(self.at(structure).expression)}"


def penalty(function: Callable[..., Any]) -> Penalty:
    """Make a convex penalty of one row of W from a function r(w) or r(w, pi), whose signature declares parameters.

    Example:
        >>> @sf.penalty
        ... def elastic_net(w, *, l1=0.1, l2=0.01):
        ...     return sum(l1 * sp.Abs(a) + l2 * a**2 / 2 for a in w)
        >>> @sf.model(regulariser=elastic_net)
        ... def regression(X, Y):
        ...     return sf.half_square(Y - X)
        >>> sf.problem(regression, alpha=2, l1=0.3).parameters["l1"]
        0.3
    """
    return Penalty(function)


def _penalty_interval_bounds(name: str, expression: sp.Expr, w: sp.Matrix) -> tuple[sp.Expr, ...]:
    """Return the ends of the interval of w outside of which a penalty is infinite; () if it is finite everywhere."""
    if expression.has(sp.oo, sp.zoo, sp.nan):
        raise ModelError(f"penalty {name} contains infinity; write sf.box(w[0], low, high) for an interval of w")
    boxes = [term for term in sp.Add.make_args(expression) if isinstance(term, Box)]
    if len(boxes) > 1 or (expression - sp.Add(*boxes)).has(Box):
        raise ModelError(f"penalty {name}: use sf.box(w[0], low, high) at most once, and as a term of the penalty")
    if not boxes:
        return ()
    z, low, high = boxes[0].args
    if z != w[0] or len(w) > 1 or any(end.has(*w) for end in (low, high)):
        raise ModelError(
            f"penalty {name}: {boxes[0]} must restrict w[0], the only column of W, to an interval whose ends do not "
            "contain w"
        )
    return low, high


def _penalty_kinks(name: str, expression: sp.Expr, w: sp.Matrix) -> tuple[sp.Expr, ...]:
    """Return the values of w at which the arguments of |.|, max, min, sign and step functions in a penalty vanish."""
    found: list[sp.Expr] = []
    for atom in sorted(expression.atoms(sp.Abs, sp.sign, sp.Heaviside, sp.Max, sp.Min), key=sp.default_sort_key):
        if not atom.has(*w):
            continue
        first = atom.args[0]
        surfaces = [a - first for a in atom.args[1:]] if isinstance(atom, sp.Max | sp.Min) else [first]
        for surface in surfaces:
            if len(w) > 1:
                raise ModelError(
                    f"penalty {name}: corners as in {atom} are supported for one column of W; use a smooth penalty"
                )
            slope = sp.diff(surface, w[0])
            if slope == 0 or slope.has(w[0]):
                raise ModelError(f"penalty {name}: {surface} must be linear in w, so that its corner can be located")
            found.append(sp.factor_terms(-surface.subs(w[0], 0) / slope))
    return tuple(dict.fromkeys(found))
