"""Functions of losses that `math` lacks, safe where exponentials overflow."""

import math

from numba import njit, types
from numba.core import cgutils
from numba.extending import lower_builtin, type_callable


def _with_entry(values, place, value):
    """Return a tuple of numbers with one of them replaced; Numba has this for the CPU alone."""
    return (*values[:place], value, *values[place + 1 :])


@type_callable(_with_entry)
def _type_with_entry(context):
    def _of_tuple(values, place, value):
        return values if isinstance(values, types.UniTuple) else None

    return _of_tuple


@lower_builtin(_with_entry, types.UniTuple, types.Integer, types.Any)
def _build_llvm_with_entry(context, builder, signature, arguments):
    values, place, value = arguments
    stack = cgutils.alloca_once(builder, values.type)
    builder.store(values, stack)
    value = context.cast(builder, value, signature.args[2], signature.args[0].dtype)
    builder.store(value, cgutils.gep_inbounds(builder, stack, 0, place))
    return builder.load(stack)


@njit(cache=True, error_model="numpy")
def sigmoid(z):
    """Return the logistic function 1 / (1 + e^(-z))."""
    if z >= 0.0:
        return 1.0 / (1.0 + math.exp(-z))
    e = math.exp(z)
    return e / (1.0 + e)


@njit(cache=True, error_model="numpy")
def softplus(z):
    """Return the softplus function log(1 + e^z)."""
    return max(z, 0.0) + math.log1p(math.exp(-abs(z)))


@njit(cache=True, error_model="numpy")
def step(z):
    """Return the step function: 1 above zero, 0 below, one half at zero."""
    return 1.0 if z > 0.0 else 0.5 if z == 0.0 else 0.0


@njit(cache=True, error_model="numpy")
def softmax(*z):
    """Return the softmax e^(z_i) / sum_j e^(z_j) of the arguments, one number per argument."""
    top = z[0]
    for i in range(1, len(z)):
        top = max(top, z[i])
    row = z
    total = 0.0
    for i in range(len(z)):
        e = math.exp(z[i] - top)
        row = _with_entry(row, i, e)
        total += e
    inverse = 1.0 / total
    for i in range(len(z)):
        row = _with_entry(row, i, row[i] * inverse)
    return row


@njit(cache=True, error_model="numpy")
def log_sum_exp(*z):
    """Return log(sum_i e^(z_i)) of the arguments z_i."""
    top = z[0]
    for i in range(1, len(z)):
        top = max(top, z[i])
    total = 0.0
    for i in range(len(z)):
        total += math.exp(z[i] - top)
    return top + math.log(total)


@njit(cache=True, error_model="numpy")
def log_softplus(z):
    """Return log(log(1 + e^z)), the logarithm of the softplus function."""
    return z - 0.5 * math.exp(z) if z < -37.0 else math.log(max(z, 0.0) + math.log1p(math.exp(-abs(z))))


@njit(cache=True, error_model="numpy")
def sigmoid_over_softplus(z):
    """Return the ratio of the logistic function 1 / (1 + e^(-z)) to the softplus function log(1 + e^z)."""
    if z < -37.0:
        return 1.0 - 0.5 * math.exp(z)
    e = math.exp(-abs(z))
    return (1.0 if z >= 0.0 else e) / ((1.0 + e) * (max(z, 0.0) + math.log1p(e)))


@njit(cache=True, error_model="numpy")
def truncated_normal_mean(z):
    """Return the mean z + phi(z) / Phi(z) of N(z, 1) truncated to positive values, accurate for every z."""
    if z < -4.0:
        found = -z
        for n in range(40, 1, -1):
            found = n / found - z
        return 1.0 / found
    return z + math.sqrt(2.0 / math.pi) * math.exp(-0.5 * z * z) / math.erfc(-z / math.sqrt(2.0))


@njit(cache=True, error_model="numpy")
def log_normal_cdf(z):
    """Return the logarithm of the standard normal cumulative distribution function at z."""
    if z < -4.0:
        return -0.5 * z * z - math.log(math.sqrt(2.0 * math.pi) * (truncated_normal_mean(z) - z))
    if z < 0.0:
        return math.log(0.5 * math.erfc(-z / math.sqrt(2.0)))
    return math.log1p(-0.5 * math.erfc(z / math.sqrt(2.0)))


@njit(cache=True, error_model="numpy")
def inverse_mills_ratio(z):
    """Return the ratio phi(z) / Phi(z) of the standard normal density to its cumulative distribution function."""
    if z < -4.0:
        return truncated_normal_mean(z) - z
    return math.sqrt(2.0 / math.pi) * math.exp(-0.5 * z * z) / math.erfc(-z / math.sqrt(2.0))


@njit(cache=True, error_model="numpy")
def log_gumbel_cdf(z):
    """Return log(1 - e^(-e^z)), accurate where e^z overflows or underflows."""
    if z < -37.0:
        return z - 0.5 * math.exp(z)
    u = math.exp(min(z, 700.0))
    return math.log(-math.expm1(-u)) if z < -0.5 else math.log1p(-math.exp(-u))


@njit(cache=True, error_model="numpy")
def gumbel_ratio(n, z):
    """Return e^(n z) / (e^(e^z) - 1), accurate where e^z overflows or underflows.

    Args:
        n: number in the exponent, at least 1.
        z: a number.
    """
    u = math.exp(min(z, 700.0))
    if z < 0.0:
        return math.exp((n - 1.0) * z) * (u / math.expm1(u) if u > 0.0 else 1.0)
    return math.exp(n * z - u) / -math.expm1(-u)
