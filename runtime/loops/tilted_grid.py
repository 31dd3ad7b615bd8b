"""Averages over nested pairs of Gaussian variables on grids, tilted by exponentials of a cost with kinks."""

import math

import numpy as np
from numba import njit

MARGIN = 6.5  # radius of a Gaussian convolution, in standard deviations
_APART = 9.0  # squared step of the fields, relative to neighbouring ones, beyond which they jump
_SIDES = 8  # power of the components of the normal of a kink by which its correction is distributed over the axes
_STENCIL = 6  # interpolation nodes around a kink
_FARTHEST = 40.0  # exponent of the law of omega_0 beyond which the sum is cut off


@njit(cache=True, error_model="numpy", nogil=True)
def fill_tilted_sums_on_grids(
    first, last, starts, counts, steps, corners, costs, fields, more, rates, spreads, centres, precision, norm, origin,
    slopes, out,
):  # fmt: skip
    """Fill averages with replica symmetry broken, on grids of the field omega at which the costs are tabulated.

    The costs are the Moreau envelope of the loss, or its counterpart for a row of weights with field b for omega.

    The grid points are omega = corners[p] + steps * (i, j). With omega = omega_0 + z_1 + ... + z_K for K levels,
    omega_0 normal around centres[p] and z_k ~ N(0, spreads[k]), the sums are of

        1, c_1, <c_2>, ... <costs>, <g_a>, <g_a> (omega_0 - origin)_b, <g_a> <g_b>, ... <g_a g_b>, <more_e>, G_ab G_ef,

    where c_k = -(1 / rates[k]) log E exp(-rates[k] c_(k+1)) over z_k, the innermost c being the costs; <.> is the
    average weighted by the exponentials of all levels; <<g_a> <g_b>> of every level has <g> over the inner levels; and
    G = d<g>/domega_0. A single field lies along the second axis, and the first has one point. Where g, minus the
    gradient of the costs, jumps between grid points, the Euler-Maclaurin correction is added.

    Args:
        first: first index p of the grids to use.
        last: end of the range of p (exclusive).
        starts: index of the first point of every grid in the flat arrays, followed by the number of points.
        counts: points of every grid along both axes, (grids, 2).
        steps: grid spacings, (2,).
        corners: first point omega of every grid, (grids, 2).
        costs: costs at all grid points.
        fields: field g at all grid points, (points, 1 or 2 fields).
        more: further quantities to average, (points, quantities).
        rates: factor of the costs in the exponent of every level.
        spreads: covariance of z_k of every level, (levels, 2, 2).
        centres: mean of omega_0 of every grid, (grids, 2).
        precision: inverse covariance of omega_0, (2, 2).
        norm: normalisation of the density of omega_0.
        origin: origin of omega_0, (2,).
        slopes: whether to sum G_ab G_ef.
        out: the sums of every grid, in the order above, zero at first.
    """
    for p in range(first, last):
        one, two = starts[p], starts[p + 1]
        _fill_sums_of_grid(
            counts[p, 0], counts[p, 1], steps, corners[p], costs[one:two], fields[one:two], more[one:two], rates,
            spreads, centres[p], precision, norm, origin, slopes, out[p],
        )  # fmt: skip


