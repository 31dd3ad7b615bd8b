"""Values of symbolic expressions at pseudo-random points, to 30 digits: they distinguish changed values from forms.

The number that stands for a symbol is seeded by its name alone. A kernel is run as a program, at several points;
numbered names (features f0, f1, ..., temporaries) are composed, never listed: neither the order of terms nor the
choice of common subexpressions matters. Values that vanish are left out, since a form may contain such terms or not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mpmath as mp
import sympy as sp

from .authoring.regulariser import Regulariser
from .calculus.averages import Average, Jacobian, MatrixAverage
from .calculus.numeric import rational_to_mpf
from .catalogue import SHIPPED, catalogue_model
from .emit.kernel import Kernel, RecordedKernel
from .emit.printers.mpmath import evaluate_kernel
from .emit.tree import write_file_atomically
from .emit.writer import GeneratedSolver
from .replicas.algebra.objects import LogDet, LogIntegral
from .replicas.steps.derivation import replica_calculation
from .theory.free_entropy import free_entropy
from .theory.saddle_point import saddle_point
from .theory.stability import (
    entropic_potential,
    field_response,
    longitudinal_derivatives,
    replicon_eigenvalue,
    replicon_map,
)

DIGITS, WORKING = 30, 50  # decimal digits that are written, and of the arithmetic
POINTS = 4  # at which a kernel is evaluated
Values = dict[str, tuple[str, ...]]  # name of a result -> its distinct values, sorted


def pseudo_random_symbol_value(name: str, point: int = 0, positive: bool = False, integer: bool = False) -> mp.mpf:
    """Return a reproducible pseudo-random value of a symbol: absolute value 1/4 to 7/4, or 0 or 1 for an integer.

    Args:
        name: name of the symbol.
        point: number of the evaluation point; different points have independent values.
        positive: whether the number must be positive.
        integer: whether the symbol is an integer.
    """
    seed = int.from_bytes(hashlib.sha256(f"{name}, {point}".encode()).digest()[:24], "big")
    if integer:
        return mp.mpf(seed % 2)
    size = mp.mpf(1) / 4 + mp.mpf(3) / 2 * (seed >> 1) / mp.mpf(2) ** 191
    return size if positive or seed % 2 else -size


def values_of_kernel_results(frozen: Iterable[RecordedKernel]) -> Values:
    """Return the numerical values of all results of recorded kernels, averaged over pseudo-random inputs, by name."""
    frozen = tuple(frozen)
    symbols = {symbol.name: symbol for record in frozen for symbol in record.inputs}
    found: dict[str, set[str]] = {}
    with mp.workdps(WORKING):
        means: list[dict[str, Any]] = [
            dict.fromkeys(_kernel_result_names(record.kernel), mp.mpf(0)) for record in frozen
        ]
        for point in range(POINTS):
            composed: dict[str, Any] = {}
            for record, mean in zip(frozen, means, strict=True):
                names = {
                    name: composed[name]
                    if name in composed
                    else _symbol_value_at_point(symbols.get(name, sp.Symbol(name)), point)
                    for name in record.kernel.input_names
                }
                results = _evaluate_kernel(record.kernel, names)
                if record.inner:
                    composed |= results
                for name, value in results.items():
                    mean[name] += value / POINTS
        for record, mean in zip(frozen, means, strict=True):
            if not record.inner:
                for name, value in mean.items():
                    found.setdefault(name, set()).add(_format_value(value))
    return _sorted_nonzero_values(found)


def _kernel_result_names(kernel: Kernel) -> list[str]:
    return [name for name, _ in kernel.results]


def _symbol_value_at_point(symbol: sp.Symbol, point: int) -> mp.mpf:
    return pseudo_random_symbol_value(symbol.name, point, bool(symbol.is_nonnegative), bool(symbol.is_integer))


def _evaluate_kernel(kernel: Kernel, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of a kernel by name, evaluated at the given values of its inputs."""
    plain = Kernel(kernel.statements, tuple((f"result_{i}", node) for i, (_, node) in enumerate(kernel.results)))
    return dict(zip(_kernel_result_names(kernel), evaluate_kernel(plain, names).values(), strict=True))


