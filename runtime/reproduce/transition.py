"""The main job: the phase transition of dot-product attention (arXiv 2402.03902, Fig. 2 and 3).

It goes from the free entropy to thresholds along omega, and repeats them with quadrature rules as coarse as the
published ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import saddleforge.derive.models

from ..base.files import write_atomically
from ..derive.digest import generator_code_digest
from ..following.critical import continue_event_in_second_parameter
from ..problems.catalogue import GENERATED
from ..problems.problem import Problem
from .alpha_thresholds import (
    GAIN_CONDITION,
    is_threshold_located_or_absent,
    locate_threshold_in_bracket,
    start_branches_near_alpha,
)
from .base_case import OMEGAS, BaseCaseRun
from .published_quadrature import COARSE_RULES, baseline_error_by_stroud_rule, locate_crossing_with_coarse_rule
from .run import MODEL, SHOWN_OMEGA, RunTask, unpack_overlaps
from .steps import content_digest

DERIVATION = ("derivation.txt", "derivation.tex")
FIGURES = ("overlaps", "test_error", "loss_difference", "phase_diagram")
SHORT_NAMES = {"alpha_c": "α_c: equal training loss", "alpha_l": "α_l: semantic = linear baseline"}
LINE_ENDS = (0.0, 0.45)  # of the thresholds as lines in omega
LINE_ACCURACY = 2e-3


class TransitionRun(BaseCaseRun):
    """The main run of `reproduce`: derivation, branches, thresholds along omega, and coarse quadrature rules."""

    draws = FIGURES
    page, data = "report", "results"
    others = ("derivation.txt", "derivation.tex", "tables", "figures")
    writing = "tables, figures and the report"
    # Computed while the first process computes the semantic branch, alpha_c and lines.
    second_process_steps = ("curve_positional", "curve_semantic", *(f"alpha_l_{omega:g}" for omega in OMEGAS),
             "verdicts_positional", "verdicts_semantic", "line_alpha_l", "coarse")  # fmt: skip

    def planned_tasks(self) -> Iterator[RunTask]:
        """Return the tasks: derivation, generated solver, branches, thresholds in alpha along omega, coarse rules."""
        title = "deriving the free entropy and the saddle-point equations"
        yield RunTask(title, 5, "derivation", self.write_derivation, into=("derivation",), files=DERIVATION,
                   settings={"sources": _derivation_digest()})  # fmt: skip
        title = "comparing the generated solver with the generator"
        files = sorted(p for p in GENERATED.rglob("*.py") if MODEL in p.parts or p.name == "catalogue.py")
        written = content_digest(b"\0".join(path.read_bytes() for path in files))
        yield RunTask(title, 10, "generated", self.compare_generated_solver, into=("generated",),
                   settings={"sources": _derivation_digest(), "files": written})  # fmt: skip
        yield from self.branch_tasks()
        yield from self.threshold_tasks(alpha_c="transition", alpha_l="gain over the linear baseline")
        for kind, title in SHORT_NAMES.items():
            title = f"following {title} over omega = {LINE_ENDS[0]:g} to {LINE_ENDS[1]:g}"
            after = [f"{kind}_{SHOWN_OMEGA:g}"]
            yield RunTask(title, 45, f"line_{kind}", self.follow_threshold_line, (kind,), ("lines", kind), after)
        yield RunTask(
            "solving with a coarse rule, as the publication did",
            5,
            "coarse",
            self.compute_crossings_by_coarse_rules,
            into=("coarse",),
        )
        yield from self.stability_tasks()

    def write_derivation(self) -> dict[str, Any]:
        """Write the derivation of the saddle-point equations as text and as LaTeX."""
        # SymPy: slow to load, and not needed if the derivation is stored.
        from ..derive.catalogue import catalogue_model
        from ..derive.report.latex import latex_document
        from ..derive.report.text import report_text
        from ..derive.theory.free_entropy import free_entropy
        from ..derive.theory.saddle_point import saddle_point

        model = catalogue_model(MODEL)
        equations = saddle_point(free_entropy()).equations
        for name, text in zip(DERIVATION, (report_text(model).rstrip("\n") + "\n", latex_document(model)), strict=True):
            write_atomically(self.out / name, text)
        return {"equations": [str(e.target) for e in equations]}

    def compare_generated_solver(self) -> dict[str, Any]:
        """Return a list of the differences between the solver in the package and a newly generated one."""
        from ..derive.emit.tree import find_tree_differences

        return {"differences": find_tree_differences(GENERATED, [MODEL])}

    def follow_threshold_line(self, kind: str) -> dict[str, Any]:
        """Continue a threshold in n/d = alpha from omega = 0.3, the weight of the positional target, up and down."""
        return continue_threshold_in_omega(kind, self.base, self.results["thresholds"][kind][f"{SHOWN_OMEGA:g}"])

    def compute_crossings_by_coarse_rules(self) -> dict[str, Any]:
        """Compute the loss crossing alpha_c and the linear baseline by rules as coarse as those of the publication."""
        rows = [
            {"rule": label, **locate_crossing_with_coarse_rule(self.base, rule)} for label, rule in COARSE_RULES.items()
        ]
        return {"crossings": rows, "baseline": baseline_error_by_stroud_rule(self.base)}

    def are_results_complete(self) -> bool:
        """Return whether the committed solver is up to date, and every threshold was located or shown to be absent."""
        found = [r for by_omega in self.results["thresholds"].values() for r in by_omega.values()]
        return not self.results["generated"]["differences"] and all(is_threshold_located_or_absent(r) for r in found)


def _derivation_digest() -> str:
    models = Path(saddleforge.derive.models.__path__[0])
    return content_digest(
        b"".join(p.read_bytes() for p in sorted(models.glob("*.py"))) + generator_code_digest().encode()
    )


def continue_threshold_in_omega(kind: str, base: Problem, known: Mapping[str, Any]) -> dict[str, Any]:
    """Continue a threshold in alpha along omega, the weight of the positional part of the target, as a dict for JSON.

    Args:
        kind: "alpha_c" (equal training losses) or "alpha_l" (test error equal to the linear baseline).
        base: learning problem at the omega of the known threshold.
        known: threshold from which the line is continued, from `threshold_as_dict`.
    """
    if known["value"] is None:
        return {"omega": [], "alpha": [], "error": [], "endings": [known["sentence"]]}
    value = float(known["value"])
    bracket = (value - 0.01, value + 0.01)
    seeds = {name: unpack_overlaps(base, vector) for name, vector in known["overlaps"].items()}
    followers = start_branches_near_alpha(kind, base, bracket[1], seeds)
    event = locate_threshold_in_bracket(kind, base, followers, bracket, LINE_ACCURACY)
    what, condition = ("crossing", None) if kind == "alpha_c" else ("where", GAIN_CONDITION)
    lines = [
        continue_event_in_second_parameter(event, what, ("omega", SHOWN_OMEGA, end), condition, LINE_ACCURACY)
        for end in LINE_ENDS
    ]
    below, above = ([l.over_values, l.values, l.errors] for l in lines)
    omega, alpha, error = (np.concatenate([b[:0:-1], a]) for b, a in zip(below, above, strict=True))
    return {"omega": omega, "alpha": alpha, "error": error, "endings": [l.ending for l in lines]}
