"""Typed kernels of scalar statements, ready to be printed in any language: the boundary between SymPy and source text.

`as_kernel` turns expressions into a `Kernel`: softmax rows become one call that yields the whole row, common
subexpressions become temporaries, and every expression a nest of plain tuples
("number", p, q) | ("name", n) | ("add", ...) | ("mul", ...) | ("power", base, n) | ("call", function, ...).

A kernel records the function that built it, the functions its formulas come from and their equation numbers; an `Entry`
among its names records which entry of which array it is.
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
    """The name of an entry of an array, array_i_j, with the array and the indices as attributes.

    Attributes:
        array: name of the array.
        place: indices in it.
    """

    array: str
    place: tuple[int, ...]

    def __new__(cls, array: str, *place: int) -> Entry:
        """Create the name of the entry with these indices.

        Args:
            array: name of the array.
            *place: indices, in their order.
        """
        entry = super().__new__(cls, "_".join([array, *map(str, place)]))
        entry.array, entry.place = array, place
        return entry

    @property
    def symbol(self) -> sp.Symbol:
        """Return a real symbol of this name."""
        return sp.Symbol(str(self), real=True)

    @property
    def subscript(self) -> str:
        """Return the indices as they are written between brackets."""
        return ", ".join(map(str, self.place))

    def in_array(self, array: str) -> Entry:
        """Return the entry of another array with the same indices."""
        return Entry(array, *self.place)


def entries(array: str, *shape: int) -> list[Entry]:
    """Return all entries of an array, the last index fastest.

    Args:
        array: name of the array.
        *shape: its shape.
    """
    return [Entry(array, *place) for place in product(*map(range, shape))]


def upper_entries(array: str, blocks: int, size: int) -> list[Entry]:
    """Return the entries of the upper triangles of symmetric blocks, rows first.

    Args:
        array: name of the array.
        blocks: number of blocks.
        size: rows of a block.
    """
    return [Entry(array, n, a, b) for n in range(blocks) for a in range(size) for b in range(a, size)]


def calling_function(depth: int = 1) -> str:
    """Return the function `depth` levels above the caller as derive/emit/file:function; empty outside of derive."""
    return _code_location(sys._getframe(depth + 1).f_code)


def place(function: Any) -> str:
    """Return the definition of a function, method or property as derive/file:function; empty outside of derive."""
    written: Any = inspect.unwrap(getattr(function, "fget", function))  # a property's getter
    return _code_location(written.__code__) if hasattr(written, "__code__") else ""


def model_source(model: ModelAt, function: Any = None) -> str:
    """Return the definition of a function of a model in the catalogue, or the name of a user's model.

    Args:
        model: model at its structure.
        function: function of the model; its loss by default.
    """
    return place(function or model.written.get("loss")) or f"model {model.name}"


def _code_location(code: CodeType) -> str:
    file = Path(code.co_filename)
    if not file.is_relative_to(_ROOT):
        return ""
    function = re.sub(r"\.?<(lambda|locals)>.*", "", code.co_qualname)
    return f"derive/{file.relative_to(_ROOT).as_posix()}{':' if function else ''}{function}"


_ROOT = Path(__file__).parents[1]


def add_stamp(lines: Sequence[str], equations: str = "") -> list[str]:
    """Return lines with a stamp that names the calling function as the one that composes them.

    Args:
        lines: lines of source text; none gives none.
        equations: equations that they evaluate, "docs/theory.md (4.3)" for example.
    """
    return [stamp(calling_function(), (), equations), *lines] if lines else []


def stamp(writer: str, formulas: Sequence[str] = (), equations: str = "") -> str:
    """Return the comment that names the writer of the lines below it, the origin of the formulas, and their equations.

    Args:
        writer: derive/emit/file:function.
        formulas: derive/file:function of the formulas, the model last.
        equations: equations that the lines evaluate.
    """
    return f"# {' < '.join([writer, *formulas])}{', ' if equations else ''}{equations}"


@dataclass(frozen=True)
class Statement:
    """An assignment targets = expression; it has more than one target where a call yields a row (softmax)."""

    targets: tuple[str, ...]
    expression: Node


@dataclass(frozen=True)
class Kernel:
    """Straight-line code: `statements`, then `results` (name -> expression of names and numbers).

    Attributes:
        builder: the function that made it, derive/emit/file:function.
        formulas: the functions that its expressions come from; equations: those that it evaluates.
    """

    statements: tuple[Statement, ...]
    results: tuple[tuple[str, Node], ...]
    builder: str = ""
    formulas: tuple[str, ...] = ()
    equations: str = ""

    @property
    def stamp(self) -> str:
        """Return the comment above its lines; empty if its builder is not known."""
        return stamp(self.builder, self.formulas, self.equations) if self.builder else ""

    @property
    def operations(self) -> int:
        """Return the number of arithmetic operations and calls."""
        nodes = [s.expression for s in self.statements] + [node for _, node in self.results]
        return sum(_operations(node) for node in nodes)

    @property
    def names(self) -> frozenset[str]:
        """Return the inputs: names that are used before any statement defines them."""
        defined: set[str] = set()
        read: set[str] = set()
        for statement in self.statements:
            read |= names_in(statement.expression) - defined
            defined.update(statement.targets)
        for _, node in self.results:
            read |= names_in(node) - defined
        return frozenset(read)

    @property
    def result_groups(self) -> list[tuple[list[Statement], str, Node]]:
        """Return (statements, name, expression) of each result, with the statements that no earlier result needs."""
        made = {target: statement for statement in self.statements for target in statement.targets}
        done: set[Statement] = set()
        found = []
        for name, node in self.results:
            needed: set[Statement] = set()
            waiting = names_in(node)
            while waiting:
                statement = made.get(waiting.pop())
                if statement is not None and statement not in needed and statement not in done:
                    needed.add(statement)
                    waiting |= names_in(statement.expression)
            found.append(([s for s in self.statements if s in needed], name, node))
            done |= needed
        return found


@dataclass(frozen=True)
class RecordedKernel:
    """A recorded kernel.

    Attributes:
        kernel: the kernel.
        inputs: the symbols it depends on, with their assumptions.
        inner: whether its results are used only by other kernels, under numbered names (f0, f1, ...).
    """

    kernel: Kernel
    inputs: frozenset[sp.Symbol]
    inner: bool


_RECORD: ContextVar[list[RecordedKernel] | None] = ContextVar("record", default=None)


@contextmanager
def record_kernels() -> Iterator[list[RecordedKernel]]:
    """Record every kernel that is frozen or split inside the block, in order."""
    record: list[RecordedKernel] = []
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)


def _record_kernel(kernel: Kernel, inputs: Iterable[sp.Symbol], inner: bool) -> None:
    if (record := _RECORD.get()) is not None:
        read = kernel.names
        record.append(RecordedKernel(kernel, frozenset(symbol for symbol in inputs if symbol.name in read), inner))


def cached_with_record(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function with its results cached by argument; the kernels it freezes are recorded at every call."""

    @cache
    def cached_call(*given: Hashable) -> tuple[T, list[RecordedKernel]]:
        with record_kernels() as frozen:
            return function(*given), frozen

    @wraps(function)
    def call_and_record(*given: Hashable) -> T:
        result, frozen = cached_call(*given)
        if (record := _RECORD.get()) is not None:
            record += frozen
        return result

    return call_and_record


