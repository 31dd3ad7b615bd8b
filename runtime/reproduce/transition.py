"""The main job: the phase transition of dot-product attention (arXiv 2402.03902, Fig. 2 and 3), from the free entropy
to thresholds along omega, and the same by rules as coarse as the published ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import saddleforge.derive.models

from ..branches.branch import Branch
from ..derive.digest import generator_digest
from ..files import write_whole
from ..following.critical import line_from
from ..problems.catalogue import GENERATED
from ..problems.problem import Problem
from ..progress import say
from ..saddle_point import observables
from .alpha_thresholds import GAIN, OVERLAP_ACCURACY, is_settled, threshold_in
from .base_case import OMEGAS, BaseCaseRun
from .coarse import COARSE_RULES, baseline_by_planes, coarse_crossing
from .run import BRANCHES, MODEL, SHOWN_OMEGA, Plan, unpacked
from .steps import digest_of

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

    def plan(self) -> Plan:
        """Derivation, generated solver, the base case with both thresholds, their lines along omega, coarse rules."""
        plan: Plan = [
            ("deriving the free entropy and the saddle-point equations", 5, self._derive),
            ("comparing the generated solver with the generator", 10, self._compare),
        ]
        plan += self.base_plan(alpha_c="transition", alpha_l="gain over the linear baseline")
        for kind, title in SHORT_NAMES.items():
            span = f"omega = {LINE_ENDS[0]:g} to {LINE_ENDS[1]:g}"
            plan.append((f"following {title} over {span}", 45, partial(self._line, kind)))
        plan.append(("solving with a coarse rule, as the publication did", 5, self._coarse))
        return [*plan, *self.judged_plan()]

    def aside(self) -> list[Callable[[], None]]:
        """The positional branch, alpha_l and verdicts along that branch, while the first process is at the semantic
        branch, alpha_c and lines.
        """
        semantic, positional = (work for _, _, work in self.curves_plan())
        gains = [partial(self.threshold, "alpha_l", omega) for omega in OMEGAS]
        judged = [work for _, _, work in reversed(self.judged_plan())]
        return [positional, semantic, *gains, *judged, partial(self._line, "alpha_l"), self._coarse]

    def _derive(self) -> None:
        self.results["derivation"] = self.step(
            "derivation", {"sources": _derive_digest()}, self._derived, files=("derivation.txt", "derivation.tex")
        )

    def _derived(self) -> dict[str, Any]:
        # SymPy, which a run whose derivation is kept does without.
        from ..derive.catalogue import catalogue_model
        from ..derive.report.latex import document
        from ..derive.report.text import describe
        from ..derive.theory.free_entropy import free_entropy
        from ..derive.theory.saddle_point import saddle_point

        model = catalogue_model(MODEL)
        equations = saddle_point(free_entropy()).equations
        write_whole(self.out / "derivation.txt", describe(model).rstrip("\n") + "\n")
        write_whole(self.out / "derivation.tex", document(model))
        return {"equations": [str(e.target) for e in equations]}

    def _compare(self) -> None:
        root = GENERATED
        files = sorted(p for p in root.rglob("*.py") if MODEL in p.parts or p.name == "catalogue.py")
        settings = {"sources": _derive_digest(), "files": digest_of(b"\0".join(p.read_bytes() for p in files))}

        def work() -> dict[str, Any]:
            from ..derive.emit.tree import differences

            return {"differences": differences(root, [MODEL])}

        found = self.results["generated"] = self.step("generated", settings, work)
        for sentence in found["differences"]:
            say(f"warning: {sentence}; `saddleforge generate` writes it anew")

    def _line(self, kind: str) -> None:
        """The threshold as a line in omega, both ways from where it is known."""
        known = self.results["thresholds"][kind][f"{SHOWN_OMEGA:g}"]

        def work() -> dict[str, Any]:
            return threshold_line(kind, self.base, known)

        settings = {"from": SHOWN_OMEGA, "ends": LINE_ENDS, "accuracy": LINE_ACCURACY}
        after = [f"{kind}_{SHOWN_OMEGA:g}"]
        self.results.setdefault("lines", {})[kind] = self.step(f"line_{kind}", settings, work, after=after)

    def _coarse(self) -> None:
        def work() -> dict[str, Any]:
            rows = []
            for label, rule in COARSE_RULES.items():
                rows.append({"rule": label, **coarse_crossing(self.base, rule)})
            return {"crossings": rows, "baseline": baseline_by_planes(self.base)}

        self.results["coarse"] = self.step("coarse", {"omega": SHOWN_OMEGA, "rules": list(COARSE_RULES)}, work)
        self.results["baseline"] = {
            f"{w:g}": observables.baseline_error(self.base.with_(omega=w)) for w in sorted(OMEGAS)
        }

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
    names = BRANCHES if kind == "alpha_c" else BRANCHES[:1]
    followers = {name: Branch(base, "alpha", name, OVERLAP_ACCURACY) for name in names}
    value = float(known["value"])
    bracket = (value - 0.01, value + 0.01)
    for name, follower in followers.items():
        follower.begin(bracket[1], unpacked(base, known["overlaps"][name]))
    event = threshold_in(kind, base, followers, bracket, LINE_ACCURACY)
    condition = None if kind == "alpha_c" else GAIN
    lines = [
        line_from(
            event, "crossing" if condition is None else "where", ("omega", SHOWN_OMEGA, end), condition, LINE_ACCURACY
        )
        for end in LINE_ENDS
    ]
    below, above = ([l.over_values, l.values, l.errors] for l in lines)
    omega, alpha, error = (np.concatenate([b[:0:-1], a]) for b, a in zip(below, above, strict=True))
    return {"omega": omega, "alpha": alpha, "error": error, "endings": [l.ending for l in lines]}
