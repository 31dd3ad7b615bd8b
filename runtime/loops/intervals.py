"""Interval arithmetic on pairs (lower, upper), rounded outward by at least the error of library functions."""

import math

from numba import njit
from numba.cpython.unsafe.tuple import tuple_setitem

_UNIT = 4.5e-16  # two units in the last place of a double, relative
_LIBRARY = 2e-15  # relative error of a library function, at most
_LARGEST = 1.7e308  # finite double, about


@njit(cache=True, error_model="numpy")
def widen_outward(low, high, unit):
    """Return an interval widened on both sides by a relative error; the whole real line if a bound is not a number.

    Args:
        low: lower bound.
        high: upper bound.
        unit: relative error.
    """
    if math.isnan(low) or math.isnan(high):
        return -math.inf, math.inf
    low = min(low, _LARGEST)
    high = max(high, -_LARGEST)
    return low - unit * abs(low) - 1e-300, high + unit * abs(high) + 1e-300


@njit(cache=True, error_model="numpy")
def rounded(low, high):
    """Return an interval widened by the rounding error of one floating-point operation.

    Args:
        low: lower bound.
        high: upper bound.
    """
    return widen_outward(low, high, _UNIT)


@njit(cache=True, error_model="numpy")
def interval_hull(a, b):
    """Return the smallest interval that contains both given intervals.

    Args:
        a: interval (lower, upper).
        b: interval (lower, upper).
    """
    return min(a[0], b[0]), max(a[1], b[1])


@njit(cache=True, error_model="numpy")
def minus(a):
    """Return an interval that contains -x for every x in the interval a."""
    return -a[1], -a[0]


@njit(cache=True, error_model="numpy")
def plus(a, b):
    """Return an interval that contains x + y for every x in the interval a and y in the interval b.

    Args:
        a: interval (lower, upper).
        b: interval (lower, upper).
    """
    return rounded(a[0] + b[0], a[1] + b[1])


@njit(cache=True, error_model="numpy")
def times(a, b):
    """Return an interval that contains the product x y for every x in the interval a and y in the interval b.

    Args:
        a: interval (lower, upper).
        b: interval (lower, upper).
    """
    one = a[0] * b[0]
    two = a[0] * b[1]
    three = a[1] * b[0]
    four = a[1] * b[1]
    if math.isnan(one + two + three + four):
        return -math.inf, math.inf
    return rounded(min(one, two, three, four), max(one, two, three, four))


@njit(cache=True, error_model="numpy")
def power(a, n):
    """Return an interval that contains x^n for every x in the interval a.

    Args:
        a: interval (lower, upper).
        n: positive whole number.
    """
    low = a[0] ** n
    high = a[1] ** n
    if n % 2 == 1:
        return widen_outward(low, high, n * _UNIT)
    if a[0] <= 0.0 <= a[1]:
        return 0.0, widen_outward(0.0, max(low, high), n * _UNIT)[1]
    return widen_outward(min(low, high), max(low, high), n * _UNIT)


@njit(cache=True, error_model="numpy")
def inverse(a):
    """Return an interval that contains 1 / x for every x in the interval a; the whole real line if a contains zero."""
    if a[0] <= 0.0 <= a[1]:
        return -math.inf, math.inf
    return rounded(1.0 / a[1], 1.0 / a[0])


@njit(cache=True, error_model="numpy")
def pi():
    """Return an interval that contains the number pi."""
    return rounded(math.pi, math.pi)


