"""Functions of losses as SymPy functions with derivatives: softmax, sigmoid, softplus, and those of `stable.py`.

Keeping `softmax` and `softplus` whole, instead of as quotients of exponentials, keeps derivatives short and lets every
printer use a form that cannot overflow. No derivative multiplies what underflows by what overflows, or is a difference
of large numbers.
"""

from __future__ import annotations

from typing import Any

import sympy as sp
from sympy.core.function import ArgumentIndexError


class SoftmaxEntry(sp.Function):
    """The entry j of softmax(z_0, ..., z_{n-1}); called as SoftmaxEntry(j, z_0, ..., z_{n-1})."""

    nargs = None
    is_real = True

    @classmethod
    def eval(cls, index: sp.Expr, *logits: sp.Expr) -> sp.Expr | None:
        """Return 1 for a single logit; None, which leaves the entry whole, for more.

        Args:
            index: j, from 0.
            *logits: z_0, z_1, ...
        """
        if len(logits) == 1:
            return sp.Integer(1)
        return None

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return dS_j / dz_i = S_j (delta_ij - S_i); argument 1 is the index j, the logits count from 2.

        Raises:
            ArgumentIndexError: the argument is the index.
        """
        index, *logits = self.args
        if argindex < 2:
            raise ArgumentIndexError(self, argindex)
        other = SoftmaxEntry(sp.Integer(argindex - 2), *logits)
        return self * (int(index == argindex - 2) - other)

    def _eval_evalf(self, prec: int) -> sp.Expr:
        index, *logits = self.args
        # The largest logit itself, not its value: a rounded one would limit the precision of the result.
        top = max(logits, key=lambda z: sp.re(z.evalf())) if all(z.is_number for z in logits) else 0
        weights = [sp.exp(z - top) for z in logits]
        return (weights[int(index)] / sp.Add(*weights))._eval_evalf(prec)

    def _latex(self, printer: Any, exp: str | None = None) -> str:
        index, *logits = self.args
        body = rf"\mathrm{{softmax}}_{{{int(index) + 1}}}\!\left({', '.join(printer._print(z) for z in logits)}\right)"
        return body if exp is None else rf"{body}^{{{exp}}}"


class Box(sp.Function):
    """A constraint: 0 for low <= z <= high, infinite elsewhere; called as Box(z, low, high)."""

    nargs = 3

    @classmethod
    def eval(cls, z: sp.Expr, low: sp.Expr, high: sp.Expr) -> sp.Expr | None:
        """Return the same interval of -z in terms of z where z has a leading minus; None, which leaves it whole, else.

        Args:
            z: the argument.
            low: lower end of the interval.
            high: upper end.
        """
        return cls(-z, -high, -low) if z.could_extract_minus_sign() else None

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return zero, the slope inside."""
        return sp.Integer(0)

    def _eval_evalf(self, prec: int) -> sp.Expr:
        z, low, high = (a.evalf() for a in self.args)
        return sp.Integer(0) if low <= z <= high else sp.oo


class Sigmoid(sp.Function):
    """The function 1 / (1 + exp(-z))."""

    nargs = 1
    is_real = True

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return S (1 - S), in S itself: no second exponential."""
        return self * (1 - self)

    def _eval_evalf(self, prec: int) -> sp.Expr:
        return (1 / (1 + sp.exp(-self.args[0])))._eval_evalf(prec)


class Softplus(sp.Function):
    """The function log(1 + exp(z)), the logistic loss at margin -z."""

    nargs = 1
    is_real = True

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the sigmoid of the same argument."""
        return Sigmoid(self.args[0])

    def _eval_evalf(self, prec: int) -> sp.Expr:
        return sp.log(1 + sp.exp(self.args[0]))._eval_evalf(prec)


class _ElementaryFunction(sp.Function):
    """A function of losses that equals SymPy's own functions where rounding does not matter."""

    nargs: Any = 1
    is_real = True

    def elementary(self) -> sp.Expr:
        """Return it in SymPy's own functions."""
        raise NotImplementedError

    def _eval_evalf(self, prec: int) -> sp.Expr:
        return self.elementary()._eval_evalf(prec)


