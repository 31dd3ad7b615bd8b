"""The metadata file of a generated solver: parameters, starts, laws of tokens and noise, kinks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sympy as sp

from ...authoring.model import FixedSizeModel, Model
from ...authoring.parameters import GaussianNoise, Parameter, Start, Structure, flatten_entries
from ...theory.active_subspace import active_subspace, metric_active_subspace
from ...theory.kinks import (
    LOSS_JUMPS,
    describe_gradient_jump,
    integration_variables,
    is_metric_piecewise_constant,
    loss_kinks,
    metric_kinks,
)
from ...theory.reduced import ReducedModel
from ...theory.scales import (
    IntegrandLengthScales,
    length_scales_in_teacher_fields,
    length_scales_of_loss,
    length_scales_of_metric,
)
from ..kernel import add_origin_comment, calling_function_location, definition_location, make_kernel, origin_comment
from ..line_origins import MARK
from ..printers.arrays import ARRAYS
from ..printers.dialect import SourceCodeDialect
from ..printers.numba import NUMBA
from ..probes import is_loss_probably_nonnegative
from .channel import channel_constant_names, gaussian_noise_variances


def _to_plain_numbers(value: Any) -> Any:
    """Convert exact numbers, also in nested tuples, to floats and ints."""
    if isinstance(value, tuple | list):
        return tuple(_to_plain_numbers(v) for v in value)
    value = sp.sympify(value)
    return int(value) if value.is_Integer else float(value)


def _parameter_literal(parameter: Parameter, structure: Structure) -> str:
    value = _to_plain_numbers(parameter.exact_default(structure))
    return (
        f"dict(name={parameter.name!r}, default={value!r}, shape={parameter.default_shape(structure)!r}, "
        f"low={_literal_of_bound(parameter.low)}, high={_literal_of_bound(parameter.high)}, "
        f"open_low={parameter.open_low!r}, open_high={parameter.open_high!r}, allowed={parameter.allowed!r}, "
        f"vanishing={parameter.vanishing!r}, doc={parameter.doc!r})"
    )


def _literal_of_bound(value: float | None) -> str:
    return "None" if value is None else repr(float(value))


def _literal_of_start(start: Start, structure: Structure) -> str:
    parts = {name: _to_plain_numbers(value) for name, value in start.exact_coefficients(structure).items()}
    return "dict(" + ", ".join(f"{k}={v!r}" for k, v in parts.items()) + ")"


def expressions_literal(value: Any, dialect: SourceCodeDialect = NUMBA) -> str:
    """Return the source text of nested tuples of simple expressions.

    Args:
        value: expression, or tuple of such values.
        dialect: printer of the expressions.

    Raises:
        TypeError: an entry needs more than one statement.
    """
    if isinstance(value, tuple):
        inner = ", ".join(expressions_literal(v, dialect) for v in value)
        return f"({inner},)" if value else "()"
    kernel = make_kernel({"literal": value})
    if kernel.statements:
        raise TypeError(
            f"{value} is too complicated for an entry of the law: write a single expression in numbers and parameters"
        )
    ((_, node),) = kernel.results
    return dialect.expression_source(node)


def lines_loading_parameters(values: Any, at: FixedSizeModel) -> list[str]:
    """Return source lines that read from the vector p the parameters that nested expressions contain.

    Args:
        values: nested tuples or lists of expressions.
        at: model with fixed sizes L, s, t.
    """
    used: set[str] = set()

    def collect_symbol_names(value: Any) -> None:
        if isinstance(value, tuple | list):
            for v in value:
                collect_symbol_names(v)
        else:
            used.update(s.name for s in value.free_symbols)

    collect_symbol_names(values)
    read = [f"{symbol.name} = p[{i}]" for i, symbol in enumerate(at.parameter_symbols()) if symbol.name in used]
    return [f"    {line}" for line in add_origin_comment(read)]


def _origin_comment_line(equations: str, *formulas: Any) -> str:
    """Return the comment on the origin of a generated function: the function that writes it, and its formulas."""
    return "    " + origin_comment(
        calling_function_location(), [*filter(None, map(definition_location, formulas))], equations
    )


def metadata_file_text(model: Model, at: FixedSizeModel, header: str, jump: str = "") -> str:
    """Return the text of a model's metadata file: names, parameters, starts, and laws of tokens and noise.

    The laws are functions of the vector of all parameters.

    Args:
        model: model of the catalogue or of a user.
        at: this model with fixed sizes L, s, t.
        header: first line of the file.
        jump: why there is no solver at zero temperature; empty if there is one.
    """
    structure = at.structure
    symbols = [s.name for s in at.parameter_symbols()]

    noise = [variance for _, variance in gaussian_noise_variances(at)]
    lines = [
        f"{MARK}{calling_function_location(0)}",
        header,
        f'"""Sizes, parameters and properties of {at.name} at {structure.folder_name} that its solver uses.',
        "",
        "Written by saddleforge from the symbolic model; do not edit.",
        '"""',
        "",
        f"NAME = {at.name!r}",
        f"SUMMARY = {model.summary!r}",
        f"SOURCE = {model.source!r}",
        f"DIGEST = {at.equations_digest()!r}",
        f"STRUCTURE = dict(tokens={structure.tokens}, student_rank={structure.student_rank}, "
        f"teacher_rank={structure.teacher_rank}, clusters={structure.clusters})",
        "PARAMETERS = (",
        *[f"    {_parameter_literal(p, structure)}," for p in at.parameters.values()],
        ")",
        f"SYMBOLS = {tuple(symbols)!r}",
        f"CONSTANTS = {channel_constant_names(at)!r}  # in the vector c of the kernels",
        "STARTS = {",
        *[f"    {name!r}: {_literal_of_start(start, structure)}," for name, start in model.starts.items()],
        "}",
        f"TRAINED = {_trained_numbers_literal(at)}",
        f"NOISE = {tuple((n, isinstance(law, GaussianNoise)) for n, (_, law) in at.noise.items())!r}  "
        "# coordinates of u: name, whether Gaussian",
        f"STRENGTHS = {tuple(at.regulariser.parameters(structure))!r}",
        f"HOLDS_Q = {len(at.symbols_of_order_parameters) > len(at.trained)!r}",
        f"METRICS = {tuple(name for name in model.metrics if name)!r}  # names of the test errors, where they have any",
        f"NONNEGATIVE = {is_loss_probably_nonnegative(at)!r}",
        f"UNBOUNDED = {at.unbounded!r}  # whether its author says that the regulariser holds the loss",
        f"BOUNDED_BY = {_parameters_deciding_lower_bound(at)!r}  "
        "# parameters that may decide whether the loss has a lower bound",
        f"REGULARISER = {at.regulariser.kind!r}",
        f"NO_PROXIMAL_MAP = {jump!r}  # why, where there is a solver at finite temperatures only",
        f"LOSS_JUMPS = {describe_gradient_jump(at).startswith(LOSS_JUMPS)!r}  # itself, not its slope",
        "",
        "",
        "def law(p):",
        _origin_comment_line("docs/theory.md (1.6), (1.9)", model.law),
        '    """Law of the tokens: labels, spectral weights, gamma, Gram matrices of (tau, pi), teacher means m*."""',
        *lines_loading_parameters(tuple(at.law.values()), at),
        "    return dict(",
        *[f"        {name}={expressions_literal(value)}," for name, value in at.law.items()],
        "    )",
        "",
        "",
        "def noise_variances(p):",
        _origin_comment_line("docs/theory.md (1.5)"),
        '    """Variances of the Gaussian coordinates of u."""',
        *lines_loading_parameters(noise, at),
        f"    return {expressions_literal(tuple(noise))}",
        "",
        "",
        *_source_lines_of_kinks(at),
    ]
    return _add_imports_below_docstring(lines)