@njit(cache=True, error_model="numpy")
def exp(a):
    """Return an interval that contains e^x for every x in the interval a."""
    return widen_outward(math.exp(a[0]), math.exp(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def tanh(a):
    """Return an interval that contains tanh x for every x in the interval a."""
    return widen_outward(math.tanh(a[0]), math.tanh(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def sinh(a):
    """Return an interval that contains sinh x for every x in the interval a."""
    return widen_outward(math.sinh(a[0]), math.sinh(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def atan(a):
    """Return an interval that contains atan x for every x in the interval a."""
    return widen_outward(math.atan(a[0]), math.atan(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def asinh(a):
    """Return an interval that contains asinh x for every x in the interval a."""
    return widen_outward(math.asinh(a[0]), math.asinh(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def atanh(a):
    """Return an interval that contains atanh x for every x in the interval a; the whole line unless a is in (-1, 1)."""
    if a[0] <= -1.0 or a[1] >= 1.0:
        return -math.inf, math.inf
    return widen_outward(math.atanh(a[0]), math.atanh(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def erf(a):
    """Return an interval that contains the error function erf x for every x in the interval a."""
    return widen_outward(math.erf(a[0]), math.erf(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def erfc(a):
    """Return an interval that contains the complementary error function erfc x for every x in the interval a."""
    return widen_outward(math.erfc(a[1]), math.erfc(a[0]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def cosh(a):
    """Return an interval that contains cosh x for every x in the interval a."""
    low = math.cosh(a[0])
    high = math.cosh(a[1])
    return widen_outward(1.0 if a[0] <= 0.0 <= a[1] else min(low, high), max(low, high), _LIBRARY)


@njit(cache=True, error_model="numpy")
def sqrt(a):
    """Return an interval that contains the square root of max(x, 0) for every x in the interval a."""
    return rounded(math.sqrt(max(a[0], 0.0)), math.sqrt(max(a[1], 0.0)))


@njit(cache=True, error_model="numpy")
def log(a):
    """Return an interval that contains log x for every positive x in the interval a."""
    low = math.log(a[0]) if a[0] > 0.0 else -math.inf
    return widen_outward(low, math.log(a[1]) if a[1] > 0.0 else math.nan, _LIBRARY)


@njit(cache=True, error_model="numpy")
def raised(a, b):
    """Return an interval that contains x^y for every x in the interval a and y in the interval b.

    Args:
        a: positive interval (lower, upper).
        b: interval (lower, upper).
    """
    return exp(times(b, log(a)))


@njit(cache=True, error_model="numpy")
def sin(a):
    """Return an interval that contains sin x for every x in the interval a; [-1, 1] if a is wide or far from zero."""
    low = math.sin(a[0])
    high = math.sin(a[1])
    turn = 2.0 * math.pi
    if not (a[1] - a[0] < turn and abs(a[0]) < 1e6):
        return -1.0, 1.0
    top = math.ceil((a[0] - 1e-9) / turn - 0.25) * turn + 0.5 * math.pi <= a[1] + 1e-9
    bottom = math.ceil((a[0] - 1e-9) / turn + 0.25) * turn - 0.5 * math.pi <= a[1] + 1e-9
    return widen_outward(-1.0 if bottom else min(low, high), 1.0 if top else max(low, high), _LIBRARY)


@njit(cache=True, error_model="numpy")
def cos(a):
    """Return an interval that contains cos x for every x in the interval a."""
    return sin(plus(a, rounded(0.5 * math.pi, 0.5 * math.pi)))


@njit(cache=True, error_model="numpy")
def tan(a):
    """Return an interval that contains tan x for every x in the interval a; the whole line if a may contain a pole."""
    return times(sin(a), inverse(cos(a)))


@njit(cache=True, error_model="numpy")
def magnitude(a):
    """Return an interval that contains |x| for every x in the interval a."""
    low = abs(a[0])
    high = abs(a[1])
    return 0.0 if a[0] <= 0.0 <= a[1] else min(low, high), max(low, high)


@njit(cache=True, error_model="numpy")
def greatest(a, b):
    """Return an interval that contains max(x, y) for every x in the interval a and y in the interval b.

    Args:
        a: interval (lower, upper).
        b: interval (lower, upper).
    """
    return max(a[0], b[0]), max(a[1], b[1])


@njit(cache=True, error_model="numpy")
def least(a, b):
    """Return an interval that contains min(x, y) for every x in the interval a and y in the interval b.

    Args:
        a: interval (lower, upper).
        b: interval (lower, upper).
    """
    return min(a[0], b[0]), min(a[1], b[1])


@njit(cache=True, error_model="numpy")
def sign(a):
    """Return an interval that contains the sign of x for every x in the interval a; [-1, 1] if a contains zero."""
    return 1.0 if a[0] > 0.0 else -1.0, -1.0 if a[1] < 0.0 else 1.0


@njit(cache=True, error_model="numpy")
def heaviside(a):
    """Return an interval that contains the step function of every x in the interval a; [0, 1] if a contains zero."""
    return 1.0 if a[0] > 0.0 else 0.0, 0.0 if a[1] < 0.0 else 1.0


@njit(cache=True, error_model="numpy")
def equal(a, b):
    """Compare two intervals: (1, 1) if x = y for every x in a and y in b, (0, 0) if for none, else (0, 1).

    Args:
        a: interval (lower, upper).
        b: interval (lower, upper).
    """
    same = a[0] == a[1] and b[0] == b[1] and a[0] == b[0]
    return 1.0 if same else 0.0, 1.0 if a[0] <= b[1] and b[0] <= a[1] else 0.0


@njit(cache=True, error_model="numpy")
def where(condition, a, b):
    """Return interval a if a condition is true, b if it is false, the smallest interval with both if undecided.

    Args:
        condition: (1, 1) true, (0, 0) false, (0, 1) undecided.
        a: interval (lower, upper).
        b: interval (lower, upper).
    """
    if condition[0] == 1.0:
        return a
    if condition[1] == 0.0:
        return b
    return interval_hull(a, b)


@njit(cache=True, error_model="numpy")
def gt(a, b):
    """Compare two intervals: (1, 1) if x > y for every x in a and y in b, (0, 0) if for none, else (0, 1).

    Args:
        a: interval (lower, upper).
        b: interval (lower, upper).
    """
    return 1.0 if a[0] > b[1] else 0.0, 1.0 if a[1] > b[0] else 0.0


@njit(cache=True, error_model="numpy")
def ge(a, b):
    """Compare two intervals: (1, 1) if x >= y for every x in a and y in b, (0, 0) if for none, else (0, 1).

    Args:
        a: interval (lower, upper).
        b: interval (lower, upper).
    """
    return 1.0 if a[0] >= b[1] else 0.0, 1.0 if a[1] >= b[0] else 0.0


@njit(cache=True, error_model="numpy")
def lt(a, b):
    """Compare two intervals: (1, 1) if x < y for every x in a and y in b, (0, 0) if for none, else (0, 1).

    Args:
        a: interval (lower, upper).
        b: interval (lower, upper).
    """
    return 1.0 if a[1] < b[0] else 0.0, 1.0 if a[0] < b[1] else 0.0


@njit(cache=True, error_model="numpy")
def le(a, b):
    """Compare two intervals: (1, 1) if x <= y for every x in a and y in b, (0, 0) if for none, else (0, 1).

    Args:
        a: interval (lower, upper).
        b: interval (lower, upper).
    """
    return 1.0 if a[1] <= b[0] else 0.0, 1.0 if a[0] <= b[1] else 0.0


@njit(cache=True, error_model="numpy")
def both(a, b):
    """Return whether both conditions hold, as (1, 1) true, (0, 0) false or (0, 1) undecided.

    Args:
        a: first condition: (1, 1) true, (0, 0) false, (0, 1) undecided.
        b: second condition: (1, 1) true, (0, 0) false, (0, 1) undecided.
    """
    return min(a[0], b[0]), min(a[1], b[1])


@njit(cache=True, error_model="numpy")
def either(a, b):
    """Return whether at least one of two conditions holds, as (1, 1) true, (0, 0) false or (0, 1) undecided.

    Args:
        a: first condition: (1, 1) true, (0, 0) false, (0, 1) undecided.
        b: second condition: (1, 1) true, (0, 0) false, (0, 1) undecided.
    """
    return max(a[0], b[0]), max(a[1], b[1])


@njit(cache=True, error_model="numpy")
def sigmoid(a):
    """Return an interval that contains 1 / (1 + e^(-x)) for every x in the interval a."""
    return widen_outward(1.0 / (1.0 + math.exp(-a[0])), 1.0 / (1.0 + math.exp(-a[1])), _LIBRARY)


@njit(cache=True, error_model="numpy")
def softplus(a):
    """Return an interval that contains log(1 + e^x) for every x in the interval a."""
    low = max(a[0], 0.0) + math.log1p(math.exp(-abs(a[0])))
    high = max(a[1], 0.0) + math.log1p(math.exp(-abs(a[1])))
    return widen_outward(low, high, _LIBRARY)


@njit(cache=True, error_model="numpy")
def softmax(*z):
    """Return intervals that contain e^(x_i) / sum_j e^(x_j), one per argument, for every x_j in the interval z[j]."""
    row = z
    for i in range(len(z)):
        low = 1.0
        high = 1.0
        for j in range(len(z)):
            if j != i:
                low += exp(plus((z[j][1], z[j][1]), (-z[i][0], -z[i][0])))[1]
                high += max(exp(plus((z[j][0], z[j][0]), (-z[i][1], -z[i][1])))[0], 0.0)
        row = tuple_setitem(row, i, widen_outward(1.0 / low, 1.0 / high, _LIBRARY))  # type: ignore[call-arg]
    return row


@njit(cache=True, error_model="numpy")
def log_sum_exp(*z):
    """Return an interval that contains log(sum_i e^(x_i)) for every x_i in the interval z[i]."""
    low = z[0][0]
    high = z[0][1]
    for i in range(1, len(z)):
        low = max(low, z[i][0])
        high = max(high, z[i][1])
    least = 0.0
    most = 0.0
    for i in range(len(z)):
        least += math.exp(z[i][0] - low)
        most += math.exp(z[i][1] - high)
    return plus((low, high), widen_outward(math.log(least), math.log(most), len(z) * _LIBRARY))


@njit(cache=True, error_model="numpy")
def log_softplus(a):
    """Return an interval that contains log(log(1 + e^x)) for every x in the interval a."""
    low, high = log(softplus(a))
    if a[0] < -37.0:
        low = a[0] - 0.5 * math.exp(a[0])
    if a[1] < -37.0:
        high = a[1]
    return rounded(low, high)


@njit(cache=True, error_model="numpy")
def sigmoid_over_softplus(a):
    """Return an interval that contains sigmoid(x) / softplus(x) for every x in the interval a."""
    low = times(sigmoid((a[1], a[1])), inverse(softplus((a[1], a[1])))) if a[1] > -37.0 else (1.0 - 1e-16, 1.0)
    high = times(sigmoid((a[0], a[0])), inverse(softplus((a[0], a[0])))) if a[0] > -37.0 else (1.0, 1.0)
    return low[0], high[1]


@njit(cache=True, error_model="numpy")
def _truncated_normal_mean_bounds(z):
    """Return bounds on z + phi(z) / Phi(z) for a number z < -4; phi and Phi are the standard normal density and CDF.

    They are two convergents of a continued fraction.
    """
    low = -z
    high = -z
    for n in range(40, 1, -1):
        low = n / low - z
        if n < 40:
            high = n / high - z
    return widen_outward(min(1.0 / low, 1.0 / high), max(1.0 / low, 1.0 / high), 40.0 * _UNIT)


@njit(cache=True, error_model="numpy")
def _inverse_mills_ratio_bounds(z):
    """Return bounds on phi(z) / Phi(z) at a number z; phi and Phi are the standard normal density and CDF."""
    a = (z, z)
    if z < -4.0:
        return plus(minus(a), _truncated_normal_mean_bounds(z))
    root = inverse(sqrt((2.0, 2.0)))
    density = times(exp(times((-0.5, -0.5), power(a, 2))), times((2.0, 2.0), times(root, inverse(sqrt(pi())))))
    return times(density, inverse(erfc(times(minus(a), root))))


@njit(cache=True, error_model="numpy")
def inverse_mills_ratio(a):
    """Return an interval that contains the ratio of standard normal density to CDF for every x in the interval a."""
    return max(_inverse_mills_ratio_bounds(a[1])[0], 0.0), _inverse_mills_ratio_bounds(a[0])[1]


@njit(cache=True, error_model="numpy")
def truncated_normal_mean(a):
    """Return an interval that contains the mean of N(x, 1) truncated to positive values for every x in interval a."""
    low = _truncated_normal_mean_bounds(a[0]) if a[0] < -4.0 else plus((a[0], a[0]), _inverse_mills_ratio_bounds(a[0]))
    high = _truncated_normal_mean_bounds(a[1]) if a[1] < -4.0 else plus((a[1], a[1]), _inverse_mills_ratio_bounds(a[1]))
    return max(low[0], 0.0), high[1]


@njit(cache=True, error_model="numpy")
def _log_normal_cdf_bounds(z):
    """Return bounds on the logarithm of the standard normal CDF at a number z."""
    a = (z, z)
    if z < -4.0:
        size = times(_inverse_mills_ratio_bounds(z), sqrt(times((2.0, 2.0), pi())))
        return plus(times((-0.5, -0.5), power(a, 2)), minus(log(size)))
    return log(times((0.5, 0.5), erfc(times(minus(a), inverse(sqrt((2.0, 2.0)))))))


@njit(cache=True, error_model="numpy")
def log_normal_cdf(a):
    """Return an interval that contains the logarithm of the standard normal CDF for every x in the interval a."""
    return _log_normal_cdf_bounds(a[0])[0], min(_log_normal_cdf_bounds(a[1])[1], 0.0)


@njit(cache=True, error_model="numpy")
def log_gumbel_cdf(a):
    """Return an interval that contains log(1 - e^(-e^x)) for every x in the interval a."""
    low = a[0] - 0.5 * math.exp(a[0]) if a[0] < -37.0 else math.log(-math.expm1(-math.exp(min(a[0], 700.0))))
    high = a[1] if a[1] < -37.0 else math.log(-math.expm1(-math.exp(min(a[1], 700.0))))
    low, high = widen_outward(low, high, _LIBRARY)
    return low - _LIBRARY, min(high + _LIBRARY, 0.0)


@njit(cache=True, error_model="numpy")
def gumbel_ratio(n, a):
    """Return an interval that contains e^(k x) / (e^(e^x) - 1) for every k in the interval n and x in a.

    Args:
        n: interval (lower, upper), at least 1.
        a: interval (lower, upper).
    """
    a = min(a[0], 7.0), min(a[1], 7.0)
    u = math.exp(a[0])
    v = math.exp(a[1])
    high = u * math.exp(-u) / -math.expm1(-u) if u > 0.0 else 1.0
    low = v * math.exp(-v) / -math.expm1(-v) if 0.0 < v < 1000.0 else 0.0
    found = times(exp(times(plus(n, (-1.0, -1.0)), a)), widen_outward(low, high, _LIBRARY * (1.0 + v)))
    return max(found[0], 0.0), found[1]


@njit(cache=True, error_model="numpy")
def is_hessian_positive_definite(out, work):
    """Return whether every Hessian matrix within given bounds of its entries is positive definite.

    The test is sufficient, not necessary: the matrix of mid-points, minus the largest row sum of radii times the
    identity, is positive definite.

    Args:
        out: pairs (lower, upper) of value, gradient and upper triangle of the Hessian.
        work: scratch array, (fields, fields).
    """
    fields = work.shape[0]
    spread = 0.0
    size = 0.0
    for i in range(fields):
        total = 0.0
        for j in range(fields):
            a = min(i, j)
            n = 1 + fields + a * fields - a * (a - 1) // 2 + max(i, j) - a
            work[i, j] = 0.5 * (out[n, 0] + out[n, 1])
            total += 0.5 * (out[n, 1] - out[n, 0])
        size += abs(work[i, i])
        spread = max(spread, total)
    if not spread < math.inf:
        return False
    spread += 1e-12 * size
    for i in range(fields):
        work[i, i] -= spread
    for i in range(fields):
        if not work[i, i] > 1e-12 * size:
            return False
        for j in range(i + 1, fields):
            factor = work[j, i] / work[i, i]
            for k in range(j, fields):
                work[k, j] -= factor * work[k, i]
    return True
