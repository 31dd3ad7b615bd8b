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
    """A regulariser: a penalty r(w) of one row w of W, or a constraint (docs/theory.md (1.3), (4.5), (6.1))."""

    @abstractmethod
    def parameters(self, structure: Structure) -> dict[str, Parameter]:
        """Return the regulariser's parameters by name, at given structural sizes."""

    @abstractmethod
    def averaged_envelope(self, symbols: OrderParameterSymbols) -> sp.Expr:
        """Return E_eta max_w {-r(w) - w^T G w / 2 + w^T (B + Q^{1/2} eta)} in traces of G, B, Q, or as `envelope`."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Return the name of the regulariser's set of equations: regularisers of one kind share every equation."""

    @property
    def row_regulariser(self) -> Regulariser:
        """Return the regulariser of a row of W at fixed Lagrange multipliers: itself, unless it is a constraint."""
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
        """Return the ridge strengths `lambda_`, (s,), all with the same default."""
        values = (self.default,) * structure.student_rank
        return {"lambda_": Parameter(values, doc="ridge strength, one a column of W", name="lambda_")}

    def strength_symbols(self, structure: Structure) -> tuple[sp.Symbol, ...]:
        """Return the symbols of the ridge strengths, the diagonal of Lambda."""
        return tuple(flatten_entries(self.parameters(structure)["lambda_"].argument_symbols(structure)))

    def averaged_envelope(self, symbols: OrderParameterSymbols) -> sp.Expr:
        """Return E_b[N] in closed form, 1/2 Tr[R (B B^T + Q)] with R = (Lambda + G)^{-1} (docs/theory.md (4.6))."""
        p = symbols
        return sp.Trace((p.Lambda + p.G).inv() * (p.B * p.B.T + p.Q)) / 2

    @property
    def kind(self) -> str:
        """Return `ridge`: its equations are closed in second moments."""
        return "ridge"

    def text_for_digest(self, structure: Structure) -> str:
        """Return the kind alone: default strengths do not change the equations."""
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
        """Return the norms of the columns over sqrt(d), `norm`, (s,), all with the same default."""
        values = (self.default,) * structure.student_rank
        doc = "norm of a column of W over sqrt(d), one a column"
        return {"norm": Parameter(values, low=0, open_low=True, doc=doc, name="norm")}

    def averaged_envelope(self, symbols: OrderParameterSymbols) -> sp.Expr:
        """Return the ridge's potential plus 1/2 Tr[Lambda Norms], extremised over Lambda (docs/theory.md (6.5))."""
        return self.row_regulariser.averaged_envelope(symbols) + self.norm_multiplier_term(symbols)

    def norm_multiplier_term(self, symbols: OrderParameterSymbols) -> sp.Expr:
        """Return the term that the norms add to the ridge's free entropy, Norms = diag(norm_1^2, ..., norm_s^2)."""
        return sp.Trace(symbols.Lambda * symbols.Norms) / 2

    @property
    def kind(self) -> str:
        """Return `sphere`: the ridge's equations, and one for the multiplier of each column."""
        return "sphere"

    @property
    def row_regulariser(self) -> Ridge:
        """Return a ridge whose strengths are the Lagrange multipliers of the norms."""
        return Ridge()

    def text_for_digest(self, structure: Structure) -> str:
        """Return the kind alone: default norms do not change the equations."""
        return self.kind


@dataclass(frozen=True)
class FixedSizePenalty:
    """A convex penalty at fixed structural sizes, as an expression.

    Attributes:
        w, pi: symbols of a row of W (s x 1) and of the teacher's row (t x 1).
        expression: r(w, pi).
        kinks: places w_0 = ... at which the slope of r jumps, expressions in pi and parameters (s = 1 only).
        bounds: ends of the interval outside of which r is infinite, last of the kinks; none where it is finite.
        written: the function as its author wrote it.
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
        """Return the penalty r(w, pi) on the set where it is finite."""
        return self.expression.replace(Box, lambda *_: sp.Integer(0))

    @property
    def depends_on_teacher(self) -> bool:
        """Return whether the penalty contains the teacher's row pi: averages over a row of W then also run over pi."""
        return self.expression.has(*self.pi)


@dataclass(frozen=True)
class Penalty(Regulariser):
    """A convex penalty r(w) or r(w, pi) of a row w (s x 1) of W and the teacher's row pi (t x 1).

    Made by `penalty`. Convexity is tested, not proved, at the parameters' defaults and at the values of a problem.
    """

    function: Callable[..., Any]
    known: dict[Structure, FixedSizePenalty] = field(default_factory=dict, compare=False, repr=False)

    def at(self, structure: Structure) -> FixedSizePenalty:
        """Return the penalty at fixed structural sizes, after checks.

        Raises:
            ModelError: it is not a convex function of w that the prior's averages can take.
        """
        if structure not in self.known:
            self.known[structure] = self._build_fixed_size_penalty(structure)
        return self.known[structure]

    def _build_fixed_size_penalty(self, structure: Structure) -> FixedSizePenalty:
        """Call the author's penalty function with symbols, and return the checked result."""
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
                    f"unknown argument {key!r} of penalty {name}; known are w, pi and parameters with a default"
                )
        try:
            expression = to_exact_rationals(self.function(**arguments))
        except ModelError:
            raise
        except Exception as error:
            message = explain_author_error(error, self.function, arguments)
            raise ModelError(f"penalty {name} failed at {structure.folder_name}: {message}") from error
        if isinstance(expression, sp.MatrixBase | tuple):
            raise ModelError(f"penalty {name} returned {expression}; a number is expected")
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
        """Return the parameters: the arguments with a default in the function's signature.

        Raises:
            ModelError: as `at`.
        """
        return dict(self.at(structure).parameters)

    def averaged_envelope(self, symbols: OrderParameterSymbols) -> sp.Expr:
        """Return the symbol `envelope`: N(b) of docs/theory.md (4.5) stays unevaluated."""
        return symbols.envelope

    @property
    def kind(self) -> str:
        """Return `penalty`, whatever the function r."""
        return "penalty"

    def text_for_digest(self, structure: Structure) -> str:
        """Return the kind and the expression r(w, pi) at the structure.

        Raises:
            ModelError: as `at`.
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
        raise ModelError(f"penalty {name}: one sf.box(w[0], low, high) is expected, added to the rest")
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
    """Return the corners of a penalty of one column: zeros in w of the arguments of |.|, max, min, sign and steps."""
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
