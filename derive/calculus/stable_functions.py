"""Logarithms of probabilities and quotients of exponentials in functions that neither overflow nor lose their digits.

An author writes log(1 + exp(z)), -log(erfc(-z) / 2), exp(a) / (exp(a) + exp(b)) or log(1 - exp(-exp(z))). In doubles
these are infinite or not a number long before their values are, and so are their slopes. The functions that they are
equal to, those of `functions.py`, are finite wherever the values are, derivatives included.
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy as sp
from sympy.logic.boolalg import Boolean

from .chain import two_entry_softmax_to_sigmoid
from .functions import (
    GumbelTerm,
    LogGumbelCdf,
    LogNormalCdf,
    LogSoftplus,
    LogSumExp,
    Sigmoid,
    SoftmaxEntry,
    Softplus,
)
from .subexpressions import factor_if_short

Exponentials = dict[sp.Expr, sp.Expr]  # exponent -> coefficient, of a sum of exponentials
_MAX_POWER = 4  # of a sum of exponentials that is multiplied out
_ZERO, _ONE = sp.Integer(0), sp.Integer(1)
_EXPONENTIAL = (sp.exp, sp.cosh, sp.sinh)
_DISTRIBUTIONS = (sp.erf, sp.erfc, sp.tanh, Sigmoid, SoftmaxEntry)


def rewrite_without_overflow(expression: sp.Expr) -> sp.Expr:
    """Return an equal expression whose logarithms and quotients of exponentials neither overflow nor cancel.

    The expression must be real for real values of its symbols.
    """
    written = expression.has(sp.log) or _has_exponential(expression)
    return two_entry_softmax_to_sigmoid(_rewrite_subexpressions_without_overflow(expression) if written else expression)


def _has_exponential(e: sp.Expr) -> bool:
    return e.has(*_EXPONENTIAL) or any(_is_power_with_symbolic_exponent(power) for power in e.atoms(sp.Pow))


def _is_power_with_symbolic_exponent(e: sp.Expr) -> bool:
    """Return whether an expression is a positive number to a symbolic power, such as 2^x."""
    return bool(e.is_Pow and e.base.is_number and e.base.is_positive and e.exp.free_symbols)


def _rewrite_subexpressions_without_overflow(e: sp.Basic) -> sp.Basic:
    """Return an equal expression with numerically stable logarithms, exponentials and quotients."""
    if not e.args or isinstance(e, Boolean):
        return e
    if isinstance(e, sp.log):
        return _logarithm_without_overflow(e.args[0])
    if isinstance(e, sp.exp):
        return _exponential_without_overflow(e.args[0])
    if (e.is_Mul or e.is_Pow) and (quotient := _quotient_without_overflow(e)) is not None:
        return quotient
    inside = [_rewrite_subexpressions_without_overflow(a) for a in e.args]
    return e if all(a is b for a, b in zip(inside, e.args, strict=True)) else e.func(*inside)


# --- sums of exponentials --------------------------------------------------------------------------------------------


def _as_sum_of_exponentials(e: sp.Expr) -> Exponentials | None:
    """Return an expression as a sum of exponentials, in a dict exponent -> coefficient; None if it has too many terms.

    The coefficients contain exponentials only as arguments of other functions.
    """
    if e.is_Add:
        parts = [_as_sum_of_exponentials(term) for term in e.args]
        return None if None in parts else _collect_exponents(pair for part in parts if part for pair in part.items())
    if e.is_Mul:
        total: Exponentials | None = {_ZERO: _ONE}
        for factor in e.args:
            part = _as_sum_of_exponentials(factor)
            if total is None or part is None:
                return None
            total = _multiply_sums_of_exponentials(total, part)
        return total
    if isinstance(e, sp.exp):
        return {e.args[0]: _ONE}
    if isinstance(e, sp.cosh | sp.sinh):
        z, half = e.args[0], sp.Rational(1, 2)
        return _collect_exponents([(z, half), (-z, half if isinstance(e, sp.cosh) else -half)])
    if _is_power_with_symbolic_exponent(e):
        return {e.exp * sp.log(e.base): _ONE}
    if e.is_Pow and e.exp.is_Integer and 0 < e.exp <= _MAX_POWER and _has_exponential(e):
        base = _as_sum_of_exponentials(e.base)
        found: Exponentials | None = {_ZERO: _ONE}
        for _ in range(int(e.exp)):
            found = None if found is None or base is None else _multiply_sums_of_exponentials(found, base)
        return found
    return {_ZERO: e}


def _multiply_sums_of_exponentials(one: Exponentials, other: Exponentials) -> Exponentials | None:
    """Return the product of two sums of exponentials (dicts exponent -> coefficient); None if it has too many terms."""
    return _collect_exponents((a + b, c * d) for a, c in one.items() for b, d in other.items())


def _collect_exponents(pairs: Iterable[tuple[sp.Expr, sp.Expr]], max_terms: int = 32) -> Exponentials | None:
    """Return a sum of exponentials as a dict exponent -> coefficient; None if it has too many terms.

    Args:
        pairs: exponents and coefficients; equal exponents may occur several times.
        max_terms: largest number of different exponents.
    """
    total: Exponentials = {}
    for exponent, coefficient in pairs:
        total[exponent] = total.get(exponent, _ZERO) + coefficient
    found = {exponent: coefficient for exponent, coefficient in total.items() if coefficient != 0}
    return found if len(found) <= max_terms else None


def _has_varying_exponent(sums: Exponentials | None) -> bool:
    """Return whether a sum of exponentials has an exponent that contains symbols."""
    return sums is not None and any(exponent.free_symbols for exponent in sums)


def _log_sum_exp_arguments(sums: Exponentials) -> list[sp.Expr] | None:
    """Return the terms z_i by which a sum of exponentials is sum_i exp(z_i); None unless coefficients are positive."""
    if not all(c.is_positive for c in sums.values()):
        return None
    return [
        _rewrite_subexpressions_without_overflow(a) + _logarithm_without_overflow(c)
        for a, c in sorted(sums.items(), key=lambda pair: sp.default_sort_key(pair[0]))
    ]


def _log_sum_exp(logits: list[sp.Expr]) -> sp.Expr:
    """Return the log-sum-exp of given terms; of two terms as a softplus if this loses no digits."""
    if len(logits) == 1:
        return logits[0]
    if len(logits) == 2:
        for a, b in (logits, logits[::-1]):
            difference = b - a
            if not a.free_symbols or not (a / difference).free_symbols:
                return a + Softplus(difference)
    return LogSumExp(*logits)


# --- logarithms ------------------------------------------------------------------------------------------------------


def _logarithm_without_overflow(argument: sp.Expr) -> sp.Expr:
    """Return the logarithm of a product as a sum of numerically stable logarithms of its positive factors."""
    total, rest = _split_off_stable_logarithms(argument)
    if total is None:
        return sp.log(_rewrite_subexpressions_without_overflow(argument))
    return total if rest == 1 else total + sp.log(rest)


def _split_off_stable_logarithms(e: sp.Expr) -> tuple[sp.Expr | None, sp.Expr]:
    """Split off those factors of an expression whose logarithms have a numerically stable form.

    Returns:
        sum of these logarithms, product of the other factors; (None, e) if there is no such factor.
    """
    if not e.is_Mul:
        known = _log_of_positive_expression(e)
        if known is not None:
            return known, _ONE
        short = factor_if_short(e)
        return (
            _split_off_stable_logarithms(short)
            if short != e and short.func in (sp.Mul, sp.Pow) and not _is_number_times_factor(short)
            else (None, e)
        )
    total, rest, found = _ZERO, _ONE, False
    for factor in e.args:
        for sign in (1, -1):
            known = _log_of_positive_expression(sign * factor)
            if known is not None:
                total, rest, found = total + known, sign * rest, True
                break
        else:
            rest = rest * _rewrite_subexpressions_without_overflow(factor)
    if not found:
        return None, e
    if rest.is_positive:
        return total + sp.log(rest), _ONE
    number, others = rest.as_coeff_Mul()
    return (total + sp.log(number), others) if number.is_positive and number != 1 else (total, rest)


def _is_number_times_factor(product: sp.Expr) -> bool:
    """Return whether a product has two factors, the first of which is a number."""
    return len(product.args) == 2 and product.args[0].is_number


def _log_of_positive_expression(e: sp.Expr) -> sp.Expr | None:
    """Return the logarithm of an expression in a numerically stable form; None if no rule applies."""
    if e.is_number or e.is_Symbol:
        return None
    if e.is_Pow and e.exp.is_real and not e.base.is_number:
        inside = _log_of_positive_expression(e.base)
        return None if inside is None else e.exp * inside
    sums = _as_sum_of_exponentials(e)
    if sums is not None and _has_varying_exponent(sums):
        logits = _log_sum_exp_arguments(sums)
        return _log_of_exponential_difference(sums) if logits is None else _log_sum_exp(logits)
    return _log_of_distribution_function(_rewrite_subexpressions_without_overflow(e))


def _log_of_exponential_difference(sums: Exponentials) -> sp.Expr | None:
    """Return log(c exp(a) - d exp(b)) in a numerically stable form; None unless the difference is positive."""
    if len(sums) != 2 or [bool(c.is_positive) for c in sums.values()].count(True) != 1:
        return None
    (a, c), (b, d) = sorted(sums.items(), key=lambda pair: not pair[1].is_positive)
    if not (-d).is_positive:
        return None
    higher = a + _logarithm_without_overflow(c)
    gap = higher - b - _logarithm_without_overflow(-d)
    known = _log_of_positive_expression(gap)
    if known is None and gap.is_positive:
        known = sp.log(gap)
    return None if known is None else _rewrite_subexpressions_without_overflow(higher) + LogGumbelCdf(known)


def _log_of_distribution_function(e: sp.Expr) -> sp.Expr | None:
    """Return log(c + d f) in a numerically stable form, f being a distribution function such as erf or a sigmoid.

    The result is None unless c + d f is a multiple of f or of 1 - f.
    """
    if isinstance(e, Softplus):
        return LogSoftplus(e.args[0])
    terms = [term for term in sp.Add.make_args(e) if term.has(*_DISTRIBUTIONS)]
    if len(terms) != 1:
        return None
    (term,) = terms
    functions = [factor for factor in sp.Mul.make_args(term) if isinstance(factor, _DISTRIBUTIONS)]
    if len(functions) != 1:
        return None
    (f,) = functions
    c, d = e - term, term / f
    w = f.args[0]
    for whole, ratio, known in _identities_of_distribution_function(f, w):
        if c == 0 and whole is None and d.is_positive:
            return _logarithm_without_overflow(d) + known
        if whole is not None and c.is_positive and d / c == ratio:
            return _logarithm_without_overflow(whole * c) + known
    return None


def _identities_of_distribution_function(f: sp.Expr, w: sp.Expr) -> list[tuple[sp.Expr | None, sp.Expr, sp.Expr]]:
    """Return identities 1 + r f = m p of a distribution function f, with a probability p whose logarithm is stable.

    Args:
        f: the function, such as erf(w) or a sigmoid.
        w: its argument.

    Returns:
        one tuple (m, r, log p) per identity; (None, 1, log f) if f is itself a probability.
    """
    root, half, two = sp.sqrt(2), sp.Rational(1, 2), sp.Integer(2)
    if isinstance(f, sp.erf):
        return [(two, _ONE, LogNormalCdf(root * w)), (two, -_ONE, LogNormalCdf(-root * w))]
    if isinstance(f, sp.erfc):
        return [(None, _ONE, sp.log(2) + LogNormalCdf(-root * w)), (_ONE, -half, LogNormalCdf(root * w))]
    if isinstance(f, sp.tanh):
        return [(two, _ONE, -Softplus(-2 * w)), (two, -_ONE, -Softplus(2 * w))]
    if isinstance(f, Sigmoid):
        return [(None, _ONE, -Softplus(-w)), (_ONE, -_ONE, -Softplus(w))]
    index, *logits = f.args
    others = [z for i, z in enumerate(logits) if i != int(index)]
    whole = LogSumExp(*logits)
    if len(logits) == 2:
        difference = others[0] - logits[int(index)]
        return [(None, _ONE, -Softplus(difference)), (_ONE, -_ONE, -Softplus(-difference))]
    return [(None, _ONE, logits[int(index)] - whole), (_ONE, -_ONE, LogSumExp(*others) - whole)]


# --- exponentials outside of logarithms ------------------------------------------------------------------------------


def _exponential_without_overflow(exponent: sp.Expr) -> sp.Expr:
    """Return the exponential of an expression; exp(n z - exp(z)) becomes one function with finite derivatives."""
    falling = [term for term in sp.Add.make_args(exponent) if _has_varying_exponent(_as_sum_of_exponentials(-term))]
    logits = _log_sum_exp_arguments(_as_sum_of_exponentials(-falling[0]) or {}) if len(falling) == 1 else None
    if logits is not None and len(logits) == 1:
        rest = exponent - falling[0]
        for n in range(_MAX_POWER):
            over = rest - n * logits[0]
            if not over.free_symbols & logits[0].free_symbols:
                return sp.exp(over) * GumbelTerm(sp.Integer(n), logits[0])
    return sp.exp(_rewrite_subexpressions_without_overflow(exponent))


def _quotient_without_overflow(e: sp.Expr) -> sp.Expr | None:
    """Return a quotient of exponentials as softmax entries or as one exponential; None if it has no such form."""
    below: list[tuple[Exponentials, list[sp.Expr], sp.Expr]] = []
    above, rest = _ONE, []
    for factor in sp.Mul.make_args(e):
        if factor.is_Pow and factor.exp.is_negative and _has_exponential(factor.base):
            sums = _as_sum_of_exponentials(factor.base)
            logits = (
                _log_sum_exp_arguments(sums)
                if sums is not None and _has_varying_exponent(sums) and len(sums) > 1
                else None
            )
            if sums is None or logits is None:
                return None
            below.append((sums, logits, -factor.exp))
        elif _has_exponential(factor):
            above *= factor
        else:
            rest.append(factor)
    terms = _as_sum_of_exponentials(above) if below else None
    if terms is None or any(_has_exponential(c) for c in terms.values()):
        return None
    total = _ZERO
    for exponent, coefficient in terms.items():
        (sums, logits, power), *others = below
        if not others and power == 1 and exponent in sums:
            place = sorted(sums, key=sp.default_sort_key).index(exponent)
            entry = Sigmoid(logits[place] - logits[1 - place]) if len(logits) == 2 else SoftmaxEntry(place, *logits)
            total += coefficient / sums[exponent] * entry
        else:
            total += coefficient * sp.exp(
                _rewrite_subexpressions_without_overflow(exponent) - sp.Add(*[k * _log_sum_exp(z) for _, z, k in below])
            )
    return sp.Mul(*map(_rewrite_subexpressions_without_overflow, rest), total)
