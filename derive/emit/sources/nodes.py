"""Kernels evaluated at a node of an integral in addition to the loss.

The Gaussian law of the fields, the proximal point's field, and the densities and derivatives of the quadrature in
proximal space (docs/theory.md section 11). Fields are L x s matrices x, w (omega), g, dw (omega - m), those of the
teacher L x t: y, dy (Y - m*); V, V^(-1) and the precision of omega given Y are the symmetric blocks v, p and r of a
token. H and d are Hessian and gradient of the loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import sympy as sp

from ...authoring.parameters import Structure
from ..kernel import ArrayEntryName, Kernel, array_entries, make_kernel


def matrix_of_symbols(array: str, rows: int, columns: int) -> sp.Matrix:
    """Return a matrix of symbols for the entries of an array.

    Args:
        array: name of the array in generated code.
        rows: number of rows.
        columns: number of columns.
    """
    return sp.Matrix(rows, columns, [entry.symbol for entry in array_entries(array, rows, columns)])


def student_field_symbols(structure: Structure, array: str) -> sp.Matrix:
    """Return the matrix of symbols of the student's fields, L tokens x s columns.

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        array: name of the array in generated code.
    """
    return matrix_of_symbols(array, structure.tokens, structure.student_rank)


def teacher_field_symbols(structure: Structure, array: str) -> sp.Matrix:
    """Return the matrix of symbols of the teacher's fields, L tokens x t columns.

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        array: name of the array in generated code.
    """
    return matrix_of_symbols(array, structure.tokens, structure.teacher_rank)


def symmetric_block_symbols(structure: Structure, array: str, token: int) -> sp.Matrix:
    """Return the symmetric s x s matrix of symbols of a token's block.

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        array: name of the array in generated code.
        token: index of the token, from 0.
    """
    s = structure.student_rank
    return sp.Matrix(s, s, lambda a, b: ArrayEntryName(array, token, min(a, b), max(a, b)).symbol)


def block_diagonal_symbols(structure: Structure, array: str) -> sp.Matrix:
    """Return the matrix of symbols of all L s fields, block diagonal with one s x s block per token.

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        array: name of the array in generated code.
    """
    return sp.diag(*[symmetric_block_symbols(structure, array, token) for token in range(structure.tokens)])


def symmetric_matrix_symbols(array: str, size: int) -> sp.Matrix:
    """Return a symmetric matrix of symbols for the entries of an array.

    Args:
        array: name of the array in generated code.
        size: number of rows.
    """
    return sp.Matrix(size, size, lambda i, j: ArrayEntryName(array, min(i, j), max(i, j)).symbol)


def loss_hessian_symbols(structure: Structure) -> sp.Matrix:
    """Return the matrix of symbols of the loss's Hessian in all L s fields."""
    return symmetric_matrix_symbols("h", structure.tokens * structure.student_rank)


def loss_gradient_symbols(structure: Structure) -> sp.Matrix:
    """Return the matrix of symbols of the loss's gradient in the fields, L tokens x s columns."""
    size = structure.tokens, structure.student_rank
    return sp.Matrix(*size, [entry.symbol for entry in array_entries("d", size[0] * size[1])])


def _values_by_entry_name(array: str, values: sp.Matrix) -> dict[str, sp.Expr]:
    return {entry: values[entry.place] for entry in array_entries(array, *values.shape)}


def _stack_fields(fields: sp.Matrix) -> sp.Matrix:
    """Return the fields of a sample stacked into one column, token by token."""
    return fields.reshape(len(fields), 1)


def _dot_product(one: Iterable[sp.Expr], other: Iterable[sp.Expr]) -> sp.Expr:
    return sp.Add(*[a * b for a, b in zip(one, other, strict=True)])


# --- the law of the fields --------------------------------------------------------------------------------------------


