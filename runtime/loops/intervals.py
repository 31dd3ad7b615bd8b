"""Interval arithmetic: pairs (lower, upper), rounded outward by at least the error of the machine's functions."""

import math

from numba import njit
from numba.cpython.unsafe.tuple import tuple_setitem

_UNIT = 4.5e-16
_LIBRARY = 2e-15  # relative error of a library function, at most
_LARGEST = 1.7e308


@njit(cache=True, error_model="numpy")
def widened(low, high, unit):
    """Bounds moved outward by `unit` of their size; the whole line for what is not a number."""
    if math.isnan(low) or math.isnan(high):
        return -math.inf, math.inf
    low = min(low, _LARGEST)
    high = max(high, -_LARGEST)
    return low - unit * abs(low) - 1e-300, high + unit * abs(high) + 1e-300


@njit(cache=True, error_model="numpy")
def rounded(low, high):
    """Bounds moved outward by the error of one operation."""
    return widened(low, high, _UNIT)


@njit(cache=True, error_model="numpy")
def hull(a, b):
    """The least interval that holds both."""
    return min(a[0], b[0]), max(a[1], b[1])


@njit(cache=True, error_model="numpy")
def minus(a):
    """-a."""
    return -a[1], -a[0]


@njit(cache=True, error_model="numpy")
def plus(a, b):
    """a + b."""
    return rounded(a[0] + b[0], a[1] + b[1])


@njit(cache=True, error_model="numpy")
def times(a, b):
    """a b."""
    one = a[0] * b[0]
    two = a[0] * b[1]
    three = a[1] * b[0]
    four = a[1] * b[1]
    if math.isnan(one + two + three + four):
        return -math.inf, math.inf
    return rounded(min(one, two, three, four), max(one, two, three, four))


@njit(cache=True, error_model="numpy")
def power(a, n):
    """a^n, n a positive whole number."""
    low = a[0] ** n
    high = a[1] ** n
    if n % 2 == 1:
        return widened(low, high, n * _UNIT)
    if a[0] <= 0.0 <= a[1]:
        return 0.0, widened(0.0, max(low, high), n * _UNIT)[1]
    return widened(min(low, high), max(low, high), n * _UNIT)


@njit(cache=True, error_model="numpy")
def inverse(a):
    """1 / a; the whole line where a holds zero."""
    if a[0] <= 0.0 <= a[1]:
        return -math.inf, math.inf
    return rounded(1.0 / a[1], 1.0 / a[0])


@njit(cache=True, error_model="numpy")
def pi():
    """pi."""
    return rounded(math.pi, math.pi)