def _operations(node: Node) -> int:
    if node[0] in ("number", "name"):
        return 0
    if node[0] == "power":
        return 1 + _operations(node[1])
    if node[0] == "call":
        return 1 + sum(_operations(child) for child in node[2:])
    return len(node) - 2 + sum(_operations(child) for child in node[1:])


def names_in(node: Node) -> set[str]:
    """Return all names in a node."""
    if node[0] == "name":
        return {node[1]}
    if node[0] == "number":
        return set()
    return set().union(*[names_in(child) for child in node[1:] if isinstance(child, tuple)])


def as_kernel(
    outputs: Mapping[Name, sp.Expr],
    definitions: Mapping[str, sp.Expr] | None = None,
    prefix: str = "t",
    inner: bool = False,
    equations: str = "",
    formulas: Sequence[Any] = (),
) -> Kernel:
    """Return expressions as a kernel with deterministic statements.

    Args:
        outputs: name -> expression.
        definitions: name -> expression, intermediate values that outputs and other definitions use by name.
        prefix: prefix of the temporaries' names; must not collide with symbols.
        inner: whether the outputs are used only by other kernels, under numbered names; `record_kernels` keeps it.
        equations: equations that the outputs evaluate.
        formulas: functions that the expressions come from, or their definitions as text.

    Raises:
        TypeError: an expression contains a function that no printer supports.
    """
    definitions = definitions or {}
    statements, nodes, read = _lower_all(tuple(outputs.items()), tuple(definitions.items()), prefix)
    sources = [one if isinstance(one, str) else place(one) for one in formulas]
    results = tuple(zip(outputs, nodes, strict=True))
    kernel = Kernel(statements, results, calling_function(), tuple(filter(None, sources)), equations)
    _record_kernel(kernel, read, inner)
    return kernel


