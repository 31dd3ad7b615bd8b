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
from ..kernel import ArrayEntryName, Kernel, array_entries, as_kernel


def symbol_matrix(array: str, rows: int, columns: int) -> sp.Matrix:
    """Return a matrix of symbols for the entries of an array.

    Args:
        array: name of the array.
        rows: number of rows.
        columns: number of columns.
    """
    return sp.Matrix(rows, columns, [entry.symbol for entry in array_entries(array, rows, columns)])


def student_field_symbols(structure: Structure, array: str) -> sp.Matrix:
    """Return the matrix of symbols of the student's fields, L x s.

    Args:
        structure: sizes.
        array: name of the array.
    """
    return symbol_matrix(array, structure.tokens, structure.student_rank)


def teacher_field_symbols(structure: Structure, array: str) -> sp.Matrix:
    """Return the matrix of symbols of the teacher's fields, L x t.

    Args:
        structure: sizes.
        array: name of the array.
    """
    return symbol_matrix(array, structure.tokens, structure.teacher_rank)


def symmetric_block_symbols(structure: Structure, array: str, token: int) -> sp.Matrix:
    """Return the symmetric s x s matrix of symbols of a token's block.

    Args:
        structure: sizes.
        array: name of the array.
        token: index of the token, from 0.
    """
    s = structure.student_rank
    return sp.Matrix(s, s, lambda a, b: ArrayEntryName(array, token, min(a, b), max(a, b)).symbol)


def block_diagonal_symbols(structure: Structure, array: str) -> sp.Matrix:
    """Return the D x D matrix of symbols that is block diagonal over tokens.

    Args:
        structure: sizes.
        array: name of the array.
    """
    return sp.diag(*[symmetric_block_symbols(structure, array, token) for token in range(structure.tokens)])


def symmetric_matrix_symbols(array: str, size: int) -> sp.Matrix:
    """Return a symmetric matrix of symbols.

    Args:
        array: name of the array.
        size: number of rows.
    """
    return sp.Matrix(size, size, lambda i, j: ArrayEntryName(array, min(i, j), max(i, j)).symbol)


def loss_hessian_symbols(structure: Structure) -> sp.Matrix:
    """Return the matrix of symbols of the loss's Hessian, D x D."""
    return symmetric_matrix_symbols("h", structure.tokens * structure.student_rank)


def loss_gradient_symbols(structure: Structure) -> sp.Matrix:
    """Return the matrix of symbols of the loss's gradient, L x s."""
    size = structure.tokens, structure.student_rank
    return sp.Matrix(*size, [entry.symbol for entry in array_entries("d", size[0] * size[1])])


def _entry_values(array: str, values: sp.Matrix) -> dict[str, sp.Expr]:
    return {entry: values[entry.place] for entry in array_entries(array, *values.shape)}


def _fields_as_column(fields: sp.Matrix) -> sp.Matrix:
    """Return all fields of a sample as a column, token by token."""
    return fields.reshape(len(fields), 1)


def _dot_product(one: Iterable[sp.Expr], other: Iterable[sp.Expr]) -> sp.Expr:
    return sp.Add(*[a * b for a, b in zip(one, other, strict=True)])


# --- the law of the fields --------------------------------------------------------------------------------------------


def field_law_array_entries(structure: Structure, noise: int = 0) -> list[ArrayEntryName]:
    """Return the entries of the arrays that map a node's coordinates to fields: means, factors, noise scales.

    Args:
        structure: sizes.
        noise: number of Gaussian coordinates of u.
    """
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    shapes = {"teacher_mean": (L, t), "teacher_factor": (L, t, t), "field_mean": (L, s)}
    shapes |= {"field_from_teacher": (L, s, t), "field_factor": (L, s, s), "noise_scale": (noise,)}
    return [entry for array, shape in shapes.items() for entry in array_entries(array, *shape)]


def standard_normal_coordinates(structure: Structure, noise: int, fields: bool = True) -> list[ArrayEntryName]:
    """Return names of a node's standard normal coordinates: for Y, for omega (optional), for the Gaussian noises.

    Args:
        structure: sizes.
        noise: number of Gaussian coordinates of u.
        fields: whether the node has coordinates of omega.
    """
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    return array_entries("z", L * t + (L * s if fields else 0) + noise)


