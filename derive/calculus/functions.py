"""Functions of losses as SymPy functions with derivatives: softmax, sigmoid, softplus, and numerically stable forms.

Keeping `softmax` and `softplus` whole, instead of as quotients of exponentials, keeps derivatives short and lets every
printer use a form that cannot overflow. No derivative multiplies what underflows by what overflows, or is a difference
of large numbers.
"""

from __future__ import annotations

from typing import Any

import sympy as sp
from sympy.core.function import ArgumentIndexError


class SoftmaxEntry(sp.Function):
    """The entry with index j of the softmax of z_0, ..., z_{n-1}, written `SoftmaxEntry(j, z_0, ..., z_{n-1})`."""

    nargs = None
    is_real = True

    @classmethod
    def eval(cls, index: sp.Expr, *logits: sp.Expr) -> sp.Expr | None:
        """Return 1 for a softmax of a single logit; None, which leaves the entry unevaluated, for more logits.

        Args:
            index: index of the entry, from 0.
            *logits: logits of the softmax.
        """
        if len(logits) == 1:
            return sp.Integer(1)
        return None

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative S_j (delta_ij - S_i) of the softmax entry S_j with respect to its logit number i.

        Args:
            argindex: number of the argument, counted from 1: logit i is argument i + 2.

        Raises:
            ArgumentIndexError: the argument is the index j.
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
    """The convex indicator function of an interval: Box(z, low, high) is 0 for low <= z <= high, infinite elsewhere."""

    nargs = 3

    @classmethod
    def eval(cls, z: sp.Expr, low: sp.Expr, high: sp.Expr) -> sp.Expr | None:
        """Return Box(-z, -high, -low) if z has a leading minus; else None, which leaves the function unevaluated.

        Args:
            z: the argument.
            low: lower end of the interval.
            high: upper end.
        """
        return cls(-z, -high, -low) if z.could_extract_minus_sign() else None

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return zero, the derivative of the indicator function inside its interval."""
        return sp.Integer(0)

    def _eval_evalf(self, prec: int) -> sp.Expr:
        z, low, high = (a.evalf() for a in self.args)
        return sp.Integer(0) if low <= z <= high else sp.oo


class Sigmoid(sp.Function):
    """The logistic function 1 / (1 + exp(-z))."""

    nargs = 1
    is_real = True

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative S (1 - S) of the sigmoid S, which needs no second exponential."""
        return self * (1 - self)

    def _eval_evalf(self, prec: int) -> sp.Expr:
        return (1 / (1 + sp.exp(-self.args[0])))._eval_evalf(prec)


class Softplus(sp.Function):
    """The function log(1 + exp(z)), the logistic loss at margin -z."""

    nargs = 1
    is_real = True

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative of softplus, the sigmoid of the same argument."""
        return Sigmoid(self.args[0])

    def _eval_evalf(self, prec: int) -> sp.Expr:
        return sp.log(1 + sp.exp(self.args[0]))._eval_evalf(prec)


class _StableFunction(sp.Function):
    """A function with numerically stable code that equals an expression in SymPy's elementary functions."""

    nargs: Any = 1
    is_real = True

    def to_elementary_functions(self) -> sp.Expr:
        """Return this function as an equal expression in SymPy's elementary functions."""
        raise NotImplementedError

    def _eval_evalf(self, prec: int) -> sp.Expr:
        return self.to_elementary_functions()._eval_evalf(prec)


class LogSumExp(_StableFunction):
    """The function log(exp(z_1) + ... + exp(z_n))."""

    nargs = None

    def to_elementary_functions(self) -> sp.Expr:
        """Return log(exp(z_1) + ... + exp(z_n)) in SymPy's elementary functions."""
        return sp.log(sp.Add(*map(sp.exp, self.args)))

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative of log-sum-exp in one argument, a softmax entry."""
        return SoftmaxEntry(sp.Integer(argindex - 1), *self.args)


class LogSoftplus(_StableFunction):
    """The function log(log(1 + exp(z))), which approaches z for z to minus infinity."""

    def to_elementary_functions(self) -> sp.Expr:
        """Return log(log(1 + exp(z))) in SymPy's elementary functions."""
        return sp.log(sp.log(1 + sp.exp(self.args[0])))

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative of log(softplus(z)), sigmoid(z) / softplus(z)."""
        return SigmoidOverSoftplus(self.args[0])


class SigmoidOverSoftplus(_StableFunction):
    """The function sigmoid(z) / softplus(z), between 0 and 1."""

    is_positive = True

    def to_elementary_functions(self) -> sp.Expr:
        """Return the quotient sigmoid(z) / softplus(z) in SymPy's elementary functions."""
        z = self.args[0]
        return 1 / ((1 + sp.exp(-z)) * sp.log(1 + sp.exp(z)))

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative R (1 - S - R) of R = sigmoid(z) / softplus(z), where S = sigmoid(z)."""
        return self * (1 - Sigmoid(self.args[0]) - self)


class LogNormalCdf(_StableFunction):
    """The logarithm of the standard normal distribution function Phi(z); minus the probit loss."""

    is_negative = True

    def to_elementary_functions(self) -> sp.Expr:
        """Return log(erfc(-z / sqrt(2)) / 2)."""
        return sp.log(sp.erfc(-self.args[0] / sp.sqrt(2)) / 2)

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative of log Phi(z), the inverse Mills ratio."""
        return InverseMillsRatio(self.args[0])