def metadata_text_of_reduced_problem(at: ReducedModel, header: str, jump: str = "") -> str:
    """Return the text of the metadata file of a problem that is reduced to combinations of its fields.

    It contains the sizes, and the reduced fields as combinations of the original ones.

    Args:
        at: reduced problem.
        header: first line of the file.
        jump: why there is no solver at zero temperature; empty if there is one.
    """
    structure, full = at.structure, at.full
    sides = {name: tuple(_matrix_rows(getattr(case, name)) for case in at.cases) for name in ("A", "B", "E", "F", "H")}
    # Probability of the noise of each case.
    shares = [(((case.probabilities[0] if case.noise else sp.Integer(1)),),) for case in at.cases]
    outputs: dict[str, sp.Expr] = {}

    def matrices_literal(name: str, matrices: Sequence[Sequence[Sequence[sp.Expr]]]) -> str:
        """Return the source text of matrices, with names in place of expressions, which are collected in `outputs`.

        Args:
            name: prefix of the names.
            matrices: matrices of expressions.
        """

        def literal_or_name(e: sp.Expr, *place: int) -> str:
            if e.is_number:
                return repr(float(e))
            named = "_".join(map(str, (name, *place)))
            outputs[named] = e
            return named

        return _tuple_literal(
            _tuple_literal(
                _tuple_literal(literal_or_name(e, n, i, j) for j, e in enumerate(row)) for i, row in enumerate(rows)
            )
            for n, rows in enumerate(matrices)
        )

    literals = {name: matrices_literal(name, matrices) for name, matrices in {**sides, "share": shares}.items()}
    kernel = make_kernel(outputs, formulas=[active_subspace if at.metric is None else metric_active_subspace])
    read = add_origin_comment(
        [f"{name} = c[{i}]" for i, name in enumerate(channel_constant_names(at)) if name in kernel.input_names]
    )
    lines = [
        f"{MARK}{calling_function_location(0)}",
        header,
        f'"""What averages of {at.name} at {full.structure.folder_name} are taken over: combinations of its fields.',
        "",
        "Written by saddleforge from the symbolic model; do not edit.",
        '"""',
        "",
        f"STRUCTURE = dict(tokens=1, student_rank={structure.student_rank}, teacher_rank={structure.teacher_rank}, "
        f"clusters={structure.clusters})",
        f"LABELS = {tuple(case.labels for case in at.cases)!r}  # of the tokens, a case each",
        f"NOISE = {tuple((n, False) for n in at.noise)!r}  # coordinates of u that are left: name, whether Gaussian",
        f"TRAINED = {_trained_numbers_literal(at)}",
        "HOLDS_Q = False",
        f"NO_PROXIMAL_MAP = {jump!r}  # why, where there is a solver at finite temperatures only",
        "",
        "",
        "def combinations(c):",
        _origin_comment_line("docs/theory.md (11.7)"),
        '    """z = A X + B Y + E u and y = F Y + H u of every case, and the share of its labels that it is."""',
        *["    " + line for line in [*read, *NUMBA.kernel_body_lines(kernel)]],
        "    return dict(",
        *[f"        {name}={text}," for name, text in literals.items()],
        "    )",
        "",
        "",
        *_source_lines_of_kinks(at),
    ]
    return _add_imports_below_docstring(lines)