def node_fields_kernel(structure: Structure, noise: list[str], fields: str = "") -> Kernel:
    """Return a kernel of the fields at a node, Y by (3.12) and omega by (3.14), from standard normal coordinates z.

    Args:
        structure: sizes.
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
            places[step.same_entry_of_array("y")] = step.same_entry_of_array("teacher_mean").symbol + step.symbol
        for a in range(s if fields else 0):
            taught = [ArrayEntryName("field_from_teacher", l, a, e).symbol for e in range(t)]
            own = [ArrayEntryName("field_factor", l, a, e).symbol for e in range(a + 1)]
            steps[step := ArrayEntryName(f"d{fields}", l, a)] = _dot_product(
                [*taught, *own], [*of_teacher, *of_field[: a + 1]]
            )
            places[step.same_entry_of_array(fields)] = step.same_entry_of_array("field_mean").symbol + step.symbol
    last = z[len(z) - len(noise) :]
    places |= {u: ArrayEntryName("noise_scale", n).symbol * last[n] for n, u in enumerate(noise)}
    return as_kernel(
        {**{name: sp.Symbol(str(name), real=True) for name in steps}, **places},
        steps,
        prefix="n",
        equations=f"docs/theory.md (3.12){', (3.14)' if fields else ''}",
    )


def conditional_field_mean_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the mean of omega given Y (3.14), from the standard normal coordinates of Y."""
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    z = sp.Matrix(L, t, [entry.symbol for entry in array_entries("z", L * t)])
    means = {}
    for place in array_entries("mu", L, s):
        l, a = place.place
        taught = [ArrayEntryName("field_from_teacher", l, a, e).symbol for e in range(t)]
        means[place] = place.same_entry_of_array("field_mean").symbol + _dot_product(taught, z[l, :])
    return as_kernel(means, prefix="n", equations="docs/theory.md (3.14)")


# --- the proximal point -----------------------------------------------------------------------------------------------


def _half_squared_distance(structure: Structure, to: str, start: str, array: str) -> sp.Expr:
    """Return 1/2 (to - start)^T A (to - start) summed over tokens, A the symmetric block of a token."""
    total = sp.Integer(0)
    for token in range(structure.tokens):
        step = (student_field_symbols(structure, to)[token, :] - student_field_symbols(structure, start)[token, :]).T
        total += (step.T * symmetric_block_symbols(structure, array, token) * step)[0, 0] / 2
    return total


def proximal_quadratic_form(structure: Structure) -> sp.Expr:
    """Return the quadratic form 1/2 (x - w)^T V^(-1) (x - w) of (4.3), summed over tokens."""
    return _half_squared_distance(structure, "x", "w", "p")


def proximal_field_kernel(structure: Structure, x: str = "x", g: str = "g") -> Kernel:
    """Return a kernel of the field g = V^(-1) (x - omega), (4.4), at a minimum x.

    Args:
        structure: sizes.
        x: name of the minimum.
        g: name of the field.
    """
    found: dict[str, sp.Expr] = {}
    for token in range(structure.tokens):
        step = (student_field_symbols(structure, x)[token, :] - student_field_symbols(structure, "w")[token, :]).T
        values = symmetric_block_symbols(structure, "p", token) * step
        found |= {ArrayEntryName(g, token, a): values[a] for a in range(structure.student_rank)}
    return as_kernel(found, prefix="b", equations="docs/theory.md (4.4)")


def _quadratic_part_at_minimum(structure: Structure, x: str) -> sp.Expr:
    """Return 1/2 (x - omega) . g, the quadratic part of (4.3) by (4.4)."""
    return (
        _dot_product(
            student_field_symbols(structure, x) - student_field_symbols(structure, "w"),
            student_field_symbols(structure, "g"),
        )
        / 2
    )