def _format_value(value: Any) -> str:
    """Return a number as text with 30 digits; empty text if it is zero to rounding."""
    value = mp.re(value) + mp.im(value)
    return mp.nstr(value, DIGITS) if abs(value) > mp.mpf(10) ** (5 - WORKING) else ""


def _sorted_nonzero_values(found: Mapping[str, Iterable[str]]) -> Values:
    kept = {name: tuple(sorted(filter(None, values))) for name, values in found.items()}
    return {name: values for name, values in sorted(kept.items()) if values}


_SIZES = {"s": 2, "t": 3, "d": 4, "D": 3}  # of matrices; they differ where they may


def values_of_theory_expressions(regulariser: Regulariser, trained: bool, loss_depends_on_q: bool) -> Values:
    """Return numerical values of the derived expressions of one kind of model, at pseudo-random symbol values.

    These are free entropy, saddle-point equations, stability operators and the steps of the replica calculation.

    Args:
        regulariser: the regulariser.
        trained: whether two numbers are trained with the weights.
        loss_depends_on_q: whether the loss depends on the overlaps q.
    """
    count = 2 if trained else 0
    phi = free_entropy(regulariser=regulariser, trained=count, loss_depends_on_q=loss_depends_on_q)
    saddle = saddle_point(phi)
    expressions: dict[str, Any] = {"Phi": phi.expression, "entropic": entropic_potential(phi)}
    for equation in saddle.equations:
        target = equation.target.name
        expressions |= {
            target: equation.value,
            f"{target} before Stein": equation.jacobian_form,
            f"d Phi / d {equation.source.name}": equation.gradient,
        }
    if saddle.trained is not None:
        expressions["d Phi / d phi"] = saddle.trained
    operator = replicon_map(phi)
    expressions |= {f"replicon {name}": getattr(operator, name) for name in ("channel", "prior", "response")}
    if not (trained or loss_depends_on_q):
        expressions["replicon eigenvalue"] = replicon_eigenvalue(regulariser)
        change = longitudinal_derivatives(saddle)
        expressions["longitudinal score"] = change.score
        for part in (change.prior, change.composites, change.conjugates):
            expressions |= {f"longitudinal d {name}": value for name, value in part.items()}
        expressions |= {f"longitudinal d {moment}": value for moment, value in change.moments.items()}
    fields = field_response()
    expressions |= {f"field {name}": getattr(fields, name) for name in ("condition", "proximal", "jacobian")}
    for step in replica_calculation(regulariser.row_regulariser.kind, count, loss_depends_on_q).steps:
        expressions |= {f"step {step.number} {name}": value for name, value in step.after.items()}
    symmetric = frozenset(matrix.name for matrix in phi.symbols.symmetric_matrices)
    found: dict[str, list[str]] = {}
    with mp.workdps(WORKING):
        for name, expression in expressions.items():
            value = evaluate_matrix_expression(expression, symmetric)
            entries = {name: value}
            if isinstance(value, mp.matrix):
                entries = {f"{name} [{i}, {j}]": value[i, j] for i in range(value.rows) for j in range(value.cols)}
            found |= {entry: [_format_value(one)] for entry, one in entries.items()}
    return _sorted_nonzero_values(found)


_FUNCTIONS = {sp.exp: mp.exp, sp.log: lambda x: mp.log(abs(x))}


