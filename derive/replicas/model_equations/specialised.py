"""The saddle point of one model written out: its tokens, clusters, spectrum and loss in place of symbols.

Names carry what they belong to behind an @: V_hat@2 is the conjugate of token 2, q@1,2 the overlap of token 1 in
cluster 2, R@1 the resolvent of spectral atom 1. With s = t = 1 everything is a scalar; else matrices stay matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...authoring.language import token_variance_symbol
from ...authoring.model import FixedSizeModel
from ...authoring.regulariser import Ridge
from ...calculus.averages import (
    CHANNEL,
    CONTEXTS,
    COORDINATE,
    Average,
    Jacobian,
    MatrixAverage,
    OrderParameterSymbols,
    drop_transposes_of_symmetric_matrices,
    expand_matrix_product,
    to_explicit_matrix,
)
from ...calculus.chain import two_entry_softmax_to_sigmoid
from ...calculus.functions import Sigmoid, SoftmaxEntry, Softplus
from ...calculus.numeric import is_identically_zero
from ...calculus.piecewise import drop_delta_functions
from ...calculus.subexpressions import extract_maximal_subexpressions
from ...theory.free_entropy import FreeEntropy, free_entropy, split_coefficient_and_average
from ...theory.saddle_point import SaddlePoint, saddle_point, write_V_hat_with_theta_hat
from ...theory.stability import response_of_weights_to_field
from .writing import (
    replace_averages,
    scalar_form,
    shorten_by_collecting_factors,
    shorten_expression,
    simplify_matrix,
    sum_matrices,
)

# Largest numbers of contexts, spectral atoms and label combinations of equations that are written out.
MOST = {"contexts": 8, "atoms": 4, "combinations": 16}


@dataclass(frozen=True)
class TokenClusterPair:
    """A token l with label k: its index in the law's arrays, and the indices its symbols are printed with.

    Attributes:
        position: index of the pair in the arrays of the law.
        token: number l of the token, from 0.
        cluster: label k, from 0.
        own: printed index of the conjugates and of m.
        shared: printed index of q, V and theta, which pairs of the same covariance share.
    """

    position: int
    token: int
    cluster: int
    own: str
    shared: str


@dataclass(frozen=True)
class FieldEquations:
    """The components of the field g = -grad loss for one assignment of labels to the tokens.

    Attributes:
        features: functions of the fields and the noise that have a name, by their symbols.
        components: name of a component of g -> expression in x and the features.
        labels: the labels to which it applies, counted from 0; None for all.
    """

    features: dict[sp.Symbol, sp.Expr]
    components: dict[str, sp.Expr]
    labels: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class SpectralAtom:
    """An atom of the law of a coordinate, with second moments of (tau, pi) and of a row's field b.

    tau are the mean coordinates, pi is the teacher's row.

    Attributes:
        system: equations of the model.
        position: index of the atom in the arrays of the law.
        index: printed index of the atom's symbols; empty if it is the only atom.
        weight: probability of the atom.
    """

    system: ModelEquations
    position: int
    index: str
    weight: sp.Expr

    @property
    def spectrum_index(self) -> str:
        """Return the printed index of precision G and resolvent R of a row, which atoms of one spectrum share."""
        rows = self.system.at.law["covariance"]
        return "" if all(row == rows[0] for row in rows) else self.index

    @cached_property
    def gram_matrix(self) -> sp.Matrix:
        """Return the Gram matrix E[z z^T] of z = (mean coordinates tau, teacher's row pi), from its upper half."""
        given = self.system.at.law["gram"][self.position]
        return sp.Matrix(len(given), len(given), lambda a, b: given[min(a, b)][max(a, b)])

    @cached_property
    def symbols_of_gram_entries(self) -> dict[tuple[int, int], sp.Symbol]:
        """Return symbols of the entries of `gram_matrix` by (row, column); empty if all entries are short."""
        count = len(self.system.token_cluster_pairs)
        found = {}
        for a in range(count):
            for b in range(a, self.gram_matrix.rows):
                if self.gram_matrix[a, b] != 0:
                    parts = [str(a + 1), str(b + 1) if b < count else "0" * (b - count + 1)]
                    place = ("," if a > 8 or count > 9 else "").join(parts)
                    name = f"moment@{place}{';' if self.index else ''}{self.index}"
                    found[a, b] = sp.Symbol(name, real=True)
        return found if any(sp.count_ops(self.gram_matrix[place]) > 2 for place in found) else {}

    @cached_property
    def gram_matrix_with_named_entries(self) -> sp.Matrix:
        """Return the Gram matrix of mean coordinates tau and teacher's row pi, with symbols for its long entries."""
        names = self.symbols_of_gram_entries
        return sp.Matrix(
            *self.gram_matrix.shape, lambda a, b: names.get((min(a, b), max(a, b)), self.gram_matrix[a, b])
        )

    @cached_property
    def coefficients_of_mean_row_field(self) -> tuple[list[MatrixExpr], MatrixExpr]:
        """Return the coefficients M_c and T of the mean B = sum_c M_c tau_c + T pi of a row's field.

        tau_c is the mean coordinate of the (token, cluster) pair c, pi the teacher's row.
        """
        system, p = self.system, self.system.matrix_form_symbols
        means, teacher = [], []
        pi = sp.MatrixSymbol("pi", *system.matrix_shape("pi"))
        for context in system.token_cluster_pairs:
            gamma = system.at.law["covariance"][self.position][context.position]
            names = {**system.cluster_matrices(context), p.gamma: gamma, p.pi: pi}
            terms = sp.MatAdd.make_args(p.effective_prior_parameters[p.B].xreplace(names).doit().expand())
            means.append(
                sum_matrices(
                    [t.xreplace({p.tau: sp.Integer(1)}) for t in terms if t.has(p.tau)], system.matrix_shape("m")
                )
            )
            for term in terms:
                if not term.has(p.tau) and not term.is_ZeroMatrix:
                    teacher.append(sp.MatMul(*[f for f in sp.MatMul.make_args(term) if f != pi]))
        return means, sum_matrices(teacher, system.matrix_shape("theta"))

    @cached_property
    def cross_moment_with_teacher(self) -> MatrixExpr:
        """Return the cross moment E[B pi^T] of a row's mean field B and the teacher's row pi (s x t)."""
        return self._cross_moment(slice(len(self.system.token_cluster_pairs), None), "theta")

    @cached_property
    def cross_moments_with_tau(self) -> list[MatrixExpr]:
        """Return E[B tau_c] of a row's mean field B and the mean coordinate of each (token, cluster) pair c."""
        return [self._cross_moment(slice(n, n + 1), "m") for n in range(len(self.system.token_cluster_pairs))]

    def _cross_moment(self, columns: slice, like: str) -> MatrixExpr:
        """Return E[B z^T] of a row's mean field B and some components of z = (tau, pi), in the shape of `like`."""
        (means, teacher), first, gram = (
            self.coefficients_of_mean_row_field,
            len(self.system.token_cluster_pairs),
            self.gram_matrix_with_named_entries,
        )
        terms = [
            teacher * simplify_matrix(gram[first:, columns]),
            *[M * simplify_matrix(gram[n, columns]) for n, M in enumerate(means)],
        ]
        return sum_matrices(terms, self.system.matrix_shape(like))

    @cached_property
    def second_moment_of_field(self) -> MatrixExpr:
        """Return the second moment Omega = E[b b^T] = E[B B^T] + Q of a row's field (s x s)."""
        (means, teacher), first, gram = (
            self.coefficients_of_mean_row_field,
            len(self.system.token_cluster_pairs),
            self.gram_matrix_with_named_entries,
        )
        terms = [self.system.prior_parameter_in_atom(self.system.matrix_form_symbols.Q, self.position)]
        terms.append(teacher * simplify_matrix(gram[first:, first:]) * teacher.T)
        for n, mean in enumerate(means):
            cross = mean * simplify_matrix(gram[n, first:]) * teacher.T
            terms += [cross, cross.T, *[gram[n, m] * mean * other.T for m, other in enumerate(means)]]
        return sum_matrices(terms, self.system.matrix_shape("q"))


@dataclass(frozen=True, eq=False)
class ModelEquations:
    """The saddle-point equations of one model at fixed sizes, written out in its own symbols.

    `equations` maps the name of a left side to its expression, in the order of reading.
    """

    at: FixedSizeModel

    @cached_property
    def free_entropy(self) -> FreeEntropy:
        """Return the free entropy Phi in matrix form, for the model's kind of regulariser."""
        at = self.at
        return free_entropy(
            regulariser=at.regulariser.row_regulariser, trained=len(at.trained), loss_depends_on_q=at.loss_depends_on_q
        )

    @cached_property
    def saddle_point(self) -> SaddlePoint:
        """Return the saddle-point equations in matrix form."""
        return saddle_point(self.free_entropy)

    @property
    def is_too_large_to_write_out(self) -> bool:
        """Return whether pairs, spectral atoms or label assignments are too many to write equations out (`MOST`)."""
        sizes, law = self.at.structure, self.at.law
        counts = {"contexts": sizes.tokens * sizes.clusters, "atoms": len(law["weights"])}
        return any(n > MOST[name] for name, n in {**counts, "combinations": len(self.label_probabilities)}.items())

    @property
    def has_scalar_equations(self) -> bool:
        """Return whether s = t = 1, where every equation is scalar."""
        return self.at.structure.student_rank == self.at.structure.teacher_rank == 1

    @property
    def matrix_form_symbols(self) -> OrderParameterSymbols:
        """Return the symbols of the equations in matrix form, which the symbols of this model replace."""
        return self.free_entropy.symbols

    # --- names -------------------------------------------------------------------------------------------------------

    @cached_property
    def token_cluster_pairs(self) -> tuple[TokenClusterPair, ...]:
        """Return all pairs of token and cluster, in the order of the law's arrays (cluster fastest)."""
        sizes, law = self.at.structure, self.at.law
        both = list(product(range(sizes.tokens), range(sizes.clusters)))
        spectra = [tuple(row[n] for row in law["covariance"]) for n in range(len(both))]

        def printed_index(*place: int) -> str:
            counts = zip(place, (sizes.tokens, sizes.clusters), strict=True)
            return ",".join(str(n + 1) for n, count in counts if count > 1)

        def _shared_spectrum_index(n: int) -> str:
            return "" if len(set(spectra)) == 1 else printed_index(*both[spectra.index(spectra[n])])

        return tuple(
            TokenClusterPair(n, l, k, printed_index(l, k), _shared_spectrum_index(n)) for n, (l, k) in enumerate(both)
        )

    @cached_property
    def label_probabilities(self) -> dict[tuple[int, ...], sp.Expr]:
        """Return a map from the cluster labels of a sample to their probability, without those that never occur."""
        sizes = self.at.structure
        every = product(range(sizes.clusters), repeat=sizes.tokens)
        return {k: probability for k, probability in zip(every, self.at.law["labels"], strict=True) if probability != 0}

    def matrix_shape(self, name: str) -> tuple[int, int]:
        """Return the shape of a matrix by its name, without hat and index; (s, s) for unknown names."""
        s, t = self.at.structure.student_rank, self.at.structure.teacher_rank
        stem = name.partition("@")[0].removesuffix("_hat")
        return {"m": (s, 1), "theta": (s, t), "Y": (t, 1), "g": (s, 1), "omega": (s, 1), "pi": (t, 1)}.get(stem, (s, s))

    def matrix_symbol(self, name: str) -> MatrixExpr:
        """Return the matrix symbol with a given name, of the shape that `matrix_shape` returns."""
        return sp.MatrixSymbol(name, *self.matrix_shape(name))

    def overlap(self, name: str, context: TokenClusterPair) -> MatrixExpr:
        """Return the symbol of an overlap or conjugate of one (token, cluster) pair.

        The overlap m with the pair's mean and its conjugate m_hat are zero where this mean is zero.

        Args:
            name: name in the matrix form, "q" or "m_hat" for example.
            context: pair of token and cluster.
        """
        if name in ("m", "m_hat") and not self.has_nonzero_mean(context):
            return sp.ZeroMatrix(*self.matrix_shape("m"))
        return self.matrix_symbol(f"{name}@{context.shared if name in ('q', 'V', 'theta') else context.own}")

    def has_nonzero_mean(self, context: TokenClusterPair) -> bool:
        """Return whether the mean coordinate tau of a (token, cluster) pair is not zero in some atom."""
        return any(entry != 0 for gram in self.at.law["gram"] for entry in gram[context.position])

    def to_written_form(self, expression: Any) -> Any:
        """Return an expression in the form in which it is written out: as a scalar if s = t = 1."""
        expression = expression.doit() if expression.has(MatrixExpr) else expression
        return sp.factor_terms(scalar_form(expression, self.at)) if self.has_scalar_equations else expression

    # --- samples -----------------------------------------------------------------------------------------------------

    def kind_of_average(self, labels: tuple[int, ...]) -> str:
        """Return the name of the average over samples with given labels."""
        index = ",".join(str(k + 1) for k in labels) if self.at.structure.clusters > 1 else ""
        return f"given@{index}"

    def _summand_in_model_symbols(self, summand: Any, context: TokenClusterPair | None) -> Any:
        """Return the function that a channel average averages over samples, in the symbols of this model."""
        p, at = self.matrix_form_symbols, self.at
        names: dict[Any, Any] = {}
        if context is not None:
            index = self.printed_indices((context.token,))
            g, omega, teacher, loss_q = (self.matrix_symbol(f"{z}@{index}") for z in ("g", "omega", "Y", "loss_q"))
            means = sp.ImmutableDenseMatrix(at.law["teacher_means"][context.position])
            names = {
                p.g: g,
                p.domega: omega - self.overlap("m", context),
                p.dY: teacher - means if any(means) else teacher,
                **({p.loss_q: loss_q} if at.loss_depends_on_q else {}),
            }
        if at.trained:
            slopes = [sp.Symbol(f"slope@{symbol.name}", real=True) for symbol, _ in at.trained.values()]
            names[p.loss_phi] = sp.ImmutableDenseMatrix(slopes)
        return summand.xreplace(names).doit()

    def _loss_at_cluster_labels(self, labels: tuple[int, ...]) -> sp.Expr:
        """Return the loss for given labels of the tokens."""
        chosen = {symbol: sp.Integer(k) for symbol, k in zip(self.at.labels, labels, strict=True)}
        return sp.sympify(self.at.loss.xreplace(chosen).doit().xreplace(self.token_variances(labels)))

    def token_variances(self, labels: tuple[int, ...] | None) -> dict[sp.Symbol, sp.Expr]:
        """Return the variances rho of the tokens by symbol, at given labels.

        Without labels (None) only those that do not depend on them.
        """
        law, clusters = self.at.law, self.at.structure.clusters
        found = {}
        for l in range(self.at.structure.tokens):
            places = [l * clusters + k for k in (range(clusters) if labels is None else [labels[l]])]
            values = {
                sp.Add(*[w * row[c] for w, row in zip(law["weights"], law["covariance"], strict=True)]) for c in places
            }
            if len(values) == 1:
                found[token_variance_symbol(l)] = values.pop()
        return found

    def channel_average(self, average: MatrixAverage | Average, context: TokenClusterPair | None) -> Any:
        """Return an average over samples as a sum over their labels, with their probabilities.

        Args:
            average: channel average of the matrix form.
            context: token and cluster that the samples contain; None for an average over all samples.
        """
        p, sizes = self.matrix_form_symbols, self.at.structure
        here = None if average.summand in (p.moreau, p.loss_phi) else context  # of a whole sample
        make = type(average)
        total = sp.Integer(0)
        if make is MatrixAverage:
            shape = {p.s: sizes.student_rank, p.t: sizes.teacher_rank}
            total = sp.ZeroMatrix(*[sp.sympify(n).xreplace(shape) for n in average.shape])
        inside = self._summand_in_model_symbols(average.summand, here)
        for labels, probability in self.label_probabilities.items():
            if here is None or labels[here.token] == here.cluster:
                total = total + probability * make(self.kind_of_average(labels), inside)
        return total

    # --- rows --------------------------------------------------------------------------------------------------------

    @cached_property
    def row_response(self) -> tuple[MatrixExpr, MatrixExpr]:
        """Return the response dw/db of a row to its field as the equations write it, and its short name."""
        return drop_transposes_of_symmetric_matrices(
            response_of_weights_to_field(self.free_entropy), self.matrix_form_symbols
        ), self.matrix_form_symbols.R

    def prior_parameter_in_atom(self, composite: sp.MatrixSymbol, j: int) -> MatrixExpr:
        """Return the row's precision G or its field's covariance Q in one spectral atom.

        Args:
            composite: symbol G or Q of the matrix form.
            j: index of the atom, from 0.
        """
        p, terms = self.matrix_form_symbols, []
        for context in self.token_cluster_pairs:
            gamma = self.at.law["covariance"][j][context.position]
            terms.append(
                p.effective_prior_parameters[composite].xreplace({**self.cluster_matrices(context), p.gamma: gamma})
            )
        return sum_matrices(terms, self.matrix_shape("q"))

    @cached_property
    def spectral_atoms(self) -> tuple[SpectralAtom, ...]:
        """Return the atoms of the law of a coordinate, in the order of the law's arrays."""
        weights = self.at.law["weights"]
        several = len(weights) > 1
        return tuple(SpectralAtom(self, j, str(j + 1) if several else "", weight) for j, weight in enumerate(weights))

    def average_over_atoms(self, summand: Any, context: TokenClusterPair | None) -> Any:
        """Return an average over a coordinate as a sum over spectral atoms.

        The result is written in second moments of the mean coordinates tau and the teacher's row pi.

        Args:
            summand: matrix or scalar of the matrix form.
            context: pair of token and cluster whose tau and gamma the summand contains; None if it has neither.
        """
        if isinstance(summand, MatrixExpr):
            terms = sp.MatAdd.make_args(summand.xreplace(dict([self.row_response])).expand().doit())
            both = product(self.spectral_atoms, terms)
            parts = [atom.weight * self._average_in_atom(term, atom, context) for atom, term in both]
            return sum(parts[1:], parts[0]).doit()
        total = sp.Integer(0)
        for atom in self.spectral_atoms:
            if summand == self.matrix_form_symbols.envelope:
                total += atom.weight * Average(f"row@{atom.index}", summand)
                continue
            for term in sp.Add.make_args(summand.xreplace(dict([self.row_response]))):
                number, trace = term.as_coeff_Mul()
                inside = sp.MatAdd.make_args(trace.arg.expand().doit())
                matrix = sp.MatAdd(*[self._average_in_atom(part, atom, context) for part in inside]).expand().doit()
                total += atom.weight * number * sp.Trace(matrix)
        return total

    def _average_in_atom(self, term: MatrixExpr, atom: SpectralAtom, context: TokenClusterPair | None) -> MatrixExpr:
        """Return the average of a matrix product over (tau, pi), or over a row's field b, in one spectral atom.

        tau are the mean coordinates, pi is the teacher's row.

        Raises:
            TypeError: the average of the product is not known.
        """
        p = self.matrix_form_symbols
        scalar, factors = term.as_coeff_matrices() if isinstance(term, sp.MatMul) else (sp.Integer(1), [term])
        if context is not None:
            scalar = scalar.xreplace({p.gamma: self.at.law["covariance"][atom.position][context.position]})
        R, G = (self.matrix_symbol(f"{stem}@{atom.spectrum_index}") for stem in ("R", "G"))
        Q, Omega = (self.matrix_symbol(f"{stem}@{atom.index}") for stem in ("Q", "Omega"))
        w, b, pi = (sp.MatrixSymbol(z.name, *self.matrix_shape(z.name if z == p.pi else "m")) for z in (p.w, p.b, p.pi))
        knows, kind = self.at.has_average_over_teacher, f"row@{atom.index}"
        slope = MatrixAverage(kind, Jacobian(w, b))
        rules: dict[tuple[Any, ...], MatrixExpr] = {
            (p.B, p.B.T): Omega - Q,
            (p.B, p.pi.T): atom.cross_moment_with_teacher,
            (p.w, p.w.T): MatrixAverage(kind, w * w.T),
            # Stein's lemma where b and pi are jointly normal.
            (p.w, p.pi.T): MatrixAverage(kind, w * pi.T) if knows else slope * atom.cross_moment_with_teacher,
            (Jacobian(p.w, p.b),): slope,
            (p.R,): R if self.at.penalty is None else slope,
            (p.G,): G,
            (p.Q,): Q,
        }
        if scalar.has(p.tau) and context is not None:
            mean = atom.cross_moments_with_tau[context.position]
            tau = sp.Symbol(f"tau@{context.own}", real=True)
            averaged = MatrixAverage(kind, tau * w) if knows and self.has_nonzero_mean(context) else slope * mean
            rules |= {(p.B,): mean, (p.w,): averaged}
        made: list[MatrixExpr] = []
        rest = tuple(factors)
        while rest:
            first = rest[:2] if rest[:2] in rules else rest[:1]
            if first not in rules:
                raise TypeError(f"the average of {term} is not known: its factor {first[0]} has no average")
            made.append(rules[first])
            rest = rest[len(first) :]
        return expand_matrix_product(scalar.xreplace({p.tau: sp.Integer(1)}).expand() * sp.MatMul(*made))

    # --- all of them -------------------------------------------------------------------------------------------------

    @cached_property
    def equations(self) -> dict[str, Any]:
        """Return all equations by name: conjugates, rows, overlaps, trained numbers and free entropy."""
        found: dict[str, Any] = {}
        for context in self.token_cluster_pairs:
            for stem in ("q", "V", "m", "theta"):
                name = f"{stem}_hat@{context.own}"
                if stem != "m" or self.has_nonzero_mean(context):
                    found[name] = self.to_written_form(self._conjugate_equation(f"{stem}_hat", context))
        for atom in self.spectral_atoms:
            found |= {symbol.name: atom.gram_matrix[place] for place, symbol in atom.symbols_of_gram_entries.items()}
        for atom in self.spectral_atoms:
            found |= {name: self.to_written_form(value) for name, value in self._row_equations(atom).items()}
        if (minimiser := self.row_minimiser()) is not None:
            found["w@"] = minimiser
        for context in self.token_cluster_pairs:
            for stem in ("q", "V", "theta", "m"):
                name = f"{stem}@{context.own if stem == 'm' else context.shared}"
                if name not in found and (stem != "m" or self.has_nonzero_mean(context)):
                    found[name] = self.to_written_form(self._overlap_equation(stem, context))
        if self.saddle_point.trained is not None:
            found |= self._trained_parameter_equations()
        found["Phi"] = self.to_written_form(self._free_entropy_equation())
        return found

    def _conjugate_equation(self, target: str, context: TokenClusterPair) -> MatrixExpr:
        value = write_V_hat_with_theta_hat(self.saddle_point) if target == "V_hat" else self.saddle_point[target].value
        value = replace_averages(
            value, lambda a: self.channel_average(a, context), CHANNEL, self.cluster_matrices(context)
        )
        return value.doit()

    def _overlap_equation(self, target: str, context: TokenClusterPair) -> MatrixExpr:
        return replace_averages(
            self.saddle_point[target].value, lambda a: self.average_over_atoms(a.summand, context), COORDINATE
        )

    def cluster_matrices(self, context: TokenClusterPair) -> dict[Any, Any]:
        """Return a map from symbols of the matrix form to the matrices of one (token, cluster) pair.

        These are overlaps, conjugates and the covariance rho* of the teacher's fields.
        """
        p = self.matrix_form_symbols
        names = {z: self.overlap(z.name, context) for z in (*p.overlaps, *p.conjugate_order_parameters)}
        return {**names, p.rho_star: self.simplified_teacher_covariance(context)}

    def teacher_covariance(self, context: TokenClusterPair) -> sp.Matrix:
        """Return the covariance rho* (t x t) of the teacher's fields for one (token, cluster) pair."""
        law, first, t = self.at.law, len(self.token_cluster_pairs), self.at.structure.teacher_rank
        total = sp.zeros(t, t)
        for atom in self.spectral_atoms:
            total += atom.weight * law["covariance"][atom.position][context.position] * atom.gram_matrix[first:, first:]
        return total

    def simplified_teacher_covariance(self, context: TokenClusterPair) -> MatrixExpr:
        """Return the teacher's covariance rho*, as zero or a multiple of the identity where it is.

        See docs/theory.md (1.9).
        """
        return simplify_matrix(self.teacher_covariance(context))

    def ridge_strengths(self) -> MatrixExpr:
        """Return the diagonal matrix Lambda (s x s) of ridge strengths, or of multipliers of fixed norms."""
        rows = self.at.regulariser.row_regulariser
        assert isinstance(rows, Ridge)
        return sp.ImmutableDenseMatrix(sp.diag(*rows.ridge_strength_symbols(self.at.structure)))

    def _row_equations(self, atom: SpectralAtom) -> dict[str, Any]:
        """Return by name the equations of a row's field and of its response in one spectral atom."""
        p, index, shared = self.matrix_form_symbols, atom.index, atom.spectrum_index
        G, found = self.prior_parameter_in_atom(p.G, atom.position), {f"Omega@{index}": atom.second_moment_of_field}
        if self.at.penalty is None:
            return {f"R@{shared}": self.row_response[0].xreplace({p.Lambda: self.ridge_strengths(), p.G: G}), **found}
        if self.at.has_average_over_teacher:
            found[f"b_pi@{index}"] = atom.cross_moment_with_teacher
            for c in self.token_cluster_pairs:
                if self.has_nonzero_mean(c):
                    found[f"b_tau@{c.own}{';' if index else ''}{index}"] = atom.cross_moments_with_tau[c.position]
        return {f"G@{shared}": G, **found}

    def row_minimiser(self) -> sp.Expr | None:
        """Return the minimiser w(b) if the penalty is quadratic apart from at most one corner; None otherwise."""
        penalty = self.at.penalty
        if penalty is None or len(penalty.w) > 1 or len(penalty.kinks) > 1:
            return None
        (w,), b = penalty.w, sp.Symbol("b", real=True)
        stiffness, distance = sp.Symbol("G@", real=True), sp.Dummy("distance", positive=True)
        (corner,) = penalty.kinks or (sp.Integer(0),)

        def _minimise_on_side_of_corner(sign: int) -> tuple[sp.Expr, sp.Expr] | None:
            """Return the minimiser w on one side of a penalty's corner, and the field at which it leaves the corner."""
            value = sp.expand(penalty.expression.xreplace({w: corner + sign * distance}))
            slope = sp.diff(value, distance)
            if value.has(w, *_CORNERS) or sp.diff(slope, distance, 1).has(distance) or slope.has(sp.Piecewise):
                return None
            condition = sp.expand(sign * slope + stiffness * (corner + sign * distance) - b)
            leaves_at = sp.factor_terms((condition + b).xreplace({distance: sp.Integer(0)}))
            steps = (b - leaves_at) / sp.diff(condition, distance)
            return sp.factor_terms(sp.together(corner + sign * steps)), leaves_at

        right, left = _minimise_on_side_of_corner(1), _minimise_on_side_of_corner(-1)
        if right is None or left is None:
            return None
        (above, upper), (below, lower) = right, left
        if not penalty.kinks:
            return above if is_identically_zero(above - below) else None
        return sp.Piecewise((above, b > upper), (below, b < lower), (corner, True))

    def _trained_parameter_equations(self) -> dict[str, Any]:
        """Return by name the derivatives of Phi in the trained numbers, which vanish at the saddle point."""
        p, trained = self.matrix_form_symbols, self.at.trained.values()
        held = {
            p.phi: sp.ImmutableDenseMatrix([symbol for symbol, _ in trained]),
            p.Kappa: sp.ImmutableDenseMatrix(sp.diag(*[value.ridge for _, value in trained])),
        }
        value = replace_averages(self.saddle_point.trained, lambda a: self.channel_average(a, None), CHANNEL)
        entries = to_explicit_matrix(value.xreplace(held).doit())
        return {
            f"trained@{symbol.name}": sp.factor_terms(entry)
            for (symbol, _), entry in zip(trained, entries, strict=True)
        }

    def _free_entropy_equation(self) -> sp.Expr:
        p, total = self.matrix_form_symbols, sp.Integer(0)
        for term in sp.Add.make_args(self.free_entropy.expression):
            if not term.has(Average):
                total -= sp.Add(*[trained.ridge * symbol**2 for symbol, trained in self.at.trained.values()]) / 2
                continue
            number, average = split_coefficient_and_average(term)
            if average.kind == CONTEXTS:
                total += number * sp.Add(
                    *[average.summand.xreplace(self.cluster_matrices(c)).doit() for c in self.token_cluster_pairs]
                )
            elif average.kind == COORDINATE:
                total += number * self.average_over_atoms(average.summand, None)
            else:
                total += number * self.channel_average(average, None)
        assert not total.has(p.G)
        return total

    # --- the field ---------------------------------------------------------------------------------------------------

    @cached_property
    def field_equations(self) -> tuple[FieldEquations, ...]:
        """Return the components of the field g of all tokens, for every assignment of labels.

        There is only one entry if the loss does not depend on the labels.
        """
        at = self.at
        if not at.loss.has(*at.labels):
            return (self._differentiate_loss(at.loss.xreplace(self.token_variances(None)), None),)
        found: list[FieldEquations] = []
        named: dict[sp.Symbol, sp.Expr] = {}
        for labels in self.label_probabilities:
            found.append(self._differentiate_loss(self._loss_at_cluster_labels(labels), labels, named))
            named |= found[-1].features
        return tuple(found)

    def _differentiate_loss(
        self, loss: sp.Expr, labels: tuple[int, ...] | None, named: dict[sp.Symbol, sp.Expr] | None = None
    ) -> FieldEquations:
        """Return the gradient of the loss by the chain rule, with symbols for subexpressions that occur twice.

        The rule passes through the outermost functions of the student's fields.

        Args:
            loss: loss at these labels.
            labels: labels of the tokens; None for a loss without labels.
            named: features that already have a symbol, from other labels.
        """
        at, named = self.at, named or {}
        first, first_star = (sum(z.name.startswith(stem) for z in named) for stem in ("psi_", "psistar_"))
        variables = [*at.X, *[symbol for symbol in at.symbols_of_order_parameters if loss.has(symbol)]]
        loss = two_entry_softmax_to_sigmoid(loss)
        outer = _outermost_functions(loss, set(variables))
        letters = {atom: sp.Dummy(f"a{n}", real=True) for n, atom in enumerate(outer)}
        value = loss.xreplace(letters)
        slopes = [drop_delta_functions(sp.diff(value, letter)) for letter in letters.values()]
        direct = [drop_delta_functions(sp.diff(value, z)) for z in variables]
        teacher = {*at.Y, *[symbol for symbol, _ in at.noise.values()]}
        others = {*variables, *at.symbols_of_order_parameters, *letters.values()}
        ways = []
        for given in (slopes, [sp.expand(e) for e in slopes]):
            ways.append(
                extract_maximal_subexpressions(
                    [sp.factor_terms(e) for e in (*given, *direct)], teacher, others, "feature"
                )
            )
        definitions, found = min(ways, key=lambda way: sum(sp.count_ops(e) for e in way[1]))
        slopes, direct = found[: len(slopes)], found[len(slopes) :]
        back = {letter: atom for atom, letter in letters.items()}
        gradient = [
            sp.Add(own, *[c * drop_delta_functions(sp.diff(a, z)) for c, a in zip(slopes, outer, strict=True)])
            for own, z in zip(direct, variables, strict=True)
        ]
        gradient = [e.xreplace(back) for e in gradient]

        features: dict[sp.Symbol, sp.Expr] = {}
        known: dict[sp.Expr, sp.Expr] = {}
        for symbol, definition in definitions:
            known[symbol] = definition
            if sp.count_ops(definition) > (2 if sum(e.count(symbol) for e in gradient) > 1 else 6):
                known[symbol] = sp.Symbol(f"psistar_{first_star}", real=True)
                features[known[symbol]] = shorten_by_collecting_factors(definition, at.parameter_symbols())
                first_star += 1
        gradient = [e.xreplace(known) for e in gradient]
        for atom in sorted({a for e in gradient for a in e.atoms(*_FUNCTIONS)}, key=sp.default_sort_key):
            several = isinstance(atom, SoftmaxEntry) or sum(e.count(atom) for e in gradient) > 1
            if atom.free_symbols & set(variables) and several:
                before = [symbol for symbol, definition in named.items() if definition == atom]
                known[atom] = before[0] if before else sp.Symbol(f"psi_{first}", real=True)
                features[known[atom]] = atom
                first += not before
        slopes_of = {z: e.xreplace(known) for z, e in zip(variables, gradient, strict=True)}
        components = {}
        for l, a in product(*map(range, at.X.shape)):
            components[f"g@{self.printed_indices((l, a))}"] = shorten_expression(-slopes_of[at.X[l, a]])
        for l, q in enumerate(at.Q):
            for a, b in product(range(q.rows), range(q.rows)):
                if a <= b and q[a, b] in slopes_of:  # off the diagonal one symbol is two entries
                    share = 1 if a == b else sp.Rational(1, 2)
                    components[f"loss_q@{self.printed_indices((l, a, b))}"] = shorten_expression(
                        share * slopes_of[q[a, b]]
                    )
        for symbol, _ in at.trained.values():
            components[f"slope@{symbol.name}"] = shorten_expression(slopes_of.get(symbol, sp.Integer(0)))
        return FieldEquations(features, components, labels)

    def printed_indices(self, indices: tuple[int, ...]) -> str:
        """Return (token, column) indices, counted from 0, as they are printed: without axes of length 1."""
        sizes = (self.at.structure.tokens, *[self.at.structure.student_rank] * (len(indices) - 1))
        return "".join(str(n + 1) for n, size in zip(indices, sizes, strict=True) if size > 1)


_CORNERS = (sp.Abs, sp.sign, sp.Max, sp.Min, sp.Heaviside)
_FUNCTIONS = (SoftmaxEntry, Sigmoid, Softplus, sp.tanh, sp.erf, sp.exp)


def _outermost_functions(expression: sp.Expr, held: set[sp.Symbol]) -> list[sp.Expr]:
    """Return the functions that contain one of the symbols and stand inside no other function, in a fixed order."""
    atoms = [a for a in expression.atoms(*_FUNCTIONS) if a.free_symbols & held]
    return sorted([a for a in atoms if not any(a != b and b.has(a) for b in atoms)], key=sp.default_sort_key)