def loss_at_minimum_kernel(structure: Structure, value: str, x: str = "x") -> Kernel:
    """Return a kernel of the loss at a minimum x of the objective (4.3), from the objective's value and the field g.

    Args:
        structure: sizes.
        value: name of the minimum's value.
        x: name of the minimum.
    """
    loss = sp.Symbol(value, real=True) - _quadratic_part_at_minimum(structure, x)
    return as_kernel({"loss": loss}, prefix="b", equations="docs/theory.md (4.3), (4.4)")


def moreau_objective_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the objective (4.3) at a critical point x, from the loss at x."""
    moreau = sp.Symbol("loss", real=True) + _quadratic_part_at_minimum(structure, "x")
    return as_kernel({"moreau": moreau}, prefix="b", equations="docs/theory.md (4.3), (4.4)")


def linear_response_kernel(structure: Structure) -> Kernel:
    """Return a kernel of I + H V and -H, the linear system of dg/domega (8.1)."""
    H, V = loss_hessian_symbols(structure), block_diagonal_symbols(structure, "v")
    size = H.rows
    system, right = sp.eye(size) + H * V, -H
    return as_kernel(
        {
            f"{array}[{i}, {j}]": m[i, j]
            for i in range(size)
            for j in range(size)
            for array, m in (("work", system), ("slopes", right))
        },
        prefix="b",
        equations="docs/theory.md (8.1)",
    )


def corner_response_kernel(structure: Structure) -> Kernel:
    """Return a kernel of dg/domega = -V^(-1), for a proximal point at a corner of the loss (11.12)."""
    return as_kernel(
        {"slopes[0, 0]": -1 / block_diagonal_symbols(structure, "v")[0, 0]},
        prefix="b",
        equations="docs/theory.md (11.12)",
    )


def thermal_response_kernel(structure: Structure) -> Kernel:
    """Return a kernel of dg/domega = V^(-1) (Cov(X) V^(-1) / T - 1) of (12.5); `spread` is Cov(X) / T."""
    P = block_diagonal_symbols(structure, "p")
    size = P.rows
    response = P * symmetric_matrix_symbols("spread", size) * P - P
    slopes = {f"slopes[row, {i}, {j}]": response[i, j] for i in range(size) for j in range(size)}
    return as_kernel(slopes, prefix="b", equations="docs/theory.md (12.5)")


# --- prox-space -------------------------------------------------------------------------------------------------------


def field_of_critical_point_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the field omega = x + V grad loss, (11.1), for which x is a critical point."""
    x, d = student_field_symbols(structure, "x"), loss_gradient_symbols(structure)
    found: dict[str, sp.Expr] = {}
    for token in range(structure.tokens):
        omega = x[token, :].T + symmetric_block_symbols(structure, "v", token) * d[token, :].T
        found |= {ArrayEntryName("w", token, a): omega[a] for a in range(structure.student_rank)}
    return as_kernel(found, prefix="b", equations="docs/theory.md (11.1)")


def proximal_field_at_critical_point_kernel(structure: Structure) -> Kernel:
    """Return a kernel of g = -grad loss, (4.8), and omega - m at a critical point."""
    step = student_field_symbols(structure, "w") - student_field_symbols(structure, "field_mean")
    found = {**_entry_values("g", -loss_gradient_symbols(structure)), **_entry_values("dw", step)}
    return as_kernel(found, prefix="b", equations="docs/theory.md (4.8)")


def response_determinant(structure: Structure) -> sp.Expr:
    """Return det(I + V H) of (11.2), V block diagonal over tokens and H the Hessian of the loss."""
    V = block_diagonal_symbols(structure, "v")
    return (sp.eye(V.rows) + V * loss_hessian_symbols(structure)).det(method="berkowitz")


def _gaussian_exponent(structure: Structure) -> sp.Expr:
    """Return 1/2 (w - mu)^T r (w - mu) summed over tokens, r the precision of omega given Y."""
    return _half_squared_distance(structure, "w", "mu", "r")


