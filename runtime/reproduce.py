"""The main job: the phase transition of dot-product attention (arXiv 2402.03902, Fig. 2 and 3), from the free entropy
to a report that sets every number beside the published one.

Each step leaves its result in `out/steps` under a key of what it depends on, so that an interrupted run goes on where
it stopped and a second run only draws the report. A threshold starts from the stored overlaps of a neighbouring one,
which makes its digits the same whether the neighbour was computed just now or long ago.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import xarray

from . import observables, plots, report, tables
from ._version import __version__
from .branches import Branch, Curve, curve
from .contract import clean, dumps
from .critical import line_from
from .errors import InputError, NotConvergedError
from .files import check_folder, occupied, write_whole
from .fixed_point import StateMap, damped
from .integration import GaussHermite, Rule
from .integration.exchange import Reduction
from .integration.fields import DomainError, Fields
from .overlaps import Overlaps
from .problem import Problem, problem
from .progress import bar, say
from .solution import Solution, branch_of, start_overlaps
from .thresholds import Threshold, crossing, loss_difference, where

MODEL = "dot_product_attention"
SHOWN_OMEGA = 0.3
OMEGAS = (0.3, 0.2, 0.1, 0.0, 0.4)  # in the order in which each starts from those before
BRANCHES = ("semantic", "positional")
GAIN = "test_error = baseline_error"  # of the semantic branch: alpha_l
LINE_ENDS = (0.0, 0.45)  # of the thresholds as lines in omega
LINE_ACCURACY = 2e-3
GRID = (0.1, 2.5, 25)
CURVE_ACCURACY = 1e-3
CROSSING_ACCURACY = {SHOWN_OMEGA: 3e-4, 0.0: 2e-3}  # both branches are soft at omega = 0
THRESHOLD_ACCURACY = 1e-3  # of the others
# Of the overlaps on which a threshold is located. Phi is stationary: 1e-3 costs 1e-6 of the training loss. The test
# error is not, and is solved again more finely where its error bar asks for that.
OVERLAP_ACCURACY = 1e-3
FIGURES = ("overlaps", "test_error", "loss_difference", "phase_diagram")
# Drawn on request only: each has a longer job of its own.
EXTENSIONS, STABILITY, FINITE_SIZE = "extensions", "stability", "finite-size"
STEPS = "steps"
# What a run writes into its folder.
WRITTEN = (
    *(f"{name}.{kind}" for name in ("report", "extensions", "stability", "finite-size") for kind in ("md", "html")),
    *(f"{name}.json" for name in ("results", "extensions", "stability_map", "finite_size")),
    *("derivation.txt", "derivation.tex", "tables", "figures"),
)
# Seconds a step is expected to take on two cores from empty caches.
BUDGET = {
    "derivation": 5,
    "generated": 10,
    "curve": 60,
    "coarse": 5,
    "alpha_c": 12,
    "alpha_l": 5,
    "line": 45,
    "report": 5,
}


@dataclass(frozen=True)
class Reproduction:
    """What `reproduce` leaves behind.

    Attributes:
        results: what the report shows, as plain numbers and words (see `report.markdown`).
        complete: every threshold was located to its accuracy or shown not to exist, and the generated solver is fresh.
    """

    out: Path
    results: Mapping[str, Any]
    complete: bool
    page: str = "report.html"

    @property
    def report(self) -> Path:
        return self.out / self.page

    def to_json(self) -> dict[str, Any]:
        """The results, with the names of the files."""
        return {**self.results, "report": str(self.report), "complete": self.complete}


Plan = list[tuple[str, int, Callable[[], None]]]
"""What a run does, in order: a title, the seconds it may take, and the work."""


class Steps:
    """Named pieces of work whose results are kept in a folder and used again while what they depend on is the same."""

    def __init__(self, out: Path, common: Mapping[str, Any]) -> None:
        self.out, self.common = out, dict(common)
        (out / STEPS).mkdir(parents=True, exist_ok=True)  # by which the folder is known again
        self.keys: dict[str, str] = {}
        self.computed: list[str] = []

    def key(self, name: str, settings: Mapping[str, Any], after: Iterable[str]) -> str:
        """Digest of everything the step depends on: model, version, code, settings and the steps before it."""
        parts = {
            "name": name,
            "common": self.common,
            "settings": clean(dict(settings)),
            "after": {n: self.keys[n] for n in after},
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def run(
        self,
        name: str,
        settings: Mapping[str, Any],
        work: Callable[[], Mapping[str, Any]],
        *,
        files: Sequence[str] = (),
        after: Iterable[str] = (),
    ) -> dict[str, Any]:
        """The result of a step, read back if it is there, else computed and kept.

        Args:
            work: returns what JSON can hold, and writes `files` (relative to the folder) itself.
            after: names of earlier steps whose results it uses.
        """
        key = self.keys[name] = self.key(name, settings, after)
        path = self.out / STEPS / f"{name}.json"
        kept = self._read(path, key)
        if kept is not None:
            return kept
        result = clean(dict(work()))
        digests = {file: digest_of((self.out / file).read_bytes()) for file in files}
        write_whole(path, dumps({"key": key, "settings": dict(settings), "files": digests, "result": result}) + "\n")
        self.computed.append(name)
        return result

    def _read(self, path: Path, key: str) -> dict[str, Any] | None:
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["key"] != key:
                return None
            for file, digest in kept["files"].items():
                if digest_of((self.out / file).read_bytes()) != digest:
                    return None
            return kept["result"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _numerics_digest(base: Problem) -> str:
    """Digest of the code that decides the digits: all of this package that a run imports, and the generated solver."""
    from .derive.digest import syntax_digest

    return syntax_digest(Path(__file__).parent, Path(__file__).name) + solver_digest(base)


def solver_digest(at: Problem) -> str:
    """Digest of a generated solver."""
    return digest_of(b"\0".join(path.read_bytes() for path in sorted(at.solver.folder.glob("*.py"))))


def refuse_foreign(out: Path) -> None:
    """Refuse a folder in which files of somebody else would be written over: without steps, they are not of a run.

    Raises:
        InputError: there is one.
    """
    if (out / STEPS).is_dir():
        return
    for name in WRITTEN:
        if (out / name).exists():
            raise occupied(out / name, "it exists, and is not of an earlier run of this command")


def reproduce(out: str | Path, figures: Iterable[str] | None = None) -> Reproduction:
    """Derive, follow the branches, locate the thresholds, and write tables, figures and the report into a folder.

    Args:
        out: folder; what an earlier run left there is used again where it is still valid.
        figures: names among FIGURES to draw, default all of them; or EXTENSIONS (see `extensions`), STABILITY (see
            `stability_map`) or FINITE_SIZE (see `simulation.finite_size`).

    Raises:
        InputError: the folder cannot be written, or a figure has no such name.
    """
    out = check_folder(Path(out))
    wanted = tuple(figures or FIGURES)
    known = (*FIGURES, EXTENSIONS, STABILITY, FINITE_SIZE)
    for name in wanted:
        if name not in known:
            raise InputError(f"no figure {name!r}; known are {', '.join(known)}")
    runs: list[Run] = []
    if set(wanted) & set(FIGURES):
        runs.append(Run(out, tuple(name for name in wanted if name in FIGURES)))
    if EXTENSIONS in wanted:
        from .extensions import ExtensionsRun

        runs.append(ExtensionsRun(out))
    if STABILITY in wanted:
        from .stability_map import StabilityRun

        runs.append(StabilityRun(out))
    if FINITE_SIZE in wanted:
        from .simulation.finite_size import FiniteSizeRun

        runs.append(FiniteSizeRun(out))
    found = [run.all() for run in runs]
    if len(found) == 1:
        return found[0]
    results = {
        **found[0].results,
        **{run.figures[0]: one.results for run, one in zip(runs[1:], found[1:], strict=True)},
    }
    return Reproduction(out, results, all(one.complete for one in found), found[0].page)


class Run:
    """One run: the steps in order, with a bar over all of them."""

    page = "report.html"

    def __init__(self, out: Path, figures: tuple[str, ...]) -> None:
        self.out, self.figures = out, figures
        self.base = problem(MODEL, alpha=2.0, omega=SHOWN_OMEGA)
        common = {"model": MODEL, "digest": self.base.solver.digest, "version": __version__}
        self.steps = Steps(out, {**common, "numerics": _numerics_digest(self.base)})
        self.results: dict[str, Any] = {**common, "omega": SHOWN_OMEGA}

    def all(self) -> Reproduction:
        plan = self._plan()
        say(f"about {sum(b for _, b, _ in plan) // 60 + 1} minutes from empty caches, less where results are kept")
        with bar("reproduce", len(plan)) as task:
            for number, (title, budget, work) in enumerate(plan, start=1):
                task.describe(title)
                before, began = len(self.steps.computed), time.monotonic()
                work()
                taken = time.monotonic() - began
                how = "done" if len(self.steps.computed) > before or number == len(plan) else "kept from before"
                say(f"{title}: {how}, {taken:.0f} s (budget {budget} s)")
                task.advance()
        return Reproduction(self.out, self.results, self._complete(), self.page)

    def _complete(self) -> bool:
        return report.is_complete(self.results)

    def _plan(self) -> Plan:
        plan: Plan = [
            ("deriving the free entropy and the saddle-point equations", BUDGET["derivation"], self._derive),
            ("comparing the generated solver with the generator", BUDGET["generated"], self._compare),
        ]
        plan += self._branches_and_thresholds(alpha_c="transition", alpha_l="gain over the linear baseline")
        for kind, title in report.SHORT_NAMES.items():
            span = f"omega = {LINE_ENDS[0]:g} to {LINE_ENDS[1]:g}"
            plan.append((f"following {title} over {span}", BUDGET["line"], partial(self._line, kind)))
        plan.append(("solving with a coarse rule, as the publication did", BUDGET["coarse"], self._coarse))
        plan.append(("writing tables, figures and the report", BUDGET["report"], self._write))
        return plan

    def _branches_and_thresholds(self, **kinds: str) -> Plan:
        """The branches at omega = 0.3 and thresholds at every omega.

        Args:
            kinds: alpha_c, alpha_l or both, each with what it is called.
        """
        plan: Plan = [
            (f"following the {name} branch at omega = {SHOWN_OMEGA:g}", BUDGET["curve"], partial(self._curve, name))
            for name in BRANCHES
        ]
        for omega in OMEGAS:
            for kind, title in kinds.items():
                sentence = f"locating {kind} ({title}) at omega = {omega:g}"
                plan.append((sentence, BUDGET[kind], partial(self._threshold, kind, omega)))
        return plan

    # What is computed

    def _derive(self) -> None:
        self.results["derivation"] = self.steps.run(
            "derivation", {"sources": _derive_digest()}, self._derived, files=("derivation.txt", "derivation.tex")
        )

    def _derived(self) -> dict[str, Any]:
        from .derive.catalogue import catalogue_model
        from .derive.report.latex import document
        from .derive.report.text import describe
        from .derive.theory.free_entropy import free_entropy
        from .derive.theory.saddle_point import saddle_point

        model = catalogue_model(MODEL)
        equations = saddle_point(free_entropy()).equations
        write_whole(self.out / "derivation.txt", describe(model).rstrip("\n") + "\n")
        write_whole(self.out / "derivation.tex", document(model))
        return {"equations": [str(e.target) for e in equations]}

    def _compare(self) -> None:
        from . import generated

        root = Path(generated.__path__[0])
        files = sorted(p for p in root.rglob("*.py") if MODEL in p.parts or p.name == "catalogue.py")
        settings = {"sources": _derive_digest(), "files": digest_of(b"\0".join(p.read_bytes() for p in files))}

        def work() -> dict[str, Any]:
            from .derive.emit.tree import differences

            return {"differences": differences(root, [MODEL])}

        found = self.results["generated"] = self.steps.run("generated", settings, work)
        for sentence in found["differences"]:
            say(f"warning: {sentence}; `saddleforge generate` writes it anew")

    def _curve(self, name: str) -> None:
        files = (f"tables/{name}.nc", f"tables/{name}.csv")

        def work() -> dict[str, Any]:
            found = curve(self.base, start=name, alpha=GRID, accuracy=CURVE_ACCURACY, refine_end=2)
            if not found.solutions:
                raise NotConvergedError(f"the {name} branch was not found at omega = {SHOWN_OMEGA:g}")
            return self.keep_curve(found, files)

        settings = {"omega": SHOWN_OMEGA, "grid": GRID, "accuracy": CURVE_ACCURACY}
        self.results.setdefault("curves", {})[name] = self.steps.run(f"curve_{name}", settings, work, files=files)

    def keep_curve(self, found: Curve, files: tuple[str, str]) -> dict[str, Any]:
        """Write a branch as netCDF and CSV; returns what is said of it."""
        dataset = found.to_xarray()
        tables.save_dataset(dataset, self.out / files[0])
        write_whole(self.out / files[1], tables.dataset_frame(dataset).to_csv(index=False, lineterminator="\n"))
        return {"ends": found.end_text(), "points": len(found.solutions)}

    def dataset(self, name: str) -> xarray.Dataset:
        """The table of a branch at omega = 0.3; `name` may lead into a folder."""
        return tables.load_dataset(self.out / "tables" / f"{name}.nc")

    def _threshold(self, kind: str, omega: float) -> None:
        found = self.results.setdefault("thresholds", {}).setdefault(kind, {})
        earlier = {float(w): r for w, r in found.items()}
        accuracy = CROSSING_ACCURACY.get(omega, THRESHOLD_ACCURACY) if kind == "alpha_c" else THRESHOLD_ACCURACY
        after = [f"curve_{name}" for name in BRANCHES] + [f"{kind}_{w:g}" for w in earlier]

        def work() -> dict[str, Any]:
            guess, step, seeds = self._guess(kind, omega, earlier)
            return located(kind, self.base.with_(omega=omega), guess, step, seeds, accuracy)

        name = f"{kind}_{omega:g}"
        found[f"{omega:g}"] = self.steps.run(name, {"omega": omega, "accuracy": accuracy}, work, after=after)

    def _line(self, kind: str) -> None:
        """The threshold as a line in omega, both ways from where it is known."""
        known = self.results["thresholds"][kind][f"{SHOWN_OMEGA:g}"]

        def work() -> dict[str, Any]:
            return threshold_line(kind, self.base, known)

        settings = {"from": SHOWN_OMEGA, "ends": LINE_ENDS, "accuracy": LINE_ACCURACY}
        after = [f"{kind}_{SHOWN_OMEGA:g}"]
        self.results.setdefault("lines", {})[kind] = self.steps.run(f"line_{kind}", settings, work, after=after)

    def _guess(
        self, kind: str, omega: float, earlier: Mapping[float, Mapping[str, Any]]
    ) -> tuple[float, float, dict[str, Overlaps]]:
        """Where to look, in steps of what width, and overlaps to start from: from the curves, then from neighbours."""
        if not earlier:
            datasets = {name: self.dataset(name) for name in BRANCHES}
            guess = guess_from_curves(kind, datasets)
            return guess, 0.02, {n: nearest_overlaps(self.base, d, guess) for n, d in datasets.items()}
        nearest = min(earlier, key=lambda w: abs(w - omega))
        seeds = {n: unpacked(self.base, u) for n, u in earlier[nearest]["overlaps"].items()}
        points = {w: float(r["value"]) for w, r in earlier.items() if r["value"] is not None}
        return extrapolated(points, omega), 0.08, seeds

    def _coarse(self) -> None:
        def work() -> dict[str, Any]:
            rows = []
            for label, rule in COARSE_RULES.items():
                rows.append({"rule": label, **coarse_crossing(self.base, rule)})
            return {"crossings": rows, "baseline": baseline_by_planes(self.base)}

        self.results["coarse"] = self.steps.run("coarse", {"omega": SHOWN_OMEGA, "rules": list(COARSE_RULES)}, work)
        self.results["baseline"] = {
            f"{w:g}": observables.baseline_error(self.base.with_(omega=w)) for w in sorted(OMEGAS)
        }

    # What is written

    def _write(self) -> None:
        dataset, frame = threshold_tables(self.results)
        tables.save_dataset(dataset, self.out / "tables" / "thresholds.nc")
        write_whole(self.out / "tables" / "thresholds.csv", frame.to_csv(index=False, lineterminator="\n"))
        lines = pandas.concat([lines_frame(kind, found) for kind, found in self.results["lines"].items()])
        write_whole(self.out / "tables" / "lines.csv", lines.to_csv(index=False, lineterminator="\n"))
        images = self._figures()
        write_whole(self.out / "report.md", report.markdown(self.results, images))
        write_whole(self.out / "report.html", report.html(self.results, images))
        write_whole(self.out / "results.json", dumps(self.results) + "\n")

    def _figures(self) -> dict[str, bytes]:
        datasets = {name: self.dataset(name) for name in BRANCHES}
        thresholds = self.results["thresholds"]

        def marks(*kinds: str) -> list[dict[str, Any]]:
            found = [(kind, thresholds[kind][f"{SHOWN_OMEGA:g}"]) for kind in kinds]
            return [
                {"value": r["value"], "error": r["error"], "label": report.SHORT_NAMES[kind]}
                for kind, r in found
                if r["value"] is not None
            ]

        draw: dict[str, Callable[[Path], Any]] = {
            "overlaps": lambda path: plots.plot_overlaps(datasets, path, marks=marks("alpha_c")),
            "test_error": lambda path: plots.plot_test_error(datasets, path, marks=marks("alpha_c", "alpha_l")),
            "loss_difference": lambda path: plots.plot_loss_difference(
                datasets[BRANCHES[0]], datasets[BRANCHES[1]], path, marks=marks("alpha_c")
            ),
            "phase_diagram": lambda path: plots.plot_phase_diagram(phase_lines(self.results), path),
        }
        images = {}
        for name in self.figures:
            path = self.out / "figures" / f"{name}.png"
            draw[name](path)
            images[name] = path.read_bytes()
        return images


def _derive_digest() -> str:
    from .derive.digest import generator_digest

    models = Path(sys.modules[f"{__package__}.derive"].__path__[0]) / "models"
    return digest_of(b"".join(p.read_bytes() for p in sorted(models.glob("*.py"))) + generator_digest().encode())


def located(
    kind: str,
    at: Problem,
    guess: float,
    step: float,
    seeds: Mapping[str, Overlaps],
    accuracy: float,
    *,
    overlap_accuracy: float = OVERLAP_ACCURACY,
    reached: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A threshold in alpha near a guess, as plain numbers and words; where there is none, the evidence for that.

    Args:
        kind: alpha_c, equal training loss; alpha_l, test error of the semantic branch equal to the baseline.
        step: between the values of alpha tried until the sign changes.
        seeds: overlaps near the guess to start each branch from.
        overlap_accuracy: of the overlaps on which the threshold is located, relative.
        reached: what the solutions of a branch go by where that is not its name (see `Branch`).
    """
    names = BRANCHES if kind == "alpha_c" else BRANCHES[:1]
    called = dict(reached or {})
    followers = {n: Branch(at, "alpha", n, overlap_accuracy, reached=called.get(n)) for n in names}
    for name, follower in followers.items():
        _seed(follower, guess + step / 2, seeds.get(name))
    bracket = _bracketed(kind, followers, guess + step / 2, step)
    if isinstance(bracket, str):
        return absent_result(kind, followers, bracket)
    try:
        return threshold_result(_locate(kind, at, followers, bracket, accuracy))
    except NotConvergedError as error:
        return {**absent_result(kind, followers, str(error)), "status": "not_converged"}


