"""Steps 11 and 12 with one step of breaking: whether states cluster, and whether a state falls apart
(docs/theory.md (18.22), (18.23))."""

from __future__ import annotations

import sympy as sp

from ...authoring.regulariser import Regulariser
from ...calculus.averages import Jacobian, symmetrised
from ...theory.free_entropy import FreeEntropy, free_entropy
from ...theory.stability import replicon
from ..algebra.levels import ROW_TILTED, TILTED, Broken, parisi, tilts
from ..algebra.step import Expressions, Step, declare_test
from .second_variation import Perturbed, composite, given, integer_tests, variation

_CITATION = (
    "E. Gardner, Nucl. Phys. B 257, 747 (1985); A. Montanari, F. Ricci-Tersenghi, Eur. Phys. J. B 33, 339 (2003); "
    "J. R. L. de Almeida, D. J. Thouless, J. Phys. A 11, 983 (1978)"
)


def clustering(p: Broken, ridge: bool) -> Perturbed:
    """Overlaps of different blocks, moved alike for all their replicas: blocks answer as a whole."""
    sentences, rows = tilts(p)
    row = (p.Lambda + p.G - parisi * p.Q_Delta).inv() if ridge else rows.response
    return Perturbed(sentences.response, row, blocks=(4,), size=2)


def splitting(p: Broken, ridge: bool) -> Perturbed:
    """Overlaps within blocks: the replicas of a block answer singly, at fields with the weight of its states."""
    row = (p.Lambda + p.G).inv() if ridge else Jacobian(p.w, p.b)
    return Perturbed(Jacobian(p.g, p.omega), row, TILTED, "" if ridge else ROW_TILTED, blocks=(2,), size=4, within=True)


def steps(p: Broken, action: Expressions, regulariser: Regulariser) -> tuple[Step, Step]:
    """The second variation of step 9 without blocks, for overlaps of different blocks and for those within one."""
    ridge = regulariser.rows.kind == "ridge"
    used = free_entropy(p.s, p.t, regulariser, p.trained, p.loss_holds_q)

    def made(number: int, name: str, moved: Perturbed, rule: str) -> Step:
        tests = (*integer_tests(p, moved), _is_replicon(used, p))
        return Step(number, name, given(p, action), variation(p, action, moved), rule, _CITATION, tests)

    return (
        made(
            11,
            "Stability against clusters of states (type I)",
            clustering(p, ridge),
            "Overlaps of replicas in different blocks are perturbed, all those of two blocks alike, by a matrix as for "
            "the replica-symmetric saddle point with blocks in place of replicas. A block answers as a whole: by the "
            "response of the tilted average, of a row by that with V^ - 𝔶 Delta^ in place of V^. This response is "
            "smooth also where the proximal map jumps. If the map has an eigenvalue above 1 states come in clusters.",
        ),
        made(
            12,
            "Stability of a state (type II)",
            splitting(p, ridge),
            "Overlaps of replicas within a block are perturbed, with rows that sum to zero within each block. Replicas "
            "of a block answer singly, averaged over the weight of its states. Where the proximal map jumps the "
            "response has a delta part, whose square is infinite: then the states of one step of breaking fall apart "
            "in turn, as those of every finite number of steps do.",
        ),
    )


@declare_test(
    "without blocks the replicon operator",
    "at Delta = 0 and its conjugate the map of message passing, as symbols",
    ("D_hat", "D_prime"),
)
def _is_replicon(_before: Expressions, after: Expressions, used: FreeEntropy, p: Broken) -> bool:
    operator = replicon(used)
    zero = sp.ZeroMatrix(p.s, p.s)
    sentences, rows = tilts(p)
    alike = {tilt.response: Jacobian(tilt.slope, tilt.fields[-1]) for tilt in (sentences, rows)}
    found = {}
    for name in ("D_hat", "D_prime"):
        value = (
            after[name]
            .xreplace(alike)
            .replace(lambda a: getattr(a, "kind", "") in (TILTED, ROW_TILTED), lambda a: a.summand)
        )
        found[name] = symmetrised(value.xreplace({(-parisi * p.Q_Delta).doit(): zero}).doit(), p)
    prior = operator.prior.replace(lambda a: getattr(a, "kind", "") == "contexts", lambda a: composite(p))
    return bool(found["D_hat"] == symmetrised(operator.channel, p)) and bool(
        found["D_prime"].doit() == symmetrised(prior.doit(), p)
    )