class LogSumExp(_ElementaryFunction):
    """The function log(exp(z_1) + ... + exp(z_n))."""

    nargs = None

    def elementary(self) -> sp.Expr:
        """Return the logarithm of the sum."""
        return sp.log(sp.Add(*map(sp.exp, self.args)))

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the softmax of the arguments."""
        return SoftmaxEntry(sp.Integer(argindex - 1), *self.args)


class LogSoftplus(_ElementaryFunction):
    """The function log(log(1 + exp(z))), which is z far below zero."""

    def elementary(self) -> sp.Expr:
        """Return the two logarithms."""
        return sp.log(sp.log(1 + sp.exp(self.args[0])))

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return sigmoid over softplus."""
        return SigmoidOverSoftplus(self.args[0])


class SigmoidOverSoftplus(_ElementaryFunction):
    """The function sigmoid(z) / softplus(z), between 0 and 1."""

    is_positive = True

    def elementary(self) -> sp.Expr:
        """Return the quotient."""
        z = self.args[0]
        return 1 / ((1 + sp.exp(-z)) * sp.log(1 + sp.exp(z)))

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return R (1 - S - R) in itself, R, and the sigmoid, S."""
        return self * (1 - Sigmoid(self.args[0]) - self)


class LogNormalCdf(_ElementaryFunction):
    """The function log Phi(z), Phi the distribution function of the standard normal law: minus the probit loss."""

    is_negative = True

    def elementary(self) -> sp.Expr:
        """Return it by the complementary error function."""
        return sp.log(sp.erfc(-self.args[0] / sp.sqrt(2)) / 2)

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the inverse Mills ratio."""
        return InverseMillsRatio(self.args[0])


class InverseMillsRatio(_ElementaryFunction):
    """The function phi(z) / Phi(z), density over distribution function of the standard normal law."""

    is_positive = True

    def elementary(self) -> sp.Expr:
        """Return it by the complementary error function."""
        z = self.args[0]
        return sp.sqrt(2 / sp.pi) * sp.exp(-(z**2) / 2) / sp.erfc(-z / sp.sqrt(2))

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return -h (z + h) in itself, h."""
        return -self * TruncatedNormalMean(self.args[0])


class TruncatedNormalMean(_ElementaryFunction):
    """The function z + phi(z) / Phi(z), the mean of a normal number of mean z and variance 1 that is positive."""

    is_positive = True

    def elementary(self) -> sp.Expr:
        """Return it by the complementary error function."""
        return self.args[0] + InverseMillsRatio(self.args[0]).elementary()

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the variance of that number."""
        return 1 - InverseMillsRatio(self.args[0]) * self


class LogGumbelCdf(_ElementaryFunction):
    """The function log(1 - exp(-exp(z))) of the complementary log-log link: the log of a Gumbel distribution."""

    is_negative = True

    def elementary(self) -> sp.Expr:
        """Return the logarithm."""
        return sp.log(1 - sp.exp(-sp.exp(self.args[0])))

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return exp(z) / (exp(exp(z)) - 1)."""
        return GumbelRatio(sp.Integer(1), self.args[0])


class _FunctionWithPower(_ElementaryFunction):
    """A positive function of z and a power n, called as F(n, z), which has no derivative in n."""

    nargs = 2
    is_positive = True

    def slope(self) -> sp.Expr:
        """Return the derivative in z."""
        raise NotImplementedError

    def fdiff(self, argindex: int = 2) -> sp.Expr:
        """Return the derivative in z.

        Raises:
            ArgumentIndexError: the argument is n.
        """
        if argindex != 2:
            raise ArgumentIndexError(self, argindex)
        return self.slope()


class GumbelRatio(_FunctionWithPower):
    """The function exp(n z) / (exp(exp(z)) - 1), n = 1, 2, ..."""

    def elementary(self) -> sp.Expr:
        """Return the quotient."""
        n, z = self.args
        return sp.exp(n * z) / (sp.exp(sp.exp(z)) - 1)

    def slope(self) -> sp.Expr:
        """Return n K_n - K_(n + 1) - K_n K_1: products of bounded functions."""
        n, z = self.args
        return n * self - GumbelRatio(n + 1, z) - self * GumbelRatio(sp.Integer(1), z)


class GumbelTerm(_FunctionWithPower):
    """The function exp(n z - exp(z)), n = 0, 1, ..."""

    def elementary(self) -> sp.Expr:
        """Return one exponential, whose exponent is at worst minus infinity."""
        n, z = self.args
        return sp.exp(n * z - sp.exp(z))

    def slope(self) -> sp.Expr:
        """Return n E_n - E_(n + 1), no product of zero and infinity."""
        n, z = self.args
        return n * self - GumbelTerm(n + 1, z)