def _bracketed(
    kind: str, followers: Mapping[str, Branch], first: float, step: float, lowest: float = 0.1, highest: float = 4.0
) -> tuple[float, float] | str:
    """An interval with a sign change, to be searched from its upper end; or a sentence saying why there is none.

    Above a threshold the compared difference is negative. Solutions at small alpha are costly and may not exist: the
    walk goes down only from where the difference is negative, and stops soon after a branch has ended.
    """

    def difference(alpha: float) -> float | None:
        found = [follower.at(alpha) for follower in followers.values()]
        solutions = [solution for solution in found if solution is not None]
        return _compared(kind, solutions)["difference"] if len(solutions) == len(found) else None

    above, value = first, difference(first)
    below: tuple[float, float] | None = None
    while value is None or value > 0:
        if value is not None:
            below = (above, value)
        above, step = above + step, 1.5 * step
        if above > highest:
            return f"no value of alpha up to {highest:g} was found above which the difference is negative"
        value = difference(above)
    missing: float | None = None
    while below is None:
        alpha = above - step if missing is None else (above + missing) / 2
        if alpha < lowest or (missing is not None and above - missing < 0.01):
            end = "" if missing is None else f"; at {missing:.4g} the branches were not found together"
            return f"the difference stays negative down to alpha = {above:.4g}{end}"
        lower = difference(alpha)
        if lower is None:
            missing = alpha
        elif lower > 0:
            below = (alpha, lower)
        else:
            above, value = alpha, lower
            if missing is None:
                step *= 1.5
    # The search walks down in quarters: its first step is to end a little below the root of the chord.
    root = above - value * (above - below[0]) / (value - below[1])
    second = max(below[0], root - 0.15 * (above - below[0]))
    return above - 4 * (above - second), above


