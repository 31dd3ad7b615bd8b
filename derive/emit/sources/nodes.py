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
from ..kernel import Entry, Kernel, as_kernel, entries


def symbol_matrix(array: str, rows: int, columns: int) -> sp.Matrix:
    """Return a matrix of the symbols of an array's entries.

    Args:
        array: name of the array.
        rows: number of rows.
        columns: number of columns.
    """
    return sp.Matrix(rows, columns, [entry.symbol for entry in entries(array, rows, columns)])


def student_fields(structure: Structure, array: str) -> sp.Matrix:
    """Return symbols of the student's fields, L x s.

    Args:
        structure: sizes.
        array: name of the array.
    """
    return symbol_matrix(array, structure.tokens, structure.student_rank)


def teacher_fields(structure: Structure, array: str) -> sp.Matrix:
    """Return symbols of the teacher's fields, L x t.

    Args:
        structure: sizes.
        array: name of the array.
    """
    return symbol_matrix(array, structure.tokens, structure.teacher_rank)


def symmetric_block(structure: Structure, array: str, token: int) -> sp.Matrix:
    """Return symbols of the symmetric s x s block of a token.

    Args:
        structure: sizes.
        array: name of the array.
        token: index of the token, from 0.
    """
    s = structure.student_rank
    return sp.Matrix(s, s, lambda a, b: Entry(array, token, min(a, b), max(a, b)).symbol)


def block_diagonal(structure: Structure, array: str) -> sp.Matrix:
    """Return the block-diagonal matrix over tokens, D x D.

    Args:
        structure: sizes.
        array: name of the array.
    """
    return sp.diag(*[symmetric_block(structure, array, token) for token in range(structure.tokens)])


def symmetric_matrix(array: str, size: int) -> sp.Matrix:
    """Return a symmetric matrix of symbols of its upper triangle.

    Args:
        array: name of the array.
        size: number of rows.
    """
    return sp.Matrix(size, size, lambda i, j: Entry(array, min(i, j), max(i, j)).symbol)


def hessian_symbols(structure: Structure) -> sp.Matrix:
    """Return symbols of the Hessian of the loss, D x D."""
    return symmetric_matrix("h", structure.tokens * structure.student_rank)


def gradient_symbols(structure: Structure) -> sp.Matrix:
    """Return symbols of the gradient of the loss, L x s."""
    size = structure.tokens, structure.student_rank
    return sp.Matrix(*size, [entry.symbol for entry in entries("d", size[0] * size[1])])


def _entries_with_values(array: str, values: sp.Matrix) -> dict[str, sp.Expr]:
    return {entry: values[entry.place] for entry in entries(array, *values.shape)}


def _column(fields: sp.Matrix) -> sp.Matrix:
    """Return all fields of a sample as a column, token by token."""
    return fields.reshape(len(fields), 1)


def _dot(one: Iterable[sp.Expr], other: Iterable[sp.Expr]) -> sp.Expr:
    return sp.Add(*[a * b for a, b in zip(one, other, strict=True)])


# --- the law of the fields --------------------------------------------------------------------------------------------


def law_array_entries(structure: Structure, noise: int = 0) -> list[Entry]:
    """Return the entries of all arrays that determine the fields of a node, without its coordinates.

    Args:
        structure: sizes.
        noise: number of Gaussian coordinates of u.
    """
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    shapes = {"teacher_mean": (L, t), "teacher_factor": (L, t, t), "field_mean": (L, s)}
    shapes |= {"field_from_teacher": (L, s, t), "field_factor": (L, s, s), "noise_scale": (noise,)}
    return [entry for array, shape in shapes.items() for entry in entries(array, *shape)]


def normal_coordinates(structure: Structure, noise: int, fields: bool = True) -> list[Entry]:
    """Return the standard normal coordinates of a node: of Y, of omega if it has them, of the Gaussian noise.

    Args:
        structure: sizes.
        noise: number of Gaussian coordinates of u.
        fields: whether the node has coordinates of omega.
    """
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    return entries("z", L * t + (L * s if fields else 0) + noise)


