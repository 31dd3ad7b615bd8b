"""The main job: the phase transition of dot-product attention (arXiv 2402.03902, Fig. 2 and 3), from the free entropy
to thresholds along omega, and the same by rules as coarse as the published ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import saddleforge.derive.models

from ..base.files import write_whole
from ..derive.digest import generator_digest
from ..following.critical import line_from
from ..problems.catalogue import GENERATED
from ..problems.problem import Problem
from .alpha_thresholds import GAIN, followers_near, is_settled, threshold_in
from .base_case import OMEGAS, BaseCaseRun
from .coarse import COARSE_RULES, baseline_by_planes, coarse_crossing
from .run import MODEL, SHOWN_OMEGA, Task, unpacked
from .steps import digest_of

DERIVATION = ("derivation.txt", "derivation.tex")
FIGURES = ("overlaps", "test_error", "loss_difference", "phase_diagram")
SHORT_NAMES = {"alpha_c": "α_c: equal training loss", "alpha_l": "α_l: semantic = linear baseline"}
LINE_ENDS = (0.0, 0.45)  # of the thresholds as lines in omega
LINE_ACCURACY = 2e-3


class TransitionRun(BaseCaseRun):
    """Derivation, branches, thresholds and their lines along omega, coarse rules."""

    draws = FIGURES
    page, data = "report", "results"
    others = ("derivation.txt", "derivation.tex", "tables", "figures")
    writing = "tables, figures and the report"
    # While the first process is at the semantic branch, alpha_c and lines.
    aside = ("curve_positional", "curve_semantic", *(f"alpha_l_{omega:g}" for omega in OMEGAS), "verdicts_positional",
             "verdicts_semantic", "line_alpha_l", "coarse")  # fmt: skip

    def plan(self) -> Iterator[Task]:
        """Derivation, generated solver, the base case with both thresholds, their lines along omega, coarse rules."""
        title = "deriving the free entropy and the saddle-point equations"
        yield Task(title, 5, "derivation", self.derive, into=("derivation",), files=DERIVATION,
                   settings={"sources": _derive_digest()})  # fmt: skip
        title = "comparing the generated solver with the generator"
        files = sorted(p for p in GENERATED.rglob("*.py") if MODEL in p.parts or p.name == "catalogue.py")
        written = digest_of(b"\0".join(path.read_bytes() for path in files))
        yield Task(title, 10, "generated", self.compare, into=("generated",),
                   settings={"sources": _derive_digest(), "files": written})  # fmt: skip
        yield from self.curves()
        yield from self.thresholds(alpha_c="transition", alpha_l="gain over the linear baseline")
        for kind, title in SHORT_NAMES.items():
            title = f"following {title} over omega = {LINE_ENDS[0]:g} to {LINE_ENDS[1]:g}"
            after = [f"{kind}_{SHOWN_OMEGA:g}"]
            yield Task(title, 45, f"line_{kind}", self.line, (kind,), ("lines", kind), after)
        yield Task("solving with a coarse rule, as the publication did", 5, "coarse", self.coarse, into=("coarse",))
        yield from self.verdicts()

    def derive(self) -> dict[str, Any]:
        """Write the derivation as text and as LaTeX."""
        # SymPy, which a run whose derivation is kept does without.
        from ..derive.catalogue import catalogue_model
        from ..derive.report.latex import document
        from ..derive.report.text import describe
        from ..derive.theory.free_entropy import free_entropy
        from ..derive.theory.saddle_point import saddle_point

        model = catalogue_model(MODEL)
        equations = saddle_point(free_entropy()).equations
        for name, text in zip(DERIVATION, (describe(model).rstrip("\n") + "\n", document(model)), strict=True):
            write_whole(self.out / name, text)
        return {"equations": [str(e.target) for e in equations]}

    def compare(self) -> dict[str, Any]:
        """Whether the committed solver is what the generator writes."""
        from ..derive.emit.tree import differences

        return {"differences": differences(GENERATED, [MODEL])}

    def line(self, kind: str) -> dict[str, Any]:
        """The threshold as a line in omega, both ways from where it is known."""
        return threshold_line(kind, self.base, self.results["thresholds"][kind][f"{SHOWN_OMEGA:g}"])

    def coarse(self) -> dict[str, Any]:
        """alpha_c and the linear baseline by rules as coarse as the published ones."""
        rows = [{"rule": label, **coarse_crossing(self.base, rule)} for label, rule in COARSE_RULES.items()]
        return {"crossings": rows, "baseline": baseline_by_planes(self.base)}

    def is_complete(self) -> bool:
        """Whether the generated solver is fresh and every threshold converged or has no sign change to be found."""
        found = [r for by_omega in self.results["thresholds"].values() for r in by_omega.values()]
        return not self.results["generated"]["differences"] and all(is_settled(r) for r in found)


def _derive_digest() -> str:
    models = Path(saddleforge.derive.models.__path__[0])
    return digest_of(b"".join(p.read_bytes() for p in sorted(models.glob("*.py"))) + generator_digest().encode())


def threshold_line(kind: str, base: Problem, known: Mapping[str, Any]) -> dict[str, Any]:
    """A threshold in alpha along omega: omega, alpha, error (ascending in omega), and why it ends on either side."""
    if known["value"] is None:
        return {"omega": [], "alpha": [], "error": [], "endings": [known["sentence"]]}
    value = float(known["value"])
    bracket = (value - 0.01, value + 0.01)
    seeds = {name: unpacked(base, vector) for name, vector in known["overlaps"].items()}
    followers = followers_near(kind, base, bracket[1], seeds)
    event = threshold_in(kind, base, followers, bracket, LINE_ACCURACY)
    what, condition = ("crossing", None) if kind == "alpha_c" else ("where", GAIN)
    lines = [line_from(event, what, ("omega", SHOWN_OMEGA, end), condition, LINE_ACCURACY) for end in LINE_ENDS]
    below, above = ([l.over_values, l.values, l.errors] for l in lines)
    omega, alpha, error = (np.concatenate([b[:0:-1], a]) for b, a in zip(below, above, strict=True))
    return {"omega": omega, "alpha": alpha, "error": error, "endings": [l.ending for l in lines]}
