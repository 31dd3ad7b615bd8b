"""The steps as sections of a report, with every symbol said in words where it first stands."""

from __future__ import annotations

import sympy as sp

from ..averages import COORDINATE, Jacobian, MatrixAverage, Symbols
from ..model import Model, ModelAt
from ..stability import TOKENS
from ..text import Relation, Section, Stacked, Table, Words, with_symbols
from .ansatz import ansatz
from .derivation import derivation
from .fields import Inputs
from .objects import SAMPLES, LogDet, LogIntegral, beta, n, replicated, scalars_out
from .second_variation import composite, perturbations, strength
from .step import Derivation, Step
from .zero_temperature import rescaling

Items = list[Relation | Words | Table]


def step_sections(at: ModelAt) -> dict[int, Section]:
    """Step number -> its section; every check is carried out and its outcome said."""
    steps = derivation(at)
    p = Symbols(*_sizes(steps), len(at.trained), at.loss_holds_q)
    items = {
        1: _partition(steps[1], p), 2: _fields(steps[2], p), 3: _action(steps[3], p), 4: _ansatz(steps[4], p),
        5: _limit(steps[5]), 6: _finite(steps[6]), 7: _zero(steps[7], p), 8: _saddle(steps[8]),
        9: _stability(steps[9], p),
    }  # fmt: skip
    return {
        step.number: Section(
            f"Step {step.number}: {step.name}",
            (
                with_symbols(step.rule, _OVERLAPS),
                *items[step.number],
                with_symbols(_checked(step), _OVERLAPS),
                Words("{}", (f"See {step.citation}.",)),
            ),
        )
        for step in steps.steps
    }


# What the words of a step call by name, printed without the index of a context.
_OVERLAPS = {name: Stacked(sp.MatrixSymbol(name, 1, 1)) for name in ("q", "V", "m", "theta")}


def _sizes(steps: Derivation) -> tuple[sp.Expr, sp.Expr]:
    return next(a for a in steps[2].after["theta|a"].atoms(sp.MatrixSymbol) if a.name == "W|a").shape[1], next(
        a for a in steps[2].after["theta|a"].atoms(sp.MatrixSymbol) if a.name == "W_star"
    ).shape[1]


def _checked(step: Step) -> str:
    """The outcome of every check, in words."""
    said = []
    checks = step.check()
    for word, outcome in (("Checked", True), ("FAILED", False)):
        names: dict[str, list[str]] = {}
        for check in checks:
            if check.passed == outcome:
                names.setdefault(check.detail, []).append(check.name)
        if names:
            said.append(f"{word}: {'; '.join(f'{_listed(known)} ({detail})' for detail, known in names.items())}.")
    return " ".join(said)


def _listed(names: list[str]) -> str:
    """Names with a common beginning, said once."""
    first, *rest = names
    start = first.rpartition(" ")[0] + " "
    return ", ".join([first, *[name.removeprefix(start) for name in rest]])


def _partition(step: Step, p: Symbols) -> Items:
    weights = Inputs(p).weights("a")
    W = sp.MatrixSymbol("W", *weights.shape)
    return [
        Words(
            "{} is the inverse temperature, {} the number of replicas (a and b count them), {} a sample of the {} "
            "ones, {} a row of the weights {} (d x s), {} the penalty of a row.",
            (beta, n, *[sp.Symbol(name) for name in ("sample_index", "alpha_d", "row_index")], W, sp.Symbol("penalty")),
        ),
        Relation(sp.log(sp.Symbol("Z")), LogIntegral(step.before["weight"], W)),
        Relation(sp.log(sp.Symbol("Z") ** n), LogIntegral(step.after["weight"], weights)),
    ]  # fmt: skip


def _fields(step: Step, p: Symbols) -> Items:
    given, x = Inputs(p), sp.MatrixSymbol("x", p.s, 1)
    left = {
        "m|a": replicated(p.m, "a"), "q|ab": replicated(p.q, "ab"), "theta|a": replicated(p.theta, "a"),
        "m_star": p.m_star, "rho_star": p.rho_star,
    }  # fmt: skip
    return [
        Words(
            "A token {} has mean {} and covariance {} of its context and the positional encoding {}; {} (d x t) are "
            "the teacher's weights.",
            (given.token, given.mean, given.covariance, given.encoding, given.teacher),
        ),
        Relation(replicated(x, "a"), step.before["X|a"]),
        Relation(p.Y, step.before["Y"]),
        Words("Given the label of the token they are jointly normal, with means and covariances"),
        *[Relation(left[name], value) for name, value in step.after.items()],
    ]