def node(structure: Structure, noise: list[str], fields: str = "") -> Kernel:
    """Return fields of a node of the law (3.12) from its standard normal coordinates z: Y first, then omega by (3.14).

    Args:
        structure: sizes.
        noise: names of the Gaussian coordinates of u.
        fields: name of the student's fields, if the node has them.
    """
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    z = [entry.symbol for entry in normal_coordinates(structure, len(noise), bool(fields))]
    steps: dict[str, sp.Expr] = {}
    places: dict[str, sp.Expr] = {}
    for l in range(L):
        of_teacher, of_field = z[l * t : (l + 1) * t], z[L * t + l * s : L * t + (l + 1) * s]
        for b in range(t):
            factor = [Entry("teacher_factor", l, b, e).symbol for e in range(b + 1)]
            steps[step := Entry("dy", l, b)] = _dot(factor, of_teacher[: b + 1])
            places[step.in_array("y")] = step.in_array("teacher_mean").symbol + step.symbol
        for a in range(s if fields else 0):
            taught = [Entry("field_from_teacher", l, a, e).symbol for e in range(t)]
            own = [Entry("field_factor", l, a, e).symbol for e in range(a + 1)]
            steps[step := Entry(f"d{fields}", l, a)] = _dot([*taught, *own], [*of_teacher, *of_field[: a + 1]])
            places[step.in_array(fields)] = step.in_array("field_mean").symbol + step.symbol
    last = z[len(z) - len(noise) :]
    places |= {u: Entry("noise_scale", n).symbol * last[n] for n, u in enumerate(noise)}
    return as_kernel(
        {**{name: sp.Symbol(str(name), real=True) for name in steps}, **places},
        steps,
        prefix="n",
        equations=f"docs/theory.md (3.12){', (3.14)' if fields else ''}",
    )


def field_means(structure: Structure) -> Kernel:
    """Return the mean mu of omega given Y (3.14), in the coordinates of Y."""
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    z = sp.Matrix(L, t, [entry.symbol for entry in entries("z", L * t)])
    means = {}
    for place in entries("mu", L, s):
        l, a = place.place
        taught = [Entry("field_from_teacher", l, a, e).symbol for e in range(t)]
        means[place] = place.in_array("field_mean").symbol + _dot(taught, z[l, :])
    return as_kernel(means, prefix="n", equations="docs/theory.md (3.14)")


# --- the proximal point -----------------------------------------------------------------------------------------------


def _half_square(structure: Structure, to: str, start: str, array: str) -> sp.Expr:
    """Return 1/2 (to - start)^T A (to - start) summed over tokens, A the symmetric block of a token."""
    total = sp.Integer(0)
    for token in range(structure.tokens):
        step = (student_fields(structure, to)[token, :] - student_fields(structure, start)[token, :]).T
        total += (step.T * symmetric_block(structure, array, token) * step)[0, 0] / 2
    return total


def quadratic(structure: Structure) -> sp.Expr:
    """Return 1/2 (x - w)^T V^(-1) (x - w) summed over tokens, of (4.3)."""
    return _half_square(structure, "x", "w", "p")


def field(structure: Structure, x: str = "x", g: str = "g") -> Kernel:
    """Return g = V^(-1) (x - omega), (4.4), at a minimum x.

    Args:
        structure: sizes.
        x: name of the minimum.
        g: name of the field.
    """
    found: dict[str, sp.Expr] = {}
    for token in range(structure.tokens):
        step = (student_fields(structure, x)[token, :] - student_fields(structure, "w")[token, :]).T
        values = symmetric_block(structure, "p", token) * step
        found |= {Entry(g, token, a): values[a] for a in range(structure.student_rank)}
    return as_kernel(found, prefix="b", equations="docs/theory.md (4.4)")


def _half_step(structure: Structure, x: str) -> sp.Expr:
    """Return 1/2 (x - omega) . g, the quadratic part of (4.3) by (4.4)."""
    return _dot(student_fields(structure, x) - student_fields(structure, "w"), student_fields(structure, "g")) / 2


