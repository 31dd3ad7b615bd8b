"""Second moments of the rows of the weights, which are the variables of the dynamics, and their starts."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ...base.errors import InputError, describe_unknown_name
from ...problems.columns import locations_of_overlap_entries
from ...problems.overlaps import Overlaps, upper_triangle_indices
from ...problems.problem import Problem
from ...saddle_point.starts import find_start_name, mixture_coefficients_of_start

RANDOM = "random"
_OVERLAP_ROUNDING = 1e-9  # rounding of overlaps that a start is constructed to have, relative
_GRAM_ROUNDING = 1e-12  # rounding of eigenvalues of a Gram matrix, relative to the largest


@dataclass(frozen=True)
class Moments:
    """Second moments of the rows w of the weights, for every atom of the spectral distribution (docs/theory.md (19.5)).

    Attributes:
        S: moments E[w w^T] of the weights, shape (atoms, s, s).
        T: moments of the weights with the mean of each (token, cluster) pair, shape (atoms, pairs, s).
        P: moments of the weights with the teacher, shape (atoms, s, t).
        phi: numbers trained together with the weights.
    """

    S: np.ndarray
    T: np.ndarray
    P: np.ndarray
    phi: np.ndarray

    def pack(self) -> np.ndarray:
        """Return one vector of the independent moments: upper triangles of S, then T, P and the trained numbers."""
        rows, columns = upper_triangle_indices(self.S.shape[1])
        return np.concatenate([self.S[:, rows, columns].ravel(), self.T.ravel(), self.P.ravel(), self.phi])

    @classmethod
    def unpack(cls, vector: np.ndarray, problem: Problem) -> Moments:
        """Return the moments from a vector of their independent entries.

        Args:
            vector: vector that `pack` returned.
            problem: the problem, which determines the shapes.
        """
        atoms, (contexts, s, t, _) = len(problem.law.weights), problem.sizes
        rows, columns = upper_triangle_indices(s)
        after_S = atoms * len(rows)
        after_T = after_S + atoms * contexts * s
        after_P = after_T + atoms * s * t
        S = np.empty((atoms, s, s))
        S[:, rows, columns] = S[:, columns, rows] = vector[:after_S].reshape(atoms, -1)
        T, P = vector[after_S:after_T].reshape(atoms, contexts, s), vector[after_T:after_P].reshape(atoms, s, t)
        return cls(S, T, P, vector[after_P:])

    def overlaps(self, problem: Problem) -> Overlaps:
        """Return the overlaps q, m and theta of weights with these moments; V is set to the identity."""
        law = problem.law
        shares = law.weights[:, None] * law.gamma
        q = np.einsum("ac,aij->cij", shares, self.S)
        return Overlaps(
            q=q,
            V=_identity_matrices(q.shape),
            m=np.einsum("a,aci->ci", law.weights, self.T),
            theta=np.einsum("ac,aij->cij", shares, self.P),
            phi=self.phi,
        )


@cache
def _identity_matrices(shape: tuple[int, ...]) -> np.ndarray:
    """Return a read-only array of identity matrices of a given shape."""
    return np.broadcast_to(np.eye(shape[-1]), shape)


def basis_of_moment_space(problem: Problem) -> np.ndarray:
    """Return an orthonormal basis, as columns, of the space of packed moments that weights can have.

    The space is smaller than the vector where means, encodings and teacher are linearly dependent or vanish.
    """
    law, (contexts, s, t, trained) = problem.law, problem.sizes
    atoms = len(law.weights)
    zero = Moments(np.zeros((atoms, s, s)), np.zeros((atoms, contexts, s)), np.zeros((atoms, s, t)), np.zeros(trained))
    size = len(zero.pack())
    held = np.eye(size)
    first = atoms * s * (s + 1) // 2
    columns = [*held[:first], *held[size - trained :]]
    for atom, gram in enumerate(law.gram):
        values, vectors = np.linalg.eigh(gram)
        for vector in vectors[:, values > _GRAM_ROUNDING * max(values[-1], 1e-300)].T:
            for column in range(s):
                T, P = zero.T.copy(), zero.P.copy()
                T[atom, :, column], P[atom, column] = vector[:contexts], vector[contexts:]
                columns.append(Moments(zero.S, T, P, zero.phi).pack())
    return np.array(columns).T


def moments_of_linear_gaussian_weights(problem: Problem, mix: np.ndarray, noise: np.ndarray) -> Moments:
    """Return the moments of weights that are linear in the means and the teacher, plus Gaussian noise.

    Args:
        problem: the problem.
        mix: coefficients of token means and teacher columns, (s, means + t), or such a matrix for every spectral atom.
        noise: covariance of the noise, (s, s), or one for every spectral atom.
    """
    law, contexts = problem.law, problem.contexts
    with_z = mix @ law.gram  # (A, s, C + t)
    phi = np.array([float(number["start"]) for number in problem.trained])
    S = with_z @ np.swapaxes(mix, -1, -2) + noise
    return Moments(S, np.swapaxes(with_z[..., :contexts], 1, 2), with_z[..., contexts:], phi)


def moments_of_start(problem: Problem, start: Any) -> tuple[str, Moments]:
    """Return the name and the moments of a start of descent.

    Args:
        problem: the problem.
        start: `random` (W standard normal), a named start of the model, a mapping of overlaps (see
            `moments_for_given_overlaps`) or its text (see `parse_start_overlaps`), or `Moments`.

    Raises:
        InputError: the start is none of these; the message lists the allowed ones.
    """
    s = problem.student_rank
    if isinstance(start, Moments):
        return "given", start
    if isinstance(start, Mapping):
        shown = ",".join(f"{name}={json.dumps(np.asarray(value).tolist())}" for name, value in start.items())
        return shown, moments_for_given_overlaps(problem, start)
    if start == RANDOM:
        return RANDOM, moments_of_linear_gaussian_weights(
            problem, np.zeros((s, problem.contexts + problem.teacher_rank)), np.eye(s)
        )
    if isinstance(start, str) and "=" in start:
        return start, moments_for_given_overlaps(problem, parse_start_overlaps(start))
    try:
        name = find_start_name(problem, start, others=[RANDOM])
    except InputError as error:
        raise InputError(f"{error}, or overlaps such as q=0.1,theta=0.05") from None
    mix, deviation, _ = mixture_coefficients_of_start(problem, name)
    return name, moments_of_linear_gaussian_weights(problem, mix, deviation**2 * np.eye(s))


def parse_start_overlaps(text: str) -> dict[str, Any]:
    """Return overlaps by name from a text such as `q=0.1,m_1=0.2,theta=[[[0.1]],[[0.2]]]`.

    Raises:
        InputError: the text has another form, or a name is given twice.
    """
    items, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    values: dict[str, Any] = {}
    for item in items:
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name:
            raise InputError(f"start {text} is not understood; give overlaps such as q=0.1,m_1=0.2")
        if name in values:
            raise InputError(f"start {text}: the overlap {name} is given twice; give it once")
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise InputError(
                f"start {text}: the value of {name}, {value!r}, is neither a number nor a JSON array of numbers; "
                "give one of them"
            ) from None
    return values


def moments_for_given_overlaps(problem: Problem, given: Mapping[str, Any]) -> Moments:
    """Return the moments of weights with given overlaps: the smallest weights with these m and theta, plus noise.

    Args:
        problem: the problem.
        given: overlaps by name. Arrays q (pairs, s, s), m (pairs, s) and theta (pairs, s, t) by (token, cluster) pair,
            or with separate axes of tokens and clusters; a number for q or theta stands for a multiple of the
            identity; single entries by their names in tables, such as m_1 or theta_2. Without q the noise is standard
            normal.

    Raises:
        InputError: an unknown name, a wrong shape, or overlaps that no weights can have.
    """
    law, (contexts, s, t, _) = problem.law, problem.sizes
    size = contexts + t
    shapes = {"m": (contexts, s), "theta": (contexts, s, t)}
    units: dict[str, np.ndarray | None] = {"m": None, "theta": np.eye(s, t)}
    known = {name: place for name, place in locations_of_overlap_entries(problem).items() if place[0] in shapes}
    # Rows of a linear system for mix (s, C + t), which has m_c = E[mix z tau_c], theta_c = E[gamma_c mix z pi^T].
    of_m = np.einsum("a,azc->cz", law.weights, law.gram[:, :, :contexts])
    of_theta = np.einsum("a,ac,azb->cbz", law.weights, law.gamma, law.gram[:, :, contexts:])
    rows, values, q = [], [], None
    for name, value in given.items():
        numbers = _parse_start_numbers(name, value)
        if name == "q":
            q = _overlap_array_from_input(name, numbers, (contexts, s, s), np.eye(s), problem)
            continue
        if name in shapes:
            block, wanted = (
                name,
                [*np.ndenumerate(_overlap_array_from_input(name, numbers, shapes[name], units[name], problem))],
            )
        elif name in known and numbers.ndim == 0:
            block, place = known[name]
            wanted = [(np.unravel_index(place, shapes[block]), float(numbers))]
        else:
            raise InputError(describe_unknown_name("overlap", name, ["q", "m", "theta", *known], "the start"))
        for index, each in wanted:
            row = np.zeros((s, size))
            row[index[1]] = of_m[index[0]] if block == "m" else of_theta[index[0], index[2]]
            rows.append(row.ravel())
            values.append(each)
    mix = np.zeros((s, size))
    if rows:
        matrix, wanted_values = np.array(rows), np.array(values)
        mix = np.linalg.lstsq(matrix, wanted_values, rcond=1e-12)[0].reshape(s, size)
        off = float(np.abs(matrix @ mix.ravel() - wanted_values).max())
        if off > _OVERLAP_ROUNDING * (1 + np.abs(wanted_values).max()):
            raise InputError(
                "start: no weights have these m and theta, whose entries depend on each other through encodings and "
                f"means of the model; the nearest possible values differ by {off:.3g}: give fewer entries"
            )
    found = moments_of_linear_gaussian_weights(problem, mix, np.eye(s))
    if q is None:
        return found
    # Of one covariance of the noise for all atoms, and of all contexts.
    missing = q - found.overlaps(problem).q
    noise = np.einsum("c,cij->ij", law.rho, missing) / (law.rho @ law.rho) + np.eye(s)
    if np.abs(
        q - moments_of_linear_gaussian_weights(problem, mix, noise).overlaps(problem).q
    ).max() > _OVERLAP_ROUNDING * (1 + np.abs(q).max()):
        raise InputError("start: no weights have these q for the different (token, cluster) pairs; give one number q")
    if np.linalg.eigvalsh(noise)[0] < -_OVERLAP_ROUNDING:
        raise InputError("start: q is smaller than m and theta require, so that no such weights exist; give a larger q")
    return moments_of_linear_gaussian_weights(problem, mix, noise)


def _parse_start_numbers(name: str, value: Any) -> np.ndarray:
    try:
        numbers = np.asarray(value, float)
    except (TypeError, ValueError):
        raise InputError(f"start: {name} = {value!r} is not numeric; give a number or an array of numbers") from None
    if not np.isfinite(numbers).all():
        raise InputError(f"start: {name} contains numbers that are not finite; give finite numbers")
    return numbers


def _overlap_array_from_input(
    name: str, numbers: np.ndarray, shape: tuple[int, ...], unit: np.ndarray | None, problem: Problem
) -> np.ndarray:
    """Return the array of an overlap (q, m or theta) from the number or the array that the user gave."""
    if numbers.ndim == 0 and unit is not None:
        return np.broadcast_to(numbers * unit, shape)
    if numbers.size == np.prod(shape):
        return numbers.reshape(shape)
    shown = (problem.tokens, problem.clusters, *shape[1:])
    allowed = f"an array of shape {shape} or {shown}" + ("" if unit is None else ", or a number")
    raise InputError(f"start: {name} has shape {numbers.shape}; give {allowed}")