@njit(cache=True, error_model="numpy")
def exp(a):
    """e^a."""
    return widened(math.exp(a[0]), math.exp(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def tanh(a):
    """tanh a."""
    return widened(math.tanh(a[0]), math.tanh(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def sinh(a):
    """sinh a."""
    return widened(math.sinh(a[0]), math.sinh(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def atan(a):
    """atan a."""
    return widened(math.atan(a[0]), math.atan(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def erf(a):
    """erf a."""
    return widened(math.erf(a[0]), math.erf(a[1]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def erfc(a):
    """erfc a."""
    return widened(math.erfc(a[1]), math.erfc(a[0]), _LIBRARY)


@njit(cache=True, error_model="numpy")
def cosh(a):
    """cosh a."""
    low = math.cosh(a[0])
    high = math.cosh(a[1])
    return widened(1.0 if a[0] <= 0.0 <= a[1] else min(low, high), max(low, high), _LIBRARY)


@njit(cache=True, error_model="numpy")
def sqrt(a):
    """The square root of what of a is not negative."""
    return rounded(math.sqrt(max(a[0], 0.0)), math.sqrt(max(a[1], 0.0)))


@njit(cache=True, error_model="numpy")
def log(a):
    """log a, of what of a is positive."""
    low = math.log(a[0]) if a[0] > 0.0 else -math.inf
    return widened(low, math.log(a[1]) if a[1] > 0.0 else math.nan, _LIBRARY)


@njit(cache=True, error_model="numpy")
def raised(a, b):
    """a^b, a positive."""
    return exp(times(b, log(a)))


@njit(cache=True, error_model="numpy")
def sin(a):
    """sin a; all its values where a is as wide as a turn, or far out."""
    low = math.sin(a[0])
    high = math.sin(a[1])
    turn = 2.0 * math.pi
    if not (a[1] - a[0] < turn and abs(a[0]) < 1e6):
        return -1.0, 1.0
    top = math.ceil((a[0] - 1e-9) / turn - 0.25) * turn + 0.5 * math.pi <= a[1] + 1e-9
    bottom = math.ceil((a[0] - 1e-9) / turn + 0.25) * turn - 0.5 * math.pi <= a[1] + 1e-9
    return widened(-1.0 if bottom else min(low, high), 1.0 if top else max(low, high), _LIBRARY)


@njit(cache=True, error_model="numpy")
def cos(a):
    """cos a."""
    return sin(plus(a, rounded(0.5 * math.pi, 0.5 * math.pi)))


@njit(cache=True, error_model="numpy")
def magnitude(a):
    """|a|."""
    low = abs(a[0])
    high = abs(a[1])
    return 0.0 if a[0] <= 0.0 <= a[1] else min(low, high), max(low, high)


@njit(cache=True, error_model="numpy")
def greatest(a, b):
    """max(a, b)."""
    return max(a[0], b[0]), max(a[1], b[1])


@njit(cache=True, error_model="numpy")
def least(a, b):
    """min(a, b)."""
    return min(a[0], b[0]), min(a[1], b[1])


@njit(cache=True, error_model="numpy")
def sign(a):
    """The sign of a, either at zero."""
    return 1.0 if a[0] > 0.0 else -1.0, -1.0 if a[1] < 0.0 else 1.0


@njit(cache=True, error_model="numpy")
def heaviside(a):
    """1 above zero, 0 below, all between at zero."""
    return 1.0 if a[0] > 0.0 else 0.0, 0.0 if a[1] < 0.0 else 1.0


@njit(cache=True, error_model="numpy")
def equal(a, b):
    """Whether a = b: (1, 1) for sure, (0, 0) never, (0, 1) undecided. So are all conditions."""
    same = a[0] == a[1] and b[0] == b[1] and a[0] == b[0]
    return 1.0 if same else 0.0, 1.0 if a[0] <= b[1] and b[0] <= a[1] else 0.0


@njit(cache=True, error_model="numpy")
def where(condition, a, b):
    """a where the condition holds, b where it does not, their hull where it is undecided."""
    if condition[0] == 1.0:
        return a
    if condition[1] == 0.0:
        return b
    return hull(a, b)


@njit(cache=True, error_model="numpy")
def gt(a, b):
    """a > b."""
    return 1.0 if a[0] > b[1] else 0.0, 1.0 if a[1] > b[0] else 0.0


@njit(cache=True, error_model="numpy")
def ge(a, b):
    """a >= b."""
    return 1.0 if a[0] >= b[1] else 0.0, 1.0 if a[1] >= b[0] else 0.0


@njit(cache=True, error_model="numpy")
def lt(a, b):
    """a < b."""
    return 1.0 if a[1] < b[0] else 0.0, 1.0 if a[0] < b[1] else 0.0


@njit(cache=True, error_model="numpy")
def le(a, b):
    """a <= b."""
    return 1.0 if a[1] <= b[0] else 0.0, 1.0 if a[0] <= b[1] else 0.0


@njit(cache=True, error_model="numpy")
def both(a, b):
    """Both conditions."""
    return min(a[0], b[0]), min(a[1], b[1])


@njit(cache=True, error_model="numpy")
def either(a, b):
    """One condition or both."""
    return max(a[0], b[0]), max(a[1], b[1])


@njit(cache=True, error_model="numpy")
def sigmoid(a):
    """1 / (1 + e^(-a))."""
    return widened(1.0 / (1.0 + math.exp(-a[0])), 1.0 / (1.0 + math.exp(-a[1])), _LIBRARY)


@njit(cache=True, error_model="numpy")
def softplus(a):
    """log(1 + e^a)."""
    low = max(a[0], 0.0) + math.log1p(math.exp(-abs(a[0])))
    high = max(a[1], 0.0) + math.log1p(math.exp(-abs(a[1])))
    return widened(low, high, _LIBRARY)


@njit(cache=True, error_model="numpy")
def softmax(*z):
    """e^(z_i) / sum_j e^(z_j), one interval an argument."""
    row = z
    for i in range(len(z)):
        low = 1.0
        high = 1.0
        for j in range(len(z)):
            if j != i:
                low += exp(plus((z[j][1], z[j][1]), (-z[i][0], -z[i][0])))[1]
                high += max(exp(plus((z[j][0], z[j][0]), (-z[i][1], -z[i][1])))[0], 0.0)
        row = tuple_setitem(row, i, widened(1.0 / low, 1.0 / high, _LIBRARY))  # type: ignore[call-arg]
    return row


@njit(cache=True, error_model="numpy")
def convex(out, work):
    """Whether every Hessian in an enclosure is positive definite: its centre is, after the largest row sum of the half
    widths is taken off the diagonal.

    out: pairs of value, gradient and upper triangle of the Hessian; work (FIELDS, FIELDS) is scratch.
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
