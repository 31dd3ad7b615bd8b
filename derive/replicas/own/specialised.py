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

from ...authoring.language import token_weight
from ...authoring.model import ModelAt
from ...authoring.regulariser import Ridge
from ...calculus.averages import (
    CHANNEL,
    CONTEXTS,
    COORDINATE,
    Average,
    Jacobian,
    MatrixAverage,
    Symbols,
    explicit,
    multiplied_out,
    symmetrised,
)
from ...calculus.chain import rows_of_two_as_sigmoids
from ...calculus.functions import Sigmoid, SoftmaxEntry, Softplus
from ...calculus.numeric import vanishes
from ...calculus.piecewise import almost_everywhere
from ...calculus.subexpressions import extract
from ...theory.free_entropy import FreeEntropy, free_entropy, split_average
from ...theory.saddle_point import SaddlePoint, in_terms_of_teacher_conjugate, saddle_point
from ...theory.stability import prior_response
from .writing import collected, plain, scalar_form, sum_of, tidy, with_averages

# More than so many contexts, spectral atoms or label combinations are not written out.
MOST = {"contexts": 8, "atoms": 4, "combinations": 16}


@dataclass(frozen=True)
class Context:
    """Token l with label k: its place in the law's arrays, and the indices it is printed with.

    Attributes:
        own: index of its conjugates and of its m; shared: index of q, V and theta, the same for contexts with the same
            covariance, whose overlaps coincide.
    """

    position: int
    token: int
    cluster: int
    own: str
    shared: str


@dataclass(frozen=True)
class Field:
    """-grad loss in X for one choice of labels.

    Attributes:
        features: functions of the student's fields, and of the teacher's and the noise, by the symbols they are named.
        components: name of a component of g -> expression in x and the features.
        labels: the labels it holds for, counted from 0; None for all.
    """

    features: dict[sp.Symbol, sp.Expr]
    components: dict[str, sp.Expr]
    labels: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class SpectralAtom:
    """One atom of the law of a coordinate: what (tau, pi) and the field b of a row have for second moments in it.

    Attributes:
        of: the model's equations; position, weight: its place in the law's arrays, and its probability.
        index: what its symbols are printed with; nothing if there is one.
    """

    of: Specialised
    position: int
    index: str
    weight: sp.Expr

    @property
    def stiffness_index(self) -> str:
        """Index of G and R, which atoms of one spectrum share."""
        rows = self.of.at.law["covariance"]
        return "" if all(row == rows[0] for row in rows) else self.index

    @cached_property
    def gram(self) -> sp.Matrix:
        """E[z z^T] of z = (tau, pi), its lower half written as its upper one."""
        given = self.of.at.law["gram"][self.position]
        return sp.Matrix(len(given), len(given), lambda a, b: given[min(a, b)][max(a, b)])

    @cached_property
    def named_moments(self) -> dict[tuple[int, int], sp.Symbol]:
        """(a, b) -> the name of E[z_a z_b] with a mean coordinate in it, unless it is zero or all of them are short."""
        count = len(self.of.contexts)
        found = {}
        for a in range(count):
            for b in range(a, self.gram.rows):
                if self.gram[a, b] != 0:
                    parts = [str(a + 1), str(b + 1) if b < count else "0" * (b - count + 1)]
                    place = ("," if a > 8 or count > 9 else "").join(parts)
                    name = f"moment@{place}{';' if self.index else ''}{self.index}"
                    found[a, b] = sp.Symbol(name, real=True)
        return found if any(sp.count_ops(self.gram[place]) > 2 for place in found) else {}

    @cached_property
    def short_gram(self) -> sp.Matrix:
        """The same with the names of its long entries."""
        names = self.named_moments
        return sp.Matrix(*self.gram.shape, lambda a, b: names.get((min(a, b), max(a, b)), self.gram[a, b]))

    @cached_property
    def parts_of_mean(self) -> tuple[list[MatrixExpr], MatrixExpr]:
        """B = sum_c M_c tau_c + T pi: (M_c), T."""
        of, p = self.of, self.of.generic
        means, teacher = [], []
        pi = sp.MatrixSymbol("pi", *of.shapes("pi"))
        for context in of.contexts:
            gamma = of.at.law["covariance"][self.position][context.position]
            names = {**of.context_names(context), p.gamma: gamma, p.pi: pi}
            terms = sp.MatAdd.make_args(p.composites[p.B].xreplace(names).doit().expand())
            means.append(sum_of([t.xreplace({p.tau: sp.Integer(1)}) for t in terms if t.has(p.tau)], of.shapes("m")))
            for term in terms:
                if not term.has(p.tau) and not term.is_ZeroMatrix:
                    teacher.append(sp.MatMul(*[f for f in sp.MatMul.make_args(term) if f != pi]))
        return means, sum_of(teacher, of.shapes("theta"))

    @cached_property
    def with_teacher(self) -> MatrixExpr:
        """E[B pi^T], s x t."""
        return self._with(slice(len(self.of.contexts), None), "theta")

    @cached_property
    def with_means(self) -> list[MatrixExpr]:
        """E[B tau_c] for every context, s x 1."""
        return [self._with(slice(n, n + 1), "m") for n in range(len(self.of.contexts))]

    def _with(self, columns: slice, like: str) -> MatrixExpr:
        """Return E[B z^T] of some components of z, in the shape of a named matrix."""
        (means, teacher), first, gram = self.parts_of_mean, len(self.of.contexts), self.short_gram
        terms = [teacher * plain(gram[first:, columns]), *[M * plain(gram[n, columns]) for n, M in enumerate(means)]]
        return sum_of(terms, self.of.shapes(like))

    @cached_property
    def second_moment(self) -> MatrixExpr:
        """Omega = E[b b^T] = E[B B^T] + Q, s x s."""
        (means, teacher), first, gram = self.parts_of_mean, len(self.of.contexts), self.short_gram
        terms = [self.of.composite(self.of.generic.Q, self.position)]
        terms.append(teacher * plain(gram[first:, first:]) * teacher.T)
        for n, mean in enumerate(means):
            cross = mean * plain(gram[n, first:]) * teacher.T
            terms += [cross, cross.T, *[gram[n, m] * mean * other.T for m, other in enumerate(means)]]
        return sum_of(terms, self.of.shapes("q"))


