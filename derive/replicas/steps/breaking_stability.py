"""Steps 11 and 12 with one step of breaking: stability against clusters of states and of a state itself.

The equations are docs/theory.md (18.22), (18.23).
"""

from __future__ import annotations

import sympy as sp

from ...authoring.regulariser import Regulariser
from ...calculus.averages import Jacobian, drop_transposes_of_symmetric_matrices
from ...theory.free_entropy import FreeEntropy, free_entropy
from ...theory.stability import replicon_map
from ..algebra.levels import ROW_TILTED, TILTED, ReplicaBreakingSymbols, parisi, tilted_averages
from ..algebra.step import Expressions, Step, declare_test
from .second_variation import (
    OverlapPerturbation,
    inputs_of_stability_step,
    prior_perturbation,
    second_variation,
    tests_at_integer_replica_numbers,
)

_CITATION = (
    "E. Gardner, Nucl. Phys. B 257, 747 (1985); A. Montanari, F. Ricci-Tersenghi, Eur. Phys. J. B 33, 339 (2003); "
    "J. R. L. de Almeida, D. J. Thouless, J. Phys. A 11, 983 (1978)"
)


def cluster_perturbation(p: ReplicaBreakingSymbols, ridge: bool) -> OverlapPerturbation:
    """Return the perturbation of overlaps between blocks, to which a block of replicas responds as a whole.

    Args:
        p: symbols of the order parameters.
        ridge: whether the regulariser is a ridge.
    """
    samples, rows = tilted_averages(p)
    row = (p.Lambda + p.G - parisi * p.Q_Delta).inv() if ridge else rows.outermost_response
    return OverlapPerturbation(samples.outermost_response, row, blocks=(4,), size=2)


def state_perturbation(p: ReplicaBreakingSymbols, ridge: bool) -> OverlapPerturbation:
    """Return the perturbation of the overlaps of replicas in one block, that is, within a state.

    Each replica responds by its own Jacobian, and responses are averaged with the weights of the states.

    Args:
        p: symbols of the order parameters.
        ridge: whether the regulariser is a ridge.
    """
    row = (p.Lambda + p.G).inv() if ridge else Jacobian(p.w, p.b)
    return OverlapPerturbation(
        Jacobian(p.g, p.omega), row, TILTED, "" if ridge else ROW_TILTED, blocks=(2,), size=4, within=True
    )


def stability_steps(p: ReplicaBreakingSymbols, action: Expressions, regulariser: Regulariser) -> tuple[Step, Step]:
    """Return derivation steps 11 and 12: stability for overlaps between blocks, and within one.

    Args:
        p: symbols of the order parameters.
        action: results of step 3, the replicated action.
        regulariser: regulariser of the rows.
    """
    ridge = regulariser.row_regulariser.kind == "ridge"
    used = free_entropy(p.s, p.t, regulariser, p.trained, p.loss_depends_on_q)

    def _stability_step(number: int, name: str, moved: OverlapPerturbation, rule: str) -> Step:
        """Return one of the two derivation steps on the stability of a solution with replica symmetry breaking.

        Args:
            number: number of the step.
            name: title of the step.
            moved: perturbation of the overlaps.
            rule: what the step does, in words.
        """
        tests = (*tests_at_integer_replica_numbers(p, moved), _check_replicon_against_second_variation(used, p))
        before, after = inputs_of_stability_step(p, action), second_variation(p, action, moved)
        return Step(number, name, before, after, rule, _CITATION, tests)

    return (
        _stability_step(
            11,
            "Stability against clusters of states (type I)",
            cluster_perturbation(p, ridge),
            "Overlaps of replicas in different blocks are perturbed, all those of two blocks alike, by a matrix as for "
            "the replica-symmetric saddle point with blocks in place of replicas. A block answers as a whole: by the "
            "response of the tilted average, of a row by that with V^ - 𝔶 Delta^ in place of V^. This response is "
            "smooth also where the proximal map jumps. If the map has an eigenvalue above 1 states come in clusters.",
        ),
        _stability_step(
            12,
            "Stability of a state (type II)",
            state_perturbation(p, ridge),
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
def _check_replicon_against_second_variation(
    _before: Expressions, after: Expressions, used: FreeEntropy, p: ReplicaBreakingSymbols
) -> bool:
    operator = replicon_map(used)
    zero = sp.ZeroMatrix(p.s, p.s)
    samples, rows = tilted_averages(p)
    alike = {tilt.outermost_response: Jacobian(tilt.slope, tilt.fields[-1]) for tilt in (samples, rows)}
    found = {}
    for name in ("D_hat", "D_prime"):
        value = (
            after[name]
            .xreplace(alike)
            .replace(lambda a: getattr(a, "kind", "") in (TILTED, ROW_TILTED), lambda a: a.summand)
        )
        found[name] = drop_transposes_of_symmetric_matrices(
            value.xreplace({(-parisi * p.Q_Delta).doit(): zero}).doit(), p
        )
    prior = operator.prior.replace(lambda a: getattr(a, "kind", "") == "contexts", lambda a: prior_perturbation(p))
    return bool(found["D_hat"] == drop_transposes_of_symmetric_matrices(operator.channel, p)) and bool(
        found["D_prime"].doit() == drop_transposes_of_symmetric_matrices(prior.doit(), p)
    )
