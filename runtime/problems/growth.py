"""How a loss grows far out along rays of the student's fields, by its values at single points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_DISTANCES = 10.0 ** np.arange(1, 7)
_RAYS, _STEEPEST, _STEPS = 6, 1, 15  # rays drawn; those of them that are turned downhill, and how often
_NEAREST = 1e-3  # of X at which a loss that overflows is tried
_RATIO = 2.2  # of values at ten times the distance: a logarithm falls by less, a root by more
_QUADRATIC = 2.1  # powers beyond are not held by a quadratic form


@dataclass(frozen=True)
class Fall:
    """A ray along which a loss falls without end.

    Attributes:
        ray: of unit length, (D,); distance: the largest on it at which the loss is a number, value: the loss there.
        power: of the distance with which it falls, infinite where faster than any.
    """

    ray: np.ndarray
    distance: float
    value: float
    power: float

    @property
    def beyond_quadratic(self) -> bool:
        """Whether it falls faster than any ridge or norm of the weights holds."""
        return self.power > _QUADRATIC

    @property
    def curvature(self) -> float:
        """k where the loss falls as -k |X|^2 / 2; next to zero of a slower fall."""
        return -2 * self.value / self.distance**2


def falls_of(loss: Callable[[np.ndarray], float], size: int, generator: np.random.Generator) -> list[Fall]:
    """Return where a loss of X (size,) is seen to fall without end: on random rays and on those steepest downhill."""
    rays = generator.standard_normal((_RAYS, size)) if size > 1 else np.array([[1.0], [-1.0]])
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    if size > 1:
        far = [value_of(loss, _DISTANCES[3] * ray) for ray in rays]
        for n in np.argsort(far)[:_STEEPEST]:
            ray, lowest = rays[n], far[n]
            for step in range(_STEPS):
                turned = ray + 0.7**step * generator.standard_normal(size)
                turned /= np.linalg.norm(turned)
                value = value_of(loss, _DISTANCES[3] * turned)
                if value < lowest:
                    ray, lowest = turned, value
            rays = np.concatenate([rays, ray[None]])
    found = (_fall(loss, ray) for ray in rays)
    return [fall for fall in found if fall is not None]


def _fall(loss: Callable[[np.ndarray], float], ray: np.ndarray) -> Fall | None:
    """Along one ray, as far as the loss is a number; None where it does not fall without end."""
    values = np.array([value_of(loss, distance * ray) for distance in _DISTANCES])
    infinite = np.flatnonzero(~np.isfinite(values))
    count = int(infinite[0]) if len(infinite) else len(values)
    if count < 2 or not values[count - 1] < min(-10 * (1 + abs(values[0])), _RATIO * values[count - 2]):
        return None
    if count > 2 and not values[count - 2] < min(0.0, _RATIO * values[count - 3]):
        return None
    ends = count < len(values) and values[count] == -np.inf
    power = np.inf if ends or values[count - 2] >= 0 else float(np.log10(values[count - 1] / values[count - 2]))
    return Fall(ray, float(_DISTANCES[count - 1]), float(values[count - 1]), power)


def value_of(loss: Callable[[np.ndarray], float], x: np.ndarray) -> float:
    """The loss at X; infinite where it overflows, of its sign nearer by if it has one there."""
    try:
        value = loss(x)
        return float(np.real(value)) if np.isreal(value) else np.nan
    except OverflowError:
        return np.inf * np.sign(value_of(loss, x / 10)) if np.abs(x).max() > _NEAREST else np.inf
    except (ValueError, ZeroDivisionError):
        return np.nan
