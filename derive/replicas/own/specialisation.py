"""The equations of one model as a checked step: what specialised.py writes out against the matrix form, by number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy as sp

from ...authoring.language import token_weight
from ...authoring.model import ModelAt
from ...authoring.parameters import leaves
from ...calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average
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
    p = written.generic
    before = {e.target.name: e.value for e in written.saddle.equations} | {"Phi": written.phi.expression}
    if written.saddle.trained is not None:
        before["trained"] = written.saddle.trained
    after: dict[str, Any] = dict(written.equations)
    for found in written.fields:
        end = "" if found.labels is None else "|" + ",".join(map(str, found.labels))
        after |= {symbol.name: definition for symbol, definition in found.features.items()}
        after |= {f"{name}{end}": component for name, component in found.components.items()}
    comparison = Comparison(written)
    rows = [
        name for name in written.equations if "_hat@" not in name and not name.startswith(("trained@", "Phi", "w@"))
    ]
    tests = [
        Test(
            "conjugates of this model",
            "against the matrix form at random overlaps and channel averages",
            lambda before, after: comparison.conjugates_hold(before, after),
            tuple(name for name in written.equations if "_hat@" in name),
        ),
        Test(
            "overlaps of this model",
            "against the matrix form averaged over the law of a coordinate, at random conjugates and parameters",
            lambda before, after: comparison.overlaps_hold(before, after),
            tuple(rows),
        ),
        Test(
            "free entropy of this model",
            "against the matrix form at random order parameters",
            lambda before, after: comparison.free_entropy_holds(before, after),
            ("Phi", *rows),
        ),
        Test(
            "field of this model",
            f"against differences of the loss to {DIGITS // 2} digits",
            lambda _before, after: comparison.fields_hold(after),
            tuple(name for name in after if name not in written.equations),
        ),
    ]
    if p.trained:
        tests.append(
            Test(
                "trained numbers of this model",
                "against the matrix form at random channel averages",
                lambda before, after: comparison.trained_hold(before, after),
                tuple(name for name in written.equations if name.startswith("trained@")),
            )
        )
    if "w@" in written.equations:
        tests.append(
            Test(
                "row of this model",
                "its objective is not smaller nearby, at random fields",
                lambda _before, after: comparison.row_holds(after),
                ("w@",),
            )
        )
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
            mean, conjugate = source.matrix(*size("m")), source.matrix(*size("m"))
            keeps = 1 if self.written.has_mean(context) else 0
            found[context] = {
                **shared[context.shared],
                "m": mean * keeps,
                "q_hat": source.positive(size("q")[0]),
                "V_hat": source.positive(size("q")[0]),
                "m_hat": conjugate,
                "theta_hat": source.matrix(*size("theta")),
                "rho_star": self.written.teacher_covariance(context).applyfunc(self.number),
                "m_star": sp.Matrix([self.number(e) for e in self.written.at.law["teacher_means"][context.position]]),
            }
        return found

    @cached_property
    def by_name(self) -> dict[str, Any]:
        """The same by the names of the written equations, and the parameters."""
        values: dict[str, Any] = {**self.parameters, "M": None}
        for context, own in self.order_parameters.items():
            for name, matrix in own.items():
                if name in ("q", "V", "theta"):
                    values[f"{name}@{context.shared}"] = self.shown(matrix)
                elif name in ("m", "q_hat", "V_hat", "m_hat", "theta_hat"):
                    values[f"{name}@{context.own}"] = self.shown(matrix)
        return values

    @cached_property
    def sentences(self) -> dict[tuple[int, ...], list[tuple[Any, dict[str, Any]]]]:
        """Labels -> (probability given them, fields by token) of two states."""
        source, at, size = Source("sentences"), self.written.at, self.written.shapes
        found = {}
        for labels in self.written.combinations:
            states = []
            for chance in _STATES:
                state: dict[str, Any] = {"M": source.number()}
                for l in range(at.structure.tokens):
                    fields = {z: source.matrix(*size(z)) for z in ("g", "omega", "Y")}
                    state |= {f"{name}|{l}": value for name, value in fields.items()}
                    state[f"loss_q|{l}"] = source.symmetric(size("q")[0])
                state |= {f"slope@{symbol.name}": source.number() for symbol, _ in at.trained.values()}
                states.append((chance, state))
            found[labels] = states
        return found

    def _generic_states(self, context: Context | None) -> tuple[tuple[Any, dict[str, Any]], ...]:
        """E_c[.] as a sum: (weight, values)."""
        found = []
        for labels, states in self.sentences.items():
            if context is not None and labels[context.token] != context.cluster:
                continue
            for chance, state in states:
                values: dict[str, Any] = {"M": state["M"]}
                if context is not None:
                    own = self.order_parameters[context]
                    values["g"], values["loss_q"] = state[f"g|{context.token}"], state[f"loss_q|{context.token}"]
                    values["domega"] = state[f"omega|{context.token}"] - own["m"]
                    values["dY"] = state[f"Y|{context.token}"] - own["m_star"]
                slopes = [value for name, value in state.items() if name.startswith("slope@")]
                values["loss_phi"] = sp.Matrix(slopes) if slopes else None
                found.append((self.number(self.written.combinations[labels]) * chance, values))
        return tuple(found)

    @cached_property
    def _written_states(self) -> dict[str, tuple[tuple[Any, dict[str, Any]], ...]]:
        """Kind of a written average -> (probability, values)."""
        at, kinds = self.written.at, {}
        for labels, states in self.sentences.items():
            terms = []
            for chance, state in states:
                values = {name: value for name, value in state.items() if "|" not in name}
                for name, value in state.items():
                    stem, bar, token = name.partition("|")
                    if bar:
                        index = str(int(token) + 1) if at.structure.tokens > 1 else ""
                        values[f"{stem}@{index}"] = self.shown(value)
                        if stem == "Y" and self.written.scalar:
                            values[at.Y[int(token), 0].name] = value[0, 0]
                terms.append((chance, values))
            kinds[self.written.given(labels)] = tuple(terms)
        return kinds

    # --- rows --------------------------------------------------------------------------------------------------------

    @cached_property
    def _row(self) -> dict[str, sp.Matrix]:
        """w = J b + K pi, a linear stand-in for the row at its field, and the matrix of N = 1/2 b^T J b."""
        source, (s, t) = Source("row"), self.written.shapes("theta")
        knows = self.written.at.averages_over_teacher
        return {"J": source.positive(s), "K": source.matrix(s, t) * (1 if knows else 0)}

    def generic_row(self, atom: SpectralAtom, context: Context | None) -> Values:
        """Everything that an average over a coordinate holds, in one atom: composites by their definition."""
        written, p = self.written, self.written.generic
        count, t = len(written.contexts), written.at.structure.teacher_rank
        gram = sp.Matrix(written.at.law["gram"][atom.position]).applyfunc(self.number)
        spectrum = [self.number(e) for e in written.at.law["covariance"][atom.position]]

        def summed(composite: sp.MatrixSymbol, z: sp.Matrix) -> sp.Matrix:
            total = sp.zeros(*written.shapes("m" if composite == p.B else "q"))
            for c, own in self.order_parameters.items():
                here = {"gamma": spectrum[c.position], "tau": z[c.position], "pi": z[count:, :]}
                total += Values({**own, **here})(p.composites[composite])
            return total

        zero = sp.zeros(count + t, 1)
        Q, row = summed(p.Q, zero), self._row

        def field_of(at: Values, _suffix: str = "") -> sp.Matrix:
            return summed(p.B, at.values["z"]) + at.values["noise"]

        def weights(at: Values, _suffix: str = "") -> sp.Matrix:
            return row["J"] * field_of(at) + row["K"] * at.values["z"][count:, :]

        values: dict[str, Any] = {
            **self.parameters, "z": zero, "noise": sp.zeros(*written.shapes("m")), "G": summed(p.G, zero), "Q": Q,
            "B": lambda at, _: summed(p.B, at.values["z"]), "pi": lambda at, _: at.values["z"][count:, :],
            "w": weights, "dw/db": row["J"], "N": lambda at, _: (field_of(at).T * row["J"] * field_of(at))[0] / 2,
        }  # fmt: skip
        if written.at.penalty is None:
            values["Lambda"] = sp.Matrix(written.strengths()).applyfunc(self.number)
        if context is not None:
            values["gamma"] = spectrum[context.position]
            values["tau"] = lambda at, _: at.values["z"][context.position]
        law = Law(("z", "noise"), sp.zeros(count + t + Q.rows, 1), sp.diag(gram, Q))
        return Values(values, laws={COORDINATE: law})

    def written_rows(self, after: Expressions) -> Values:
        """Values of the written equations, those of the rows' own symbols out of their own lines."""
        values = dict(self.by_name)
        laws = {}
        for name, value in after.items():
            if name.partition("@")[0] in ("moment", "R", "G", "Omega", "b_pi", "b_tau"):
                values[name] = Values(values)(value)
        for atom in self.written.atoms:
            if self.written.at.penalty is not None:
                laws[f"row@{atom.index}"] = self._row_law(atom, values)
        row, scalar = self._row, self.written.scalar

        def weights(at: Values, _suffix: str = "") -> Any:
            found = row["J"] * at.values["row_b"] + row["K"] * at.values["row_pi"]
            return found[0, 0] if scalar else found

        values |= {
            "row_b": sp.zeros(*self.written.shapes("m")), "row_pi": sp.zeros(*self.written.shapes("pi")),
            "row_tau": sp.zeros(len(self.written.contexts), 1), "w": weights, "dw/db": self.shown(row["J"]),
            "pi": lambda at, _: self.shown(at.values["row_pi"]),
            "N": lambda at, _: (at.values["row_b"].T * row["J"] * at.values["row_b"])[0] / 2,
        }  # fmt: skip
        for c in self.written.contexts:
            values[f"tau@{c.own}"] = lambda at, _, n=c.position: at.values["row_tau"][n]
        return Values(values, laws=laws)

    def _row_law(self, atom: SpectralAtom, values: Mapping[str, Any]) -> Law:
        """Joint law of b, pi and tau in an atom, as the written equations give it."""
        written, count = self.written, len(self.written.contexts)
        (s, t), end = written.shapes("theta"), f";{atom.index}" if atom.index else ""
        gram = sp.Matrix(written.at.law["gram"][atom.position]).applyfunc(self.number)
        second = sp.Matrix([values[f"Omega@{atom.index}"]]).reshape(s, s)
        cross = sp.zeros(s, t + count)
        if written.at.averages_over_teacher:
            cross[:, :t] = sp.Matrix([values[f"b_pi@{atom.index}"]]).reshape(s, t)
            for c in written.contexts:
                if written.has_mean(c):
                    cross[:, t + c.position] = sp.Matrix([values[f"b_tau@{c.own}{end}"]]).reshape(s, 1)
        order = [*range(count, count + t), *range(count)]
        rest = gram.extract(order, order)
        covariance = sp.Matrix(sp.BlockMatrix([[second, cross], [cross.T, rest]]).as_explicit())
        return Law(("row_b", "row_pi", "row_tau"), sp.zeros(s + t + count, 1), covariance)

    # --- the tests ---------------------------------------------------------------------------------------------------

    def conjugates_hold(self, before: Expressions, after: Expressions) -> bool:
        """Whether docs/theory.md (5.2) to (5.5) give the same in every context, to DIGITS - 10 digits.

        The written V_hat holds theta_hat, which takes its value from the matrix form.
        """
        written = self.written
        for context, own in self.order_parameters.items():
            generic = Values({**self.parameters, **own}, {CHANNEL: self._generic_states(context)})
            taught = generic(before["theta_hat"])
            values = {**self.by_name, f"theta_hat@{context.own}": self.shown(taught)}
            for stem in ("q", "V", "m", "theta"):
                name = f"{stem}_hat@{context.own}"
                if stem == "m" and not written.has_mean(context):
                    continue
                given = Values(values, self._written_states)(after[name])
                if not _close(given, self.shown(generic(before[f"{stem}_hat"]))):
                    return False
        return True

    def overlaps_hold(self, before: Expressions, after: Expressions) -> bool:
        """Whether docs/theory.md (5.8) to (5.11), or (6.3) and its G, give the same; m only where it is not zero."""
        written, values = self.written, self.written_rows(after)
        for atom in written.atoms if written.at.penalty is not None else ():
            stiffness = self.generic_row(atom, None).values["G"]
            if not _close(values.values[f"G@{atom.stiffness_index}"], self.shown(stiffness)):
                return False
        for context in written.contexts:
            for stem in ("q", "V", "theta", "m"):
                expected = sp.zeros(*written.shapes(stem))
                for atom in written.atoms:
                    expected += self.number(atom.weight) * self.generic_row(atom, context)(before[stem])
                index = context.own if stem == "m" else context.shared
                vanishes = stem == "m" and not written.has_mean(context)
                given = 0 * self.shown(expected) if vanishes else values(after[f"{stem}@{index}"])
                if not _close(given, self.shown(expected)):
                    return False
        return True

    def free_entropy_holds(self, before: Expressions, after: Expressions) -> bool:
        """Whether docs/theory.md (4.2) has one value in both forms, over contexts, rows and sentences."""
        written, total = self.written, sp.Integer(0)
        for term in sp.Add.make_args(before["Phi"]):
            kinds = {a.kind for a in term.atoms(Average)}
            if kinds == {CONTEXTS}:
                (average,) = term.atoms(Average)
                parts = [Values(own)(average.summand) for own in self.order_parameters.values()]
                total += term.xreplace({average: sp.Integer(1)}) * sp.Add(*parts)
            elif kinds == {COORDINATE}:
                parts = [self.number(atom.weight) * self.generic_row(atom, None)(term) for atom in written.atoms]
                total += sp.Add(*parts)
            elif kinds == {CHANNEL}:
                total += Values(self.parameters, {CHANNEL: self._generic_states(None)})(term)
            else:
                total += self._trained(term)
        given = self.written_rows(after)
        joined = Values(given.values, self._written_states, given.laws)
        return _close(joined(after["Phi"]), total)

    def _trained(self, expression: Any) -> Any:
        trained = self.written.at.trained.values()
        values = {
            "phi": sp.Matrix([self.parameters[symbol.name] for symbol, _ in trained]),
            "Kappa": sp.diag(*[self.number(value.ridge) for _, value in trained]),
        }
        return Values({**self.parameters, **values}, {CHANNEL: self._generic_states(None)})(expression)

    def trained_hold(self, before: Expressions, after: Expressions) -> bool:
        """Whether the left sides of docs/theory.md (5.12) agree, one for each trained number."""
        expected = self._trained(before["trained"])
        names = [f"trained@{symbol.name}" for symbol, _ in self.written.at.trained.values()]
        given = [Values(self.by_name, self._written_states)(after[name]) for name in names]
        return all(_close(a, b) for a, b in zip(given, expected, strict=True))

    def fields_hold(self, after: Expressions) -> bool:
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

        place = self.written.place
        for l in range(at.structure.tokens):
            for a in range(at.structure.student_rank):
                if not _close(given(f"g@{place((l, a))}"), -slope(at.X[l, a]), DIGITS // 2):
                    return False
                for b in range(a, at.structure.student_rank):
                    name, share = f"loss_q@{place((l, a, b))}", 1 if a == b else sp.Rational(1, 2)
                    wanted = share * slope(at.Q[l][a, b]) if loss.has(at.Q[l][a, b]) else sp.Integer(0)
                    if (wanted != 0 or name in found.components) and not _close(given(name), wanted, DIGITS // 2):
                        return False
        trained = [symbol for symbol, _ in at.trained.values()]
        return all(_close(given(f"slope@{z.name}"), slope(z), DIGITS // 2) for z in trained)

    def row_holds(self, after: Expressions) -> bool:
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