def evaluate_matrix_expression(expression: Any, symmetric: frozenset[str] = frozenset()) -> Any:
    """Return the value of a matrix expression at pseudo-random values of its symbols, a number or mpmath matrix.

    Matrix entries are seeded by the name of the matrix and their position. Averages, derivatives and integrals are
    not evaluated: a pseudo-random multiple of the averaged expression, or a random matrix, stands for them.

    Args:
        expression: the SymPy expression.
        symmetric: names of the symmetric matrices.

    Raises:
        TypeError: the expression contains a function that has no value here.
    """

    def evaluate_operand(part: Any) -> Any:
        return evaluate_matrix_expression(part, symmetric)

    if isinstance(expression, sp.MatrixSymbol | Jacobian):
        name = expression.name if isinstance(expression, sp.MatrixSymbol) else str(expression)
        return _pseudo_random_matrix(name, *_numeric_matrix_shape(expression), name in symmetric)
    if isinstance(expression, Average | MatrixAverage):
        return pseudo_random_symbol_value(f"average over {expression.kind}") * evaluate_operand(expression.summand)
    if isinstance(expression, LogIntegral):
        return pseudo_random_symbol_value(f"integral over {expression.integration_variable.name}") * evaluate_operand(
            expression.log_integrand
        )
    if isinstance(expression, LogDet):
        return mp.log(abs(mp.det(evaluate_operand(expression.determinant_matrix))))
    if isinstance(expression, sp.Derivative):
        return pseudo_random_symbol_value(str(expression))
    if isinstance(expression, sp.Trace):
        value = evaluate_operand(expression.arg)
        return mp.fsum(value[i, i] for i in range(value.rows))
    if isinstance(expression, sp.Identity | sp.ZeroMatrix):
        rows, columns = _numeric_matrix_shape(expression)
        return mp.eye(rows) if isinstance(expression, sp.Identity) else mp.zeros(rows, columns)
    if isinstance(expression, sp.Transpose):
        return evaluate_operand(expression.arg).T
    if isinstance(expression, sp.Inverse):
        return mp.inverse(evaluate_operand(expression.arg))
    if isinstance(expression, sp.BlockMatrix):
        return _assemble_block_matrix(
            [[evaluate_operand(block) for block in expression.blocks.row(i)] for i in range(expression.blocks.rows)]
        )
    if isinstance(expression, sp.MatrixBase):
        return mp.matrix([[evaluate_operand(entry) for entry in expression.row(i)] for i in range(expression.rows)])
    if isinstance(expression, sp.Add | sp.MatAdd):
        first, *others = map(evaluate_operand, expression.args)
        return sum(others, first)
    if isinstance(expression, sp.Mul | sp.MatMul):
        product = mp.mpf(1)
        for factor in map(evaluate_operand, expression.args):
            product = product * factor
        return product
    if isinstance(expression, sp.Pow | sp.MatPow):
        return evaluate_operand(expression.base) ** evaluate_operand(expression.exp)
    if isinstance(expression, sp.Symbol):
        if expression.is_integer:
            return mp.mpf(_SIZES[expression.name])
        return pseudo_random_symbol_value(expression.name, positive=bool(expression.is_nonnegative))
    if isinstance(expression, sp.Rational):
        return rational_to_mpf(expression)
    if expression is sp.pi:
        return +mp.pi
    if expression.func in _FUNCTIONS:
        return _FUNCTIONS[expression.func](evaluate_operand(expression.args[0]))
    raise TypeError(f"no rule to evaluate {expression!r} at pseudo-random values of its symbols")


def _numeric_matrix_shape(expression: Any) -> tuple[int, int]:
    rows, columns = (int(evaluate_matrix_expression(sp.sympify(size))) for size in expression.shape)
    return rows, columns


def _pseudo_random_matrix(name: str, rows: int, columns: int, symmetric: bool) -> Any:
    place = (lambda i, j: (min(i, j), max(i, j))) if symmetric else (lambda i, j: (i, j))
    return mp.matrix(
        [[pseudo_random_symbol_value(f"{name}{place(i, j)}") for j in range(columns)] for i in range(rows)]
    )


def _assemble_block_matrix(blocks: list[list[Any]]) -> Any:
    rows = [[block[i, j] for block in row for j in range(block.cols)] for row in blocks for i in range(row[0].rows)]
    return mp.matrix(rows)


_TITLE = f"""\
# Values of expressions at points that the names of their symbols decide, to {DIGITS} digits. Written by
# `make values`; a changed line is a changed value (of a form it says nothing). saddleforge.derive.values says how.
"""