def _potentials(step: Step, change: bool = False) -> Items:
    names = {"trace": "S_trace", "entropic": "S_rows", "energetic": "S_sentences", "trained": "S_trained"}
    items: Items = []
    for name, value in step.after.items():
        if name in names:
            short, exponents = _with_exponents(value)
            items.append(Relation(sp.Symbol(f"{'slope_' if change else ''}{names[name]}"), short))
            items += [] if change else exponents  # those of single integrals are the same before and after the limit
    return items


def _with_exponents(expression: sp.Expr) -> tuple[sp.Expr, Items]:
    """The expression with the exponents of its integrals named, and what they are."""
    relations: Items = []
    for integral in expression.atoms(LogIntegral):
        stem, _, replicas = integral.variable.name.partition("|")
        named = sp.Symbol(f"{'H' if replicas else 'h'}_{stem}")
        expression = expression.xreplace({integral: LogIntegral(named, integral.variable)})
        # Replicas stand in sums over sums, which are taken apart to fit on lines.
        exponent = scalars_out(integral.exponent) if replicas else integral.exponent
        relations.append(Relation(named, exponent))
    return expression, relations


def _action(step: Step, p: Symbols) -> Items:
    r = sp.MatrixSymbol("r|a", p.s, p.s)
    definitions = [
        Relation(sp.MatrixSymbol(name.partition(" ")[0], *value.shape), MatrixAverage(COORDINATE, value))
        for name, value in step.before.items()
        if name != "weight"
    ]
    total = [sp.Symbol("S_trace"), sp.Symbol("S_rows"), sp.Symbol("S_sentences")]
    total += [sp.Symbol("S_trained")] if "trained" in step.after else []
    return [
        Words(
            "In the common eigenbasis the overlaps are averages over the coordinates, {} being that of a replica with "
            "itself and {} a row of its weights:",
            (r, replicated(p.w, "a")),
        ),
        *definitions,
        Words("With a conjugate, written with a hat, for each of them,"),
        Relation(sp.Symbol("replicated_action"), sp.Add(*total), "for large d, extremised over all of them"),
        *_potentials(step),
    ]


def _ansatz(step: Step, p: Symbols) -> Items:
    """Composites come first: the rows' potential is written in them."""
    trained = [] if p.trained else [replicated(p.phi, "a")]
    mean = sp.BlockMatrix([[p.m], [p.m_star]])
    items: Items = [
        *[Relation(left, right) for left, right in ansatz(p).items() if left not in trained],
        Words("The conjugates act on a row through their sums"),
        *[Relation(z, MatrixAverage("contexts", summand)) for z, summand in p.composites.items()],
        Words(
            "and the field {} of a row is normal with mean {} and covariance {}, its average written {}. The fields {} "
            "and {} of token l are jointly normal with mean and covariance",
            (p.b, p.B, p.Q, sp.Symbol("mean_field"), p.omega, p.Y),
        ),
        Relation(sp.Symbol("field_mean"), mean),
        Relation(sp.Symbol("field_covariance"), step.after["covariance"]),
        Words("In each replica, {} is normal around the shared {} with covariance {}. Then", (_x(p), p.omega, p.V)),
        *_potentials(step),
    ]
    if "entropic of ridge" in step.after:
        items += [
            Words(
                "With {} the diagonal matrix of the strengths of the ridge penalty the rows' potential is", (p.Lambda,)
            ),
            Relation(sp.Symbol("S_rows"), step.after["entropic of ridge"]),
        ]
    return items


def _x(p: Symbols) -> sp.MatrixSymbol:
    return sp.MatrixSymbol("x", p.s, 1)


def _limit(step: Step) -> Items:
    A, U = sp.MatrixSymbol("A", 1, 1), sp.MatrixSymbol("U", 1, 1)
    power = sp.log(sp.Function("E")(sp.Symbol("I") ** n))
    slope = LogDet(A) + sp.Trace(A.inv() * U)
    items: Items = [
        Words(
            "The slope of {} at n = 0 is the average of {}, that of the log det of the matrix with blocks A + U on the "
            "diagonal and U off it is {}. Hence",
            (power, sp.log(sp.Symbol("I")), slope),
        ),
        *_potentials(step, change=True),
    ]
    if "entropic of ridge" in step.after:
        items += [
            Words("and for ridge"),
            Relation(sp.Symbol("slope_S_rows"), step.after["entropic of ridge"]),
        ]
    return items