def _seed(follower: Branch, alpha: float, overlaps: Overlaps | None) -> None:
    """Let a branch begin from overlaps of a neighbouring problem, where they lead to it."""
    if overlaps is None:
        return
    follower.begin(alpha, overlaps)


def _locate(
    kind: str, at: Problem, followers: Mapping[str, Branch], bracket: tuple[float, float], accuracy: float
) -> Threshold:
    if kind == "alpha_c":
        pair = (followers[BRANCHES[0]], followers[BRANCHES[1]])
        return crossing(at, "alpha", between=BRANCHES, bracket=bracket, accuracy=accuracy, branches=pair)
    (branch,) = followers.values()
    return where(at, GAIN, on=branch.name, bracket=bracket, accuracy=accuracy, branch=branch)


def threshold_line(kind: str, base: Problem, known: Mapping[str, Any]) -> dict[str, Any]:
    """A threshold in alpha along omega: omega, alpha, error (ascending in omega), and why it ends on either side."""
    if known["value"] is None:
        return {"omega": [], "alpha": [], "error": [], "endings": [known["sentence"]]}
    names = BRANCHES if kind == "alpha_c" else BRANCHES[:1]
    followers = {name: Branch(base, "alpha", name, OVERLAP_ACCURACY) for name in names}
    value = float(known["value"])
    bracket = (value - 0.01, value + 0.01)
    for name, follower in followers.items():
        _seed(follower, bracket[1], unpacked(base, known["overlaps"][name]))
    event = _locate(kind, base, followers, bracket, LINE_ACCURACY)
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