@lru_cache(maxsize=2**12)
def _lower_all(
    outputs: tuple[tuple[str, sp.Expr], ...], definitions: tuple[tuple[str, sp.Expr], ...], prefix: str
) -> tuple[tuple[Statement, ...], tuple[Node, ...], frozenset[sp.Symbol]]:
    """Return statements, one node an output, and the symbols used; cached, as many models share expressions."""
    every = [_expand_gumbel_terms(sp.sympify(expression)) for _, expression in (*definitions, *outputs)]
    rows, replaced = _softmax_rows(every, prefix)
    logits = [z for row in rows for z in row[0]]
    temporaries, reduced = sp.cse(
        [*logits, *replaced], symbols=sp.numbered_symbols(prefix, start=0, real=True), order="canonical"
    )
    pending: dict[str, Statement] = {}
    for symbol, expression in temporaries:
        pending[symbol.name] = Statement((symbol.name,), to_node(expression))
    position = 0
    for original, targets in rows:
        values = reduced[position : position + len(original)]
        position += len(original)
        statement = Statement(tuple(targets), ("call", "softmax", *[to_node(z) for z in values]))
        for target in targets:
            pending[target] = statement
    for name, _ in definitions:
        pending[name] = Statement((name,), to_node(reduced[position]))
        position += 1
    nodes = [to_node(expression) for expression in reduced[position:]]
    ordered: list[Statement] = []
    done: set[str] = set()

    def visit(name: str) -> None:
        if name in done or name not in pending:
            return
        statement = pending[name]
        done.update(statement.targets)
        for inner in sorted(names_in(statement.expression), key=_natural_sort_key):
            visit(inner)
        ordered.append(statement)

    for node in nodes:
        for name in sorted(names_in(node), key=_natural_sort_key):
            visit(name)
    statements, rename_names = _remove_aliases(ordered, nodes, [name for name, _ in definitions])
    return statements, rename_names, frozenset().union(*[e.free_symbols for e in every])


def _expand_gumbel_terms(expression: sp.Expr) -> sp.Expr:
    """Return an expression with GumbelTerm, which exists for the sake of its derivatives, as one exponential."""
    return expression.xreplace({term: term.elementary() for term in expression.atoms(GumbelTerm)})


def _remove_aliases(
    statements: Sequence[Statement], nodes: Sequence[Node], definitions: Iterable[str]
) -> tuple[tuple[Statement, ...], tuple[Node, ...]]:
    """Return statements and nodes in which a definition that equals a temporary replaces it; of several, the first."""
    known, made = set(definitions), {target for statement in statements for target in statement.targets}
    names_of: dict[str, str] = {}
    kept = []
    for statement in statements:
        target, (kind, *inside) = statement.targets[0], statement.expression
        if kind == "name" and target in known and inside[0] in made - known and inside[0] not in names_of:
            names_of[inside[0]] = target
        else:
            kept.append(statement)

    def rename_names(node: Node) -> Node:
        if node[0] == "name":
            return ("name", names_of.get(node[1], node[1]))
        return tuple(rename_names(child) if isinstance(child, tuple) else child for child in node)

    return tuple(
        Statement(tuple(names_of.get(t, t) for t in s.targets), rename_names(s.expression)) for s in kept
    ), tuple(map(rename_names, nodes))


