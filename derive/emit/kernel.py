"""Typed kernels of scalar statements, ready to be printed in any language: the boundary between SymPy and source text.

`make_kernel` turns expressions into a `Kernel`: softmax rows become one call that yields the whole row, common
subexpressions become temporaries, and every expression a nest of plain tuples
("number", p, q) | ("name", n) | ("add", ...) | ("mul", ...) | ("power", base, n) | ("call", function, ...).

A kernel records the function that built it, the functions its formulas come from and their equation numbers; an
`ArrayEntryName` among its names records which entry of which array it is.
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

from ..authoring.model import FixedSizeModel
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


class ArrayEntryName(str):
    """The name array_i_j of one entry of an array; a string that also holds array and indices.

    Attributes:
        array: name of the array in generated code.
        place: indices of the entry in the array.
    """

    array: str
    place: tuple[int, ...]

    def __new__(cls, array: str, *place: int) -> ArrayEntryName:
        """Create the name of the entry with these indices.

        Args:
            array: name of the array in generated code.
            *place: indices of the entry.
        """
        entry = super().__new__(cls, "_".join([array, *map(str, place)]))
        entry.array, entry.place = array, place
        return entry

    @property
    def symbol(self) -> sp.Symbol:
        """Return the real SymPy symbol with the name of this entry."""
        return sp.Symbol(str(self), real=True)

    @property
    def subscript(self) -> str:
        """Return the indices of the entry as text, for example "1, 0"."""
        return ", ".join(map(str, self.place))

    def matching_entry(self, array: str) -> ArrayEntryName:
        """Return the name of the entry of another array that has the same indices."""
        return ArrayEntryName(array, *self.place)


def array_entries(array: str, *shape: int) -> list[ArrayEntryName]:
    """Return the names of all entries of an array, the last index fastest.

    Args:
        array: name of the array in generated code.
        *shape: shape of the array.
    """
    return [ArrayEntryName(array, *place) for place in product(*map(range, shape))]


def upper_triangle_entries(array: str, blocks: int, size: int) -> list[ArrayEntryName]:
    """Return the names of the entries in the upper triangles of symmetric blocks, row by row.

    Args:
        array: name of the array in generated code.
        blocks: number of blocks.
        size: rows of a block.
    """
    return [ArrayEntryName(array, n, a, b) for n in range(blocks) for a in range(size) for b in range(a, size)]


def calling_function_location(depth: int = 1) -> str:
    """Return "derive/file:function" of the function `depth` calls above the caller; empty outside of derive."""
    return _code_location(sys._getframe(depth + 1).f_code)


def definition_location(function: Any) -> str:
    """Return the place "derive/file:function" where a function or property is defined; empty outside of derive."""
    written: Any = inspect.unwrap(getattr(function, "fget", function))  # a property's getter
    return _code_location(written.__code__) if hasattr(written, "__code__") else ""


def model_function_location(model: FixedSizeModel, function: Any = None) -> str:
    """Return the place "derive/file:function" of a function of a catalogue model, or the name of a user's model.

    Args:
        model: model with fixed sizes L, s, t.
        function: function of the model; its loss by default.
    """
    return definition_location(function or model.written.get("loss")) or f"model {model.name}"


def _code_location(code: CodeType) -> str:
    file = Path(code.co_filename)
    if not file.is_relative_to(_ROOT):
        return ""
    function = re.sub(r"\.?<(lambda|locals)>.*", "", code.co_qualname)
    return f"derive/{file.relative_to(_ROOT).as_posix()}{':' if function else ''}{function}"


_ROOT = Path(__file__).parents[1]


def add_origin_comment(lines: Sequence[str], equations: str = "") -> list[str]:
    """Return generated lines below an origin comment, which names the calling function as their writer.

    Args:
        lines: lines of source text; without lines there is no comment.
        equations: equations that the lines evaluate, "docs/theory.md (4.3)" for example.
    """
    return [origin_comment(calling_function_location(), (), equations), *lines] if lines else []


def origin_comment(writer: str, formulas: Sequence[str] = (), equations: str = "") -> str:
    """Return a comment on generated lines: their writer, and the sources and equations of the formulas.

    Args:
        writer: function that writes the lines, as derive/emit/file:function.
        formulas: functions that define the formulas, as derive/file:function, the model last.
        equations: equations that the lines evaluate.
    """
    return f"# {' < '.join([writer, *formulas])}{', ' if equations else ''}{equations}"


@dataclass(frozen=True)
class AssignmentStatement:
    """An assignment of an expression to one variable, or of a row (softmax) to several."""

    targets: tuple[str, ...]
    expression: Node


@dataclass(frozen=True)
class Kernel:
    """A block of scalar code without branches: assignments, followed by named results.

    Attributes:
        statements: assignments in their order.
        results: (name, expression) of each result.
        builder: function that built the kernel, as derive/emit/file:function.
        formulas: functions that define its expressions, as derive/file:function.
        equations: numbers of the equations that it evaluates.
    """

    statements: tuple[AssignmentStatement, ...]
    results: tuple[tuple[str, Node], ...]
    builder: str = ""
    formulas: tuple[str, ...] = ()
    equations: str = ""

    @property
    def origin_comment(self) -> str:
        """Return the comment on the kernel's origin in generated code; empty if its builder is not known."""
        return origin_comment(self.builder, self.formulas, self.equations) if self.builder else ""

    @property
    def operation_count(self) -> int:
        """Return the number of arithmetic operations and function calls in the kernel."""
        nodes = [s.expression for s in self.statements] + [node for _, node in self.results]
        return sum(_count_operations(node) for node in nodes)

    @property
    def input_names(self) -> frozenset[str]:
        """Return the names of the kernel's inputs: names that are used but not assigned before."""
        defined: set[str] = set()
        read: set[str] = set()
        for statement in self.statements:
            read |= names_in_node(statement.expression) - defined
            defined.update(statement.targets)
        for _, node in self.results:
            read |= names_in_node(node) - defined
        return frozenset(read)

    @property
    def results_with_needed_statements(self) -> list[tuple[list[AssignmentStatement], str, Node]]:
        """Return (statements, name, expression) of each result; the statements are those no earlier result needs."""
        made = {target: statement for statement in self.statements for target in statement.targets}
        done: set[AssignmentStatement] = set()
        found = []
        for name, node in self.results:
            needed: set[AssignmentStatement] = set()
            waiting = names_in_node(node)
            while waiting:
                statement = made.get(waiting.pop())
                if statement is not None and statement not in needed and statement not in done:
                    needed.add(statement)
                    waiting |= names_in_node(statement.expression)
            found.append(([s for s in self.statements if s in needed], name, node))
            done |= needed
        return found


