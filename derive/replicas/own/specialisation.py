"""The equations of one model as a checked step: what specialised.py writes out against the matrix form, by number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import sympy as sp

from ...authoring.language import token_weight
from ...authoring.model import ModelAt
from ...authoring.parameters import leaves
from ...calculus.averages import CHANNEL, CONTEXTS, COORDINATE
from ...calculus.numeric import value_at
from ..algebra.exact import Law, Source, Values
from ..algebra.step import Expressions, Step, Test
from .specialised import Context, Field, Specialised, SpectralAtom

DIGITS = 40
_STATES = (sp.Rational(1, 3), sp.Rational(2, 3))  # probabilities of two states of a sentence, given its labels


def step(at: ModelAt) -> Step:
    """The specialised equations of a model, tested at random order parameters and parameters.

    Raises:
        ValueError: the model is too large to be written out.
    """
    written = Specialised(at)
    if written.too_large:
        raise ValueError(f"{at.name} is too large to be written out at {at.structure.key}")
    before = {e.target.name: e.value for e in written.saddle.equations} | {"Phi": written.phi.expression}
    if written.saddle.trained is not None:
        before["trained"] = written.saddle.trained
    after: dict[str, Any] = dict(written.equations)
    for found in written.fields:
        end = "" if found.labels is None else "|" + ",".join(map(str, found.labels))
        after |= {symbol.name: definition for symbol, definition in found.features.items()}
        after |= {f"{name}{end}": component for name, component in found.components.items()}
    comparison, names = Comparison(written), list(written.equations)
    rows = [name for name in names if "_hat@" not in name and not name.startswith(("trained@", "Phi", "w@"))]
    form = "against the matrix form"
    checks = (
        ("conjugates", f"{form} at random overlaps and channel averages",
         comparison.conjugates_hold, [name for name in names if "_hat@" in name]),
        ("overlaps", f"{form} averaged over the law of a coordinate, at random conjugates and parameters",
         comparison.overlaps_hold, rows),
        ("free entropy", f"{form} at random order parameters",
         comparison.free_entropy_holds, ["Phi", *rows]),
        ("field", f"against differences of the loss to {DIGITS // 2} digits",
         comparison.fields_hold, [name for name in after if name not in names]),
        ("trained numbers", f"{form} at random channel averages",
         comparison.trained_hold, [name for name in names if name.startswith("trained@")]),
        ("row", "its objective is not smaller nearby, at random fields",
         comparison.row_holds, [name for name in names if name == "w@"]),
    )  # fmt: skip
    tests = [
        Test(f"{what} of this model", words, holds, tuple(judged)) for what, words, holds, judged in checks if judged
    ]
    return Step(
        10,
        "The equations of this model",
        before,
        after,
        "Sizes, clusters, spectrum, loss and penalty of the model are put in for their symbols.",
        "",
        tuple(tests),
    )


@dataclass(frozen=True, eq=False)
class Comparison:
    """Random values of everything in the equations of a model: once by generic names, once by those written out."""

    written: Specialised

    # --- values ------------------------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Positive rationals; square arrays symmetric, as Gram matrices are."""
        source, values = Source("parameters"), {}
        for parameter in self.written.at.parameters.values():
            symbols = parameter.symbols(self.written.at.structure)
            for symbol in leaves(symbols):
                values[symbol.name] = abs(source.number())
            if isinstance(symbols, sp.MatrixBase) and symbols.is_square:
                for i in range(symbols.rows):
                    for j in range(i):
                        values[symbols[i, j].name] = values[symbols[j, i].name]
        for symbol, _ in self.written.at.trained.values():
            values[symbol.name] = source.number()
        for symbol in self.written.at.multipliers:
            values[symbol.name] = abs(source.number())
        return {**values, "alpha": abs(source.number())}

    def number(self, expression: Any) -> Any:
        """An expression of the law at the parameters' values."""
        return Values(self.parameters)(sp.sympify(expression))

    def shown(self, matrix: sp.Matrix) -> Any:
        """As the written equations hold it."""
        return matrix[0, 0] if self.written.scalar else matrix

    @cached_property
    def order_parameters(self) -> dict[Context, dict[str, Any]]:
        """Overlaps and conjugates of every context by generic names; shared ones agree."""
        source, size = Source("order parameters"), self.written.shapes
        shared: dict[str, dict[str, Any]] = {}
        found = {}
        for context in self.written.contexts:
            if context.shared not in shared:
                own = {z: source.positive(size(z)[0]) for z in ("q", "V")}
                shared[context.shared] = {**own, "theta": source.matrix(*size("theta")) / 9}
            keeps = 1 if self.written.has_mean(context) else 0
            found[context] = {
                **shared[context.shared],
                "m": source.matrix(*size("m")) * keeps,
                "q_hat": source.positive(size("q")[0]),
                "V_hat": source.positive(size("q")[0]),
                "m_hat": source.matrix(*size("m")),
                "theta_hat": source.matrix(*size("theta")),
                "rho_star": self.written.teacher_covariance(context).applyfunc(self.number),
                "m_star": sp.Matrix([self.number(e) for e in self.written.at.law["teacher_means"][context.position]]),
            }
        return found

    @cached_property
    def sentences(self) -> dict[str, list[tuple[Any, dict[str, Any]]]]:
        """Return by kind of a written average (probability given the labels, values by written names) of two states."""
        source, at, size = Source("sentences"), self.written.at, self.written.shapes
        found = {}
        for labels in self.written.combinations:
            states = []
            for chance in _STATES:
                state: dict[str, Any] = {"M": source.number()}
                for l in range(at.structure.tokens):
                    index = self.written.place((l,))
                    state |= {f"{z}@{index}": self.shown(source.matrix(*size(z))) for z in ("g", "omega", "Y")}
                    state[f"loss_q@{index}"] = self.shown(source.symmetric(size("q")[0]))
                    if self.written.scalar:
                        state[at.Y[l, 0].name] = state[f"Y@{index}"]
                state |= {f"slope@{symbol.name}": source.number() for symbol, _ in at.trained.values()}
                states.append((chance, state))
            found[self.written.given(labels)] = states
        return found

    @cached_property
    def row(self) -> dict[str, sp.Matrix]:
        """w = J b + K pi, a linear stand-in for the row at its field, and the matrix of N = 1/2 b^T J b."""
        source, (s, t) = Source("row"), self.written.shapes("theta")
        knows = self.written.at.averages_over_teacher
        return {"J": source.positive(s), "K": source.matrix(s, t) * (1 if knows else 0)}

    # --- by generic names --------------------------------------------------------------------------------------------

    @cached_property
    def generic(self) -> Values:
        """Return the values of everything in the matrix form; at a context add those that `here` gives."""
        count, trained, row = len(self.written.contexts), self.written.at.trained.values(), self.row

        def field_of(at: Values) -> sp.Matrix:
            return at.values["B"](at, "") + at.values["noise"]

        values = {
            **self.parameters, "context": None, "pi": lambda at, _: at.values["z"][count:, :], "dw/db": row["J"],
            "w": lambda at, _: row["J"] * field_of(at) + row["K"] * at.values["z"][count:, :],
            "N": lambda at, _: (field_of(at).T * row["J"] * field_of(at))[0] / 2,
            "z": sp.zeros(self.gram(0).rows, 1), "noise": sp.zeros(*self.written.shapes("m")),
            "B": lambda at, _: self.composite(self.written.generic.B, at.values["atom"], at.values["z"]),
            "phi": sp.Matrix([self.parameters[symbol.name] for symbol, _ in trained]),
            "Kappa": sp.diag(*[self.number(value.ridge) for _, value in trained]),
        }  # fmt: skip
        if self.written.at.penalty is None:
            values["Lambda"] = sp.Matrix(self.written.strengths()).applyfunc(self.number)
        contexts = [(1, self.here(context)) for context in self.order_parameters]
        return Values(
            values,
            {CONTEXTS: contexts, CHANNEL: self._states, COORDINATE: self._atoms},
            {COORDINATE: lambda at: self._law(at.values["atom"], at.values["Q"])},
        )

    def here(self, context: Context) -> dict[str, Any]:
        """Return what a context adds to the values of the matrix form."""
        return {**self.order_parameters[context], "context": context}

    def gram(self, j: int) -> sp.Matrix:
        """Return E[z z^T] of z = (tau, pi) in an atom."""
        return sp.Matrix(self.written.at.law["gram"][j]).applyfunc(self.number)

    def composite(self, composite: sp.MatrixSymbol, j: int, z: sp.Matrix) -> sp.Matrix:
        """Return G, Q or B in an atom, by its definition."""
        spectrum, count = self.written.at.law["covariance"][j], len(self.written.contexts)
        terms = []
        for c, own in self.order_parameters.items():
            here = {"gamma": self.number(spectrum[c.position]), "tau": z[c.position], "pi": z[count:, :]}
            terms.append(Values({**own, **here})(self.written.generic.composites[composite]))
        return sum(terms[1:], terms[0])

    def _states(self, at: Values) -> list[tuple[Any, dict[str, Any]]]:
        """Return E_c[.] as a sum, of all sentences where there is no context."""
        context, found = at.values["context"], []
        for labels, probability in self.written.combinations.items():
            if context is not None and labels[context.token] != context.cluster:
                continue
            for chance, state in self.sentences[self.written.given(labels)]:
                slopes = [value for name, value in state.items() if name.startswith("slope@")]
                values: dict[str, Any] = {"M": state["M"], "loss_phi": sp.Matrix(slopes)}
                if context is not None:
                    index = self.written.place((context.token,))
                    g, omega, Y, in_q = (_matrix(state[f"{z}@{index}"]) for z in ("g", "omega", "Y", "loss_q"))
                    values |= {"g": g, "domega": omega - at.values["m"], "dY": Y - at.values["m_star"], "loss_q": in_q}
                found.append((self.number(probability) * chance, values))
        return found

    def _atoms(self, at: Values) -> list[tuple[Any, dict[str, Any]]]:
        """Return E_nu[.] as a sum over the atoms, in each of which (tau, pi) and the noise of the field are normal."""
        context, p, found = at.values["context"], self.written.generic, []
        for atom in self.written.atoms:
            own = {z.name: self.composite(z, atom.position, at.values["z"]) for z in (p.G, p.Q)}
            if context is not None:
                own["gamma"] = self.number(self.written.at.law["covariance"][atom.position][context.position])
                own["tau"] = lambda at, _: at.values["z"][at.values["context"].position]
            found.append((self.number(atom.weight), {**own, "atom": atom.position}))
        return found

    def _law(self, j: int, Q: sp.Matrix) -> Law:
        gram = self.gram(j)
        return Law(("z", "noise"), sp.zeros(gram.rows + Q.rows, 1), sp.diag(gram, Q))

    # --- by written names --------------------------------------------------------------------------------------------

    def by_name(self, after: Expressions) -> Values:
        """Return the values of everything in the written equations, the rows' own symbols out of their own lines."""
        written, row = self.written, self.row
        values: dict[str, Any] = {**self.parameters, "M": None}
        for context, own in self.order_parameters.items():
            for name, matrix in own.items():
                index = context.shared if name in ("q", "V", "theta") else context.own
                values[f"{name}@{index}"] = self.shown(matrix)
            values[f"tau@{context.own}"] = lambda at, _, n=context.position: at.values["row_tau"][n]
        for name, value in after.items():
            if name.partition("@")[0] in ("moment", "R", "G", "Omega", "b_pi", "b_tau"):
                values[name] = Values(values)(value)
        laws = {}
        if written.at.penalty is not None:
            laws = {f"row@{atom.index}": self._row_law(atom, values) for atom in written.atoms}
        values |= {
            "row_b": sp.zeros(*written.shapes("m")), "row_pi": sp.zeros(*written.shapes("pi")),
            "row_tau": sp.zeros(len(written.contexts), 1), "dw/db": self.shown(row["J"]),
            "w": lambda at, _: self.shown(row["J"] * at.values["row_b"] + row["K"] * at.values["row_pi"]),
            "pi": lambda at, _: self.shown(at.values["row_pi"]),
            "N": lambda at, _: (at.values["row_b"].T * row["J"] * at.values["row_b"])[0] / 2,
        }  # fmt: skip
        return Values(values, self.sentences, laws)

    def _row_law(self, atom: SpectralAtom, values: Mapping[str, Any]) -> Law:
        """Joint law of b, pi and tau in an atom, as the written equations give it."""
        written, count = self.written, len(self.written.contexts)
        (s, t), end = written.shapes("theta"), f";{atom.index}" if atom.index else ""
        cross = sp.zeros(s, t + count)
        if written.at.averages_over_teacher:
            cross[:, :t] = _matrix(values[f"b_pi@{atom.index}"])
            for c in written.contexts:
                if written.has_mean(c):
                    cross[:, t + c.position] = _matrix(values[f"b_tau@{c.own}{end}"])
        order = [*range(count, count + t), *range(count)]
        rest, second = self.gram(atom.position).extract(order, order), _matrix(values[f"Omega@{atom.index}"])
        covariance = sp.Matrix(sp.BlockMatrix([[second, cross], [cross.T, rest]]).as_explicit())
        return Law(("row_b", "row_pi", "row_tau"), sp.zeros(s + t + count, 1), covariance)

    # --- the tests ---------------------------------------------------------------------------------------------------

    def conjugates_hold(self, before: Expressions, after: Expressions) -> bool:
        """Whether docs/theory.md (5.2) to (5.5) give the same in every context, to DIGITS - 10 digits.

        The written V_hat holds theta_hat, which takes its value from the matrix form.
        """
        by_name = self.by_name(after)
        for context in self.order_parameters:
            generic = self.generic.having(self.here(context))
            given = by_name.having({f"theta_hat@{context.own}": self.shown(generic(before["theta_hat"]))})
            for stem in ("q", "V", "m", "theta"):
                if stem == "m" and not self.written.has_mean(context):
                    continue
                expected = self.shown(generic(before[f"{stem}_hat"]))
                if not _close(given(after[f"{stem}_hat@{context.own}"]), expected):
                    return False
        return True

    def overlaps_hold(self, before: Expressions, after: Expressions) -> bool:
        """Whether docs/theory.md (5.8) to (5.11), or (6.3) and its G, give the same; m only where it is not zero."""
        written, given, z = self.written, self.by_name(after), self.generic.values["z"]
        for atom in written.atoms if written.at.penalty is not None else ():
            stiffness = self.composite(written.generic.G, atom.position, z)
            if not _close(given.values[f"G@{atom.stiffness_index}"], self.shown(stiffness)):
                return False
        for context in written.contexts:
            generic = self.generic.having(self.here(context))
            for stem in ("q", "V", "theta", "m"):
                expected = self.shown(generic(before[stem]))
                index = context.own if stem == "m" else context.shared
                vanishes = stem == "m" and not written.has_mean(context)
                if not _close(0 * expected if vanishes else given(after[f"{stem}@{index}"]), expected):
                    return False
        return True

    def free_entropy_holds(self, before: Expressions, after: Expressions) -> bool:
        """Whether docs/theory.md (4.2) has one value in both forms, over contexts, rows and sentences."""
        return _close(self.by_name(after)(after["Phi"]), self.generic(before["Phi"]))

    def trained_hold(self, before: Expressions, after: Expressions) -> bool:
        """Whether the left sides of docs/theory.md (5.12) agree, one for each trained number."""
        given, expected = self.by_name(after), self.generic(before["trained"])
        names = [f"trained@{symbol.name}" for symbol, _ in self.written.at.trained.values()]
        return all(_close(given(after[name]), value) for name, value in zip(names, expected, strict=True))

    def fields_hold(self, _before: Expressions, after: Expressions) -> bool:
        """Whether g and the derivatives in q and phi are slopes of the loss at all labels, by differences."""
        return all(self._field_holds(found, after) for found in self.written.fields)

    def _field_holds(self, found: Field, after: Expressions) -> bool:
        """-d loss / dX, and the derivatives in q and phi, by symmetric differences."""
        at, source = self.written.at, Source("fields")
        end = "" if found.labels is None else "|" + ",".join(map(str, found.labels))
        values: dict[sp.Symbol, Any] = {symbol: abs(source.number()) for symbol in at.parameter_symbols()}
        every = [*at.X, *at.Y, *[symbol for symbol, _ in at.noise.values()], *leaves(at.Q)]
        values |= {symbol: source.number() for symbol in [*every, *[s for s, _ in at.trained.values()]]}
        weights = self.written.weights(found.labels)
        for l in range(at.structure.tokens):
            rho = token_weight(l)
            values[rho] = weights[rho].xreplace(values) if rho in weights else abs(source.number())
        labels = found.labels if found.labels is not None else (0,) * at.structure.tokens
        loss = at.loss.xreplace({k: sp.Integer(n) for k, n in zip(at.labels, labels, strict=True)}).doit()
        features = {symbol: after[symbol.name] for symbol in found.features}
        width = sp.Rational(1, 10 ** (DIGITS // 2 - 3))

        def slope(variable: sp.Symbol) -> sp.Expr:
            sides = [
                value_at(loss, {**values, variable: values[variable] + sign * width}, 2 * DIGITS) for sign in (1, -1)
            ]
            return (sp.Float(sides[0], 2 * DIGITS) - sp.Float(sides[1], 2 * DIGITS)) / (2 * width)

        def given(name: str) -> sp.Expr:
            return sp.Float(value_at(after[f"{name}{end}"].xreplace(features), values, DIGITS), DIGITS)

        place, (tokens, columns) = self.written.place, at.X.shape
        wanted = {f"g@{place((l, a))}": (-1, at.X[l, a]) for l in range(tokens) for a in range(columns)}
        wanted |= {f"slope@{symbol.name}": (1, symbol) for symbol, _ in at.trained.values()}
        for l in range(tokens):
            for a, b in combinations_with_replacement(range(columns), 2):
                name, z = f"loss_q@{place((l, a, b))}", at.Q[l][a, b]
                if loss.has(z) or name in found.components:  # off the diagonal one symbol stands for two entries
                    wanted[name] = sp.Rational(1, 1 if a == b else 2), z
        return all(_close(given(name), factor * slope(z), DIGITS // 2) for name, (factor, z) in wanted.items())

    def row_holds(self, _before: Expressions, after: Expressions) -> bool:
        """w(b) against its neighbours and against far values, at fields on both sides of every corner."""
        penalty = self.written.at.penalty
        assert penalty is not None
        (w,), source = penalty.w, Source("rows")
        stiffness, b = sp.Symbol("G@", real=True), sp.Symbol("b", real=True)
        values = {symbol: abs(source.number()) for symbol in self.written.at.parameter_symbols()}
        values |= {symbol: source.number() for symbol in penalty.pi}
        values[stiffness] = sp.Rational(3, 2)
        objective = (penalty.inside + stiffness * w**2 / 2 - b * w).xreplace(values)
        for n in range(-12, 13):
            at_field = objective.xreplace({b: sp.Rational(n, 3)})
            found = after["w@"].xreplace({**values, b: sp.Rational(n, 3)})
            least = at_field.xreplace({w: found}).evalf(DIGITS)
            moves = [sign * sp.Rational(1, 10**k) for sign in (1, -1) for k in range(6)]
            if any(at_field.xreplace({w: found + move}).evalf(DIGITS) <= least for move in moves):
                return False
        return True


def _matrix(value: Any) -> sp.Matrix:
    """Return a matrix, of one entry where equations are scalars."""
    return value if isinstance(value, sp.MatrixBase) else sp.Matrix([[value]])


def _close(given: Any, expected: Any, digits: int = DIGITS - 10) -> bool:
    """Equal to so many digits; matrices entry by entry."""
    given, expected = sp.sympify(given), sp.sympify(expected)
    if isinstance(expected, sp.MatrixBase):
        if tuple(given.shape) != tuple(expected.shape):
            return False
        return all(_close(a, b, digits) for a, b in zip(given, expected, strict=True))
    difference, scale = (given - expected).evalf(DIGITS), 1 + abs(expected.evalf(DIGITS))
    if not difference.is_number:
        return False
    return bool(abs(difference) < scale * sp.Float(10) ** -digits)