def threshold_result(found: Threshold) -> dict[str, Any]:
    pairs = list(zip(found.branches, found.solutions, strict=True))
    return {
        "value": found.value,
        "error": found.error,
        "error_kind": found.error_kind,
        "status": found.status,
        "verdicts": {name: s.stability.verdict if s.stability else "not known" for name, s in pairs},
        "bistable_shares": {name: s.averages.bistable if s.averages else None for name, s in pairs},
        "evidence": found.evidence,
        "overlaps": {name: s.overlaps.pack() for name, s in pairs},
        "sentence": "",
    }


def absent_result(kind: str, followers: Mapping[str, Branch], sentence: str) -> dict[str, Any]:
    """No threshold was found: what was compared, and where each branch was seen and not seen."""
    known = [follower.known for follower in followers.values()]
    common = sorted(set(known[0]).intersection(*known[1:]))
    rows = []
    for alpha in common:
        solutions = [k[alpha] for k in known]
        rows.append({"alpha": alpha, **_compared(kind, solutions)})
    lost = {n: max([a for a in f.failed if a not in f.known], default=None) for n, f in followers.items()}
    found = {n: min(f.known, default=None) for n, f in followers.items()}
    nearest = {n: f.known[min(f.known)].overlaps.pack() for n, f in followers.items() if f.known}
    return {
        "value": None,
        "error": None,
        "error_kind": None,
        "status": "absent",
        "verdicts": {},
        "bistable_shares": {},
        "evidence": {"compared": rows, "lowest_alpha_found": found, "highest_alpha_not_found": lost},
        "overlaps": nearest,
        "sentence": sentence,
    }


