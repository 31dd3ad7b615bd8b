"""Growth of a loss at large student fields: a search for rays along which it is unbounded below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..base.options import AlgorithmOptions

_DISTANCES = 10.0 ** np.arange(1, 7)


@dataclass(frozen=True)
class UnboundedRayOptions(AlgorithmOptions):
    """Options of the search for rays along which a loss is unbounded below; more rays and steps find rarer ones.

    Attributes:
        rays: number of random directions drawn.
        descents: number of those with the lowest losses that are improved by random changes of direction.
        descent_steps: number of changes tried for each.
        min_distance: distance |X| down to which a loss that overflows is evaluated for its sign.
        growth_ratio: ratio of losses at ten times the distance that counts as a fall; it excludes a logarithm and
            includes a square root.
        quadratic_power: power of the distance beyond which no quadratic penalty bounds the fall.
    """

    rays: int = 6
    descents: int = 1
    descent_steps: int = 15
    min_distance: float = 1e-3
    growth_ratio: float = 2.2
    quadratic_power: float = 2.1


@dataclass(frozen=True)
class UnboundedRay:
    """A ray along which a loss is unbounded below.

    Attributes:
        ray: unit vector along the ray, (fields,).
        distance: largest distance tried along it at which the loss is finite.
        value: the loss at that distance.
        power: exponent p of the fall as -distance^p; infinite if it is faster than any power.
    """

    ray: np.ndarray
    distance: float
    value: float
    power: float

    @property
    def is_faster_than_quadratic(self) -> bool:
        """Whether the loss falls faster than -distance^2, so that neither a ridge nor fixed norms bound the risk."""
        return self.power > UnboundedRayOptions.current().quadratic_power

    @property
    def curvature(self) -> float:
        """Curvature k of a loss that falls as -k |X|^2 / 2 along the ray; nearly zero if it falls more slowly."""
        return -2 * self.value / self.distance**2


def find_unbounded_rays(
    loss: Callable[[np.ndarray], float], size: int, generator: np.random.Generator
) -> list[UnboundedRay]:
    """Return the rays along which a loss is unbounded below, found among random rays.

    Args:
        loss: the loss as a function of the vector of student fields X.
        size: number of fields.
        generator: generator of the random directions.
    """
    options = UnboundedRayOptions.current()
    rays = generator.standard_normal((options.rays, size)) if size > 1 else np.array([[1.0], [-1.0]])
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    if size > 1:
        far = [loss_with_signed_overflow(loss, _DISTANCES[3] * ray) for ray in rays]
        for n in np.argsort(far)[: options.descents]:
            ray, lowest = rays[n], far[n]
            for step in range(options.descent_steps):
                turned = ray + 0.7**step * generator.standard_normal(size)
                turned /= np.linalg.norm(turned)
                value = loss_with_signed_overflow(loss, _DISTANCES[3] * turned)
                if value < lowest:
                    ray, lowest = turned, value
            rays = np.concatenate([rays, ray[None]])
    found = (_measure_fall_along_ray(loss, ray) for ray in rays)
    return [fall for fall in found if fall is not None]


def _measure_fall_along_ray(loss: Callable[[np.ndarray], float], ray: np.ndarray) -> UnboundedRay | None:
    """Return the ray with the power by which the loss falls along it; None if the loss seems bounded below there."""
    ratio = UnboundedRayOptions.current().growth_ratio
    values = np.array([loss_with_signed_overflow(loss, distance * ray) for distance in _DISTANCES])
    infinite = np.flatnonzero(~np.isfinite(values))
    count = int(infinite[0]) if len(infinite) else len(values)
    if count < 2 or not values[count - 1] < min(-10 * (1 + abs(values[0])), ratio * values[count - 2]):
        return None
    if count > 2 and not values[count - 2] < min(0.0, ratio * values[count - 3]):
        return None
    ends = count < len(values) and values[count] == -np.inf
    power = np.inf if ends or values[count - 2] >= 0 else float(np.log10(values[count - 1] / values[count - 2]))
    return UnboundedRay(ray, float(_DISTANCES[count - 1]), float(values[count - 1]), power)


def loss_with_signed_overflow(loss: Callable[[np.ndarray], float], x: np.ndarray) -> float:
    """Return the loss at fields X; if it overflows, infinity with the sign of the loss at smaller X.

    Args:
        loss: the loss as a function of the vector of student fields X.
        x: the student fields X, (fields,).
    """
    try:
        value = loss(x)
        return float(np.real(value)) if np.isreal(value) else np.nan
    except OverflowError:
        is_far = np.abs(x).max() > UnboundedRayOptions.current().min_distance
        return np.inf * np.sign(loss_with_signed_overflow(loss, x / 10)) if is_far else np.inf
    except (ValueError, ZeroDivisionError):
        return np.nan