@dataclass(frozen=True, eq=False)
class Specialised:
    """The equations of a model at its structure.

    `equations` maps the name of a left side to its expression, in the order in which they are read.
    """

    at: ModelAt

    @cached_property
    def phi(self) -> FreeEntropy:
        """Return Phi in matrix form, of the kind of the model."""
        at = self.at
        return free_entropy(regulariser=at.regulariser.rows, trained=len(at.trained), loss_holds_q=at.loss_holds_q)

    @cached_property
    def saddle(self) -> SaddlePoint:
        """Return the saddle point in matrix form."""
        return saddle_point(self.phi)

    @property
    def too_large(self) -> bool:
        """Whether writing everything out would serve nobody."""
        sizes, law = self.at.structure, self.at.law
        counts = {"contexts": sizes.tokens * sizes.clusters, "atoms": len(law["weights"])}
        return any(n > MOST[name] for name, n in {**counts, "combinations": len(self.combinations)}.items())

    @property
    def scalar(self) -> bool:
        """Whether s = t = 1, where every equation is written in scalars."""
        return self.at.structure.student_rank == self.at.structure.teacher_rank == 1

    @property
    def generic(self) -> Symbols:
        """The symbols of the matrix form, of one context at any s and t, which the names here replace."""
        return self.phi.symbols

    # --- names -------------------------------------------------------------------------------------------------------

    @cached_property
    def contexts(self) -> tuple[Context, ...]:
        """In the law's order, cluster fastest."""
        sizes, law = self.at.structure, self.at.law
        both = list(product(range(sizes.tokens), range(sizes.clusters)))
        spectra = [tuple(row[n] for row in law["covariance"]) for n in range(len(both))]

        def index(*place: int) -> str:
            counts = zip(place, (sizes.tokens, sizes.clusters), strict=True)
            return ",".join(str(n + 1) for n, count in counts if count > 1)

        def shared(n: int) -> str:
            return "" if len(set(spectra)) == 1 else index(*both[spectra.index(spectra[n])])

        return tuple(Context(n, l, k, index(l, k), shared(n)) for n, (l, k) in enumerate(both))

    @cached_property
    def combinations(self) -> dict[tuple[int, ...], sp.Expr]:
        """Labels of a sentence, counted from 0 -> their probability, without those that never occur."""
        sizes = self.at.structure
        every = product(range(sizes.clusters), repeat=sizes.tokens)
        return {k: chance for k, chance in zip(every, self.at.law["labels"], strict=True) if chance != 0}

    def shapes(self, name: str) -> tuple[int, int]:
        """(rows, columns) of a matrix by its name, hats and indices aside: (s, 1) for m_hat@2; (s, s) if not known."""
        s, t = self.at.structure.student_rank, self.at.structure.teacher_rank
        stem = name.partition("@")[0].removesuffix("_hat")
        return {"m": (s, 1), "theta": (s, t), "Y": (t, 1), "g": (s, 1), "omega": (s, 1), "pi": (t, 1)}.get(stem, (s, s))

    def named(self, name: str) -> MatrixExpr:
        """The matrix symbol of this name, of the shape that `shapes` tells."""
        return sp.MatrixSymbol(name, *self.shapes(name))

    def overlap(self, name: str, context: Context) -> MatrixExpr:
        """Return an overlap or conjugate of a context; m and m_hat are zero where its mean coordinate is."""
        if name in ("m", "m_hat") and not self.has_mean(context):
            return sp.ZeroMatrix(*self.shapes("m"))
        return self.named(f"{name}@{context.shared if name in ('q', 'V', 'theta') else context.own}")

    def has_mean(self, context: Context) -> bool:
        """Whether tau of the context differs from zero in some atom."""
        return any(entry != 0 for gram in self.at.law["gram"] for entry in gram[context.position])

    def written(self, expression: Any) -> Any:
        """As it is shown: a scalar at s = t = 1."""
        expression = expression.doit() if expression.has(MatrixExpr) else expression
        return sp.factor_terms(scalar_form(expression, self.at)) if self.scalar else expression

    # --- sentences ---------------------------------------------------------------------------------------------------

    def given(self, labels: tuple[int, ...]) -> str:
        """The kind of the average given the labels."""
        index = ",".join(str(k + 1) for k in labels) if self.at.structure.clusters > 1 else ""
        return f"given@{index}"

    def _in_channel(self, summand: Any, context: Context | None) -> Any:
        """The summand of E_c[.], or of E[.] where no context is given, in the model's symbols."""
        p, at = self.generic, self.at
        names: dict[Any, Any] = {}
        if context is not None:
            index = self.place((context.token,))
            g, omega, teacher, loss_q = (self.named(f"{z}@{index}") for z in ("g", "omega", "Y", "loss_q"))
            means = sp.ImmutableDenseMatrix(at.law["teacher_means"][context.position])
            names = {
                p.g: g,
                p.domega: omega - self.overlap("m", context),
                p.dY: teacher - means if any(means) else teacher,
                **({p.loss_q: loss_q} if at.loss_holds_q else {}),
            }
        if at.trained:
            slopes = [sp.Symbol(f"slope@{symbol.name}", real=True) for symbol, _ in at.trained.values()]
            names[p.loss_phi] = sp.ImmutableDenseMatrix(slopes)
        return summand.xreplace(names).doit()

    def _loss(self, labels: tuple[int, ...]) -> sp.Expr:
        """The loss at given labels."""
        chosen = {symbol: sp.Integer(k) for symbol, k in zip(self.at.labels, labels, strict=True)}
        return sp.sympify(self.at.loss.xreplace(chosen).doit().xreplace(self.weights(labels)))

    def weights(self, labels: tuple[int, ...] | None) -> dict[sp.Symbol, sp.Expr]:
        """rho of the tokens; for all labels at once only where it does not depend on them."""
        law, clusters = self.at.law, self.at.structure.clusters
        found = {}
        for l in range(self.at.structure.tokens):
            places = [l * clusters + k for k in (range(clusters) if labels is None else [labels[l]])]
            values = {
                sp.Add(*[w * row[c] for w, row in zip(law["weights"], law["covariance"], strict=True)]) for c in places
            }
            if len(values) == 1:
                found[token_weight(l)] = values.pop()
        return found

    def averaged(self, average: MatrixAverage | Average, context: Context | None) -> Any:
        """E_c[.] as a sum over the labels of the sentence, with their probabilities."""
        p, sizes = self.generic, self.at.structure
        here = None if average.summand in (p.moreau, p.loss_phi) else context  # of a sentence as a whole
        make = type(average)
        total = sp.Integer(0)
        if make is MatrixAverage:
            shape = {p.s: sizes.student_rank, p.t: sizes.teacher_rank}
            total = sp.ZeroMatrix(*[sp.sympify(n).xreplace(shape) for n in average.shape])
        inside = self._in_channel(average.summand, here)
        for labels, chance in self.combinations.items():
            if here is None or labels[here.token] == here.cluster:
                total = total + chance * make(self.given(labels), inside)
        return total

    # --- rows --------------------------------------------------------------------------------------------------------

    @cached_property
    def response(self) -> tuple[MatrixExpr, MatrixExpr]:
        """dw/db as the equations write it, and its short name."""
        return symmetrised(prior_response(self.phi), self.generic), self.generic.R

    def composite(self, composite: sp.MatrixSymbol, j: int) -> MatrixExpr:
        """G or Q in atom j."""
        p, terms = self.generic, []
        for context in self.contexts:
            gamma = self.at.law["covariance"][j][context.position]
            terms.append(p.composites[composite].xreplace({**self.context_names(context), p.gamma: gamma}))
        return sum_of(terms, self.shapes("q"))

    @cached_property
    def atoms(self) -> tuple[SpectralAtom, ...]:
        """In the law's order."""
        weights = self.at.law["weights"]
        several = len(weights) > 1
        return tuple(SpectralAtom(self, j, str(j + 1) if several else "", weight) for j, weight in enumerate(weights))

    def rows(self, summand: Any, context: Context | None) -> Any:
        """An average over a coordinate as a sum over spectral atoms, with second moments of tau and pi."""
        if isinstance(summand, MatrixExpr):
            terms = sp.MatAdd.make_args(summand.xreplace(dict([self.response])).expand().doit())
            parts = [atom.weight * self._moment(term, atom, context) for atom in self.atoms for term in terms]
            return sum(parts[1:], parts[0]).doit()
        total = sp.Integer(0)
        for atom in self.atoms:
            if summand == self.generic.envelope:
                total += atom.weight * Average(f"row@{atom.index}", summand)
                continue
            for term in sp.Add.make_args(summand.xreplace(dict([self.response]))):
                number, trace = term.as_coeff_Mul()
                inside = sp.MatAdd.make_args(trace.arg.expand().doit())
                matrix = sp.MatAdd(*[self._moment(part, atom, context) for part in inside]).expand().doit()
                total += atom.weight * number * sp.Trace(matrix)
        return total

    def _moment(self, term: MatrixExpr, atom: SpectralAtom, context: Context | None) -> MatrixExpr:
        """The average of one product over tau and pi, or over the field b, in an atom.

        Raises:
            TypeError: no rule is known for it.
        """
        p = self.generic
        scalar, factors = term.as_coeff_matrices() if isinstance(term, sp.MatMul) else (sp.Integer(1), [term])
        if context is not None:
            scalar = scalar.xreplace({p.gamma: self.at.law["covariance"][atom.position][context.position]})
        R, G = (self.named(f"{stem}@{atom.stiffness_index}") for stem in ("R", "G"))
        Q, Omega = (self.named(f"{stem}@{atom.index}") for stem in ("Q", "Omega"))
        w, b, pi = (sp.MatrixSymbol(z.name, *self.shapes(z.name if z == p.pi else "m")) for z in (p.w, p.b, p.pi))
        knows, kind = self.at.averages_over_teacher, f"row@{atom.index}"
        slope = MatrixAverage(kind, Jacobian(w, b))
        rules: dict[tuple[Any, ...], MatrixExpr] = {
            (p.B, p.B.T): Omega - Q,
            (p.B, p.pi.T): atom.with_teacher,
            (p.w, p.w.T): MatrixAverage(kind, w * w.T),
            # Stein's lemma where b and pi are jointly normal.
            (p.w, p.pi.T): MatrixAverage(kind, w * pi.T) if knows else slope * atom.with_teacher,
            (Jacobian(p.w, p.b),): slope,
            (p.R,): R if self.at.penalty is None else slope,
            (p.G,): G,
            (p.Q,): Q,
        }
        if scalar.has(p.tau) and context is not None:
            mean = atom.with_means[context.position]
            tau = sp.Symbol(f"tau@{context.own}", real=True)
            averaged = MatrixAverage(kind, tau * w) if knows and self.has_mean(context) else slope * mean
            rules |= {(p.B,): mean, (p.w,): averaged}
        made: list[MatrixExpr] = []
        rest = tuple(factors)
        while rest:
            first = rest[:2] if rest[:2] in rules else rest[:1]
            if first not in rules:
                raise TypeError(f"no rule for {first[0]} in {term}")
            made.append(rules[first])
            rest = rest[len(first) :]
        return multiplied_out(scalar.xreplace({p.tau: sp.Integer(1)}).expand() * sp.MatMul(*made))

    # --- all of them -------------------------------------------------------------------------------------------------

    @cached_property
    def equations(self) -> dict[str, Any]:
        """Conjugates, rows, overlaps, trained numbers, free entropy; each expression as it is shown."""
        found: dict[str, Any] = {}
        for context in self.contexts:
            for stem in ("q", "V", "m", "theta"):
                name = f"{stem}_hat@{context.own}"
                if stem != "m" or self.has_mean(context):
                    found[name] = self.written(self._conjugate_equation(f"{stem}_hat", context))
        for atom in self.atoms:
            found |= {symbol.name: atom.gram[place] for place, symbol in atom.named_moments.items()}
        for atom in self.atoms:
            found |= {name: self.written(value) for name, value in self._row_equations(atom).items()}
        if (minimiser := self.row_minimiser()) is not None:
            found["w@"] = minimiser
        for context in self.contexts:
            for stem in ("q", "V", "theta", "m"):
                name = f"{stem}@{context.own if stem == 'm' else context.shared}"
                if name not in found and (stem != "m" or self.has_mean(context)):
                    found[name] = self.written(self._overlap_equation(stem, context))
        if self.saddle.trained is not None:
            found |= self._trained_equations()
        found["Phi"] = self.written(self._free_entropy())
        return found

    def _conjugate_equation(self, target: str, context: Context) -> MatrixExpr:
        value = in_terms_of_teacher_conjugate(self.saddle) if target == "V_hat" else self.saddle[target].value
        value = with_averages(value, lambda a: self.averaged(a, context), CHANNEL, self.context_names(context))
        return value.doit()

    def _overlap_equation(self, target: str, context: Context) -> MatrixExpr:
        return with_averages(self.saddle[target].value, lambda a: self.rows(a.summand, context), COORDINATE)

    def context_names(self, context: Context) -> dict[Any, Any]:
        """Return the matrices of a context by generic overlaps and conjugates, and its rho*."""
        p = self.generic
        names = {z: self.overlap(z.name, context) for z in (*p.overlaps, *p.conjugates)}
        return {**names, p.rho_star: self.plain_teacher_covariance(context)}

    def teacher_covariance(self, context: Context) -> sp.Matrix:
        """rho*_c, t x t."""
        law, first, t = self.at.law, len(self.contexts), self.at.structure.teacher_rank
        total = sp.zeros(t, t)
        for atom in self.atoms:
            total += atom.weight * law["covariance"][atom.position][context.position] * atom.gram[first:, first:]
        return total

    def plain_teacher_covariance(self, context: Context) -> MatrixExpr:
        """rho*_c (docs/theory.md (1.9)), a zero matrix or a multiple of the identity written as such."""
        return plain(self.teacher_covariance(context))

    def strengths(self) -> MatrixExpr:
        """Lambda of a ridge, given or of multipliers."""
        rows = self.at.regulariser.rows
        assert isinstance(rows, Ridge)
        return sp.ImmutableDenseMatrix(sp.diag(*rows.strengths(self.at.structure)))

    def _row_equations(self, atom: SpectralAtom) -> dict[str, Any]:
        """What a row of the weights feels in an atom."""
        p, index, shared = self.generic, atom.index, atom.stiffness_index
        G, found = self.composite(p.G, atom.position), {f"Omega@{index}": atom.second_moment}
        if self.at.penalty is None:
            return {f"R@{shared}": self.response[0].xreplace({p.Lambda: self.strengths(), p.G: G}), **found}
        if self.at.averages_over_teacher:
            found[f"b_pi@{index}"] = atom.with_teacher
            for c in self.contexts:
                if self.has_mean(c):
                    found[f"b_tau@{c.own}{';' if index else ''}{index}"] = atom.with_means[c.position]
        return {f"G@{shared}": G, **found}

    def row_minimiser(self) -> sp.Expr | None:
        """w(b) where the penalty is quadratic between its corners, of which there is one at most; None elsewhere."""
        penalty = self.at.penalty
        if penalty is None or len(penalty.w) > 1 or len(penalty.kinks) > 1:
            return None
        (w,), b = penalty.w, sp.Symbol("b", real=True)
        stiffness, distance = sp.Symbol("G@", real=True), sp.Dummy("distance", positive=True)
        (corner,) = penalty.kinks or (sp.Integer(0),)

        def on_side(sign: int) -> tuple[sp.Expr, sp.Expr] | None:
            """(minimiser, the field at which it leaves the corner) if the objective is quadratic there."""
            value = sp.expand(penalty.expression.xreplace({w: corner + sign * distance}))
            slope = sp.diff(value, distance)
            if value.has(w, *_CORNERS) or sp.diff(slope, distance, 1).has(distance) or slope.has(sp.Piecewise):
                return None
            condition = sp.expand(sign * slope + stiffness * (corner + sign * distance) - b)
            leaves_at = sp.factor_terms((condition + b).xreplace({distance: sp.Integer(0)}))
            steps = (b - leaves_at) / sp.diff(condition, distance)
            return sp.factor_terms(sp.together(corner + sign * steps)), leaves_at

        right, left = on_side(1), on_side(-1)
        if right is None or left is None:
            return None
        (above, upper), (below, lower) = right, left
        if not penalty.kinks:
            return above if vanishes(above - below) else None
        return sp.Piecewise((above, b > upper), (below, b < lower), (corner, True))

    def _trained_equations(self) -> dict[str, Any]:
        """dPhi/dphi of each trained number, to vanish."""
        p, trained = self.generic, self.at.trained.values()
        held = {
            p.phi: sp.ImmutableDenseMatrix([symbol for symbol, _ in trained]),
            p.Kappa: sp.ImmutableDenseMatrix(sp.diag(*[value.ridge for _, value in trained])),
        }
        value = with_averages(self.saddle.trained, lambda a: self.averaged(a, None), CHANNEL)
        entries = explicit(value.xreplace(held).doit())
        return {
            f"trained@{symbol.name}": sp.factor_terms(entry)
            for (symbol, _), entry in zip(trained, entries, strict=True)
        }

    def _free_entropy(self) -> sp.Expr:
        p, total = self.generic, sp.Integer(0)
        for term in sp.Add.make_args(self.phi.expression):
            if not term.has(Average):
                total -= sp.Add(*[trained.ridge * symbol**2 for symbol, trained in self.at.trained.values()]) / 2
                continue
            number, average = split_average(term)
            if average.kind == CONTEXTS:
                total += number * sp.Add(
                    *[average.summand.xreplace(self.context_names(c)).doit() for c in self.contexts]
                )
            elif average.kind == COORDINATE:
                total += number * self.rows(average.summand, None)
            else:
                total += number * self.averaged(average, None)
        assert not total.has(p.G)
        return total

    # --- the field ---------------------------------------------------------------------------------------------------

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """g of every token: once, or for every choice of labels where the loss depends on them."""
        at = self.at
        if not at.loss.has(*at.labels):
            return (self._field(at.loss.xreplace(self.weights(None)), None),)
        found: list[Field] = []
        named: dict[sp.Symbol, sp.Expr] = {}
        for labels in self.combinations:
            found.append(self._field(self._loss(labels), labels, named))
            named |= found[-1].features
        return tuple(found)

    def _field(
        self, loss: sp.Expr, labels: tuple[int, ...] | None, named: dict[sp.Symbol, sp.Expr] | None = None
    ) -> Field:
        """Chain rule through the outermost functions of the student's fields; those that stand twice are named.

        Args:
            named: features of other labels.
        """
        at, named = self.at, named or {}
        first, first_star = (sum(z.name.startswith(stem) for z in named) for stem in ("psi_", "psistar_"))
        variables = [*at.X, *[symbol for symbol in at.own if loss.has(symbol)]]
        loss = rows_of_two_as_sigmoids(loss)
        outer = _outermost(loss, set(variables))
        letters = {atom: sp.Dummy(f"a{n}", real=True) for n, atom in enumerate(outer)}
        value = loss.xreplace(letters)
        slopes = [almost_everywhere(sp.diff(value, letter)) for letter in letters.values()]
        direct = [almost_everywhere(sp.diff(value, z)) for z in variables]
        teacher = {*at.Y, *[symbol for symbol, _ in at.noise.values()]}
        others = {*variables, *at.own, *letters.values()}
        ways = []
        for given in (slopes, [sp.expand(e) for e in slopes]):
            ways.append(extract([sp.factor_terms(e) for e in (*given, *direct)], teacher, others, "feature"))
        definitions, found = min(ways, key=lambda way: sum(sp.count_ops(e) for e in way[1]))
        slopes, direct = found[: len(slopes)], found[len(slopes) :]
        back = {letter: atom for atom, letter in letters.items()}
        gradient = [
            sp.Add(own, *[c * almost_everywhere(sp.diff(a, z)) for c, a in zip(slopes, outer, strict=True)])
            for own, z in zip(direct, variables, strict=True)
        ]
        gradient = [e.xreplace(back) for e in gradient]

        features: dict[sp.Symbol, sp.Expr] = {}
        known: dict[sp.Expr, sp.Expr] = {}
        for symbol, definition in definitions:
            known[symbol] = definition
            if sp.count_ops(definition) > (2 if sum(e.count(symbol) for e in gradient) > 1 else 6):
                known[symbol] = sp.Symbol(f"psistar_{first_star}", real=True)
                features[known[symbol]] = collected(definition, at.parameter_symbols())
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
            components[f"g@{self.place((l, a))}"] = tidy(-slopes_of[at.X[l, a]])
        for l, q in enumerate(at.Q):
            for a, b in product(range(q.rows), range(q.rows)):
                if a <= b and q[a, b] in slopes_of:  # off the diagonal one symbol stands for two entries
                    share = 1 if a == b else sp.Rational(1, 2)
                    components[f"loss_q@{self.place((l, a, b))}"] = tidy(share * slopes_of[q[a, b]])
        for symbol, _ in at.trained.values():
            components[f"slope@{symbol.name}"] = tidy(slopes_of.get(symbol, sp.Integer(0)))
        return Field(features, components, labels)

    def place(self, indices: tuple[int, ...]) -> str:
        """Indices (token, columns) from 0 as they are printed: axes of length 1 drop."""
        sizes = (self.at.structure.tokens, *[self.at.structure.student_rank] * (len(indices) - 1))
        return "".join(str(n + 1) for n, size in zip(indices, sizes, strict=True) if size > 1)


_CORNERS = (sp.Abs, sp.sign, sp.Max, sp.Min, sp.Heaviside)
_FUNCTIONS = (SoftmaxEntry, Sigmoid, Softplus, sp.tanh, sp.erf, sp.exp)


def _outermost(expression: sp.Expr, held: set[sp.Symbol]) -> list[sp.Expr]:
    """Functions that hold a field and stand inside no other one, in a fixed order."""
    atoms = [a for a in expression.atoms(*_FUNCTIONS) if a.free_symbols & held]
    return sorted([a for a in atoms if not any(a != b and b.has(a) for b in atoms)], key=sp.default_sort_key)