def _add_imports_below_docstring(lines: list[str]) -> str:
    """Return the text of a file, with imports of math and NumPy below its docstring if its lines use them."""
    used = {"import math": "math.", "import numpy as np": "np."}
    imports = [line for line, name in used.items() if any(name in each for each in lines)]
    if imports:
        lines[lines.index('"""', 1) + 1 : lines.index('"""', 1) + 1] = ["", *imports]
    return "\n".join(lines) + "\n"


def _tuple_literal(entries: Iterable[str]) -> str:
    """Return the source text of a tuple with any number of entries."""
    return f"({''.join(f'{entry}, ' for entry in entries).rstrip()})"


def _matrix_rows(matrix: sp.ImmutableMatrix) -> tuple[tuple[sp.Expr, ...], ...]:
    return tuple(tuple(matrix.row(i)) for i in range(matrix.rows))


def _parameters_deciding_lower_bound(at: FixedSizeModel) -> tuple[str, ...]:
    """Return the names of parameters that may decide whether the loss is bounded below.

    There are none if the loss contains the overlaps q.
    """
    if at.loss.is_nonnegative or at.loss_depends_on_q:
        return ()
    structure = at.structure
    return tuple(p.name for p in at.parameters.values() if at.loss.has(*flatten_entries(p.argument_symbols(structure))))


def _trained_numbers_literal(at: FixedSizeModel) -> str:
    """Return the source text of the numbers trained with the weights: names, starting values and ridges."""
    return (
        "("
        + "".join(
            f"dict(name={n!r}, start={_to_plain_numbers(v.start)!r}, ridge={_to_plain_numbers(v.ridge)!r}), "
            for n, (_, v) in at.trained.items()
        )
        + ")"
    )