def _natural_sort_key(name: str) -> tuple[Any, ...]:
    """Return a sort key for which t2 comes before t10."""
    head = name.rstrip("0123456789")
    return (head, int(name[len(head) :] or -1))


def _softmax_rows(
    expressions: Sequence[sp.Expr], prefix: str
) -> tuple[list[tuple[list[sp.Expr], list[str]]], list[sp.Expr]]:
    """Replace softmax entries, innermost first, by symbols: one row of symbols for each tuple of logits."""
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


def to_node(expression: sp.Expr) -> Node:
    """Return a SymPy expression as a node.

    Raises:
        TypeError: it contains a function that no printer supports.
    """
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
        return (kind, *[to_node(a) for a in ordered])
    if expression.is_Pow:
        base, exponent = expression.args
        if exponent.is_Integer:
            return ("power", to_node(base), int(exponent))
        if exponent == sp.Rational(1, 2):
            return ("call", "sqrt", to_node(base))
        if exponent == -sp.Rational(1, 2):
            return ("power", ("call", "sqrt", to_node(base)), -1)
        if base is sp.E:
            return ("call", "exp", to_node(exponent))
        return ("call", "pow", to_node(base), to_node(exponent))
    if isinstance(expression, sp.logic.boolalg.Boolean):
        return _condition(expression)  # a condition shared by several pieces, as a temporary
    if isinstance(expression, sp.KroneckerDelta):
        return ("call", "equal", *[to_node(a) for a in expression.args])
    if isinstance(expression, sp.Piecewise):
        node: Node = ("number", 0, 1)
        for value, condition in reversed(expression.args):
            node = (
                to_node(value)
                if condition is sp.true
                else ("call", "where", _condition(condition), to_node(value), node)
            )
        return node
    for function, name in _CALLS.items():
        if isinstance(expression, function):
            arguments = expression.args[:1] if name == "heaviside" else expression.args
            return ("call", name, *[to_node(a) for a in arguments])
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
            return ("call", name, to_node(condition.lhs), to_node(condition.rhs))
    raise TypeError(f"no printer knows the condition {condition}")


def hoist(kernel: Kernel, outer: set[str], prefix: str) -> tuple[Kernel, Kernel]:
    """Split a kernel in two: the part that depends only on the names in `outer` (and constants), and the rest.

    The first kernel's results, called `prefix`0, ..., are inputs of the second. Within a sum or product those factors
    are taken together.

    Args:
        kernel: kernel to split.
        outer: all inputs of the first kernel; inputs of both (constants) may be among them.
        prefix: prefix of the names of the first kernel's results.
    """
    known = set(outer)
    first: list[Statement] = []
    second: list[Statement] = []
    results: dict[Node, str] = {}

    def name_result(node: Node) -> Node:
        if node[0] == "number":
            return node
        return ("name", results.setdefault(node, f"{prefix}{len(results)}"))

    def split_node(node: Node) -> Node:
        if node[0] == "number":
            return node
        if names_in(node) <= known:
            return name_result(node)
        if node[0] in ("add", "mul"):
            pure = [a for a in node[1:] if names_in(a) <= known]
            mixed = [split_node(a) for a in node[1:] if not names_in(a) <= known]
            if len(pure) == 1:
                pure = [name_result(pure[0])]
            elif any(a[0] != "number" for a in pure):
                pure = [name_result((node[0], *pure))]
            return (node[0], *pure, *mixed)
        if node[0] == "power":
            return ("power", split_node(node[1]), node[2])
        if node[0] == "call":
            return ("call", node[1], *[split_node(a) for a in node[2:]])
        return node

    for statement in kernel.statements:
        if names_in(statement.expression) <= known:
            first.append(statement)
            known.update(statement.targets)
        else:
            second.append(Statement(statement.targets, split_node(statement.expression)))
    last = tuple((name, split_node(node)) for name, node in kernel.results)
    columns = tuple((name, node) for node, name in results.items())
    split = (
        replace(kernel, statements=tuple(first), results=columns),
        replace(kernel, statements=tuple(second), results=last),
    )
    for part, inner in zip(split, (True, False), strict=True):
        _record_kernel(part, (), inner)  # `as_kernel` has recorded the symbols
    return split