@dataclass(frozen=True)
class RecordedKernel:
    """A kernel with its inputs, as `record_kernels` records it.

    Attributes:
        kernel: the kernel.
        inputs: symbols that the kernel depends on, with their assumptions.
        inner: whether its results are used only by other kernels, under numbered names (f0, f1, ...).
    """

    kernel: Kernel
    inputs: frozenset[sp.Symbol]
    inner: bool


_RECORD: ContextVar[list[RecordedKernel] | None] = ContextVar("record", default=None)


@contextmanager
def record_kernels() -> Iterator[list[RecordedKernel]]:
    """Return a context manager that records every kernel built or split inside the block, in order."""
    record: list[RecordedKernel] = []
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)


def _record_kernel(kernel: Kernel, inputs: Iterable[sp.Symbol], inner: bool) -> None:
    if (record := _RECORD.get()) is not None:
        read = kernel.input_names
        record.append(RecordedKernel(kernel, frozenset(symbol for symbol in inputs if symbol.name in read), inner))


def cache_and_record_kernels(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function with cached results that records the kernels it builds at every call, cached or not."""

    @cache
    def call_cached_function(*given: Hashable) -> tuple[T, list[RecordedKernel]]:
        with record_kernels() as frozen:
            return function(*given), frozen

    @wraps(function)
    def call_and_record_kernels(*given: Hashable) -> T:
        result, frozen = call_cached_function(*given)
        if (record := _RECORD.get()) is not None:
            record += frozen
        return result

    return call_and_record_kernels


def _count_operations(node: Node) -> int:
    if node[0] in ("number", "name"):
        return 0
    if node[0] == "power":
        return 1 + _count_operations(node[1])
    if node[0] == "call":
        return 1 + sum(_count_operations(child) for child in node[2:])
    return len(node) - 2 + sum(_count_operations(child) for child in node[1:])


def names_in_node(node: Node) -> set[str]:
    """Return all names in a node of an expression tree."""
    if node[0] == "name":
        return {node[1]}
    if node[0] == "number":
        return set()
    return set().union(*[names_in_node(child) for child in node[1:] if isinstance(child, tuple)])


def make_kernel(
    outputs: Mapping[Name, sp.Expr],
    definitions: Mapping[str, sp.Expr] | None = None,
    prefix: str = "t",
    inner: bool = False,
    equations: str = "",
    formulas: Sequence[Any] = (),
) -> Kernel:
    """Return a kernel that evaluates expressions, with common subexpressions as temporary variables.

    Args:
        outputs: expressions to evaluate, by name.
        definitions: intermediate values by name, which outputs and other definitions use.
        prefix: start of the temporary variables' names; no symbol may have such a name.
        inner: whether the outputs are used only by other kernels, under numbered names; `record_kernels` keeps it.
        equations: equations that the outputs evaluate.
        formulas: functions that the expressions come from, or their definitions as text.

    Raises:
        TypeError: an expression contains a function that no printer supports.
    """
    definitions = definitions or {}
    statements, nodes, read = _convert_to_statements(tuple(outputs.items()), tuple(definitions.items()), prefix)
    sources = [one if isinstance(one, str) else definition_location(one) for one in formulas]
    results = tuple(zip(outputs, nodes, strict=True))
    kernel = Kernel(statements, results, calling_function_location(), tuple(filter(None, sources)), equations)
    _record_kernel(kernel, read, inner)
    return kernel


@lru_cache(maxsize=2**12)
def _convert_to_statements(
    outputs: tuple[tuple[str, sp.Expr], ...], definitions: tuple[tuple[str, sp.Expr], ...], prefix: str
) -> tuple[tuple[AssignmentStatement, ...], tuple[Node, ...], frozenset[sp.Symbol]]:
    """Return statements, one node per output, and the symbols used, of expressions with common subexpressions.

    The result is cached, as many models share expressions.
    """
    every = [_expand_gumbel_terms(sp.sympify(expression)) for _, expression in (*definitions, *outputs)]
    rows, replaced = _replace_softmax_rows(every, prefix)
    logits = [z for row in rows for z in row[0]]
    temporaries, reduced = sp.cse(
        [*logits, *replaced], symbols=sp.numbered_symbols(prefix, start=0, real=True), order="canonical"
    )
    pending: dict[str, AssignmentStatement] = {}
    for symbol, expression in temporaries:
        pending[symbol.name] = AssignmentStatement((symbol.name,), expression_to_node(expression))
    position = 0
    for original, targets in rows:
        values = reduced[position : position + len(original)]
        position += len(original)
        statement = AssignmentStatement(tuple(targets), ("call", "softmax", *[expression_to_node(z) for z in values]))
        for target in targets:
            pending[target] = statement
    for name, _ in definitions:
        pending[name] = AssignmentStatement((name,), expression_to_node(reduced[position]))
        position += 1
    nodes = [expression_to_node(expression) for expression in reduced[position:]]
    ordered: list[AssignmentStatement] = []
    done: set[str] = set()

    def append_statement_with_dependencies(name: str) -> None:
        if name in done or name not in pending:
            return
        statement = pending[name]
        done.update(statement.targets)
        for inner in sorted(names_in_node(statement.expression), key=_natural_sort_key):
            append_statement_with_dependencies(inner)
        ordered.append(statement)

    for node in nodes:
        for name in sorted(names_in_node(node), key=_natural_sort_key):
            append_statement_with_dependencies(name)
    statements, renamed = _remove_alias_definitions(ordered, nodes, [name for name, _ in definitions])
    return statements, renamed, frozenset().union(*[e.free_symbols for e in every])


def _expand_gumbel_terms(expression: sp.Expr) -> sp.Expr:
    """Return an expression with each `GumbelTerm`, which avoids overflow in derivatives, as one exponential."""
    return expression.xreplace({term: term.to_elementary_functions() for term in expression.atoms(GumbelTerm)})


def _remove_alias_definitions(
    statements: Sequence[AssignmentStatement], nodes: Sequence[Node], definitions: Iterable[str]
) -> tuple[tuple[AssignmentStatement, ...], tuple[Node, ...]]:
    """Return statements and nodes without definitions that only rename a temporary variable.

    The temporary variable takes the name of the first such definition.
    """
    known, made = set(definitions), {target for statement in statements for target in statement.targets}
    names_of: dict[str, str] = {}
    kept = []
    for statement in statements:
        target, (kind, *inside) = statement.targets[0], statement.expression
        if kind == "name" and target in known and inside[0] in made - known and inside[0] not in names_of:
            names_of[inside[0]] = target
        else:
            kept.append(statement)

    def rename_aliases(node: Node) -> Node:
        if node[0] == "name":
            return ("name", names_of.get(node[1], node[1]))
        return tuple(rename_aliases(child) if isinstance(child, tuple) else child for child in node)

    return tuple(
        AssignmentStatement(tuple(names_of.get(t, t) for t in s.targets), rename_aliases(s.expression)) for s in kept
    ), tuple(map(rename_aliases, nodes))


def _natural_sort_key(name: str) -> tuple[Any, ...]:
    """Return a sort key for names that end in numbers: t2 comes before t10."""
    head = name.rstrip("0123456789")
    return (head, int(name[len(head) :] or -1))


def _replace_softmax_rows(
    expressions: Sequence[sp.Expr], prefix: str
) -> tuple[list[tuple[list[sp.Expr], list[str]]], list[sp.Expr]]:
    """Replace softmax entries in expressions by symbols, innermost first; equal logits share a row of symbols."""
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


def expression_to_node(expression: sp.Expr) -> Node:
    """Convert a SymPy expression to a tree of nested tuples, as a kernel contains it.

    Raises:
        TypeError: the expression contains a function that no printer supports.
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
        return (kind, *[expression_to_node(a) for a in ordered])
    if expression.is_Pow:
        base, exponent = expression.args
        if exponent.is_Integer:
            return ("power", expression_to_node(base), int(exponent))
        if exponent == sp.Rational(1, 2):
            return ("call", "sqrt", expression_to_node(base))
        if exponent == -sp.Rational(1, 2):
            return ("power", ("call", "sqrt", expression_to_node(base)), -1)
        if base is sp.E:
            return ("call", "exp", expression_to_node(exponent))
        return ("call", "pow", expression_to_node(base), expression_to_node(exponent))
    if isinstance(expression, sp.logic.boolalg.Boolean):
        return _condition_to_node(expression)  # a condition shared by several pieces, as a temporary
    if isinstance(expression, sp.KroneckerDelta):
        return ("call", "equal", *[expression_to_node(a) for a in expression.args])
    if isinstance(expression, sp.Piecewise):
        node: Node = ("number", 0, 1)
        for value, condition in reversed(expression.args):
            node = (
                expression_to_node(value)
                if condition is sp.true
                else ("call", "where", _condition_to_node(condition), expression_to_node(value), node)
            )
        return node
    for function, name in _CALLS.items():
        if isinstance(expression, function):
            arguments = expression.args[:1] if name == "heaviside" else expression.args
            return ("call", name, *[expression_to_node(a) for a in arguments])
    names = ", ".join(
        sorted(f"sp.{function.__name__}" for function in _CALLS if function.__module__.startswith("sympy"))
    )
    raise TypeError(
        f"no code can be generated for the function {type(expression).__name__} in {expression}; allowed are {names}"
    )


def _condition_to_node(condition: sp.Basic) -> Node:
    if condition.is_Symbol:
        return ("name", condition.name)
    for connective, name in ((sp.And, "and"), (sp.Or, "or")):
        if isinstance(condition, connective):
            return ("call", name, *[_condition_to_node(a) for a in sorted(condition.args, key=sp.default_sort_key)])
    operators = {
        sp.Equality: "eq", sp.StrictGreaterThan: "gt", sp.GreaterThan: "ge", sp.StrictLessThan: "lt", sp.LessThan: "le",
    }  # fmt: skip
    for relation, name in operators.items():
        if isinstance(condition, relation):
            return ("call", name, expression_to_node(condition.lhs), expression_to_node(condition.rhs))
    raise TypeError(
        f"no code can be generated for the condition {condition}; allowed are comparisons, joined by & and |"
    )


def split_kernel_by_inputs(kernel: Kernel, outer: set[str], prefix: str) -> tuple[Kernel, Kernel]:
    """Return two kernels in place of one; the first depends only on the inputs `outer`.

    The first kernel's results, named `prefix`0 and so on, are inputs of the second. Terms or factors that depend
    only on `outer` are taken together.

    Args:
        kernel: kernel to split.
        outer: all inputs of the first kernel; inputs of both (constants) may be among them.
        prefix: prefix of the names of the first kernel's results.
    """
    known = set(outer)
    first: list[AssignmentStatement] = []
    second: list[AssignmentStatement] = []
    results: dict[Node, str] = {}

    def name_result_of_first_kernel(node: Node) -> Node:
        if node[0] == "number":
            return node
        return ("name", results.setdefault(node, f"{prefix}{len(results)}"))

    def split_node_by_inputs(node: Node) -> Node:
        if node[0] == "number":
            return node
        if names_in_node(node) <= known:
            return name_result_of_first_kernel(node)
        if node[0] in ("add", "mul"):
            pure = [a for a in node[1:] if names_in_node(a) <= known]
            mixed = [split_node_by_inputs(a) for a in node[1:] if not names_in_node(a) <= known]
            if len(pure) == 1:
                pure = [name_result_of_first_kernel(pure[0])]
            elif any(a[0] != "number" for a in pure):
                pure = [name_result_of_first_kernel((node[0], *pure))]
            return (node[0], *pure, *mixed)
        if node[0] == "power":
            return ("power", split_node_by_inputs(node[1]), node[2])
        if node[0] == "call":
            return ("call", node[1], *[split_node_by_inputs(a) for a in node[2:]])
        return node

    for statement in kernel.statements:
        if names_in_node(statement.expression) <= known:
            first.append(statement)
            known.update(statement.targets)
        else:
            second.append(AssignmentStatement(statement.targets, split_node_by_inputs(statement.expression)))
    last = tuple((name, split_node_by_inputs(node)) for name, node in kernel.results)
    columns = tuple((name, node) for node, name in results.items())
    split = (
        replace(kernel, statements=tuple(first), results=columns),
        replace(kernel, statements=tuple(second), results=last),
    )
    for part, inner in zip(split, (True, False), strict=True):
        _record_kernel(part, (), inner)  # `make_kernel` has recorded the symbols
    return split