def _source_lines_of_kinks(at: FixedSizeModel) -> list[str]:
    """Return source lines of functions that return kinks and length scales of loss and metric, for the quadrature.

    Planes come first: kinks and centres of narrow features. Then come curved surfaces of kinks, on which no quadrature
    rule can split, and the lines of `_source_lines_of_scales`.
    """
    kinks = {"loss": loss_kinks(at), "metric": metric_kinks(at)}
    scales = {"teacher": length_scales_in_teacher_fields(at), "metric": length_scales_of_metric(at)}
    variables = integration_variables(at)
    planes = {name: found.planes for name, found in kinks.items()}
    planes |= {f"{name}_places": found.places for name, found in scales.items()}
    outputs: dict[str, sp.Expr] = {}
    rows: dict[str, list[list[str]]] = {name: [] for name in planes}
    for name, own in planes.items():
        for n, plane in enumerate(own):
            coefficients = [sp.expand(sp.diff(plane, v)) for v in variables]
            constant = plane.xreplace(dict.fromkeys(variables, sp.Integer(0)))
            row = []
            for i, entry in enumerate([*coefficients, constant]):
                if not entry.is_number:
                    outputs[f"{name}_plane_{n}_{i}"] = entry
                row.append(f"{name}_plane_{n}_{i}" if not entry.is_number else repr(float(entry)))
            rows[name].append(row)
    kernel = make_kernel(outputs, formulas=[loss_kinks, metric_kinks, length_scales_of_loss, length_scales_of_metric])
    curved = {name: tuple(map(str, found.curved)) for name, found in kinks.items()}
    read = add_origin_comment(
        [f"{name} = c[{i}]" for i, name in enumerate(channel_constant_names(at)) if name in kernel.input_names]
    )
    return [
        f"CURVED = {curved!r}  # loss and metric are not smooth there, and no rule is split",
        f"METRIC_IS_STEPS = {is_metric_piecewise_constant(at)!r}  # whether it is constant between the planes",
        "",
        "",
        "def planes(c):",
        _origin_comment_line("docs/theory.md (11.2)"),
        '    """Planes in (X, Y, Gaussian noise) where loss and metric are not smooth, and in the middle of what may',
        '    be narrow: coefficients, constant."""',
        *["    " + line for line in [*read, *NUMBA.kernel_body_lines(kernel)]],
        "    return dict(",
        *[f"        {name}={_tuple_literal(_tuple_literal(row) for row in own)}," for name, own in rows.items()],
        "    )",
        *_source_lines_of_scales(at, scales),
    ]


def _source_lines_of_scales(at: FixedSizeModel, scales: dict[str, IntegrandLengthScales]) -> list[str]:
    """Return source lines of a function that returns the scales on which loss and metric change.

    They are scales in the fields of the teacher.
    """
    outputs = {
        f"{name}_{kind}_{n}": each
        for name, found in scales.items()
        for kind in ("arguments", "bases")
        for n, each in enumerate(getattr(found, kind))
    }
    kernel = make_kernel(outputs, formulas=[length_scales_in_teacher_fields, length_scales_of_metric])
    known = {v.name: f"v[{i}]" for i, v in enumerate(integration_variables(at))}
    known |= {name: f"c[{i}]" for i, name in enumerate(channel_constant_names(at))}
    read = add_origin_comment([f"{name} = {place}" for name, place in known.items() if name in kernel.input_names])
    named = {
        name: ", ".join(
            f"{kind}={_tuple_literal(each for each in outputs if each.startswith(f'{name}_{kind}_'))}"
            for kind in ("arguments", "bases")
        )
        for name in scales
    }
    return [
        "",
        "",
        "def scales(v, c):",
        _origin_comment_line("docs/theory.md (11.2)"),
        '    """Arguments of functions and bases of powers in the loss, where they hold no X, and in the metric, at',
        '    (X, Y, Gaussian noise) v, (fields, N)."""',
        *["    " + line for line in [*read, *ARRAYS.kernel_body_lines(kernel)]],
        f"    return dict({', '.join(f'{name}=dict({own})' for name, own in named.items())})",
    ]