def gaussian_exponent_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the exponent 1/2 (omega - mu)^T C^(-1) (omega - mu) of the Gaussian in (11.2)."""
    return as_kernel({"exponent": _gaussian_exponent(structure)}, prefix="o", equations="docs/theory.md (11.2)")


def gaussian_exponent_gradient_kernel(structure: Structure) -> Kernel:
    """Return a kernel of e = C^(-1) (omega - mu), the gradient of the Gaussian exponent in omega."""
    total, w = _gaussian_exponent(structure), student_field_symbols(structure, "w")
    slopes = {entry: sp.diff(total, w[entry.place]) for entry in array_entries("e", *w.shape)}
    return as_kernel(slopes, prefix="b", equations="docs/theory.md (11.2)")


def critical_point_weight_kernel() -> Kernel:
    """Return a kernel of the weight N(omega; mu, C) det(1 + V H) of a critical point in (11.3), times node weights."""
    norm, copies, minus_log, det = sp.symbols("norm copies exponent determinant", real=True)
    density = norm * copies * sp.exp(-minus_log)
    return as_kernel(
        {"density": sp.Symbol("density", real=True), "weight": sp.Symbol("density", real=True) * det},
        {"density": density},
        prefix="b",
        equations="docs/theory.md (11.3)",
    )


def field_law_entries(structure: Structure) -> list[ArrayEntryName]:
    """Return names of the numbers that determine the law of the fields, in the order of the averages' derivatives.

    Per token: m_a, then b_ab of E[omega | Y] = m + b (Y - m*), then the upper triangles of C = Cov(omega | Y) and V.
    """
    s, t = structure.student_rank, structure.teacher_rank
    found: list[ArrayEntryName] = []
    for l in range(structure.tokens):
        found += [ArrayEntryName("m", l, a) for a in range(s)]
        found += [ArrayEntryName("b", l, a, b) for a in range(s) for b in range(t)]
        found += [ArrayEntryName(array, l, a, b) for array in "CV" for a in range(s) for b in range(a, s)]
    return found


def variance_entry_columns(structure: Structure) -> dict[int, ArrayEntryName]:
    """Return the entries of V by their column in `field_law_entries`."""
    return {column: entry for column, entry in enumerate(field_law_entries(structure)) if entry.array == "V"}


def omega_derivative(structure: Structure, entry: ArrayEntryName) -> sp.Matrix:
    """Return the derivative of a token's omega, (11.1), in an entry of its V at fixed X, s x 1.

    Args:
        structure: sizes.
        entry: entry of V.
    """
    l, *place = entry.place
    return _symmetric_unit_matrix(structure, *place) * loss_gradient_symbols(structure)[l, :].T


def _symmetric_unit_matrix(structure: Structure, a: int, b: int) -> sp.Matrix:
    """Return the derivative of a symmetric matrix in its entry at (a, b) and (b, a)."""
    s = structure.student_rank
    return sp.Matrix(s, s, lambda i, j: int((i, j) in ((a, b), (b, a))))


def critical_point_score_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the derivatives of a critical point's weight in `field_law_entries`, at fixed X and Y.

    By d log N(omega; mu, C) = e^T (d mu - d omega) + 1/2 e^T dC e - 1/2 Tr(C^(-1) dC), e = C^(-1) (omega - mu);
    mu changes with m and b, omega with V.
    """
    s = structure.student_rank
    weight_, density = sp.symbols("weight density", real=True)
    found: dict[str, sp.Expr] = {}
    for column, entry in enumerate(field_law_entries(structure)):
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
            d_omega = omega_derivative(structure, entry)
            of_determinant = density * entry.same_entry_of_array("det").symbol
        change = _dot_product(e, d_mu - d_omega) + (e.T * d_C * e)[0] / 2 - (r * d_C).trace() / 2
        found[f"scores[{column}]"] = of_determinant + weight_ * change
    return as_kernel(found, prefix="b", equations="docs/theory.md (11.3)")


@cache
def _smoothed_step(z: sp.Symbol) -> tuple[sp.Expr, sp.Expr]:
    """Return a step function smoothed by a kernel of sixth order, in minus its argument, and its derivative.

    In -z, as SymPy turns erfc(-z) into 2 - erfc(z), which loses the digits of a small value.
    """
    bell = sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi)
    step = sp.erfc(z / sp.sqrt(2)) / 2 - bell * z * (7 - z**2) / 8
    return step, sp.factor_terms(sp.simplify(sp.diff(step, z)))