@njit(cache=True, error_model="numpy")
def _fill_sums_of_grid(
    rows, columns, steps, corner, costs, fields, more, rates, spreads, centre, precision, norm, origin, slopes, out
):
    """Fill the averages with replica symmetry broken on one grid of the field omega, as `fill_tilted_sums_on_grids`."""
    size, levels, places = fields.shape[1], len(rates), rows * columns
    sources = np.zeros((levels, 2 + size + size * (size + 1) // 2, places))
    blurred = np.empty((levels, 1 + size, places))
    up, left = 0, 0  # points at the boundary whose averages are incomplete
    lowest = costs.min()
    _fill_convolution_sources(costs, fields, rates[-1], lowest, sources[-1])
    _add_kink_corrections(rows, columns, steps, costs, fields, rates[-1], lowest, sources[-1])
    for level in range(levels - 1, -1, -1):
        for k in range(1 + size):
            _convolve_with_gaussian(sources[level, k], rows, columns, spreads[level], steps, -1, blurred[level, k])
        up += _convolution_radius(spreads[level, 0, 0], steps[0])
        left += _convolution_radius(spreads[level, 1, 1], steps[1])
        # Costs of the level as a function of the outer variables, and its <g>.
        costs, fields, lowest = _effective_costs_of_level(rows, columns, up, left, rates[level], lowest, blurred[level])
        if level > 0:
            _fill_convolution_sources(costs, fields, rates[level - 1], lowest, sources[level - 1])
    worth = np.zeros(places)
    _add_sums_over_outer_field(
        rows, columns, up, left, steps, corner, costs, fields, centre, precision, norm, origin, levels, worth, out
    )
    if slopes:
        _add_squared_jacobians(
            rows, columns, steps, sources[0], blurred[0], spreads[0], worth, fields, levels, more.shape[1], out
        )
    # Weight of a point omega: the law of omega_0 over E exp(-rate costs), propagated back level by level.
    carried = np.empty(places)
    for level in range(levels):
        for n in range(places):
            if worth[n] != 0.0:
                worth[n] /= blurred[level, 0, n]
        _convolve_with_gaussian(worth, rows, columns, spreads[level], steps, -1, carried)
        _add_sums_of_level(carried, sources[level], size, level, levels, out)
        for n in range(places):
            worth[n] = carried[n] * sources[level, 0, n]
    k = levels + 2 + size + (levels + 2) * size * size
    for n in range(places):
        for e in range(more.shape[1]):
            out[k + e] += worth[n] * more[n, e]


@njit(cache=True, error_model="numpy")
def _add_sums_over_outer_field(
    rows, columns, up, left, steps, corner, costs, fields, centre, precision, norm, origin, levels, worth, out
):
    """Add averages over the Gaussian field omega_0 that all states have in common to `out`.

    Averaged are the free energy and the mean field of the states at each omega_0. `worth` is filled with the
    probability of each grid point as a value of omega_0.
    """
    size = fields.shape[1]
    cell = steps[1] if size == 1 else steps[0] * steps[1]
    away = np.empty(2)
    for i in range(up, rows - up):
        away[0] = corner[0] + i * steps[0]
        for j in range(left, columns - left):
            away[1] = corner[1] + j * steps[1]
            one, two = away[0] - centre[0], away[1] - centre[1]
            square = one * one * precision[0, 0] + 2.0 * one * two * precision[0, 1] + two * two * precision[1, 1]
            if 0.5 * square > _FARTHEST:
                continue
            n = i * columns + j
            share = norm * cell * math.exp(-0.5 * square)
            worth[n] = share
            out[0] += share
            out[1] += share * costs[n]
            first = levels + 2 + size
            for a in range(size):
                out[levels + 2 + a] += share * fields[n, a]
                for b in range(size):
                    out[first + a * size + b] += share * fields[n, a] * (away[2 - size + b] - origin[2 - size + b])
                    out[first + (size + a) * size + b] += share * fields[n, a] * fields[n, b]


@njit(cache=True, error_model="numpy")
def _add_squared_jacobians(rows, columns, steps, sources, blurred, spread, worth, fields, levels, before, out):
    """Add the averages over omega_0 of products G_ab G_ef of entries of the Jacobian G = d<g>/domega_0 to `out`.

    omega_0 is the field common to all states, <g> the average of g over states.
    """
    size = fields.shape[1]
    changes = np.empty((size, 1 + size, rows * columns))  # along every field
    for k in range(1 + size):
        for b in range(size):
            _convolve_with_gaussian(sources[k], rows, columns, spread, steps, 2 - size + b, changes[b, k])
    jacobian = np.empty((size, size))
    for n in range(rows * columns):
        if worth[n] == 0.0:
            continue
        for a in range(size):
            for b in range(size):
                jacobian[a, b] = (changes[b, 1 + a, n] - fields[n, a] * changes[b, 0, n]) / blurred[0, n]
        k = levels + 2 + size + (levels + 2) * size * size + before
        for a in range(size):
            for b in range(size):
                for e in range(size):
                    for f in range(size):
                        out[k] += worth[n] * jacobian[a, b] * jacobian[e, f]
                        k += 1


@njit(cache=True, error_model="numpy")
def _fill_convolution_sources(costs, fields, rate, lowest, sources):
    """Fill the functions whose Gaussian convolutions are needed: 1, g, costs, g_a g_b, times exp(-rate costs).

    The pairs have a <= b; the lowest cost is subtracted in the exponent.
    """
    size = fields.shape[1]
    for n in range(len(costs)):
        if costs[n] == math.inf:
            continue
        weight = math.exp(-rate * (costs[n] - lowest))
        k = 1 + size
        sources[0, n] = weight
        sources[k, n] = weight * costs[n]
        for a in range(size):
            sources[1 + a, n] = weight * fields[n, a]
            for b in range(a, size):
                k += 1
                sources[k, n] = weight * fields[n, a] * fields[n, b]


@njit(cache=True, error_model="numpy")
def _add_kink_corrections(rows, columns, steps, costs, fields, rate, lowest, sources):
    """Correct functions tabulated in `sources` so that their sums over grid points are accurate at kinks of the costs.

    The corrections are those of Euler and Maclaurin, along both axes of the grid.
    """
    size = fields.shape[1]
    if size == 2:
        for j in range(columns):
            _add_kink_corrections_on_line(j, columns, rows, 0, steps[0], costs, fields, rate, lowest, sources)
    for i in range(rows):
        _add_kink_corrections_on_line(i * columns, 1, columns, size - 1, steps[1], costs, fields, rate, lowest, sources)


@njit(cache=True, error_model="numpy")
def _effective_costs_of_level(rows, columns, up, left, rate, lowest, blurred):
    """Return -(1 / rate) log E exp(-rate costs) at one level of replica symmetry breaking, <g>, and the lowest cost."""
    size = len(blurred) - 1
    costs, fields, least = np.full(rows * columns, math.inf), np.zeros((rows * columns, size)), math.inf
    for i in range(up, rows - up):
        for j in range(left, columns - left):
            n = i * columns + j
            costs[n] = lowest - math.log(blurred[0, n]) / rate
            least = min(least, costs[n])
            for a in range(size):
                fields[n, a] = blurred[1 + a, n] / blurred[0, n]
    return costs, fields, least


@njit(cache=True, error_model="numpy")
def _add_sums_of_level(worth, sources, size, level, levels, out):
    """Add averages of the costs and of <g_a> <g_b> at one level of replica symmetry breaking to `out`.

    `worth` is the weight of every grid point; `sources` holds the functions to average.
    """
    k = levels + 2 + size + (2 + level) * size * size
    for n in range(len(worth)):
        if worth[n] == 0.0:
            continue
        out[2 + level] += sources[1 + size, n] * worth[n]
        source = 2 + size
        for a in range(size):
            for b in range(a, size):
                out[k + a * size + b] += sources[source, n] * worth[n]
                source += 1
    for a in range(size):
        for b in range(a):
            out[k + a * size + b] = out[k + b * size + a]


@njit(cache=True, error_model="numpy")
def _convolution_radius(variance, step):
    """Return the number of grid steps at which a Gaussian convolution kernel is cut off."""
    return math.ceil(MARGIN * math.sqrt(variance) / step)


@njit(cache=True, error_model="numpy")
def _convolution_kernel(variance, step, slope):
    """Return a normal density at grid points times the grid step, or minus its derivative; 1 for zero variance."""
    if variance == 0.0:
        return np.ones(1)
    reach = _convolution_radius(variance, step)
    out = np.empty(2 * reach + 1)
    for t in range(-reach, reach + 1):
        z = t * step
        out[t + reach] = math.exp(-0.5 * z * z / variance) * step / math.sqrt(2.0 * math.pi * variance)
        if slope:
            out[t + reach] *= z / variance
    return out


@njit(cache=True, error_model="numpy")
def _convolve_with_gaussian(source, rows, columns, spread, steps, along, out):
    """Fill the Gaussian convolution E[source(omega_0 + z)] at all grid points, or its derivative along axis `along`."""
    if spread[0, 1] != 0.0:
        _convolve_with_correlated_gaussian(source, rows, columns, spread, steps, along, out)
        return
    first, second = (
        _convolution_kernel(spread[0, 0], steps[0], along == 0),
        _convolution_kernel(spread[1, 1], steps[1], along == 1),
    )
    up, left = len(first) // 2, len(second) // 2
    lines = np.zeros(rows * columns)
    for i in range(rows):
        for t in range(-left, left + 1):
            share = second[t + left]
            for j in range(max(0, -t), min(columns, columns - t)):
                lines[i * columns + j] += share * source[i * columns + j + t]
    out[:] = 0.0
    for i in range(rows):
        for t in range(max(-up, -i), min(up + 1, rows - i)):
            share = first[t + up]
            for j in range(columns):
                out[i * columns + j] += share * lines[(i + t) * columns + j]


@njit(cache=True, error_model="numpy")
def _convolve_with_correlated_gaussian(source, rows, columns, spread, steps, along, out):
    """Fill the convolution of a function on the grid with a normal density of two correlated components."""
    determinant = spread[0, 0] * spread[1, 1] - spread[0, 1] * spread[0, 1]
    a, b, c = spread[1, 1] / determinant, -spread[0, 1] / determinant, spread[0, 0] / determinant
    norm = steps[0] * steps[1] / (2.0 * math.pi * math.sqrt(determinant))
    up, left = _convolution_radius(spread[0, 0], steps[0]), _convolution_radius(spread[1, 1], steps[1])
    out[:] = 0.0
    for s in range(-up, up + 1):
        for t in range(-left, left + 1):
            y, z = s * steps[0], t * steps[1]
            square = a * y * y + 2.0 * b * y * z + c * z * z
            if square > MARGIN * MARGIN:
                continue
            share = norm * math.exp(-0.5 * square)
            if along == 0:
                share *= a * y + b * z
            elif along == 1:
                share *= b * y + c * z
            for i in range(max(0, -s), min(rows, rows - s)):
                for j in range(max(0, -t), min(columns, columns - t)):
                    out[i * columns + j] += share * source[(i + s) * columns + j + t]


@njit(cache=True, error_model="numpy")
def _add_kink_corrections_on_line(first, stride, count, own, step, costs, fields, rate, lowest, sources):
    """Correct functions tabulated in `sources` on one grid line for jumps of g, by the Euler-Maclaurin formula.

    g is minus the gradient of the costs, so that it jumps where the costs have a kink.
    """
    size = fields.shape[1]
    jets = np.empty((2, 1 + size, 3))  # side; costs, g; value and two derivatives in units of a step
    jumps = np.empty((3, len(sources)))
    weights = np.empty((3, _STENCIL))
    for j in range(2, count - 3):
        n = first + j * stride
        jump, before, after = 0.0, 0.0, 0.0
        for a in range(size):
            jump += (fields[n + stride, a] - fields[n, a]) ** 2
            before += (fields[n, a] - fields[n - stride, a]) ** 2
            after += (fields[n + 2 * stride, a] - fields[n + stride, a]) ** 2
        if jump <= _APART * max(before, after):
            continue
        s = _locate_kink_of_costs(n, stride, own, step, costs, fields, jets)
        if s < 0.0:
            continue
        share, whole = 0.0, 0.0
        for a in range(size):
            one = (jets[1, 1 + a, 0] - jets[0, 1 + a, 0]) ** _SIDES
            whole += one
            if a == own:
                share = one
        share /= whole
        if share < 1e-6:
            continue
        jumps[:] = 0.0
        _add_derivatives_of_sources(jets[0], own, step, rate, lowest, -1.0, jumps)
        _add_derivatives_of_sources(jets[1], own, step, rate, lowest, 1.0, jumps)
        # Bernoulli polynomials at 1 - s; the density is interpolated around the kink.
        one, two, three = 0.5 - s, s * s - s + 1.0 / 6.0, -s * (s - 0.5) * (s - 1.0)
        begin = min(max(j - 2, 0), count - _STENCIL)
        _fill_lagrange_polynomials(j + s - begin, weights)
        for k in range(len(sources)):
            zeroth = one * jumps[0, k] + two / 2.0 * jumps[1, k] + three / 6.0 * jumps[2, k]
            first_one = two / 2.0 * jumps[0, k] + three / 3.0 * jumps[1, k]
            second_one = three / 6.0 * jumps[0, k]
            for i in range(_STENCIL):
                sources[k, first + (begin + i) * stride] += share * (
                    zeroth * weights[0, i] + first_one * weights[1, i] + second_one * weights[2, i]
                )


@njit(cache=True, error_model="numpy")
def _locate_kink_of_costs(n, stride, own, step, costs, fields, jets):
    """Return the position of a kink of the cost function between grid points n and n + stride, in steps; -1 if none.

    There the costs extrapolated from both sides are equal. `jets` is filled with values and derivatives of costs and
    fields g on both sides of the kink, by polynomials through three grid points on each side.
    """
    size = fields.shape[1]
    place = 0.5
    for _ in range(4):
        for side in range(2):
            sign = 1 if side == 0 else -1
            base = n if side == 0 else n + stride
            away = place if side == 0 else 1.0 - place
            for a in range(size):
                one = fields[base, a] - fields[base - sign * stride, a]
                two = fields[base - sign * stride, a] - fields[base - 2 * sign * stride, a]
                bend = one - two
                if abs(bend) > abs(one):
                    bend = 0.0
                jets[side, 1 + a, 0] = fields[base, a] + away * one + 0.5 * away * (away + 1.0) * bend
                jets[side, 1 + a, 1] = sign * (one + (away + 0.5) * bend)
                jets[side, 1 + a, 2] = bend
                if a == own:
                    area = away * (fields[base, a] + away * (0.5 * one + bend * (away / 6.0 + 0.25)))
                    jets[side, 0, 0] = costs[base] - sign * step * area
            jets[side, 0, 1] = -step * jets[side, 1 + own, 0]
            jets[side, 0, 2] = -step * jets[side, 1 + own, 1]
        apart = jets[0, 0, 0] - jets[1, 0, 0]
        slope = jets[0, 0, 1] - jets[1, 0, 1]
        if slope <= 0.0:
            return -1.0
        moved = place - apart / slope
        if moved < -0.1 or moved > 1.1:
            return -1.0
        place = min(max(moved, 0.0), 1.0)
    return place


@njit(cache=True, error_model="numpy")
def _add_derivatives_of_sources(jet, own, step, rate, lowest, sign, out):
    """Add sign times value and derivatives of the tabulated functions on one side of a kink of the costs to `out`.

    The functions are 1, g, the costs and g_a g_b, times exp(-rate costs).
    """
    size = len(jet) - 1
    weight = math.exp(-rate * (jet[0, 0] - lowest))
    one = -rate * jet[0, 1]
    two = -rate * jet[0, 2] + one * one
    out[0, 0] += sign * weight
    out[1, 0] += sign * weight * one
    out[2, 0] += sign * weight * two
    k = 1 + size
    _add_derivatives_of_source(jet[0], weight, one, two, sign, out, k)
    square = np.empty(3)
    for a in range(size):
        _add_derivatives_of_source(jet[1 + a], weight, one, two, sign, out, 1 + a)
        for b in range(a, size):
            k += 1
            square[0] = jet[1 + a, 0] * jet[1 + b, 0]
            square[1] = jet[1 + a, 0] * jet[1 + b, 1] + jet[1 + a, 1] * jet[1 + b, 0]
            square[2] = (
                jet[1 + a, 0] * jet[1 + b, 2] + 2 * jet[1 + a, 1] * jet[1 + b, 1] + jet[1 + a, 2] * jet[1 + b, 0]
            )
            _add_derivatives_of_source(square, weight, one, two, sign, out, k)


@njit(cache=True, error_model="numpy")
def _add_derivatives_of_source(jet, weight, one, two, sign, out, k):
    out[0, k] += sign * weight * jet[0]
    out[1, k] += sign * weight * (jet[1] + one * jet[0])
    out[2, k] += sign * weight * (jet[2] + 2 * one * jet[1] + two * jet[0])


@njit(cache=True, error_model="numpy")
def _fill_lagrange_polynomials(place, weights):
    """Fill values and first two derivatives, at a position, of the Lagrange polynomials of nodes 0, 1, 2, ..."""
    for i in range(_STENCIL):
        value, first, second = 1.0, 0.0, 0.0
        for k in range(_STENCIL):
            if k != i:
                scale = 1.0 / (i - k)
                factor = (place - k) * scale
                second = second * factor + 2 * first * scale
                first = first * factor + value * scale
                value *= factor
        weights[0, i] = value
        weights[1, i] = first
        weights[2, i] = second