def entries_of_field_law_arrays(structure: Structure, noise: int = 0) -> list[ArrayEntryName]:
    """Return the entries of the arrays that map standard normal coordinates to fields and noise.

    The arrays are means and factors of the fields of teacher and student, and standard deviations of the Gaussian noise
    u.

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        noise: number of Gaussian coordinates of u.
    """
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    shapes = {"teacher_mean": (L, t), "teacher_factor": (L, t, t), "field_mean": (L, s)}
    shapes |= {"field_from_teacher": (L, s, t), "field_factor": (L, s, s), "noise_scale": (noise,)}
    return [entry for array, shape in shapes.items() for entry in array_entries(array, *shape)]


def standard_normal_coordinates(structure: Structure, noise: int, fields: bool = True) -> list[ArrayEntryName]:
    """Return the names of a node's standard normal coordinates: for Y, omega (optional) and Gaussian noises.

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        noise: number of Gaussian coordinates of u.
        fields: whether the node has coordinates of omega.
    """
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    return array_entries("z", L * t + (L * s if fields else 0) + noise)


def fields_at_node_kernel(structure: Structure, noise: list[str], fields: str = "") -> Kernel:
    """Return a kernel of the teacher's fields Y (3.12) and the student's fields omega (3.14) at a quadrature node.

    Its inputs are the node's standard normal coordinates z.

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        noise: names of the Gaussian coordinates of u.
        fields: name of the student's fields, if the node has them.
    """
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    z = [entry.symbol for entry in standard_normal_coordinates(structure, len(noise), bool(fields))]
    steps: dict[str, sp.Expr] = {}
    places: dict[str, sp.Expr] = {}
    for l in range(L):
        of_teacher, of_field = z[l * t : (l + 1) * t], z[L * t + l * s : L * t + (l + 1) * s]
        for b in range(t):
            factor = [ArrayEntryName("teacher_factor", l, b, e).symbol for e in range(b + 1)]
            steps[step := ArrayEntryName("dy", l, b)] = _dot_product(factor, of_teacher[: b + 1])
            places[step.matching_entry("y")] = step.matching_entry("teacher_mean").symbol + step.symbol
        for a in range(s if fields else 0):
            taught = [ArrayEntryName("field_from_teacher", l, a, e).symbol for e in range(t)]
            own = [ArrayEntryName("field_factor", l, a, e).symbol for e in range(a + 1)]
            steps[step := ArrayEntryName(f"d{fields}", l, a)] = _dot_product(
                [*taught, *own], [*of_teacher, *of_field[: a + 1]]
            )
            places[step.matching_entry(fields)] = step.matching_entry("field_mean").symbol + step.symbol
    last = z[len(z) - len(noise) :]
    places |= {u: ArrayEntryName("noise_scale", n).symbol * last[n] for n, u in enumerate(noise)}
    return make_kernel(
        {**{name: sp.Symbol(str(name), real=True) for name in steps}, **places},
        steps,
        prefix="n",
        equations=f"docs/theory.md (3.12){', (3.14)' if fields else ''}",
    )