def loss_of(structure: Structure, value: str, x: str = "x") -> Kernel:
    """Return the loss at a minimum x of the objective (4.3), from the minimum's value and field.

    Args:
        structure: sizes.
        value: name of the minimum's value.
        x: name of the minimum.
    """
    loss = sp.Symbol(value, real=True) - _half_step(structure, x)
    return as_kernel({"loss": loss}, prefix="b", equations="docs/theory.md (4.3), (4.4)")


def moreau_of(structure: Structure) -> Kernel:
    """Return the objective (4.3) at a critical point x, from the loss there."""
    moreau = sp.Symbol("loss", real=True) + _half_step(structure, "x")
    return as_kernel({"moreau": moreau}, prefix="b", equations="docs/theory.md (4.3), (4.4)")


def linear_response(structure: Structure) -> Kernel:
    """Return I + H V and -H, whose quotient is dg/domega (8.1)."""
    H, V = hessian_symbols(structure), block_diagonal(structure, "v")
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


def corner_response(structure: Structure) -> Kernel:
    """Return dg/domega = -V^(-1) of one field where the proximal point is at an edge (11.12)."""
    return as_kernel(
        {"slopes[0, 0]": -1 / block_diagonal(structure, "v")[0, 0]}, prefix="b", equations="docs/theory.md (11.12)"
    )


def thermal_response(structure: Structure) -> Kernel:
    """Return dg/domega = V^(-1) (Cov(X) V^(-1) / T - 1) of (12.5), `spread` being the covariance over T."""
    P = block_diagonal(structure, "p")
    size = P.rows
    response = P * symmetric_matrix("spread", size) * P - P
    slopes = {f"slopes[row, {i}, {j}]": response[i, j] for i in range(size) for j in range(size)}
    return as_kernel(slopes, prefix="b", equations="docs/theory.md (12.5)")


# --- prox-space -------------------------------------------------------------------------------------------------------


def critical_point(structure: Structure) -> Kernel:
    """Return omega = x + V grad loss, (11.1): the field for which x is a critical point."""
    x, d = student_fields(structure, "x"), gradient_symbols(structure)
    found: dict[str, sp.Expr] = {}
    for token in range(structure.tokens):
        omega = x[token, :].T + symmetric_block(structure, "v", token) * d[token, :].T
        found |= {Entry("w", token, a): omega[a] for a in range(structure.student_rank)}
    return as_kernel(found, prefix="b", equations="docs/theory.md (11.1)")


def critical_field(structure: Structure) -> Kernel:
    """Return g = -grad loss, (4.8), and omega - m at a critical point."""
    step = student_fields(structure, "w") - student_fields(structure, "field_mean")
    found = {**_entries_with_values("g", -gradient_symbols(structure)), **_entries_with_values("dw", step)}
    return as_kernel(found, prefix="b", equations="docs/theory.md (4.8)")


def determinant(structure: Structure) -> sp.Expr:
    """Return det(I + V H) of (11.2), V block diagonal over tokens and H the Hessian of the loss."""
    V = block_diagonal(structure, "v")
    return (sp.eye(V.rows) + V * hessian_symbols(structure)).det(method="berkowitz")


def _exponent(structure: Structure) -> sp.Expr:
    """Return 1/2 (w - mu)^T r (w - mu) summed over tokens, r the precision of omega given Y."""
    return _half_square(structure, "w", "mu", "r")


def exponent(structure: Structure) -> Kernel:
    """Return minus the logarithm of N(omega; mu, C) of (11.2), up to its norm."""
    return as_kernel({"exponent": _exponent(structure)}, prefix="o", equations="docs/theory.md (11.2)")


def exponent_slopes(structure: Structure) -> Kernel:
    """Return e = C^(-1) (omega - mu), the derivatives of the exponent in omega, minus those in mu."""
    total, w = _exponent(structure), student_fields(structure, "w")
    slopes = {entry: sp.diff(total, w[entry.place]) for entry in entries("e", *w.shape)}
    return as_kernel(slopes, prefix="b", equations="docs/theory.md (11.2)")