def _compared(kind: str, solutions: Sequence[Solution]) -> dict[str, float]:
    if kind == "alpha_c":
        difference, error = loss_difference(*solutions)
        return {"difference": difference, "error": error}
    (one,) = solutions
    return {"difference": one.test_error - one.baseline_error, "error": one.test_error_error}


def unpacked(at: Problem, vector: Sequence[float]) -> Overlaps:
    return Overlaps.unpack(np.array(vector, float), at.sizes)


def nearest_overlaps(at: Problem, dataset: xarray.Dataset, alpha: float) -> Overlaps:
    row = dataset.sel(alpha=alpha, method="nearest")
    shapes = {"q": (at.student_rank,) * 2, "V": (at.student_rank,) * 2, "m": (at.student_rank,)}
    shapes["theta"] = (at.student_rank, at.teacher_rank)
    return Overlaps(**{name: row[name].values.reshape(at.contexts, *shape) for name, shape in shapes.items()})


def guess_from_curves(kind: str, datasets: Mapping[str, xarray.Dataset]) -> float:
    """The sign change along the curves, by linear interpolation; their upper end if there is none."""
    semantic = datasets["semantic"]
    if kind == "alpha_c":
        alpha, difference, _ = plots.loss_difference(semantic, datasets["positional"])
    else:
        alpha, difference = semantic["alpha"].values, (semantic["test_error"] - semantic["baseline_error"]).values
    changes = np.nonzero(difference[:-1] * difference[1:] <= 0)[0]
    if not len(changes):
        return float(alpha[-1])
    i = changes[-1]
    return float(alpha[i] - difference[i] * (alpha[i + 1] - alpha[i]) / (difference[i + 1] - difference[i]))


