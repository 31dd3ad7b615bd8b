"""The boundary at which SymPy ends: typed kernels of scalar statements, ready to be printed in any language.

`freeze` turns expressions into a `Kernel`: softmax rows become one call that yields the whole row, common
subexpressions become temporaries, and every expression a nest of plain tuples
("number", p, q) | ("name", n) | ("add", ...) | ("mul", ...) | ("power", base, n) | ("call", function, ...).

A kernel knows the function that built it, where its formulas are and their equations; an `Entry` among its names knows
which entry of which array it is.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, lru_cache, wraps
from itertools import product
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

import sympy as sp

from ..authoring.model import ModelAt
from ..calculus.functions import (
    GumbelRatio,
    GumbelTerm,
    InverseMillsRatio,
    LogGumbelCdf,
    LogNormalCdf,
    LogSoftplus,
    LogSumExp,
    Sigmoid,
    SigmoidOverSoftplus,
    SoftmaxEntry,
    Softplus,
    TruncatedNormalMean,
)

Node = tuple[Any, ...]
Name = TypeVar("Name", bound=str)
T = TypeVar("T")

_CALLS = {
    sp.exp: "exp",
    sp.log: "log",
    sp.tanh: "tanh",
    sp.cosh: "cosh",
    sp.sinh: "sinh",
    sp.sin: "sin",
    sp.cos: "cos",
    sp.atan: "atan",
    sp.tan: "tan",
    sp.asinh: "asinh",
    sp.atanh: "atanh",
    sp.erf: "erf",
    sp.erfc: "erfc",
    sp.Abs: "abs",
    sp.sign: "sign",
    sp.Heaviside: "heaviside",
    sp.Max: "max",
    sp.Min: "min",
    Sigmoid: "sigmoid",
    Softplus: "softplus",
    LogSumExp: "log_sum_exp",
    LogSoftplus: "log_softplus",
    SigmoidOverSoftplus: "sigmoid_over_softplus",
    LogNormalCdf: "log_normal_cdf",
    InverseMillsRatio: "inverse_mills_ratio",
    TruncatedNormalMean: "truncated_normal_mean",
    LogGumbelCdf: "log_gumbel_cdf",
    GumbelRatio: "gumbel_ratio",
}


class Entry(str):
    """The name of an entry of an array, array_i_j, that knows which one it is.

    Attributes:
        array: name of the array; place: indices in it.
    """

    array: str
    place: tuple[int, ...]

    def __new__(cls, array: str, *place: int) -> Entry:
        """Of these indices, in their order."""
        entry = super().__new__(cls, "_".join([array, *map(str, place)]))
        entry.array, entry.place = array, place
        return entry

    @property
    def symbol(self) -> sp.Symbol:
        """A real symbol of this name."""
        return sp.Symbol(str(self), real=True)

    @property
    def subscript(self) -> str:
        """The indices as they stand between brackets."""
        return ", ".join(map(str, self.place))

    def of(self, array: str) -> Entry:
        """The same entry of another array."""
        return Entry(array, *self.place)


def entries(array: str, *shape: int) -> list[Entry]:
    """All entries of an array, the last index fastest."""
    return [Entry(array, *place) for place in product(*map(range, shape))]


def upper_entries(array: str, blocks: int, size: int) -> list[Entry]:
    """Entries of the upper triangles of symmetric blocks, rows first."""
    return [Entry(array, n, a, b) for n in range(blocks) for a in range(size) for b in range(a, size)]


def builder(depth: int = 1) -> str:
    """The function this was called from `depth` levels above, as derive/emit/file:function; empty outside of derive."""
    return _place(sys._getframe(depth + 1).f_code)


def place(function: Any) -> str:
    """Where a function, method or property is written, as derive/file:function; empty outside of derive."""
    written: Any = inspect.unwrap(getattr(function, "fget", function))  # a property's getter
    return _place(written.__code__) if hasattr(written, "__code__") else ""


def home(model: ModelAt, function: Any = None) -> str:
    """Where a function of a model, default its loss, is written in the catalogue; the name of a user's model."""
    return place(function or model.written.get("loss")) or f"model {model.name}"


def _place(code: CodeType) -> str:
    file = Path(code.co_filename)
    if not file.is_relative_to(_ROOT):
        return ""
    function = re.sub(r"\.?<(lambda|locals)>.*", "", code.co_qualname)
    return f"derive/{file.relative_to(_ROOT).as_posix()}{':' if function else ''}{function}"


_ROOT = Path(__file__).parents[1]


def stamped(lines: Sequence[str], equations: str = "") -> list[str]:
    """Lines under the name of the function that this is called from, which puts them together by hand."""
    return [stamp(builder(), (), equations), *lines] if lines else []