def weight() -> Kernel:
    """Return the weight of a critical point in (11.3): N(omega; mu, C) det(1 + V H), with the weights of the nodes."""
    norm, copies, minus_log, det = sp.symbols("norm copies exponent determinant", real=True)
    density = norm * copies * sp.exp(-minus_log)
    return as_kernel(
        {"density": sp.Symbol("density", real=True), "weight": sp.Symbol("density", real=True) * det},
        {"density": density},
        prefix="b",
        equations="docs/theory.md (11.3)",
    )


def law_entries(structure: Structure) -> list[Entry]:
    """Return the numbers that determine the law of the fields, in the order of the slopes of the averages.

    Per token: m_a, then b_ab of E[omega | Y] = m + b (Y - m*), then the upper triangles of C = Cov(omega | Y) and V.
    """
    s, t = structure.student_rank, structure.teacher_rank
    found: list[Entry] = []
    for l in range(structure.tokens):
        found += [Entry("m", l, a) for a in range(s)]
        found += [Entry("b", l, a, b) for a in range(s) for b in range(t)]
        found += [Entry(array, l, a, b) for array in "CV" for a in range(s) for b in range(a, s)]
    return found


def variance_columns(structure: Structure) -> dict[int, Entry]:
    """Return column of `law_entries` -> entry of V in it."""
    return {column: entry for column, entry in enumerate(law_entries(structure)) if entry.array == "V"}


def omega_derivative(structure: Structure, entry: Entry) -> sp.Matrix:
    """Return the derivative of the omega of a token, (11.1), in an entry of its V, at fixed X (s x 1).

    Args:
        structure: sizes.
        entry: entry of V.
    """
    l, *place = entry.place
    return _unit(structure, *place) * gradient_symbols(structure)[l, :].T


def _unit(structure: Structure, a: int, b: int) -> sp.Matrix:
    """Return the derivative of a symmetric matrix in its entry at (a, b) and (b, a)."""
    s = structure.student_rank
    return sp.Matrix(s, s, lambda i, j: int((i, j) in ((a, b), (b, a))))


def scores(structure: Structure) -> Kernel:
    """Return derivatives of weight = density determinant in the entries of `law_entries`, at fixed X and Y.

    By d log N(omega; mu, C) = e^T (d mu - d omega) + 1/2 e^T dC e - 1/2 Tr(C^(-1) dC) with e of `exponent_slopes`;
    mu changes with m and b, omega with V.
    """
    s = structure.student_rank
    weight_, density = sp.symbols("weight density", real=True)
    found: dict[str, sp.Expr] = {}
    for column, entry in enumerate(law_entries(structure)):
        l, a, *rest = entry.place
        e, r = student_fields(structure, "e")[l, :].T, symmetric_block(structure, "r", l)
        d_mu, d_omega, d_C = sp.zeros(s, 1), sp.zeros(s, 1), sp.zeros(s, s)
        of_determinant = sp.Integer(0)
        if entry.array == "m":
            d_mu[a] = 1
        elif entry.array == "b":
            d_mu[a] = teacher_fields(structure, "dy")[l, rest[0]]
        elif entry.array == "C":
            d_C = _unit(structure, a, *rest)
        else:
            d_omega = omega_derivative(structure, entry)
            of_determinant = density * entry.in_array("det").symbol
        change = _dot(e, d_mu - d_omega) + (e.T * d_C * e)[0] / 2 - (r * d_C).trace() / 2
        found[f"scores[{column}]"] = of_determinant + weight_ * change
    return as_kernel(found, prefix="b", equations="docs/theory.md (11.3)")


@cache
def _smoothed_step(z: sp.Symbol) -> tuple[sp.Expr, sp.Expr]:
    """Return a step smoothed by a kernel of sixth order, as a function of minus its argument, and its derivative.

    In -z, as SymPy turns erfc(-z) into 2 - erfc(z), which loses the digits of a small value.
    """
    bell = sp.exp(-(z**2) / 2) / sp.sqrt(2 * sp.pi)
    step = sp.erfc(z / sp.sqrt(2)) / 2 - bell * z * (7 - z**2) / 8
    return step, sp.factor_terms(sp.simplify(sp.diff(step, z)))