def extrapolated(points: Mapping[float, float], omega: float) -> float:
    """A threshold at omega from those at others: its logarithm through the nearest three or two, or of slope 2.5.

    Kept in [0.3, 2.5].
    """
    near = sorted(points, key=lambda w: abs(w - omega))[:3]
    if not near:
        return 1.0
    if len(near) == 1:
        logarithm = np.log(points[near[0]]) + 2.5 * (omega - near[0])
    else:
        logarithm = np.polyval(np.polyfit(near, [np.log(points[w]) for w in near], len(near) - 1), omega)
    return float(np.clip(np.exp(logarithm), 0.3, 2.5))


# The coarse rules of the publication


@dataclass(frozen=True)
class PlaneRule(GaussHermite):
    """Twelve points of degree 7 in the plane of Y and in that of omega (Stroud's E_2^{r^2} 7-1), two tokens only."""

    points: int = 12
    starts: int = 0
    name: str = "planes of 12 points"

    def _reduction(self, problem: Problem, fields: Fields, labels: tuple[int, ...]) -> Reduction:
        return Reduction(())

    def _sets(self, problem: Problem, fields: Fields, reduction: Reduction) -> list[tuple[np.ndarray, np.ndarray]]:
        nodes, weights = plane_rule()
        pairs = np.concatenate([np.repeat(nodes, len(nodes), axis=0), np.tile(nodes, (len(nodes), 1))], axis=1)
        return [(np.ascontiguousarray(pairs), np.outer(weights, weights).ravel())]


