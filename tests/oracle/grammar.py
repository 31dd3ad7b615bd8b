"""Models drawn at random as texts of model files, each in the equivalent ways that it has, and for the oracle."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import sympy as sp
from reference import Setting

import saddleforge as sf

# Losses of the error e of a regression, of a margin t, and of the fields themselves; a is a scale, s a switch.
ERRORS = [
    "e**2 / 2",
    "sp.Abs(e)",
    "sp.Max(0, sp.Abs(e) - a)",
    "sp.Min(e**2 / 2, a)",
    "sp.Min(sp.Abs(e), a)",
    "sp.Heaviside(sp.Abs(e) - a)",
    "a * sp.log(1 + e**2 / a)",
    "sp.log(1 + e**2 / a**2)",
    "sp.sqrt(e**2 + a**2)",
    "1 - sp.exp(-e**2 / (2 * a**2))",
    "e**2 / (a**2 + e**2)",
    "sp.Piecewise((e**2 / 2, sp.Abs(e) < a), (a * sp.Abs(e) - a**2 / 2, True))",
    "a * (sf.softplus(2 * e / a) - e / a)",
    "sp.Max(a * e, -e)",
    "sp.Abs(e)**sp.Rational(3, 2)",
    "e**4 / 4 + a * sp.Abs(e)",
    "sp.Max(0, e)**2 + a * sp.Max(0, -e)",
    "sp.Min(e**2, (e - 1)**2 + a)",
    "a * e**2 + sp.Heaviside(e) / 2",
    "e**2 / 2 + a * (1 - sp.cos(3 * e))",
]
MARGINS = [
    "sp.Max(0, a - t)",
    "sp.Max(0, a - t)**2 / 2",
    "sf.softplus(-t / a) * a",
    "sp.Heaviside(a - t)",
    "sp.Min(1, sp.Max(0, a - t))",
    "sf.sigmoid(-t / a)",
    "sp.Abs(a - t)",
    "(1 - t)**2 / 2 + a * sp.Abs(t)",
    "sp.exp(-t)",
    "sp.Min(1, sp.Max(0, a - t)**2)",
    "sp.log(1 + sp.exp(-2 * t)) + a * sp.Heaviside(-t)",
]
ODD = [  # a target of one teacher's field, or two, and what is compared with it of the student's
    ["Y[0]", "Y[0]", "s * Y[0]", "Y[0] + s", "sp.sign(Y[0]) + s", "sp.Max(Y[0], s)", "Y[0] * (2 + s) / 2",
     "sp.tanh(3 * Y[0]) + s", "Y[0]**3 / 3"],
    ["Y[0] + s * Y[1]", "sp.Max(Y[0], Y[1])", "Y[0] * sp.Heaviside(Y[1])", "Y[0] + sp.Abs(Y[1])"],
    ["X[0]"] * 7 + ["X[0] * sp.Abs(X[0])", "sp.tanh(X[0])", "b * X[0]", "X[0] - b", "X[0] + X[0]**3 / 3",
     "sp.Max(X[0], -a)"],
]  # fmt: skip
EVEN = [
    ["sp.Abs(Y[0])", "Y[0]**2 - s", "sp.Max(Y[0]**2, 1)"],
    ["Y[0] * Y[1]", "sp.Abs(Y[0]) + s * Y[1]"],
    ["sp.Abs(X[0])", "X[0]**2", "sp.Max(X[0], 0)"],
]
TWO_STUDENTS = ["X[0] + X[1]", "X[0] - X[1]", "sp.Max(X[0], X[1])", "(sp.Abs(X[0]) + X[0] + X[1]) / 2"]
METRICS = [
    "e**2",
    "sp.Abs(e)",
    "sp.Heaviside(sp.Abs(e) - 1)",
    "(1 - sp.sign(X[0]) * sp.sign(Y[0])) / 2",
    "sp.Min(e**2, 1)",
    "sp.Max(0, sp.Abs(X[0]) - sp.Abs(Y[0]))",
    "sp.Heaviside(X[0] - 1) * sp.Heaviside(Y[0])",
    "sp.log(1 + 4 * e**2)",
    "sp.sqrt(sp.Abs(e))",
    "sp.Abs(sp.Abs(X[0]) - 1)",
]
SMOOTH = [  # next to trained numbers slopes that jump are refused; of two columns most others take long
    ["e**2 / 2", "a * sp.log(1 + e**2 / a)", "sp.sqrt(e**2 + a**2)", "e**2 / (a**2 + e**2)", "e**4 / 4 + a * e**2"],
    ["sf.softplus(-t / a) * a", "(1 - t)**2 / 2"],
]
CONVEX = [
    ["e**2 / 2", "sp.Abs(e)", "sp.Max(0, sp.Abs(e) - a)", "sp.sqrt(e**2 + a**2)"],
    ["sp.Max(0, a - t)", "sf.softplus(-t / a)", "(1 - t)**2 / 2"],
]
SWITCHES = [("1", "1/2"), ("-1", "1"), ("0", "1"), ("1", "3"), ("1", "-1/5")]
PENALTIES = {
    "ridge": ("", "sf.Ridge(0.1)"),
    "l1": ("@sf.penalty\ndef norm(w, *, l1=sf.Parameter(0.1, 0), l2=sf.Parameter(0.1, 0)):\n"
           "    return l1 * sp.Abs(w[0]) + l2 * w[0]**2 / 2\n\n\n", "norm"),
}  # fmt: skip
LAWS = {  # weights, factors of the variance, second moments of the teacher's rows: an entry an atom
    "plain": ([1.0], [1.0], [1.0]),
    "spectrum": ([0.6, 0.4], [0.5, 2.0], [1.0, 1.0]),
    "sparse": ([0.25, 0.75], [1.0, 1.0], [4.0, 0.0]),
}
STARTS = {(1, 1): "0.6", (2, 1): "((0.6,), (0.2,))", (1, 2): "((0.6, 0.2),)", (2, 2): "((0.6, 0.1), (0.2, 0.5))"}
FILE = '''"""Drawn at random."""

import sympy as sp

import saddleforge as sf


def law(structure, *, sigma=sf.Parameter(1, 0, open_low=True), p=sf.Parameter(0.5, 0, 1)):
    return sf.Tokens(weights={weights}, covariance={covariance}, teacher={teacher}{labels})


{penalty}def metric(h, Y, {names}):
    X = h
    s = {switch}
    e = t = {error}
    return sp.sympify({metric})


@sf.model(
    student={student},
    teacher={teachers},
    {clusters}law=law,
    regulariser={regulariser},
    noise={{{noise}}},
    metric=metric,
    starts={{"informed": sf.Start(teacher={start}, noise=0.3), "uninformed": sf.Start(noise=0.6)}},
)
def {name}(X, Y, {fields}*, {parameters}):
    """Drawn at random."""
    s = {switch}
    e = t = {error}
    return sp.sympify({loss})
'''


@dataclass(frozen=True)
class Drawn:
    """A structure, by the pieces of its text."""

    seed: int
    loss: str
    error: str
    metric: str
    switch: tuple[str, str]
    law: str
    penalty: str
    student: int
    teachers: int

    def holds(self, name: str) -> bool:
        """Return whether loss or error hold a name."""
        return any(re.search(rf"\b{name}\b", text) is not None for text in (self.loss, self.error))

    @property
    def ways(self) -> list[str]:
        """How the switch may be written: as a label, as noise with two values, where it has one value as a number."""
        return ["label", "noise", "number"] if self.holds("s") else ["number"]

    def text(self, way: str) -> str:
        """Return the model file, its switch written in one of the ways."""
        values = ", ".join(f"sp.Rational('{value}')" for value in self.switch)
        weights, factors, rows = LAWS[self.law]
        contexts = 2 if way == "label" else 1
        noise, fields, parameters = [], [], ["a=sf.Parameter(1, 0, open_low=True)"]
        if self.holds("u"):
            fields, noise = ["u"], ['"u": sf.GaussianNoise("Delta")']
            parameters.append("Delta=sf.Parameter(0.25, 0)")
        if way == "label":
            fields.append("k")
        if way == "noise":
            fields.append("s")
            noise.append(f'"s": sf.DiscreteNoise(({values}), ("p", "1 - p"))')
        trained = ["b"] if self.holds("b") else []
        if trained:
            parameters.append(f"b=sf.trained({int('b *' in self.error)}, ridge=0.1)")
        penalty, regulariser = PENALTIES[self.penalty]
        return FILE.format(
            weights=weights,
            covariance="[" + ", ".join(f"[{f} * sigma**2] * {contexts}" for f in factors) + "]",
            teacher="[" + ", ".join(f"{row} * sp.eye({self.teachers})" for row in rows) + "]",
            labels=", labels=[p, 1 - p]" if way == "label" else "",
            clusters="clusters=2,\n    " if way == "label" else "",
            switch={"label": f"sf.by_label(k[0], {values})", "noise": "s"}.get(way, values.split(", ")[0]),
            penalty=penalty,
            regulariser=regulariser,
            noise=", ".join(noise),
            names=", ".join([*fields, *trained, "a"]),
            fields="".join(f"{name}, " for name in fields),
            parameters=", ".join(parameters),
            start=STARTS[self.student, self.teachers],
            name=f"drawn_{self.seed}_{way}",
            **{name: getattr(self, name) for name in ("error", "metric", "loss", "student", "teachers")},
        )

    def setting(self, way: str, numbers: dict[str, float]) -> Setting:
        """Return the same problem for the oracle."""
        n, t, p = self.student, self.teachers, numbers["p"]
        X, Y = sp.Matrix(1, n, sp.symbols("x:2", real=True)[:n]), sp.Matrix(1, t, sp.symbols("y:2", real=True)[:t])
        u, s, k, b = (sp.Symbol(name, real=True) for name in "uskb")
        values = tuple(sp.Rational(value) for value in self.switch)
        switch = {"label": sf.by_label(k, *values), "noise": s}.get(way, values[0])
        scope = {"sp": sp, "sf": sf, "X": X, "Y": Y, "u": u, "s": switch, "b": b, "a": sp.Rational(str(numbers["a"]))}
        scope["e"] = scope["t"] = e = eval(self.error, scope)
        weights, factors, rows = LAWS[self.law]
        contexts = 2 if way == "label" else 1
        gram = np.zeros((len(weights), contexts + t, contexts + t))
        gram[:, contexts:, contexts:] = np.array(rows)[:, None, None] * np.eye(t)
        return Setting(
            loss=sp.sympify(eval(self.loss, scope)),
            metric=sp.sympify(eval(self.metric, scope)),
            student=list(X),
            teacher=list(Y),
            alpha=numbers["alpha"],
            ridge=numbers["l2"] if self.penalty == "l1" else numbers["lambda_"],
            l1=numbers["l1"] if self.penalty == "l1" else 0.0,
            label=k if way == "label" else None,
            labels=(p, 1 - p) if way == "label" else (1.0,),
            normal={u: numbers["Delta"]} if self.holds("u") else {},
            discrete={s: (values, (p, 1 - p))} if way == "noise" else {},
            trained={b: 0.1} if self.holds("b") else {},
            weights=weights,
            gamma=np.array(factors)[:, None] * numbers["sigma"] ** 2 * np.ones((1, contexts)),
            gram=gram,
            taught=np.zeros((contexts, t)),
            marks=tuple((e, float(width)) for width in (numbers["a"],) if self.holds("a")),
        )

    def problem(self, way: str, numbers: dict[str, float], folder: Path) -> sf.Problem:
        """Return the problem that the package makes of the text."""
        path = folder / f"drawn_{self.seed}_{way}.py"
        if not path.exists():
            path.write_text(self.text(way), encoding="utf-8")
        known = {"alpha", "sigma", "a", "p"} | ({"l1", "l2"} if self.penalty == "l1" else {"lambda_"})
        known |= {"Delta"} if self.holds("u") else set()
        return sf.problem(path, **{name: value for name, value in numbers.items() if name in known})


def draw(seed: int) -> Drawn:
    """Return the structure of a seed."""
    random = Random(seed)
    student = random.choices((1, 2), (9, 1))[0]
    teachers = random.choices((1, 2), (4, 1))[0]
    targets, others, students = random.choices((ODD, EVEN), (5, 1))[0]
    X = random.choice(students if student == 1 else TWO_STUDENTS)
    is_margin = students is not EVEN[2] and random.random() < 0.3
    if is_margin:
        flip = random.choice(["", "", "s * "])
        error = f"{flip}sp.sign({random.choice(['Y[0]', 'Y[0]', 'Y[0] + u'])}) * ({X})"
        loss = random.choice(MARGINS)
        metric = random.choice(METRICS[1:])
    else:
        target = random.choice(targets if teachers == 1 else others)
        error = f"{target}{random.choice([' + u', ' + u', ''])} - ({X})"
        loss = random.choice(ERRORS)
        metric = random.choice(METRICS)
    if re.search(r"\bb\b", error):  # slopes that jump are refused next to trained numbers
        loss = random.choice(SMOOTH[is_margin])
    if student == 2:
        loss = random.choice(CONVEX[is_margin])
        metric = random.choice(["e**2", "sp.Min(e**2, 1)"])
    if random.random() < 0.1 and "b" not in error:
        loss += " + a * sp.Abs(X[0])"
    law = random.choices(list(LAWS), (4, 1, 1))[0]
    penalty = random.choices(list(PENALTIES), (4, 1))[0] if student == 1 else "ridge"
    return Drawn(seed, loss, error, metric, random.choice(SWITCHES), law, penalty, student, teachers)


def numbers(seed: int, count: int) -> list[dict[str, float]]:
    """Return values of the parameters, from ordinary to extreme."""
    random, found = Random(f"numbers {seed}"), []
    for i in range(count):
        spread = (0.5, 1.0, 2.0)[i % 3]  # decades to either side
        scale = lambda middle, spread=spread: float(f"{middle * 10 ** random.uniform(-spread, spread):.3g}")  # noqa: E731
        one = {"alpha": scale(2.0), "a": scale(0.7), "lambda_": scale(0.2), "l1": scale(0.1), "l2": scale(0.1)}
        one |= {"Delta": scale(0.3), "sigma": scale(1.0) if i % 2 else 1.0}
        found.append(one | {"p": random.choice([0.5, 0.8, 0.9, 0.03, 1.0])})
    return found