def conditional_field_mean_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the mean E[omega | Y] of the student's fields, given the teacher's fields Y (3.14).

    Its inputs are the standard normal coordinates of Y.
    """
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    z = sp.Matrix(L, t, [entry.symbol for entry in array_entries("z", L * t)])
    means = {}
    for place in array_entries("mu", L, s):
        l, a = place.place
        taught = [ArrayEntryName("field_from_teacher", l, a, e).symbol for e in range(t)]
        means[place] = place.matching_entry("field_mean").symbol + _dot_product(taught, z[l, :])
    return make_kernel(means, prefix="n", equations="docs/theory.md (3.14)")


# --- the proximal point -----------------------------------------------------------------------------------------------


def _half_squared_distance(structure: Structure, to: str, start: str, array: str) -> sp.Expr:
    """Return 1/2 (a - b)^T A (a - b) summed over tokens, for student fields a and b and symmetric matrices A.

    `to`, `start` and `array` are the names of a, b and A.
    """
    total = sp.Integer(0)
    for token in range(structure.tokens):
        step = (student_field_symbols(structure, to)[token, :] - student_field_symbols(structure, start)[token, :]).T
        total += (step.T * symmetric_block_symbols(structure, array, token) * step)[0, 0] / 2
    return total


def proximal_quadratic_form(structure: Structure) -> sp.Expr:
    """Return the quadratic form 1/2 (x - omega)^T V^(-1) (x - omega) of (4.3), summed over tokens."""
    return _half_squared_distance(structure, "x", "w", "p")


def proximal_field_kernel(structure: Structure, x: str = "x", g: str = "g") -> Kernel:
    """Return a kernel of the proximal field g = V^(-1) (x - omega) (4.4), at a minimum x of the objective.

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        x: name of the minimum.
        g: name of the field.
    """
    found: dict[str, sp.Expr] = {}
    for token in range(structure.tokens):
        step = (student_field_symbols(structure, x)[token, :] - student_field_symbols(structure, "w")[token, :]).T
        values = symmetric_block_symbols(structure, "p", token) * step
        found |= {ArrayEntryName(g, token, a): values[a] for a in range(structure.student_rank)}
    return make_kernel(found, prefix="b", equations="docs/theory.md (4.4)")


def _quadratic_part_at_minimum(structure: Structure, x: str) -> sp.Expr:
    """Return 1/2 (x - omega) . g, the quadratic term of the proximal objective (4.3) at its minimum x."""
    return (
        _dot_product(
            student_field_symbols(structure, x) - student_field_symbols(structure, "w"),
            student_field_symbols(structure, "g"),
        )
        / 2
    )


def loss_at_minimum_kernel(structure: Structure, value: str, x: str = "x") -> Kernel:
    """Return a kernel of the loss at a minimum x of the proximal objective (4.3).

    It follows from the objective's value and the proximal field g.

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        value: name of the minimum's value.
        x: name of the minimum.
    """
    loss = sp.Symbol(value, real=True) - _quadratic_part_at_minimum(structure, x)
    return make_kernel({"loss": loss}, prefix="b", equations="docs/theory.md (4.3), (4.4)")


def moreau_objective_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the proximal objective (4.3) at a critical point x, from the loss at x."""
    moreau = sp.Symbol("loss", real=True) + _quadratic_part_at_minimum(structure, "x")
    return make_kernel({"moreau": moreau}, prefix="b", equations="docs/theory.md (4.3), (4.4)")


def field_response_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the matrices I + H V and -H of the linear system (8.1) for the response dg/domega.

    H is the Hessian of the loss, V the variance of the fields, g the proximal field at cavity field omega.
    """
    H, V = loss_hessian_symbols(structure), block_diagonal_symbols(structure, "v")
    size = H.rows
    system, right = sp.eye(size) + H * V, -H
    return make_kernel(
        {
            f"{array}[{i}, {j}]": m[i, j]
            for i in range(size)
            for j in range(size)
            for array, m in (("work", system), ("slopes", right))
        },
        prefix="b",
        equations="docs/theory.md (8.1)",
    )


def response_at_corner_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the response dg/domega = -V^(-1) of a proximal point at a corner of the loss (11.12)."""
    return make_kernel(
        {"slopes[0, 0]": -1 / block_diagonal_symbols(structure, "v")[0, 0]},
        prefix="b",
        equations="docs/theory.md (11.12)",
    )