def share_of_one(structure: Structure) -> dict[str, Kernel]:
    """Return the step that removes the higher one of two minima (11.4), smoothed by a kernel of sixth order.

    It is a function of the difference of their values, whose slope in omega is minus the jump of g (4.7), hence
    -jump (I + V H) in X; `width` is the change of the difference over the lengths `blur` in X.
    """
    jump, V, H = (
        _column(student_fields(structure, "jump")),
        block_diagonal(structure, "v"),
        hessian_symbols(structure),
    )
    tilt = jump.T * (sp.eye(len(jump)) + V * H)
    blur = [entry.symbol for entry in entries("blur", len(jump))]
    difference, width, z = sp.symbols("difference width z", real=True)
    step, slope_in_z = _smoothed_step(z)
    lengths = [slope * length for slope, length in zip(tilt, blur, strict=True)]
    shares, of_z = {"share": step, "share_slope": -slope_in_z / width}, {"z": -difference / width}
    equations = "docs/theory.md (11.4)"
    return {
        "width": as_kernel({"width": sp.sqrt(_dot(lengths, lengths))}, prefix="b", equations=equations),
        "share": as_kernel(shares, of_z, prefix="b", equations=equations, formulas=[_smoothed_step]),
    }


def turns(structure: Structure) -> Kernel:
    """Return derivatives of the weight of the first of two minima in V at fixed X, where omega changes with V.

    By dM = -g^T domega - 1/2 g^T dV g, (4.7), of both.
    """
    found: dict[str, sp.Expr] = {}
    for column, entry in variance_columns(structure).items():
        l, *place = entry.place
        changes = []
        for side in ("one_g", "two_g"):
            g = student_fields(structure, side)[l, :].T
            changes.append(-_dot(g, omega_derivative(structure, entry)) - (g.T * _unit(structure, *place) * g)[0] / 2)
        found[f"turns[{column}]"] = sp.Symbol("share_slope", real=True) * (changes[0] - changes[1])
    return as_kernel(found, prefix="b", equations="docs/theory.md (4.7)")


def moves(structure: Structure) -> Kernel:
    """Return derivatives of a field g of a minimum in V at fixed X.

    dg = D (domega + dV g), (8.4), D_j a row of dg/domega.
    """
    found: dict[str, sp.Expr] = {}
    s = structure.student_rank
    row = [entry.symbol for entry in entries("D", structure.tokens * s)]
    for column, entry in variance_columns(structure).items():
        l, *place = entry.place
        change = omega_derivative(structure, entry) + _unit(structure, *place) * student_fields(structure, "g")[l, :].T
        found[f"moves[field, {column}]"] = _dot(row[l * s : (l + 1) * s], change)
    return as_kernel(found, prefix="b", equations="docs/theory.md (8.4)")


def moment_moves(structure: Structure, rows: dict[Entry, sp.Expr]) -> Kernel:
    """Return derivatives of the moment rows in `law_entries` through omega - m, at fixed X and g.

    Args:
        structure: sizes.
        rows: summands of the channel averages.
    """
    dw, columns = student_fields(structure, "dw"), law_entries(structure)
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
            if (moved := _dot(slope, change)) != 0:
                found[f"tangents[chunk, {n}, {column}]"] = moved
    return as_kernel(found, prefix="y", equations="docs/theory.md (8.4)")


def moment_turns(structure: Structure, rows: dict[Entry, sp.Expr]) -> Kernel:
    """Return changes of the moment rows through g: `move` are the changes of all g with one entry of `law_entries`.

    Args:
        structure: sizes.
        rows: summands of the channel averages.
    """
    move = sp.Matrix(
        structure.tokens,
        structure.student_rank,
        [e.symbol for e in entries("move", structure.tokens * structure.student_rank)],
    )
    g = student_fields(structure, "g")
    found = {}
    for n, (name, row) in enumerate(rows.items()):
        l = name.place[0]
        turned = _dot([sp.diff(row, symbol) for symbol in g[l, :]], move[l, :])
        if turned != 0:
            found[f"tangents[chunk, {n}, column]"] = turned
    return as_kernel(found, prefix="y", equations="docs/theory.md (8.4)")