def _finite(step: Step) -> Items:
    value, _ = _with_exponents(step.after["Phi_beta"])
    return [Relation(sp.Symbol("Phi_beta"), value, "extremised over all overlaps and conjugates")]


def _zero(step: Step, p: Symbols) -> Items:
    rows: Items = []
    if "N" in step.after:
        rows = [
            Words("and {}, averaged over a coordinate and its field, the maximum over {} of", (p.envelope, p.w)),
            Relation(sp.Symbol("row_objective"), step.after["N"]),
        ]
    shown = [z for z in rescaling(p) if z in (p.V, p.V_hat, p.q_hat, p.m_hat, p.theta_hat)]
    return [
        *[Relation(z, rescaling(p)[z], sign="->") for z in shown],
        Words("The free entropy at zero temperature is the limit of {} over {}:", (sp.Symbol("Phi_beta"), beta)),
        Relation(sp.Symbol("Phi"), step.after["Phi"]),
        Words("where {} is the minimum over the fields X of one sentence of", (p.moreau,)),
        Relation(sp.Symbol("objective"), step.after["M"]),
        *rows,
    ]


def _saddle(step: Step) -> Items:
    return [
        Words("The training loss, per dimension and with loss and penalty at their minimisers, is"),
        Relation(sp.Symbol("training_loss"), step.after["training_loss"]),
        Relation(sp.Symbol("training_loss"), -sp.Symbol("Phi"), "at the saddle point"),
        Words("The conditions themselves follow."),
    ]


def _stability(step: Step, p: Symbols) -> Items:
    D, D_hat = perturbations(p)
    parts = [step.after[name] for name in ("trace", "rows", "sentences")]
    return [
        Relation(replicated(p.q, "ab"), p.q + strength() * D),
        Relation(replicated(p.q_hat, "ab"), p.q_hat + strength() * D_hat),
        Words("A row of the weights feels the sum over contexts"),
        Relation(composite(p), MatrixAverage("contexts", p.gamma * D_hat)),
        Words("To second order, per sum of {} and over {}, the action changes by", (strength() ** 2, beta**2)),
        Relation(sp.Symbol("second_variation"), scalars_out(sp.Add(*parts))),
        Words("which is stationary where {} and {} are", (D_hat, D)),
        Relation(D_hat, step.after["D_hat"]),
        Relation(D, step.after["D_prime"]),
        Words("The map from the right of the one to the left of the other is the replicon operator below."),
    ]  # fmt: skip


def gamp_section(p: Symbols) -> Section:
    """Generalised approximate message passing at finite d (theory.md section 10); its state evolution is step 8."""
    given, A = Inputs(p), sp.MatrixSymbol("A_row", p.s, p.s)
    xi = sp.Symbol("xi", real=True)
    W = sp.MatrixSymbol("W", given.d, p.s)
    cavity = W.T * (given.token + given.encoding) / sp.sqrt(given.d) - p.V * sp.MatrixSymbol("g_previous", p.s, 1)
    return Section(
        "Message passing",
        (
            Words(
                "At finite d the same quantities are iterated on one data set (generalised approximate message "
                "passing); the saddle-point equations are its state evolution where the proximal map does not jump. "
                "{} is coordinate {} of token and encoding over the root of d, {} the field of the step before; a row "
                "of the weights minimises {} plus half the quadratic form of {} minus its product with {}.",
                (xi, sp.Symbol("row_index"), sp.MatrixSymbol("g_previous", p.s, 1), sp.Symbol("penalty"), A, p.b),
            ),
            Relation(p.omega, cavity),
            Relation(p.V, MatrixAverage(COORDINATE, p.gamma * Jacobian(p.w, p.b))),
            Relation(A, -1 * MatrixAverage(SAMPLES, MatrixAverage(TOKENS, p.gamma * Jacobian(p.g, p.omega))) / given.d),
            Relation(p.b, MatrixAverage(SAMPLES, MatrixAverage(TOKENS, xi * p.g)) + A * p.w),
        ),
    )


def reference_section(model: Model, at: ModelAt) -> Section:
    """Everything cited, once."""
    cited = [part.strip() for step in derivation(at).steps for part in step.citation.split(";")]
    listed = list(dict.fromkeys([*([model.source] if model.source else []), *cited]))
    return Section("References", tuple(Words(f"[{i + 1}] {text}.") for i, text in enumerate(listed)))