def stamp(writer: str, formulas: Sequence[str] = (), equations: str = "") -> str:
    """The comment that says who writes the lines below it, where their formulas are, and their equations."""
    return f"# {' < '.join([writer, *formulas])}{', ' if equations else ''}{equations}"


@dataclass(frozen=True)
class Statement:
    """targets = expression; more than one target where a call yields a row (softmax)."""

    targets: tuple[str, ...]
    expression: Node


@dataclass(frozen=True)
class Kernel:
    """Straight-line code: `statements`, then `results` (name -> expression of names and numbers).

    Attributes:
        builder: the function that made it, derive/emit/file:function.
        formulas: where what it made it of is written; equations: those that it evaluates.
    """

    statements: tuple[Statement, ...]
    results: tuple[tuple[str, Node], ...]
    builder: str = ""
    formulas: tuple[str, ...] = ()
    equations: str = ""

    @property
    def stamp(self) -> str:
        """The comment that stands over its lines; empty where nobody is known to have made it."""
        return stamp(self.builder, self.formulas, self.equations) if self.builder else ""

    @property
    def operations(self) -> int:
        """Arithmetic operations and calls."""
        nodes = [s.expression for s in self.statements] + [node for _, node in self.results]
        return sum(_operations(node) for node in nodes)

    @property
    def names(self) -> frozenset[str]:
        """Names read before any statement defines them: the inputs."""
        defined: set[str] = set()
        read: set[str] = set()
        for statement in self.statements:
            read |= names(statement.expression) - defined
            defined.update(statement.targets)
        for _, node in self.results:
            read |= names(node) - defined
        return frozenset(read)

    @property
    def groups(self) -> list[tuple[list[Statement], str, Node]]:
        """Every result after the statements that it is the first to need."""
        made = {target: statement for statement in self.statements for target in statement.targets}
        done: set[Statement] = set()
        found = []
        for name, node in self.results:
            needed: set[Statement] = set()
            waiting = names(node)
            while waiting:
                statement = made.get(waiting.pop())
                if statement is not None and statement not in needed and statement not in done:
                    needed.add(statement)
                    waiting |= names(statement.expression)
            found.append(([s for s in self.statements if s in needed], name, node))
            done |= needed
        return found


@dataclass(frozen=True)
class Frozen:
    """A kernel on record.

    Attributes:
        inputs: the symbols it reads, with their assumptions.
        inner: whether its results only feed other kernels, under names that count them (f0, f1, ...).
    """

    kernel: Kernel
    inputs: frozenset[sp.Symbol]
    inner: bool


_RECORD: ContextVar[list[Frozen] | None] = ContextVar("record", default=None)


@contextmanager
def recorded() -> Iterator[list[Frozen]]:
    """Every kernel that is frozen or split inside the block, in order."""
    record: list[Frozen] = []
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)


def _put_on_record(kernel: Kernel, inputs: Iterable[sp.Symbol], inner: bool) -> None:
    if (record := _RECORD.get()) is not None:
        read = kernel.names
        record.append(Frozen(kernel, frozenset(symbol for symbol in inputs if symbol.name in read), inner))