def plane_rule() -> tuple[np.ndarray, np.ndarray]:
    """Nodes (12, 2) and weights of degree 7 for the standard normal law of the plane (Stroud, E_2^{r^2} 7-1)."""
    root = np.sqrt(5.0)
    outer, near, far = np.sqrt(6.0), np.sqrt((9 - 3 * root) / 4), np.sqrt((9 + 3 * root) / 4)
    corners = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)], float)
    axes = np.array([(1, 0), (-1, 0), (0, 1), (0, -1)], float)
    nodes = np.concatenate([outer * axes, near * corners, far * corners])
    return nodes, np.repeat([1 / 36, (5 + 2 * root) / 45, (5 - 2 * root) / 45], 4)


COARSE_RULES: dict[str, Rule] = {
    "12 points of degree 7 a plane, one proximal start": PlaneRule(),
    "12 points of degree 7 a plane, global proximal map": PlaneRule(starts=1),
    "Gauss-Hermite, 4 nodes an axis, one proximal start": GaussHermite(4, starts=0),
}


def coarse_crossing(base: Problem, rule: Rule, low: float = 0.8, high: float = 1.8) -> dict[str, Any]:
    """Where the two branches cross under a coarse rule: value (None without a crossing), residual, sentence."""
    last: dict[str, Overlaps] = {}
    worst = 0.0

    def difference(alpha: float) -> float:
        nonlocal worst
        at = base.with_(alpha=alpha)
        state_map = StateMap(at, rule)
        losses = []
        for name in BRANCHES:
            point = damped(state_map, last.get(name) or start_overlaps(at, name), 1e-7, max_iterations=2000)
            if not point.status.success or branch_of(point.overlaps) != name:
                raise NotConvergedError(f"the {name} branch was lost at alpha = {alpha:g}")
            last[name], worst = point.overlaps, max(worst, point.residual)
            averages = state_map.averages(point.overlaps)
            hats = state_map.conjugates(point.overlaps, averages.moments.mean(axis=0))
            losses.append(observables.losses(at, point.overlaps, hats, averages).training_loss)
        return losses[0] - losses[1]

    from scipy.optimize import brentq

    try:
        value = float(brentq(difference, high, low, xtol=3e-4))
    except (NotConvergedError, DomainError, ValueError) as error:
        return {"value": None, "residual": worst, "sentence": str(error)}
    return {"value": value, "residual": worst, "sentence": ""}


