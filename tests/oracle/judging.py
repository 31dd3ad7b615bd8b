"""Solutions compared with the oracle: by how many error bars is what is reported off."""

from __future__ import annotations

from typing import Any

import numpy as np
from reference import Setting, evaluate, sides

FLOOR = 3e-11  # of every quantity, relative: rounding of the oracle
STEP = 1e-4  # of differences that slopes are taken by, relative
OTHERS = ("training_loss", "test_error", "replicon")


def state_of(overlaps: Any) -> dict[str, np.ndarray]:
    """Return overlaps by their names."""
    return {name: np.array(getattr(overlaps, name), float) for name in ("q", "V", "m", "theta", "phi")}


def shared(state: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the independent overlaps, of the first context: all have one covariance and no means."""
    upper = np.triu_indices(state["q"].shape[-1])
    first = {name: np.asarray(state[name])[0] for name in ("q", "V", "theta")}
    return {
        "q": first["q"][upper],
        "V": first["V"][upper],
        "theta": first["theta"].ravel(),
        "phi": np.ravel(state["phi"]),
    }


def spread_out(u: np.ndarray, like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return overlaps in their shapes from the numbers of `shared`, one after the other."""
    sizes = [len(part) for part in shared(like).values()]
    parts = dict(zip(("q", "V", "theta", "phi"), np.split(u, np.cumsum(sizes)[:-1]), strict=True))
    state = {name: np.array(value) for name, value in like.items()}
    upper = np.triu_indices(like["q"].shape[-1])
    for name in ("q", "V"):
        state[name][:, *upper] = state[name].swapaxes(1, 2)[:, *upper] = parts[name]
    state["theta"][:] = parts["theta"].reshape(like["theta"].shape[1:])
    state["phi"][:] = parts["phi"]
    return state


def evaluated(setting: Setting, state: dict[str, np.ndarray], tolerance: float) -> dict[str, np.ndarray]:
    """Return `evaluate`, once for the same overlaps."""
    key = tolerance, *(value.tobytes() for value in state.values())
    if key not in setting.known:
        setting.known[key] = evaluate(setting, state, tolerance)
    return setting.known[key]


def judged(setting: Setting, solution: Any) -> list[dict[str, Any]]:
    """Return every quantity reported: value, error bar, what the oracle makes of it, and how many bars it is off.

    The overlaps that solve the oracle's equations are u + (1 - J)^{-1} (G(u) - u), J by differences of G; all else
    moves along. Differences to a coarse evaluation bound the error of the fine one.
    """
    state = state_of(solution.overlaps)
    read = [(side.r + 2 * len(side.c) - 2, side.has_target) for _, _, side in sides(setting, state, setting.loss, 1.0)]
    dimensions, has_target = max(n for n, _ in read), all(known for _, known in read)
    fine, coarse = (1e-7, 1e-4)
    if dimensions > 1:  # nested integrals are dear
        fine, coarse = (1e-5, 1e-3) if has_target else (1e-3, 1e-1)
    pack = lambda found: np.concatenate(list(shared(found).values()))  # noqa: E731
    u, root = pack(state), np.sqrt(np.abs(state["q"]).max())
    sizes = {"q": root**2, "V": np.abs(state["V"]).max(), "theta": root, "phi": np.abs(state["phi"]).max(initial=0.1)}
    scale = np.concatenate([np.full(len(part), sizes[name]) for name, part in shared(state).items()])
    best, rough = (evaluated(setting, state, tolerance) for tolerance in (fine, coarse))
    agrees = np.all(np.abs(pack(best) - u) <= 3 * FLOOR * scale)
    J, slopes = np.zeros((len(u), len(u))), {name: np.zeros(len(u)) for name in OTHERS}
    for i in () if agrees else range(len(u)):  # where they agree to rounding slopes are not needed
        h = STEP * min(abs(u[i]) + 0.02 * scale[i], scale[i])
        moved = evaluated(setting, spread_out(u + h * np.eye(len(u))[i], state), coarse)
        J[:, i] = (pack(moved) - pack(rough)) / h
        for name in OTHERS[1:]:
            slopes[name][i] = (moved[name] - rough[name]) / h
    inverse = np.linalg.inv(np.eye(len(u)) - J)
    gap, unsure = pack(best) - u, np.abs(pack(best) - pack(rough)) + FLOOR * scale
    delta, noise = inverse @ gap, np.abs(inverse) @ unsure
    half = np.concatenate(list(shared({**state, **state_of(solution.error_bars)}).values()))
    names = [f"{name}[{i}]" for name, part in shared(state).items() for i in range(len(part))]
    rows = list(zip(names, u, half, u + delta, noise, strict=True))
    # Phi is stationary: errors of the overlaps enter by products of two.
    hats = np.concatenate(
        [shared({**best, **{n: best[f"{n}_hat"] for n in ("q", "V", "theta")}})[n] for n in shared(state)]
    )
    second = 2 * np.abs(gap / scale) @ np.abs(delta / scale) * np.abs(hats * scale).sum()
    stability = solution.stability
    given = {
        "training_loss": (solution.training_loss, solution.training_loss_error, second),
        "test_error": (solution.test_error, solution.test_error_error, 0.0),
        "replicon": (stability.replicon, stability.replicon_error, 0.0) if stability else (np.nan,) * 3,
    }
    for name, (value, bar, more) in given.items():
        truth = float(best[name] + slopes[name] @ delta)
        own = abs(float(best[name] - rough[name])) + np.abs(slopes[name]) @ noise + FLOOR * (abs(truth) + 1e-2)
        if name == "replicon":  # its error bar is that of its average at the overlaps reported
            more = np.abs(slopes[name]) @ half
        rows.append((name, value, bar, truth, own + more))
    keys = "name", "value", "bar", "oracle", "ratio"
    return [
        dict(
            zip(
                keys,
                (name, float(value), float(bar), float(truth), float(abs(value - truth) / (bar + own))),
                strict=True,
            )
        )
        for name, value, bar, truth, own in rows
        if not np.isnan(truth)
    ]