def shared(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function, evaluated once for the same values; what it freezes is put on record every time."""

    @cache
    def once(*given: Hashable) -> tuple[T, list[Frozen]]:
        with recorded() as frozen:
            return function(*given), frozen

    @wraps(function)
    def replayed(*given: Hashable) -> T:
        result, frozen = once(*given)
        if (record := _RECORD.get()) is not None:
            record += frozen
        return result

    return replayed


def _operations(node: Node) -> int:
    if node[0] in ("number", "name"):
        return 0
    if node[0] == "power":
        return 1 + _operations(node[1])
    if node[0] == "call":
        return 1 + sum(_operations(child) for child in node[2:])
    return len(node) - 2 + sum(_operations(child) for child in node[1:])


def names(node: Node) -> set[str]:
    """All names in a node."""
    if node[0] == "name":
        return {node[1]}
    if node[0] == "number":
        return set()
    return set().union(*[names(child) for child in node[1:] if isinstance(child, tuple)])


def freeze(
    outputs: Mapping[Name, sp.Expr],
    definitions: Mapping[str, sp.Expr] | None = None,
    prefix: str = "t",
    inner: bool = False,
    equations: str = "",
    formulas: Sequence[Any] = (),
) -> Kernel:
    """Expressions to a kernel with deterministic statements.

    Args:
        outputs: name -> expression.
        definitions: name -> expression, intermediate values that outputs and other definitions use by name.
        prefix: of the temporaries' names; must not collide with symbols.
        inner: whether the outputs only feed other kernels, under names that count them; `recorded` keeps it.
        equations: those that the outputs evaluate.
        formulas: functions that the expressions come from, or where they are written, as text.

    Raises:
        TypeError: an expression holds a function no printer knows.
    """
    definitions = definitions or {}
    statements, nodes, read = _lowered(tuple(outputs.items()), tuple(definitions.items()), prefix)
    sources = [one if isinstance(one, str) else place(one) for one in formulas]
    results = tuple(zip(outputs, nodes, strict=True))
    kernel = Kernel(statements, results, builder(), tuple(filter(None, sources)), equations)
    _put_on_record(kernel, read, inner)
    return kernel


@lru_cache(maxsize=2**12)
def _lowered(
    outputs: tuple[tuple[str, sp.Expr], ...], definitions: tuple[tuple[str, sp.Expr], ...], prefix: str
) -> tuple[tuple[Statement, ...], tuple[Node, ...], frozenset[sp.Symbol]]:
    """Return statements, an expression an output and the symbols read: models that share a side share them."""
    every = [_written_out(sp.sympify(expression)) for _, expression in (*definitions, *outputs)]
    rows, replaced = _softmax_rows(every, prefix)
    logits = [z for row in rows for z in row[0]]
    temporaries, reduced = sp.cse(
        [*logits, *replaced], symbols=sp.numbered_symbols(prefix, start=0, real=True), order="canonical"
    )
    pending: dict[str, Statement] = {}
    for symbol, expression in temporaries:
        pending[symbol.name] = Statement((symbol.name,), lower(expression))
    position = 0
    for original, targets in rows:
        values = reduced[position : position + len(original)]
        position += len(original)
        statement = Statement(tuple(targets), ("call", "softmax", *[lower(z) for z in values]))
        for target in targets:
            pending[target] = statement
    for name, _ in definitions:
        pending[name] = Statement((name,), lower(reduced[position]))
        position += 1
    nodes = [lower(expression) for expression in reduced[position:]]
    ordered: list[Statement] = []
    done: set[str] = set()

    def visit(name: str) -> None:
        if name in done or name not in pending:
            return
        statement = pending[name]
        done.update(statement.targets)
        for inner in sorted(names(statement.expression), key=_natural):
            visit(inner)
        ordered.append(statement)

    for node in nodes:
        for name in sorted(names(node), key=_natural):
            visit(name)
    statements, renamed = _without_aliases(ordered, nodes, [name for name, _ in definitions])
    return statements, renamed, frozenset().union(*[e.free_symbols for e in every])


def _written_out(expression: sp.Expr) -> sp.Expr:
    """Return an expression with one exponential for what is a function of its own for the sake of its derivatives."""
    return expression.xreplace({term: term.elementary() for term in expression.atoms(GumbelTerm)})


def _without_aliases(
    statements: Sequence[Statement], nodes: Sequence[Node], definitions: Iterable[str]
) -> tuple[tuple[Statement, ...], tuple[Node, ...]]:
    """Return both with the name of a definition that is nothing but a temporary given to it; of several, the first."""
    known, made = set(definitions), {target for statement in statements for target in statement.targets}
    names_of: dict[str, str] = {}
    kept = []
    for statement in statements:
        target, (kind, *inside) = statement.targets[0], statement.expression
        if kind == "name" and target in known and inside[0] in made - known and inside[0] not in names_of:
            names_of[inside[0]] = target
        else:
            kept.append(statement)

    def renamed(node: Node) -> Node:
        if node[0] == "name":
            return ("name", names_of.get(node[1], node[1]))
        return tuple(renamed(child) if isinstance(child, tuple) else child for child in node)

    return tuple(Statement(tuple(names_of.get(t, t) for t in s.targets), renamed(s.expression)) for s in kept), tuple(
        map(renamed, nodes)
    )


def _natural(name: str) -> tuple[Any, ...]:
    """Sort key in which t2 comes before t10."""
    head = name.rstrip("0123456789")
    return (head, int(name[len(head) :] or -1))


def _softmax_rows(
    expressions: Sequence[sp.Expr], prefix: str
) -> tuple[list[tuple[list[sp.Expr], list[str]]], list[sp.Expr]]:
    """Replace softmax entries, innermost first, by symbols; one row of symbols for one tuple of logits."""
    current = list(expressions)
    rows: list[tuple[list[sp.Expr], list[str]]] = []
    while True:
        entries = set().union(*[e.atoms(SoftmaxEntry) for e in current])
        entries = {e for e in entries if not any(z.has(SoftmaxEntry) for z in e.args[1:])}
        if not entries:
            return rows, current
        replacement: dict[sp.Expr, sp.Symbol] = {}
        for logits in sorted({e.args[1:] for e in entries}, key=lambda args: [sp.default_sort_key(a) for a in args]):
            targets = [f"{prefix}_row{len(rows)}_{j}" for j in range(len(logits))]
            for j, target in enumerate(targets):
                replacement[SoftmaxEntry(sp.Integer(j), *logits)] = sp.Symbol(target, real=True)
            rows.append((list(logits), targets))
        current = [e.xreplace(replacement) for e in current]


def lower(expression: sp.Expr) -> Node:
    """One SymPy expression as a node."""
    if expression.is_Rational:
        return ("number", int(expression.p), int(expression.q))
    if expression is sp.pi:
        return ("call", "pi")
    if expression is sp.E:
        return ("call", "exp", ("number", 1, 1))
    if expression.is_Symbol:
        return ("name", expression.name)
    if expression.is_Add or expression.is_Mul:
        kind = "add" if expression.is_Add else "mul"
        ordered = expression.as_ordered_terms() if expression.is_Add else expression.as_ordered_factors()
        return (kind, *[lower(a) for a in ordered])
    if expression.is_Pow:
        base, exponent = expression.args
        if exponent.is_Integer:
            return ("power", lower(base), int(exponent))
        if exponent == sp.Rational(1, 2):
            return ("call", "sqrt", lower(base))
        if exponent == -sp.Rational(1, 2):
            return ("power", ("call", "sqrt", lower(base)), -1)
        if base is sp.E:
            return ("call", "exp", lower(exponent))
        return ("call", "pow", lower(base), lower(exponent))
    if isinstance(expression, sp.logic.boolalg.Boolean):
        return _condition(expression)  # a condition that several pieces share, named on its own
    if isinstance(expression, sp.KroneckerDelta):
        return ("call", "equal", *[lower(a) for a in expression.args])
    if isinstance(expression, sp.Piecewise):
        node: Node = ("number", 0, 1)
        for value, condition in reversed(expression.args):
            node = (
                lower(value) if condition is sp.true else ("call", "where", _condition(condition), lower(value), node)
            )
        return node
    for function, name in _CALLS.items():
        if isinstance(expression, function):
            arguments = expression.args[:1] if name == "heaviside" else expression.args
            return ("call", name, *[lower(a) for a in arguments])
    known = ", ".join(
        sorted(f"sp.{function.__name__}" for function in _CALLS if function.__module__.startswith("sympy"))
    )
    raise TypeError(f"{type(expression).__name__} cannot be generated, in {expression}; functions that can are {known}")


def _condition(condition: sp.Basic) -> Node:
    if condition.is_Symbol:
        return ("name", condition.name)
    for connective, name in ((sp.And, "and"), (sp.Or, "or")):
        if isinstance(condition, connective):
            return ("call", name, *[_condition(a) for a in sorted(condition.args, key=sp.default_sort_key)])
    operators = {
        sp.Equality: "eq", sp.StrictGreaterThan: "gt", sp.GreaterThan: "ge", sp.StrictLessThan: "lt", sp.LessThan: "le",
    }  # fmt: skip
    for relation, name in operators.items():
        if isinstance(condition, relation):
            return ("call", name, lower(condition.lhs), lower(condition.rhs))
    raise TypeError(f"no printer knows the condition {condition}")


def hoist(kernel: Kernel, outer: set[str], prefix: str) -> tuple[Kernel, Kernel]:
    """Split a kernel in two: what depends on the names in `outer` (and constants) alone, and the rest.

    The first kernel's results, called `prefix`0, ..., are what the second reads from it. Inside a sum or product the
    factors that qualify are taken together. `outer` lists all inputs of the first kernel; inputs that belong to both
    (constants) may be listed too.
    """
    known = set(outer)
    first: list[Statement] = []
    second: list[Statement] = []
    results: dict[Node, str] = {}

    def column(node: Node) -> Node:
        if node[0] == "number":
            return node
        return ("name", results.setdefault(node, f"{prefix}{len(results)}"))

    def walk(node: Node) -> Node:
        if node[0] == "number":
            return node
        if names(node) <= known:
            return column(node)
        if node[0] in ("add", "mul"):
            pure = [a for a in node[1:] if names(a) <= known]
            mixed = [walk(a) for a in node[1:] if not names(a) <= known]
            if len(pure) == 1:
                pure = [column(pure[0])]
            elif any(a[0] != "number" for a in pure):
                pure = [column((node[0], *pure))]
            return (node[0], *pure, *mixed)
        if node[0] == "power":
            return ("power", walk(node[1]), node[2])
        if node[0] == "call":
            return ("call", node[1], *[walk(a) for a in node[2:]])
        return node

    for statement in kernel.statements:
        if names(statement.expression) <= known:
            first.append(statement)
            known.update(statement.targets)
        else:
            second.append(Statement(statement.targets, walk(statement.expression)))
    last = tuple((name, walk(node)) for name, node in kernel.results)
    columns = tuple((name, node) for node, name in results.items())
    split = (
        replace(kernel, statements=tuple(first), results=columns),
        replace(kernel, statements=tuple(second), results=last),
    )
    for part, inner in zip(split, (True, False), strict=True):
        _put_on_record(part, (), inner)  # `freeze` has the symbols on record
    return split