def thermal_response_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the response dg/domega = V^(-1) (Cov(X) V^(-1) / T - 1) at temperature T (12.5).

    g is the proximal field, omega the field around which the thermal field X fluctuates. The input `spread` is Cov(X) /
    T.
    """
    P = block_diagonal_symbols(structure, "p")
    size = P.rows
    response = P * symmetric_matrix_symbols("spread", size) * P - P
    slopes = {f"slopes[row, {i}, {j}]": response[i, j] for i in range(size) for j in range(size)}
    return make_kernel(slopes, prefix="b", equations="docs/theory.md (12.5)")


# --- prox-space -------------------------------------------------------------------------------------------------------


def field_of_critical_point_kernel(structure: Structure) -> Kernel:
    """Return a kernel of omega = x + V grad loss (11.1), at which x is critical for the proximal objective."""
    x, d = student_field_symbols(structure, "x"), loss_gradient_symbols(structure)
    found: dict[str, sp.Expr] = {}
    for token in range(structure.tokens):
        omega = x[token, :].T + symmetric_block_symbols(structure, "v", token) * d[token, :].T
        found |= {ArrayEntryName("w", token, a): omega[a] for a in range(structure.student_rank)}
    return make_kernel(found, prefix="b", equations="docs/theory.md (11.1)")


def proximal_field_at_critical_point_kernel(structure: Structure) -> Kernel:
    """Return a kernel of g = -grad loss (4.8) and of omega - m, field minus mean, at a critical point."""
    step = student_field_symbols(structure, "w") - student_field_symbols(structure, "field_mean")
    found = {**_values_by_entry_name("g", -loss_gradient_symbols(structure)), **_values_by_entry_name("dw", step)}
    return make_kernel(found, prefix="b", equations="docs/theory.md (4.8)")


def response_determinant(structure: Structure) -> sp.Expr:
    """Return det(I + V H) of (11.2), with V block diagonal over tokens and H the Hessian of the loss."""
    V = block_diagonal_symbols(structure, "v")
    return (sp.eye(V.rows) + V * loss_hessian_symbols(structure)).det(method="berkowitz")


def _gaussian_exponent(structure: Structure) -> sp.Expr:
    """Return the exponent 1/2 (omega - mu)^T C^(-1) (omega - mu) of omega's law given Y, summed over tokens."""
    return _half_squared_distance(structure, "w", "mu", "r")


def gaussian_exponent_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the exponent 1/2 (omega - mu)^T C^(-1) (omega - mu) of the Gaussian in (11.2).

    mu and C are mean and covariance of the student's fields omega, given the teacher's fields.
    """
    return make_kernel({"exponent": _gaussian_exponent(structure)}, prefix="o", equations="docs/theory.md (11.2)")


def gaussian_exponent_gradient_kernel(structure: Structure) -> Kernel:
    """Return a kernel of C^(-1) (omega - mu), the gradient in omega of the Gaussian exponent in (11.2).

    mu and C are mean and covariance of the student's fields omega, given the teacher's fields.
    """
    total, w = _gaussian_exponent(structure), student_field_symbols(structure, "w")
    slopes = {entry: sp.diff(total, w[entry.place]) for entry in array_entries("e", *w.shape)}
    return make_kernel(slopes, prefix="b", equations="docs/theory.md (11.2)")


def critical_point_weight_kernel() -> Kernel:
    """Return a kernel of the weight N(omega; mu, C) det(1 + V H) of a critical point in (11.3).

    H is the Hessian of the loss, mu and C are mean and covariance of the student's fields omega given the teacher's;
    the weight is multiplied by that of the quadrature node.
    """
    norm, copies, minus_log, det = sp.symbols("norm copies exponent determinant", real=True)
    density = norm * copies * sp.exp(-minus_log)
    return make_kernel(
        {"density": sp.Symbol("density", real=True), "weight": sp.Symbol("density", real=True) * det},
        {"density": density},
        prefix="b",
        equations="docs/theory.md (11.3)",
    )


def parameters_of_field_law(structure: Structure) -> list[ArrayEntryName]:
    """Return the names of the parameters of the fields' normal law, in the order of the averages' derivatives.

    omega are the student's fields, Y the teacher's, of mean m*. Per token: the mean m, the matrix b of E[omega | Y] = m
    + b (Y - m*), then the upper triangles of C = Cov(omega | Y) and of the proximal variance V.
    """
    s, t = structure.student_rank, structure.teacher_rank
    found: list[ArrayEntryName] = []
    for l in range(structure.tokens):
        found += [ArrayEntryName("m", l, a) for a in range(s)]
        found += [ArrayEntryName("b", l, a, b) for a in range(s) for b in range(t)]
        found += [ArrayEntryName(array, l, a, b) for array in "CV" for a in range(s) for b in range(a, s)]
    return found


def columns_of_variances(structure: Structure) -> dict[int, ArrayEntryName]:
    """Return a map from columns of `parameters_of_field_law` to the entries of the variances V that stand there."""
    return {column: entry for column, entry in enumerate(parameters_of_field_law(structure)) if entry.array == "V"}


def derivative_of_omega(structure: Structure, entry: ArrayEntryName) -> sp.Matrix:
    """Return the derivative of a token's field omega in an entry of its variance V, at fixed proximal point (s x 1).

    Here omega = x + V grad loss(x) for the proximal point x (11.1).

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        entry: name of the entry of V.
    """
    l, *place = entry.place
    return _symmetric_unit_matrix(structure, *place) * loss_gradient_symbols(structure)[l, :].T


def _symmetric_unit_matrix(structure: Structure, a: int, b: int) -> sp.Matrix:
    """Return the derivative of a symmetric matrix in its entry at (a, b) and (b, a)."""
    s = structure.student_rank
    return sp.Matrix(s, s, lambda i, j: int((i, j) in ((a, b), (b, a))))


def critical_weight_derivatives_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the derivatives of a critical point's weight in `parameters_of_field_law`, at fixed X and Y.

    The weight contains the density N(omega; mu, C) of the student's fields given the teacher's fields Y. With e =
    C^(-1) (omega - mu), d log N is e^T (d mu - d omega) + 1/2 e^T dC e - 1/2 Tr(C^(-1) dC); mu changes with m and b,
    omega with V.
    """
    s = structure.student_rank
    weight_, density = sp.symbols("weight density", real=True)
    found: dict[str, sp.Expr] = {}
    for column, entry in enumerate(parameters_of_field_law(structure)):
        l, a, *rest = entry.place
        e, r = student_field_symbols(structure, "e")[l, :].T, symmetric_block_symbols(structure, "r", l)
        d_mu, d_omega, d_C = sp.zeros(s, 1), sp.zeros(s, 1), sp.zeros(s, s)
        of_determinant = sp.Integer(0)
        if entry.array == "m":
            d_mu[a] = 1
        elif entry.array == "b":
            d_mu[a] = teacher_field_symbols(structure, "dy")[l, rest[0]]
        elif entry.array == "C":
            d_C = _symmetric_unit_matrix(structure, a, *rest)
        else:
            d_omega = derivative_of_omega(structure, entry)
            of_determinant = density * entry.matching_entry("det").symbol
        change = _dot_product(e, d_mu - d_omega) + (e.T * d_C * e)[0] / 2 - (r * d_C).trace() / 2
        found[f"scores[{column}]"] = of_determinant + weight_ * change
    return make_kernel(found, prefix="b", equations="docs/theory.md (11.3)")