def baseline_by_planes(base: Problem) -> float:
    """Error of the linear baseline by the 12 points of the coarse rule."""
    nodes, weights = plane_rule()
    metric = base.solver.metric
    (labels, _), *_ = base.label_choices
    contexts = base.context_of(labels)
    error, gradient, hessian = metric.baseline_terms(
        np.ascontiguousarray(nodes),
        np.ascontiguousarray(weights),
        np.ascontiguousarray(base.law.teacher_means[contexts]),
        np.ascontiguousarray(np.linalg.cholesky(base.law.rho_star[contexts])),
        base.noise_scale,
        base.constants(labels),
    )
    return float(error - gradient @ np.linalg.solve(hessian, gradient) / 2)


# Tables of the thresholds


def threshold_tables(results: Mapping[str, Any]) -> tuple[xarray.Dataset, pandas.DataFrame]:
    """Thresholds along omega with half widths, published values, status and verdicts."""
    thresholds = results["thresholds"]
    omegas = sorted({float(w) for found in thresholds.values() for w in found})
    columns: dict[str, Any] = {"omega": np.array(omegas)}
    for kind, found in thresholds.items():
        rows = [found.get(f"{w:g}", {}) for w in omegas]
        columns[kind] = np.array([number_or_nan(r.get("value")) for r in rows])
        columns[f"{kind}_error"] = np.array([number_or_nan(r.get("error")) for r in rows])
        columns[f"{kind}_published"] = np.array([report.PUBLISHED[kind].get(f"{w:g}", np.nan) for w in omegas])
        columns[f"{kind}_status"] = np.array([r.get("status", "") for r in rows], object)
        verdicts = [" | ".join(f"{b}: {v}" for b, v in r.get("verdicts", {}).items()) for r in rows]
        columns[f"{kind}_rs_verdict"] = np.array(verdicts, object)
    variables = {name: ("omega", values) for name, values in columns.items() if name != "omega"}
    dataset = xarray.Dataset(variables, coords={"omega": columns["omega"]})
    dataset.attrs = {name: results[name] for name in ("model", "digest", "version")}
    dataset.attrs["parameter"] = "omega"
    return dataset, pandas.DataFrame(columns)


def lines_frame(kind: str, line: Mapping[str, Any]) -> pandas.DataFrame:
    """A threshold as a line in omega: one row a point."""
    columns = {name: np.asarray(line[name], float) for name in ("omega", "alpha", "error")}
    return pandas.DataFrame({"threshold": kind, **columns})


def phase_lines(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The thresholds as `plots.plot_phase_diagram` takes them."""
    lines = []
    for kind, found in results["thresholds"].items():
        omegas = sorted(found, key=float)
        lines.append(
            {
                "label": report.SHORT_NAMES[kind],
                "omega": [float(w) for w in omegas],
                "alpha": [number_or_nan(found[w]["value"]) for w in omegas],
                "error": [number_or_nan(found[w]["error"]) for w in omegas],
                "published": [(float(w), value) for w, value in report.PUBLISHED[kind].items()],
                "line": results["lines"][kind],
            }
        )
    return lines


def number_or_nan(value: float | None) -> float:
    return np.nan if value is None else float(value)


__all__ = ["FIGURES", "Reproduction", "Steps", "reproduce"]