class InverseMillsRatio(_StableFunction):
    """The inverse Mills ratio phi(z) / Phi(z): density over distribution function of the standard normal law."""

    is_positive = True

    def to_elementary_functions(self) -> sp.Expr:
        """Return phi(z) / Phi(z) in terms of the complementary error function."""
        z = self.args[0]
        return sp.sqrt(2 / sp.pi) * sp.exp(-(z**2) / 2) / sp.erfc(-z / sp.sqrt(2))

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative -h (z + h) of the inverse Mills ratio h(z) = phi(z) / Phi(z)."""
        return -self * TruncatedNormalMean(self.args[0])


class TruncatedNormalMean(_StableFunction):
    """The mean of N(z, 1) conditioned to be positive, z + phi(z) / Phi(z) with normal density and distribution."""

    is_positive = True

    def to_elementary_functions(self) -> sp.Expr:
        """Return z + phi(z) / Phi(z) in terms of the complementary error function."""
        return self.args[0] + InverseMillsRatio(self.args[0]).to_elementary_functions()

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative of the truncated normal mean: the variance of N(z, 1) conditioned to be positive."""
        return 1 - InverseMillsRatio(self.args[0]) * self


class LogGumbelCdf(_StableFunction):
    """The function log(1 - exp(-exp(z))), the logarithm of a Gumbel distribution function (complementary log-log)."""

    is_negative = True

    def to_elementary_functions(self) -> sp.Expr:
        """Return log(1 - exp(-exp(z))) in SymPy's elementary functions."""
        return sp.log(1 - sp.exp(-sp.exp(self.args[0])))

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """Return the derivative exp(z) / (exp(exp(z)) - 1) of log(1 - exp(-exp(z)))."""
        return GumbelRatio(sp.Integer(1), self.args[0])


class _FunctionWithPower(_StableFunction):
    """A positive function F(n, z) of an integer power n and an argument z, differentiable with respect to z."""

    nargs = 2
    is_positive = True

    def derivative_in_z(self) -> sp.Expr:
        """Return the derivative of F(n, z) with respect to z."""
        raise NotImplementedError

    def fdiff(self, argindex: int = 2) -> sp.Expr:
        """Return the derivative of F(n, z) with respect to z.

        Raises:
            ArgumentIndexError: the argument is the power n.
        """
        if argindex != 2:
            raise ArgumentIndexError(self, argindex)
        return self.derivative_in_z()


class GumbelRatio(_FunctionWithPower):
    """The function exp(n z) / (exp(exp(z)) - 1), n = 1, 2, ..."""

    def to_elementary_functions(self) -> sp.Expr:
        """Return exp(n z) / (exp(exp(z)) - 1) in SymPy's elementary functions."""
        n, z = self.args
        return sp.exp(n * z) / (sp.exp(sp.exp(z)) - 1)

    def derivative_in_z(self) -> sp.Expr:
        """Return the derivative n K_n - K_(n + 1) - K_n K_1 of K_n(z) = exp(n z) / (exp(exp(z)) - 1)."""
        n, z = self.args
        return n * self - GumbelRatio(n + 1, z) - self * GumbelRatio(sp.Integer(1), z)


class GumbelTerm(_FunctionWithPower):
    """The function exp(n z - exp(z)), n = 0, 1, ..."""

    def to_elementary_functions(self) -> sp.Expr:
        """Return exp(n z - exp(z)) in SymPy's elementary functions."""
        n, z = self.args
        return sp.exp(n * z - sp.exp(z))

    def derivative_in_z(self) -> sp.Expr:
        """Return the derivative n E_n - E_(n + 1) of E_n(z) = exp(n z - exp(z))."""
        n, z = self.args
        return n * self - GumbelTerm(n + 1, z)
