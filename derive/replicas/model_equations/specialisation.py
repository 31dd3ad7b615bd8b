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
    """Return derivation step 10: the equations of one model, tested at random order parameters.

    Raises:
        ValueError: the model is too large to be written out.
    """
    written = ModelEquations(at)
    if written.is_too_large_to_write_out:
        raise ValueError(f"the equations of {at.name} at {at.structure.folder_name} are too large to be written out")
    before = {e.target.name: e.value for e in written.saddle_point.equations} | {"Phi": written.free_entropy.expression}
    if written.saddle_point.trained is not None:
        before["trained"] = written.saddle_point.trained
    after: dict[str, Any] = dict(written.equations)
    for found in written.field_equations:
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
    """A set of random values at which a model's equations in matrix form and those written out are compared."""

    written: ModelEquations

    # --- values ------------------------------------------------------------------------------------------------------

    @cached_property
    def random_parameters(self) -> dict[str, Any]:
        """Return by name random positive values of the parameters.

        Square arrays are symmetric, as Gram matrices are.
        """
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
        """Return the value of an expression at the random values of the parameters."""
        return ExactValues(self.random_parameters)(sp.sympify(expression))

    def to_written_form(self, matrix: sp.Matrix) -> Any:
        """Return a matrix in the form of the written equations: its only entry if these are scalar."""
        return matrix[0, 0] if self.written.has_scalar_equations else matrix

    @cached_property
    def random_order_parameters(self) -> dict[TokenClusterPair, dict[str, Any]]:
        """Return random overlaps and conjugates of every (token, cluster) pair, by name.

        Pairs that share overlaps have equal ones.
        """
        source, size = RandomRationals("order parameters"), self.written.matrix_shape
        shared: dict[str, dict[str, Any]] = {}
        found = {}
        for context in self.written.token_cluster_pairs:
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
    def random_sample_values(self) -> dict[str, list[tuple[Any, dict[str, Any]]]]:
        """Return two random states of a sample for every kind of average: (probability, values by name)."""
        source, at, size = RandomRationals("sentences"), self.written.at, self.written.matrix_shape
        found = {}
        for labels in self.written.label_probabilities:
            states = []
            for chance in _STATES:
                state: dict[str, Any] = {"M": source.draw_number()}
                for l in range(at.structure.tokens):
                    index = self.written.printed_indices((l,))
                    state |= {
                        f"{z}@{index}": self.to_written_form(source.draw_matrix(*size(z))) for z in ("g", "omega", "Y")
                    }
                    state[f"loss_q@{index}"] = self.to_written_form(source.draw_symmetric_matrix(size("q")[0]))
                    if self.written.has_scalar_equations:
                        state[at.Y[l, 0].name] = state[f"Y@{index}"]
                state |= {f"slope@{symbol.name}": source.draw_number() for symbol, _ in at.trained.values()}
                states.append((chance, state))
            found[self.written.kind_of_average(labels)] = states
        return found

    @cached_property
    def linear_row_coefficients(self) -> dict[str, sp.Matrix]:
        """Return random matrices J and K of a test row w = J b + K pi, linear in its field b and the teacher's row pi.

        It replaces the model's row of W in this test; its objective at the maximum is N = 1/2 b^T J b.
        """
        source, (s, t) = RandomRationals("row"), self.written.matrix_shape("theta")
        knows = self.written.at.has_average_over_teacher
        return {"J": source.draw_spd_matrix(s), "K": source.draw_matrix(s, t) * (1 if knows else 0)}

    # --- by generic names --------------------------------------------------------------------------------------------

    @cached_property
    def matrix_form_values(self) -> ExactValues:
        """Return the values of all symbols in the equations in matrix form, except those of one (token, cluster) pair.

        `values_at_cluster` returns the values of a pair.
        """
        written, row = self.written, self.linear_row_coefficients
        count, trained, symbols = (
            len(written.token_cluster_pairs),
            written.at.trained.values(),
            written.matrix_form_symbols,
        )

        def _row_field_value(at: ExactValues) -> sp.Matrix:
            return at.values["B"](at, "") + at.values["noise"]

        values = {
            **self.random_parameters, "context": None, "pi": lambda at, _: at.values["z"][count:, :], "dw/db": row["J"],
            "w": lambda at, _: row["J"] * _row_field_value(at) + row["K"] * at.values["z"][count:, :],
            "N": lambda at, _: (_row_field_value(at).T * row["J"] * _row_field_value(at))[0] / 2,
            "z": sp.zeros(self.gram_matrix(0).rows, 1), "noise": sp.zeros(*self.written.matrix_shape("m")),
            "B": lambda at, _: self.prior_parameter_in_atom(symbols.B, at.values["atom"], at.values["z"]),
            "phi": sp.Matrix([self.random_parameters[symbol.name] for symbol, _ in trained]),
            "Kappa": sp.diag(*[self.value_at_parameters(value.ridge) for _, value in trained]),
        }  # fmt: skip
        if self.written.at.penalty is None:
            values["Lambda"] = sp.Matrix(self.written.ridge_strengths()).applyfunc(self.value_at_parameters)
        pairs = [(1, self.values_at_cluster(context)) for context in self.random_order_parameters]
        return ExactValues(
            values,
            {CONTEXTS: pairs, CHANNEL: self._terms_of_sample_average, COORDINATE: self._terms_of_atom_average},
            {COORDINATE: lambda at: self._normal_law_in_atom(at.values["atom"], at.values["Q"])},
        )

    def values_at_cluster(self, context: TokenClusterPair) -> dict[str, Any]:
        """Return the values of the symbols that belong to one (token, cluster) pair."""
        return {**self.random_order_parameters[context], "context": context}

    def gram_matrix(self, j: int) -> sp.Matrix:
        """Return the value of E[z z^T] in one spectral atom, z = (mean coordinates tau, teacher's row pi)."""
        return sp.Matrix(self.written.at.law["gram"][j]).applyfunc(self.value_at_parameters)

    def prior_parameter_in_atom(self, composite: sp.MatrixSymbol, j: int, z: sp.Matrix) -> sp.Matrix:
        """Return the value of a row's prior parameter G, Q or B in one spectral atom, by its definition.

        G is the precision, Q and B are covariance and mean of the row's field.

        Args:
            composite: symbol G, Q or B of the matrix form.
            j: index of the atom, from 0.
            z: (tau, pi) as one column.
        """
        spectrum, count = self.written.at.law["covariance"][j], len(self.written.token_cluster_pairs)
        terms = []
        for c, own in self.random_order_parameters.items():
            here = {"gamma": self.value_at_parameters(spectrum[c.position]), "tau": z[c.position], "pi": z[count:, :]}
            terms.append(
                ExactValues({**own, **here})(self.written.matrix_form_symbols.effective_prior_parameters[composite])
            )
        return sum(terms[1:], terms[0])

    def _terms_of_sample_average(self, at: ExactValues) -> list[tuple[Any, dict[str, Any]]]:
        """Return (probability, values by name) of each state of a sample, for an average over samples.

        Without a (token, cluster) pair the average is over all samples.
        """
        context, found = at.values["context"], []
        for labels, probability in self.written.label_probabilities.items():
            if context is not None and labels[context.token] != context.cluster:
                continue
            for chance, state in self.random_sample_values[self.written.kind_of_average(labels)]:
                slopes = [value for name, value in state.items() if name.startswith("slope@")]
                values: dict[str, Any] = {"M": state["M"], "loss_phi": sp.Matrix(slopes)}
                if context is not None:
                    index = self.written.printed_indices((context.token,))
                    g, omega, Y, in_q = (_to_matrix(state[f"{z}@{index}"]) for z in ("g", "omega", "Y", "loss_q"))
                    values |= {"g": g, "domega": omega - at.values["m"], "dY": Y - at.values["m_star"], "loss_q": in_q}
                found.append((self.value_at_parameters(probability) * chance, values))
        return found

    def _terms_of_atom_average(self, at: ExactValues) -> list[tuple[Any, dict[str, Any]]]:
        """Return (probability, values by name) of each spectral atom, for an average over a coordinate."""
        context, p, found = at.values["context"], self.written.matrix_form_symbols, []
        for atom in self.written.spectral_atoms:
            own = {z.name: self.prior_parameter_in_atom(z, atom.position, at.values["z"]) for z in (p.G, p.Q)}
            if context is not None:
                own["gamma"] = self.value_at_parameters(
                    self.written.at.law["covariance"][atom.position][context.position]
                )
                own["tau"] = lambda at, _: at.values["z"][at.values["context"].position]
            found.append((self.value_at_parameters(atom.weight), {**own, "atom": atom.position}))
        return found

    def _normal_law_in_atom(self, j: int, Q: sp.Matrix) -> NormalLaw:
        gram = self.gram_matrix(j)
        return NormalLaw(("z", "noise"), sp.zeros(gram.rows + Q.rows, 1), sp.diag(gram, Q))

    # --- by written names --------------------------------------------------------------------------------------------

    def written_form_values(self, after: Expressions) -> ExactValues:
        """Return the values of all symbols in the equations written out for this model.

        Those of a row's field and response come from the written equations themselves.
        """
        written, row = self.written, self.linear_row_coefficients
        values: dict[str, Any] = {**self.random_parameters, "M": None}
        for context, own in self.random_order_parameters.items():
            for name, matrix in own.items():
                index = context.shared if name in ("q", "V", "theta") else context.own
                values[f"{name}@{index}"] = self.to_written_form(matrix)
            values[f"tau@{context.own}"] = lambda at, _, n=context.position: at.values["row_tau"][n]
        for name, value in after.items():
            if name.partition("@")[0] in ("moment", "R", "G", "Omega", "b_pi", "b_tau"):
                values[name] = ExactValues(values)(value)
        laws = {}
        if written.at.penalty is not None:
            laws = {f"row@{atom.index}": self._joint_law_of_row_field(atom, values) for atom in written.spectral_atoms}
        values |= {
            "row_b": sp.zeros(*written.matrix_shape("m")), "row_pi": sp.zeros(*written.matrix_shape("pi")),
            "row_tau": sp.zeros(len(written.token_cluster_pairs), 1), "dw/db": self.to_written_form(row["J"]),
            "w": lambda at, _: self.to_written_form(row["J"] * at.values["row_b"] + row["K"] * at.values["row_pi"]),
            "pi": lambda at, _: self.to_written_form(at.values["row_pi"]),
            "N": lambda at, _: (at.values["row_b"].T * row["J"] * at.values["row_b"])[0] / 2,
        }  # fmt: skip
        return ExactValues(values, self.random_sample_values, laws)

    def _joint_law_of_row_field(self, atom: SpectralAtom, values: Mapping[str, Any]) -> NormalLaw:
        """Return the joint law, in an atom, of a row's field b, the teacher's row and the mean coordinates tau."""
        written, count = self.written, len(self.written.token_cluster_pairs)
        (s, t), end = written.matrix_shape("theta"), f";{atom.index}" if atom.index else ""
        cross = sp.zeros(s, t + count)
        if written.at.has_average_over_teacher:
            cross[:, :t] = _to_matrix(values[f"b_pi@{atom.index}"])
            for c in written.token_cluster_pairs:
                if written.has_nonzero_mean(c):
                    cross[:, t + c.position] = _to_matrix(values[f"b_tau@{c.own}{end}"])
        order = [*range(count, count + t), *range(count)]
        rest, second = self.gram_matrix(atom.position).extract(order, order), _to_matrix(values[f"Omega@{atom.index}"])
        covariance = sp.Matrix(sp.BlockMatrix([[second, cross], [cross.T, rest]]).as_explicit())
        return NormalLaw(("row_b", "row_pi", "row_tau"), sp.zeros(s + t + count, 1), covariance)

    # --- the tests ---------------------------------------------------------------------------------------------------

    def check_conjugate_equations(self, before: Expressions, after: Expressions) -> bool:
        """Return whether the conjugates (docs/theory.md (5.2) to (5.5)) are the same in matrix form and written out.

        The written V_hat contains theta_hat, whose value comes from the matrix form.

        Args:
            before: equations in matrix form.
            after: equations written out.
        """
        written_form_values = self.written_form_values(after)
        for context in self.random_order_parameters:
            generic = self.matrix_form_values.with_added_values(self.values_at_cluster(context))
            given = written_form_values.with_added_values(
                {f"theta_hat@{context.own}": self.to_written_form(generic(before["theta_hat"]))}
            )
            for stem in ("q", "V", "m", "theta"):
                if stem == "m" and not self.written.has_nonzero_mean(context):
                    continue
                expected = self.to_written_form(generic(before[f"{stem}_hat"]))
                if not _agree_to_digits(given(after[f"{stem}_hat@{context.own}"]), expected):
                    return False
        return True

    def check_overlap_equations(self, before: Expressions, after: Expressions) -> bool:
        """Return whether the overlaps have the same values in matrix form and written out.

        The equations are docs/theory.md (5.8) to (5.11) for a ridge, or (6.3).

        Args:
            before: equations in matrix form.
            after: equations written out.
        """
        written, given, z = (self.written, self.written_form_values(after), self.matrix_form_values.values["z"])
        for atom in written.spectral_atoms if written.at.penalty is not None else ():
            stiffness = self.prior_parameter_in_atom(written.matrix_form_symbols.G, atom.position, z)
            if not _agree_to_digits(given.values[f"G@{atom.spectrum_index}"], self.to_written_form(stiffness)):
                return False
        for context in written.token_cluster_pairs:
            generic = self.matrix_form_values.with_added_values(self.values_at_cluster(context))
            for stem in ("q", "V", "theta", "m"):
                expected = self.to_written_form(generic(before[stem]))
                index = context.own if stem == "m" else context.shared
                vanishes = stem == "m" and not written.has_nonzero_mean(context)
                if not _agree_to_digits(0 * expected if vanishes else given(after[f"{stem}@{index}"]), expected):
                    return False
        return True

    def check_free_entropy(self, before: Expressions, after: Expressions) -> bool:
        """Return whether the free entropy (docs/theory.md (4.2)) is the same number in matrix form and written out.

        Args:
            before: equations in matrix form.
            after: equations written out.
        """
        return _agree_to_digits(self.written_form_values(after)(after["Phi"]), self.matrix_form_values(before["Phi"]))

    def check_trained_parameter_equations(self, before: Expressions, after: Expressions) -> bool:
        """Return whether the equations (5.12) of trained numbers have the same values in matrix form and written out.

        Args:
            before: equations in matrix form.
            after: equations written out.
        """
        given, expected = self.written_form_values(after), self.matrix_form_values(before["trained"])
        names = [f"trained@{symbol.name}" for symbol, _ in self.written.at.trained.values()]
        return all(_agree_to_digits(given(after[name]), value) for name, value in zip(names, expected, strict=True))

    def check_field_equations(self, _before: Expressions, after: Expressions) -> bool:
        """Return whether the field g and the loss's derivatives in q and phi agree with finite differences of the loss.

        q are the student's overlaps, phi the trained numbers (`sf.trained`); all labels are tested.

        Args:
            _before: not used.
            after: equations written out.
        """
        return all(self._check_field_equation(found, after) for found in self.written.field_equations)

    def _check_field_equation(self, found: FieldEquations, after: Expressions) -> bool:
        """Return whether the field equations at one assignment of labels agree with central differences of the loss."""
        at, source = self.written.at, RandomRationals("fields")
        end = "" if found.labels is None else "|" + ",".join(map(str, found.labels))
        values: dict[sp.Symbol, Any] = {symbol: abs(source.draw_number()) for symbol in at.parameter_symbols()}
        every = [*at.X, *at.Y, *[symbol for symbol, _ in at.noise.values()], *flatten_entries(at.Q)]
        values |= {symbol: source.draw_number() for symbol in [*every, *[s for s, _ in at.trained.values()]]}
        weights = self.written.token_variances(found.labels)
        for l in range(at.structure.tokens):
            rho = token_variance_symbol(l)
            values[rho] = weights[rho].xreplace(values) if rho in weights else abs(source.draw_number())
        labels = found.labels if found.labels is not None else (0,) * at.structure.tokens
        loss = at.loss.xreplace({k: sp.Integer(n) for k, n in zip(at.labels, labels, strict=True)}).doit()
        features = {symbol: after[symbol.name] for symbol in found.features}
        width = sp.Rational(1, 10 ** (DIGITS // 2 - 3))

        def numerical_derivative(variable: sp.Symbol) -> sp.Expr:
            sides = [
                evaluate_expression_at(loss, {**values, variable: values[variable] + sign * width}, 2 * DIGITS)
                for sign in (1, -1)
            ]
            return (sp.Float(sides[0], 2 * DIGITS) - sp.Float(sides[1], 2 * DIGITS)) / (2 * width)

        def evaluate_component(name: str) -> sp.Expr:
            return sp.Float(evaluate_expression_at(after[f"{name}{end}"].xreplace(features), values, DIGITS), DIGITS)

        place, (tokens, columns) = self.written.printed_indices, at.X.shape
        wanted = {f"g@{place((l, a))}": (-1, at.X[l, a]) for l in range(tokens) for a in range(columns)}
        wanted |= {f"slope@{symbol.name}": (1, symbol) for symbol, _ in at.trained.values()}
        for l in range(tokens):
            for a, b in combinations_with_replacement(range(columns), 2):
                name, z = f"loss_q@{place((l, a, b))}", at.Q[l][a, b]
                if loss.has(z) or name in found.components:  # off the diagonal one symbol is two entries
                    wanted[name] = sp.Rational(1, 1 if a == b else 2), z
        return all(
            _agree_to_digits(evaluate_component(name), factor * numerical_derivative(z), DIGITS // 2)
            for name, (factor, z) in wanted.items()
        )

    def check_row_minimiser(self, _before: Expressions, after: Expressions) -> bool:
        """Return whether w(b) minimises the objective of a row, at fields b on both sides of every corner.

        The value at w(b) is compared with those at distances from 1e-5 to 1.

        Args:
            _before: not used.
            after: equations written out.
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


def _to_matrix(value: Any) -> sp.Matrix:
    """Return a value as a matrix; a scalar becomes a matrix of one entry."""
    return value if isinstance(value, sp.MatrixBase) else sp.Matrix([[value]])


def _agree_to_digits(given: Any, expected: Any, digits: int = DIGITS - 10) -> bool:
    """Return whether two values agree to a given number of digits; matrices entry by entry."""
    given, expected = sp.sympify(given), sp.sympify(expected)
    if isinstance(expected, sp.MatrixBase):
        if tuple(given.shape) != tuple(expected.shape):
            return False
        return all(_agree_to_digits(a, b, digits) for a, b in zip(given, expected, strict=True))
    difference, scale = (given - expected).evalf(DIGITS), 1 + abs(expected.evalf(DIGITS))
    if not difference.is_number:
        return False
    return bool(abs(difference) < scale * sp.Float(10) ** -digits)