@cache
def _smoothed_step(z: sp.Symbol) -> tuple[sp.Expr, sp.Expr]:
    """Return a step function of -z smoothed by a kernel of sixth order, and its derivative in z.

    With this sign SymPy does not write erfc as 2 - erfc, which would lose the digits of small values.
    """
    bell = sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi)
    step = sp.erfc(z / sp.sqrt(2)) / 2 - bell * z * (7 - z**2) / 8
    return step, sp.factor_terms(sp.simplify(sp.diff(step, z)))


def kernels_selecting_lower_minimum(structure: Structure) -> dict[str, Kernel]:
    """Return by name the kernels of the weight of the first of two minima (11.4), and of the width of its rise.

    The weight is a smoothed step function of the difference of the two minima's values. Its width is the change of this
    difference over the lengths `blur` of the fields X.
    """
    jump, V, H = (
        _stack_fields(student_field_symbols(structure, "jump")),
        block_diagonal_symbols(structure, "v"),
        loss_hessian_symbols(structure),
    )
    tilt = jump.T * (sp.eye(len(jump)) + V * H)
    blur = [entry.symbol for entry in array_entries("blur", len(jump))]
    difference, width, z = sp.symbols("difference width z", real=True)
    step, slope_in_z = _smoothed_step(z)
    lengths = [slope * length for slope, length in zip(tilt, blur, strict=True)]
    shares, of_z = {"share": step, "share_slope": -slope_in_z / width}, {"z": -difference / width}
    equations = "docs/theory.md (11.4)"
    return {
        "width": make_kernel({"width": sp.sqrt(_dot_product(lengths, lengths))}, prefix="b", equations=equations),
        "share": make_kernel(shares, of_z, prefix="b", equations=equations, formulas=[_smoothed_step]),
    }


