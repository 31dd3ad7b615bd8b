"""The equations of one model as a checked step: those that specialised.py writes out, compared with the matrix form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import sympy as sp

from ...authoring.language import token_variance_symbol
from ...authoring.model import FixedSizeModel
from ...authoring.parameters import flatten_entries
from ...calculus.averages import CHANNEL, CONTEXTS, COORDINATE
from ...calculus.numeric import evaluate_expression_at
from ..algebra.exact import ExactValues, NormalLaw, RandomRationals
from ..algebra.step import Expressions, Step, StepTest
from .specialised import FieldEquations, ModelEquations, SpectralAtom, TokenClusterPair

DIGITS = 40
_STATES = (sp.Rational(1, 3), sp.Rational(2, 3))  # of two states of a sample, given its labels


def specialisation_step(at: FixedSizeModel) -> Step:
    """Return step 10: the equations of a model, tested at random order parameters and parameters.

    Raises:
        ValueError: the model is too large to be written out.
    """
    written = ModelEquations(at)
    if written.is_too_large_to_write_out:
        raise ValueError(f"{at.name} is too large to be written out at {at.structure.folder_name}")
    before = {e.target.name: e.value for e in written.saddle.equations} | {"Phi": written.phi.expression}
    if written.saddle.trained is not None:
        before["trained"] = written.saddle.trained
    after: dict[str, Any] = dict(written.equations)
    for found in written.fields:
        end = "" if found.labels is None else "|" + ",".join(map(str, found.labels))
        after |= {symbol.name: definition for symbol, definition in found.features.items()}
        after |= {f"{name}{end}": component for name, component in found.components.items()}
    comparison, names = _EquationComparison(written), list(written.equations)
    rows = [name for name in names if "_hat@" not in name and not name.startswith(("trained@", "Phi", "w@"))]
    form = "against the matrix form"
    checks = (
        ("conjugates", f"{form} at random overlaps and channel averages",
         comparison.check_conjugate_equations, [name for name in names if "_hat@" in name]),
        ("overlaps", f"{form} averaged over the law of a coordinate, at random conjugates and parameters",
         comparison.check_overlap_equations, rows),
        ("free entropy", f"{form} at random order parameters",
         comparison.check_free_entropy, ["Phi", *rows]),
        ("field", f"against differences of the loss to {DIGITS // 2} digits",
         comparison.check_field_equations, [name for name in after if name not in names]),
        ("trained numbers", f"{form} at random channel averages",
         comparison.check_trained_parameter_equations, [name for name in names if name.startswith("trained@")]),
        ("row", "its objective is not smaller nearby, at random fields",
         comparison.check_row_minimiser, [name for name in names if name == "w@"]),
    )  # fmt: skip
    tests = [
        StepTest(f"{what} of this model", words, holds, tuple(judged))
        for what, words, holds, judged in checks
        if judged
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
class _EquationComparison:
    """Random values for all symbols in a model's equations, by names of the matrix form and by written names."""

    written: ModelEquations

    # --- values ------------------------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Return positive rationals for the parameters, by name; square arrays are symmetric, as Gram matrices are."""
        source, values = RandomRationals("parameters"), {}
        for parameter in self.written.at.parameters.values():
            symbols = parameter.argument_symbols(self.written.at.structure)
            for symbol in flatten_entries(symbols):
                values[symbol.name] = abs(source.draw_number())
            if isinstance(symbols, sp.MatrixBase) and symbols.is_square:
                for i in range(symbols.rows):
                    for j in range(i):
                        values[symbols[i, j].name] = values[symbols[j, i].name]
        for symbol, _ in self.written.at.trained.values():
            values[symbol.name] = source.draw_number()
        for symbol in self.written.at.norm_multipliers:
            values[symbol.name] = abs(source.draw_number())
        return {**values, "alpha": abs(source.draw_number())}

    def value_at_parameters(self, expression: Any) -> Any:
        """Return the value of an expression of the law at the values of the parameters."""
        return ExactValues(self.parameters)(sp.sympify(expression))

    def as_written_entry(self, matrix: sp.Matrix) -> Any:
        """Return a matrix in the form of the written equations: its entry if these are scalar."""
        return matrix[0, 0] if self.written.has_scalar_equations else matrix

    @cached_property
    def order_parameters(self) -> dict[TokenClusterPair, dict[str, Any]]:
        """Return overlaps and conjugates of every context by generic names, equal where contexts share overlaps."""
        source, size = RandomRationals("order parameters"), self.written.matrix_shape
        shared: dict[str, dict[str, Any]] = {}
        found = {}
        for context in self.written.contexts:
            if context.shared not in shared:
                own = {z: source.draw_spd_matrix(size(z)[0]) for z in ("q", "V")}
                shared[context.shared] = {**own, "theta": source.draw_matrix(*size("theta")) / 9}
            keeps = 1 if self.written.has_nonzero_mean(context) else 0
            found[context] = {
                **shared[context.shared],
                "m": source.draw_matrix(*size("m")) * keeps,
                "q_hat": source.draw_spd_matrix(size("q")[0]),
                "V_hat": source.draw_spd_matrix(size("q")[0]),
                "m_hat": source.draw_matrix(*size("m")),
                "theta_hat": source.draw_matrix(*size("theta")),
                "rho_star": self.written.teacher_covariance(context).applyfunc(self.value_at_parameters),
                "m_star": sp.Matrix(
                    [self.value_at_parameters(e) for e in self.written.at.law["teacher_means"][context.position]]
                ),
            }
        return found

    @cached_property
    def sample_values(self) -> dict[str, list[tuple[Any, dict[str, Any]]]]:
        """Return two states (probability given the labels, values by written names) for every kind of average."""
        source, at, size = RandomRationals("sentences"), self.written.at, self.written.matrix_shape
        found = {}
        for labels in self.written.combinations:
            states = []
            for chance in _STATES:
                state: dict[str, Any] = {"M": source.draw_number()}
                for l in range(at.structure.tokens):
                    index = self.written.written_indices((l,))
                    state |= {
                        f"{z}@{index}": self.as_written_entry(source.draw_matrix(*size(z))) for z in ("g", "omega", "Y")
                    }
                    state[f"loss_q@{index}"] = self.as_written_entry(source.draw_symmetric_matrix(size("q")[0]))
                    if self.written.has_scalar_equations:
                        state[at.Y[l, 0].name] = state[f"Y@{index}"]
                state |= {f"slope@{symbol.name}": source.draw_number() for symbol, _ in at.trained.values()}
                states.append((chance, state))
            found[self.written.average_kind(labels)] = states
        return found

    @cached_property
    def linear_row_coefficients(self) -> dict[str, sp.Matrix]:
        """Return J and K of w = J b + K pi, a linear stand-in for the row at its field; N = 1/2 b^T J b."""
        source, (s, t) = RandomRationals("row"), self.written.matrix_shape("theta")
        knows = self.written.at.averages_over_teacher
        return {"J": source.draw_spd_matrix(s), "K": source.draw_matrix(s, t) * (1 if knows else 0)}

    # --- by generic names --------------------------------------------------------------------------------------------

    @cached_property
    def matrix_form_values(self) -> ExactValues:
        """Return the values of all symbols of the matrix form but those of a context; see `context_values`."""
        count, trained, row = len(self.written.contexts), self.written.at.trained.values(), self.linear_row_coefficients

        def _row_field_value(at: ExactValues) -> sp.Matrix:
            return at.values["B"](at, "") + at.values["noise"]

        values = {
            **self.parameters, "context": None, "pi": lambda at, _: at.values["z"][count:, :], "dw/db": row["J"],
            "w": lambda at, _: row["J"] * _row_field_value(at) + row["K"] * at.values["z"][count:, :],
            "N": lambda at, _: (_row_field_value(at).T * row["J"] * _row_field_value(at))[0] / 2,
            "z": sp.zeros(self.gram(0).rows, 1), "noise": sp.zeros(*self.written.matrix_shape("m")),
            "B": lambda at, _: self.composite(self.written.generic_symbols.B, at.values["atom"], at.values["z"]),
            "phi": sp.Matrix([self.parameters[symbol.name] for symbol, _ in trained]),
            "Kappa": sp.diag(*[self.value_at_parameters(value.ridge) for _, value in trained]),
        }  # fmt: skip
        if self.written.at.penalty is None:
            values["Lambda"] = sp.Matrix(self.written.ridge_strengths()).applyfunc(self.value_at_parameters)
        contexts = [(1, self.context_values(context)) for context in self.order_parameters]
        return ExactValues(
            values,
            {CONTEXTS: contexts, CHANNEL: self._sample_terms, COORDINATE: self._atom_terms},
            {COORDINATE: lambda at: self._coordinate_law(at.values["atom"], at.values["Q"])},
        )

    def context_values(self, context: TokenClusterPair) -> dict[str, Any]:
        """Return the values that a context adds to those of the matrix form."""
        return {**self.order_parameters[context], "context": context}

    def gram(self, j: int) -> sp.Matrix:
        """Return E[z z^T] of z = (tau, pi) in atom j."""
        return sp.Matrix(self.written.at.law["gram"][j]).applyfunc(self.value_at_parameters)

    def composite(self, composite: sp.MatrixSymbol, j: int, z: sp.Matrix) -> sp.Matrix:
        """Return the value of G, Q or B in an atom, by its definition.

        Args:
            composite: symbol of G, Q or B.
            j: index of the atom, from 0.
            z: (tau, pi) as one column.
        """
        spectrum, count = self.written.at.law["covariance"][j], len(self.written.contexts)
        terms = []
        for c, own in self.order_parameters.items():
            here = {"gamma": self.value_at_parameters(spectrum[c.position]), "tau": z[c.position], "pi": z[count:, :]}
            terms.append(ExactValues({**own, **here})(self.written.generic_symbols.composites[composite]))
        return sum(terms[1:], terms[0])

    def _sample_terms(self, at: ExactValues) -> list[tuple[Any, dict[str, Any]]]:
        """Return the terms of the sum E_c[.]: of all samples where there is no context."""
        context, found = at.values["context"], []
        for labels, probability in self.written.combinations.items():
            if context is not None and labels[context.token] != context.cluster:
                continue
            for chance, state in self.sample_values[self.written.average_kind(labels)]:
                slopes = [value for name, value in state.items() if name.startswith("slope@")]
                values: dict[str, Any] = {"M": state["M"], "loss_phi": sp.Matrix(slopes)}
                if context is not None:
                    index = self.written.written_indices((context.token,))
                    g, omega, Y, in_q = (_as_matrix(state[f"{z}@{index}"]) for z in ("g", "omega", "Y", "loss_q"))
                    values |= {"g": g, "domega": omega - at.values["m"], "dY": Y - at.values["m_star"], "loss_q": in_q}
                found.append((self.value_at_parameters(probability) * chance, values))
        return found

    def _atom_terms(self, at: ExactValues) -> list[tuple[Any, dict[str, Any]]]:
        """Return the terms of the sum E_nu[.] over the atoms; (tau, pi) and the field's noise are normal in each."""
        context, p, found = at.values["context"], self.written.generic_symbols, []
        for atom in self.written.atoms:
            own = {z.name: self.composite(z, atom.position, at.values["z"]) for z in (p.G, p.Q)}
            if context is not None:
                own["gamma"] = self.value_at_parameters(
                    self.written.at.law["covariance"][atom.position][context.position]
                )
                own["tau"] = lambda at, _: at.values["z"][at.values["context"].position]
            found.append((self.value_at_parameters(atom.weight), {**own, "atom": atom.position}))
        return found

    def _coordinate_law(self, j: int, Q: sp.Matrix) -> NormalLaw:
        gram = self.gram(j)
        return NormalLaw(("z", "noise"), sp.zeros(gram.rows + Q.rows, 1), sp.diag(gram, Q))

    # --- by written names --------------------------------------------------------------------------------------------

    def written_values(self, after: Expressions) -> ExactValues:
        """Return the values of all symbols of the written equations; those of rows come from their own equations."""
        written, row = self.written, self.linear_row_coefficients
        values: dict[str, Any] = {**self.parameters, "M": None}
        for context, own in self.order_parameters.items():
            for name, matrix in own.items():
                index = context.shared if name in ("q", "V", "theta") else context.own
                values[f"{name}@{index}"] = self.as_written_entry(matrix)
            values[f"tau@{context.own}"] = lambda at, _, n=context.position: at.values["row_tau"][n]
        for name, value in after.items():
            if name.partition("@")[0] in ("moment", "R", "G", "Omega", "b_pi", "b_tau"):
                values[name] = ExactValues(values)(value)
        laws = {}
        if written.at.penalty is not None:
            laws = {f"row@{atom.index}": self._row_law(atom, values) for atom in written.atoms}
        values |= {
            "row_b": sp.zeros(*written.matrix_shape("m")), "row_pi": sp.zeros(*written.matrix_shape("pi")),
            "row_tau": sp.zeros(len(written.contexts), 1), "dw/db": self.as_written_entry(row["J"]),
            "w": lambda at, _: self.as_written_entry(row["J"] * at.values["row_b"] + row["K"] * at.values["row_pi"]),
            "pi": lambda at, _: self.as_written_entry(at.values["row_pi"]),
            "N": lambda at, _: (at.values["row_b"].T * row["J"] * at.values["row_b"])[0] / 2,
        }  # fmt: skip
        return ExactValues(values, self.sample_values, laws)

    def _row_law(self, atom: SpectralAtom, values: Mapping[str, Any]) -> NormalLaw:
        """Return the joint law of b, pi and tau in an atom, as the written equations give it."""
        written, count = self.written, len(self.written.contexts)
        (s, t), end = written.matrix_shape("theta"), f";{atom.index}" if atom.index else ""
        cross = sp.zeros(s, t + count)
        if written.at.averages_over_teacher:
            cross[:, :t] = _as_matrix(values[f"b_pi@{atom.index}"])
            for c in written.contexts:
                if written.has_nonzero_mean(c):
                    cross[:, t + c.position] = _as_matrix(values[f"b_tau@{c.own}{end}"])
        order = [*range(count, count + t), *range(count)]
        rest, second = self.gram(atom.position).extract(order, order), _as_matrix(values[f"Omega@{atom.index}"])
        covariance = sp.Matrix(sp.BlockMatrix([[second, cross], [cross.T, rest]]).as_explicit())
        return NormalLaw(("row_b", "row_pi", "row_tau"), sp.zeros(s + t + count, 1), covariance)

    # --- the tests ---------------------------------------------------------------------------------------------------

    def check_conjugate_equations(self, before: Expressions, after: Expressions) -> bool:
        """Return whether both forms of docs/theory.md (5.2) to (5.5) agree in every context, to DIGITS - 10 digits.

        The written V_hat contains theta_hat, whose value comes from the matrix form.

        Args:
            before: equations in matrix form.
            after: equations written out.
        """
        written_values = self.written_values(after)
        for context in self.order_parameters:
            generic = self.matrix_form_values.with_values(self.context_values(context))
            given = written_values.with_values(
                {f"theta_hat@{context.own}": self.as_written_entry(generic(before["theta_hat"]))}
            )
            for stem in ("q", "V", "m", "theta"):
                if stem == "m" and not self.written.has_nonzero_mean(context):
                    continue
                expected = self.as_written_entry(generic(before[f"{stem}_hat"]))
                if not _agree_to_digits(given(after[f"{stem}_hat@{context.own}"]), expected):
                    return False
        return True

    def check_overlap_equations(self, before: Expressions, after: Expressions) -> bool:
        """Return whether both forms of docs/theory.md (5.8) to (5.11), or of (6.3) and its G, agree.

        Args:
            before: equations in matrix form.
            after: equations written out.
        """
        written, given, z = self.written, self.written_values(after), self.matrix_form_values.values["z"]
        for atom in written.atoms if written.at.penalty is not None else ():
            stiffness = self.composite(written.generic_symbols.G, atom.position, z)
            if not _agree_to_digits(given.values[f"G@{atom.spectrum_index}"], self.as_written_entry(stiffness)):
                return False
        for context in written.contexts:
            generic = self.matrix_form_values.with_values(self.context_values(context))
            for stem in ("q", "V", "theta", "m"):
                expected = self.as_written_entry(generic(before[stem]))
                index = context.own if stem == "m" else context.shared
                vanishes = stem == "m" and not written.has_nonzero_mean(context)
                if not _agree_to_digits(0 * expected if vanishes else given(after[f"{stem}@{index}"]), expected):
                    return False
        return True

    def check_free_entropy(self, before: Expressions, after: Expressions) -> bool:
        """Return whether docs/theory.md (4.2) has the same value in both forms.

        Args:
            before: equations in matrix form.
            after: equations written out.
        """
        return _agree_to_digits(self.written_values(after)(after["Phi"]), self.matrix_form_values(before["Phi"]))

    def check_trained_parameter_equations(self, before: Expressions, after: Expressions) -> bool:
        """Return whether the left sides of docs/theory.md (5.12) agree for every trained number.

        Args:
            before: equations in matrix form.
            after: equations written out.
        """
        given, expected = self.written_values(after), self.matrix_form_values(before["trained"])
        names = [f"trained@{symbol.name}" for symbol, _ in self.written.at.trained.values()]
        return all(_agree_to_digits(given(after[name]), value) for name, value in zip(names, expected, strict=True))

    def check_field_equations(self, _before: Expressions, after: Expressions) -> bool:
        """Return whether g and the derivatives in q and phi agree with differences of the loss, at all labels.

        Args:
            _before: not used.
            after: written equations.
        """
        return all(self._check_field_equation(found, after) for found in self.written.fields)

    def _check_field_equation(self, found: FieldEquations, after: Expressions) -> bool:
        """Return whether -d loss / dX and the derivatives in q and phi agree with central differences."""
        at, source = self.written.at, RandomRationals("fields")
        end = "" if found.labels is None else "|" + ",".join(map(str, found.labels))
        values: dict[sp.Symbol, Any] = {symbol: abs(source.draw_number()) for symbol in at.parameter_symbols()}
        every = [*at.X, *at.Y, *[symbol for symbol, _ in at.noise.values()], *flatten_entries(at.Q)]
        values |= {symbol: source.draw_number() for symbol in [*every, *[s for s, _ in at.trained.values()]]}
        weights = self.written.token_weights(found.labels)
        for l in range(at.structure.tokens):
            rho = token_variance_symbol(l)
            values[rho] = weights[rho].xreplace(values) if rho in weights else abs(source.draw_number())
        labels = found.labels if found.labels is not None else (0,) * at.structure.tokens
        loss = at.loss.xreplace({k: sp.Integer(n) for k, n in zip(at.labels, labels, strict=True)}).doit()
        features = {symbol: after[symbol.name] for symbol in found.features}
        width = sp.Rational(1, 10 ** (DIGITS // 2 - 3))

        def slope(variable: sp.Symbol) -> sp.Expr:
            sides = [
                evaluate_expression_at(loss, {**values, variable: values[variable] + sign * width}, 2 * DIGITS)
                for sign in (1, -1)
            ]
            return (sp.Float(sides[0], 2 * DIGITS) - sp.Float(sides[1], 2 * DIGITS)) / (2 * width)

        def evaluate(name: str) -> sp.Expr:
            return sp.Float(evaluate_expression_at(after[f"{name}{end}"].xreplace(features), values, DIGITS), DIGITS)

        place, (tokens, columns) = self.written.written_indices, at.X.shape
        wanted = {f"g@{place((l, a))}": (-1, at.X[l, a]) for l in range(tokens) for a in range(columns)}
        wanted |= {f"slope@{symbol.name}": (1, symbol) for symbol, _ in at.trained.values()}
        for l in range(tokens):
            for a, b in combinations_with_replacement(range(columns), 2):
                name, z = f"loss_q@{place((l, a, b))}", at.Q[l][a, b]
                if loss.has(z) or name in found.components:  # off the diagonal one symbol is two entries
                    wanted[name] = sp.Rational(1, 1 if a == b else 2), z
        return all(
            _agree_to_digits(evaluate(name), factor * slope(z), DIGITS // 2) for name, (factor, z) in wanted.items()
        )

    def check_row_minimiser(self, _before: Expressions, after: Expressions) -> bool:
        """Return whether w(b) minimises the objective of a row, at fields on both sides of every corner.

        The value at w(b) is compared with those at distances from 1e-5 to 1.

        Args:
            _before: not used.
            after: written equations.
        """
        penalty = self.written.at.penalty
        assert penalty is not None
        (w,), source = penalty.w, RandomRationals("rows")
        stiffness, b = sp.Symbol("G@", real=True), sp.Symbol("b", real=True)
        values = {symbol: abs(source.draw_number()) for symbol in self.written.at.parameter_symbols()}
        values |= {symbol: source.draw_number() for symbol in penalty.pi}
        values[stiffness] = sp.Rational(3, 2)
        objective = (penalty.expression_where_finite + stiffness * w**2 / 2 - b * w).xreplace(values)
        for n in range(-12, 13):
            at_field = objective.xreplace({b: sp.Rational(n, 3)})
            found = after["w@"].xreplace({**values, b: sp.Rational(n, 3)})
            least = at_field.xreplace({w: found}).evalf(DIGITS)
            moves = [sign * sp.Rational(1, 10**k) for sign in (1, -1) for k in range(6)]
            if any(at_field.xreplace({w: found + move}).evalf(DIGITS) <= least for move in moves):
                return False
        return True


def _as_matrix(value: Any) -> sp.Matrix:
    """Return a matrix, of one entry where equations are scalars."""
    return value if isinstance(value, sp.MatrixBase) else sp.Matrix([[value]])


def _agree_to_digits(given: Any, expected: Any, digits: int = DIGITS - 10) -> bool:
    """Return whether two values agree to so many digits; matrices entry by entry."""
    given, expected = sp.sympify(given), sp.sympify(expected)
    if isinstance(expected, sp.MatrixBase):
        if tuple(given.shape) != tuple(expected.shape):
            return False
        return all(_agree_to_digits(a, b, digits) for a, b in zip(given, expected, strict=True))
    difference, scale = (given - expected).evalf(DIGITS), 1 + abs(expected.evalf(DIGITS))
    if not difference.is_number:
        return False
    return bool(abs(difference) < scale * sp.Float(10) ** -digits)