def format_values_file(parts: Mapping[str, Values]) -> str:
    """Return the text of a values file: for each section a title, then lines with value and name, sorted by name."""
    lines = [_TITLE]
    for title, values in parts.items():
        lines += [f"[{title}]", *[f"{value:<36} {name}" for name in sorted(values) for value in values[name]], ""]
    return "\n".join(lines)


def parse_values_file(text: str) -> dict[str, Values]:
    """Return the values in the text of a values file, as title of a section -> name of an expression -> values."""
    parts: dict[str, dict[str, list[str]]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            current = parts.setdefault(line[1:-1], {})
        elif line and not line.startswith("#"):
            value, name = line.split(maxsplit=1)
            current.setdefault(name, []).append(value)
    return {title: {name: tuple(values) for name, values in part.items()} for title, part in parts.items()}


def describe_value_changes(committed: Mapping[str, Values], found: Mapping[str, Values]) -> list[str]:
    """Return a sentence for each expression whose new values differ from the committed ones in the first 28 digits.

    Args:
        committed: title of a section -> committed values by name.
        found: title of a section -> new values by name.
    """
    messages = []
    for title in sorted({*committed, *found}):
        before, after = committed.get(title, {}), found.get(title, {})
        for name in sorted({*before, *after}):
            old, new = before.get(name, ()), after.get(name, ())
            if not _values_agree(old, new):
                was, now = ", ".join(old) or "zero or absent", ", ".join(new) or "zero or absent"
                messages.append(f"{title}: {name} was {was}; it is {now}")
    return messages


def _values_agree(old: tuple[str, ...], new: tuple[str, ...]) -> bool:
    if len(old) != len(new):
        return False
    with mp.workdps(WORKING):
        pairs = zip(sorted(map(mp.mpf, old)), sorted(map(mp.mpf, new)), strict=True)
        return all(abs(a - b) <= mp.mpf(10) ** (2 - DIGITS) * abs(a) for a, b in pairs)


def contents_of_values_files(solvers: Iterable[GeneratedSolver]) -> Iterator[tuple[str, dict[str, Values]]]:
    """Yield the name and content of every values file: one for each model, and one for the theory."""
    models: dict[str, dict[str, Values]] = {}
    for solver in solvers:
        models.setdefault(solver.model, {})[solver.structure.folder_name] = values_of_kernel_results(solver.frozen)
    for model, parts in models.items():
        yield f"{model}.txt", parts
    yield "theory.txt", theory_values_of_all_model_kinds()


def kinds_of_catalogue_models() -> dict[str, tuple[Regulariser, bool, bool]]:
    """Return the kinds of catalogue models: title -> (regulariser, has trained numbers, loss depends on q)."""
    found: dict[str, tuple[Regulariser, bool, bool]] = {}
    for name in sorted(SHIPPED):
        regulariser = catalogue_model(name).at(None).regulariser
        found.setdefault(regulariser.kind, (regulariser, False, False))
        found.setdefault(f"{regulariser.kind}, trained numbers, a loss that holds q", (regulariser, True, True))
    return dict(sorted(found.items()))


def theory_values_of_all_model_kinds() -> dict[str, Values]:
    """Return the numerical values of the derived expressions of every kind of catalogue model, by title."""
    return {title: values_of_theory_expressions(*kind) for title, kind in kinds_of_catalogue_models().items()}


def write_expression_value_files(root: Path, solvers: Iterable[GeneratedSolver]) -> list[str]:
    """Write all values files whose content has changed, and delete values files of absent models.

    Args:
        root: folder of the values files.
        solvers: generated solvers of the catalogue.

    Returns:
        Names of the files written or deleted.
    """
    touched = []
    files = {name: format_values_file(parts) for name, parts in contents_of_values_files(solvers)}
    for name, text in files.items():
        if not (root / name).exists() or (root / name).read_text(encoding="utf-8") != text:
            write_file_atomically(root / name, text)
            touched.append(name)
    for path in sorted(root.glob("*.txt")):
        if path.name not in files:
            path.unlink()
            touched.append(path.name)
    return touched