def minimum_weight_derivatives_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the derivatives in V of the weight of the first of two minima, at fixed fields X.

    The value of a minimum of the proximal objective changes by -g^T domega - 1/2 g^T dV g (4.7), with the proximal
    field g and the field omega, which changes with V.
    """
    found: dict[str, sp.Expr] = {}
    for column, entry in columns_of_variances(structure).items():
        l, *place = entry.place
        changes = []
        for side in ("one_g", "two_g"):
            g = student_field_symbols(structure, side)[l, :].T
            changes.append(
                -_dot_product(g, derivative_of_omega(structure, entry))
                - (g.T * _symmetric_unit_matrix(structure, *place) * g)[0] / 2
            )
        found[f"turns[{column}]"] = sp.Symbol("share_slope", real=True) * (changes[0] - changes[1])
    return make_kernel(found, prefix="b", equations="docs/theory.md (4.7)")


def derivatives_of_minimum_field_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the derivatives in V of the proximal field g at a minimum x, at fixed x.

    By (8.4) they are D_j (domega + dV g), with D_j a row of dg/domega and domega the change of omega = x + V grad
    loss(x).
    """
    found: dict[str, sp.Expr] = {}
    s = structure.student_rank
    row = [entry.symbol for entry in array_entries("D", structure.tokens * s)]
    for column, entry in columns_of_variances(structure).items():
        l, *place = entry.place
        change = (
            derivative_of_omega(structure, entry)
            + _symmetric_unit_matrix(structure, *place) * student_field_symbols(structure, "g")[l, :].T
        )
        found[f"moves[field, {column}]"] = _dot_product(row[l * s : (l + 1) * s], change)
    return make_kernel(found, prefix="b", equations="docs/theory.md (8.4)")


def summand_derivatives_through_omega_kernel(structure: Structure, rows: dict[ArrayEntryName, sp.Expr]) -> Kernel:
    """Return a kernel of derivatives of channel summands in parameters of the fields' law, through omega - m alone.

    A summand is the function averaged over samples in a channel average, omega - m a field minus its mean; the
    parameters are those of `parameters_of_field_law`.

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        rows: summands of the channel averages.
    """
    dw, columns = student_field_symbols(structure, "dw"), parameters_of_field_law(structure)
    found: dict[str, sp.Expr] = {}
    for n, (name, row) in enumerate(rows.items()):
        slope = sp.Matrix([sp.diff(row, symbol) for symbol in dw[name.place[0], :]])
        for column, entry in enumerate(columns):
            if entry.place[0] != name.place[0] or entry.array not in ("m", "V"):
                continue
            if entry.array == "V":
                change = derivative_of_omega(structure, entry)
            else:
                change = sp.Matrix([-int(a == entry.place[1]) for a in range(len(slope))])
            if (moved := _dot_product(slope, change)) != 0:
                found[f"tangents[chunk, {n}, {column}]"] = moved
    return make_kernel(found, prefix="y", equations="docs/theory.md (8.4)")


def summand_derivatives_through_g_kernel(structure: Structure, rows: dict[ArrayEntryName, sp.Expr]) -> Kernel:
    """Return a kernel of derivatives of channel summands in one parameter of the fields' law, through g alone.

    A summand is the function averaged over samples in a channel average. The input `move` is the derivative of the
    proximal field g in this parameter.

    Args:
        structure: numbers of tokens L and of columns s and t, and of clusters.
        rows: summands of the channel averages.
    """
    move = sp.Matrix(
        structure.tokens,
        structure.student_rank,
        [e.symbol for e in array_entries("move", structure.tokens * structure.student_rank)],
    )
    g = student_field_symbols(structure, "g")
    found = {}
    for n, (name, row) in enumerate(rows.items()):
        l = name.place[0]
        turned = _dot_product([sp.diff(row, symbol) for symbol in g[l, :]], move[l, :])
        if turned != 0:
            found[f"tangents[chunk, {n}, column]"] = turned
    return make_kernel(found, prefix="y", equations="docs/theory.md (8.4)")