def lower_minimum_step_kernels(structure: Structure) -> dict[str, Kernel]:
    """Return kernels of the smoothed step that selects the lower one of two minima (11.4), and of its width.

    It is a function of the difference of their values, whose slope in omega is minus the jump of g (4.7), hence
    -jump (I + V H) in X; `width` is the change of the difference over the lengths `blur` in X.
    """
    jump, V, H = (
        _fields_as_column(student_field_symbols(structure, "jump")),
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
        "width": as_kernel({"width": sp.sqrt(_dot_product(lengths, lengths))}, prefix="b", equations=equations),
        "share": as_kernel(shares, of_z, prefix="b", equations=equations, formulas=[_smoothed_step]),
    }


def minimum_weight_derivative_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the derivatives of the first of two minima's weight in V at fixed X; omega changes with V.

    By dM = -g^T domega - 1/2 g^T dV g, (4.7), of both.
    """
    found: dict[str, sp.Expr] = {}
    for column, entry in variance_entry_columns(structure).items():
        l, *place = entry.place
        changes = []
        for side in ("one_g", "two_g"):
            g = student_field_symbols(structure, side)[l, :].T
            changes.append(
                -_dot_product(g, omega_derivative(structure, entry))
                - (g.T * _symmetric_unit_matrix(structure, *place) * g)[0] / 2
            )
        found[f"turns[{column}]"] = sp.Symbol("share_slope", real=True) * (changes[0] - changes[1])
    return as_kernel(found, prefix="b", equations="docs/theory.md (4.7)")


def minimum_field_derivative_kernel(structure: Structure) -> Kernel:
    """Return a kernel of the derivatives of a minimum's field g in V at fixed X.

    dg = D (domega + dV g), (8.4), D_j a row of dg/domega.
    """
    found: dict[str, sp.Expr] = {}
    s = structure.student_rank
    row = [entry.symbol for entry in array_entries("D", structure.tokens * s)]
    for column, entry in variance_entry_columns(structure).items():
        l, *place = entry.place
        change = (
            omega_derivative(structure, entry)
            + _symmetric_unit_matrix(structure, *place) * student_field_symbols(structure, "g")[l, :].T
        )
        found[f"moves[field, {column}]"] = _dot_product(row[l * s : (l + 1) * s], change)
    return as_kernel(found, prefix="b", equations="docs/theory.md (8.4)")


def moment_derivative_through_omega_kernel(structure: Structure, rows: dict[ArrayEntryName, sp.Expr]) -> Kernel:
    """Return a kernel of the derivatives of moment summands in `field_law_entries` through omega - m.

    Args:
        structure: sizes.
        rows: summands of the channel averages.
    """
    dw, columns = student_field_symbols(structure, "dw"), field_law_entries(structure)
    found: dict[str, sp.Expr] = {}
    for n, (name, row) in enumerate(rows.items()):
        slope = sp.Matrix([sp.diff(row, symbol) for symbol in dw[name.place[0], :]])
        for column, entry in enumerate(columns):
            if entry.place[0] != name.place[0] or entry.array not in ("m", "V"):
                continue
            if entry.array == "V":
                change = omega_derivative(structure, entry)
            else:
                change = sp.Matrix([-int(a == entry.place[1]) for a in range(len(slope))])
            if (moved := _dot_product(slope, change)) != 0:
                found[f"tangents[chunk, {n}, {column}]"] = moved
    return as_kernel(found, prefix="y", equations="docs/theory.md (8.4)")


def moment_derivative_through_g_kernel(structure: Structure, rows: dict[ArrayEntryName, sp.Expr]) -> Kernel:
    """Return a kernel of the derivatives of moment summands in a law entry through g; `move` is the derivative of g.

    Args:
        structure: sizes.
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
    return as_kernel(found, prefix="y", equations="docs/theory.md (8.4)")
