"""Learning rates and batches, also in the form of `--rate` and `--batch`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...base.errors import InputError, require_in

FLOW = "flow"
_RATE = (
    "a positive number, NUMBER,power=P,scale=T (NUMBER / (1 + t/T)^P), NUMBER,warmup=T (rising up to t = T), or flow"
)


@dataclass(frozen=True)
class Schedule:
    """A learning rate eta(t) = rate min(1, t / warmup) / (1 + t / scale)^power; for gradient flow it is 1.

    Attributes:
        rate: eta at the start, after the warm-up; power, scale, warmup: as in the formula.
        flow: whether it is gradient flow on the population risk.
    """

    rate: float
    power: float = 0.0
    scale: float = 1.0
    warmup: float = 0.0
    flow: bool = False

    def __call__(self, time: float) -> float:
        """Return the rate at a time, in steps over d."""
        rising = min(1.0, time / self.warmup) if self.warmup > 0 else 1.0
        return self.rate * rising / (1.0 + time / self.scale) ** self.power if self.power else self.rate * rising

    @property
    def is_constant(self) -> bool:
        """Whether the rate is the same at all times."""
        return not self.power and not self.warmup

    @property
    def words(self) -> str:
        """The text from which `parse_schedule` makes this schedule."""
        if self.flow:
            return FLOW
        text = f"{self.rate:g}"
        if self.power:
            text += f",power={self.power:g},scale={self.scale:g}"
        return text + (f",warmup={self.warmup:g}" if self.warmup else "")

    def check(self) -> Schedule:
        """Return the schedule after a check of its numbers.

        Raises:
            InputError: a number is out of range.
        """
        require_in("rate", self.rate, "(0, inf)")
        require_in("scale", self.scale, "(0, inf)")
        require_in("power", self.power, "[0, inf)")
        require_in("warmup", self.warmup, "[0, inf)")
        return self


def parse_schedule(rate: Schedule | float | str) -> Schedule:
    """Return a schedule from a number, a text in the form of `--rate`, or a schedule.

    Raises:
        InputError: it is no schedule; the message has the allowed forms.
    """
    if isinstance(rate, Schedule):
        return rate.check()
    if isinstance(rate, str):
        first, *rest = rate.split(",")
        if first.strip() == FLOW and not rest:
            return Schedule(1.0, flow=True)
        given: dict[str, float] = {}
        for part in rest:
            name, found, value = part.partition("=")
            if not found or name.strip() not in ("power", "scale", "warmup"):
                raise InputError(f"rate {rate!r}: {_RATE} is expected")
            given[name.strip()] = _parse_number(value, rate)
        return replace(Schedule(_parse_number(first, rate)), **given).check()  # type: ignore[arg-type]
    return Schedule(_parse_number(rate, rate)).check()


def _parse_number(value: float | str, rate: float | str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"rate {rate!r}: {_RATE} is expected") from None


@dataclass(frozen=True)
class Batch:
    """A batch size: a number of samples, or a fraction of d, with which descent is a map.

    Attributes:
        sentences: samples of a step, of order one; share: samples over d, None for order one.
    """

    sentences: float = 1.0
    share: float | None = None

    @property
    def words(self) -> str:
        """The text from which `parse_batch` makes this batch."""
        return f"{self.sentences:g}" if self.share is None else f"{self.share:g}d"


def parse_batch(batch: Batch | float | str) -> Batch:
    """Return a batch size from a number of samples, or from a text such as 8 or 0.5d.

    Raises:
        InputError: it is neither.
    """
    if isinstance(batch, Batch):
        return batch
    text = str(batch).strip()
    is_share = text.endswith("d")
    try:
        number = float(text.removesuffix("d") or "1")
    except ValueError:
        number = math.nan
    if is_share:
        if not 0 < number < math.inf:
            raise InputError(f"batch {batch!r} is out of range; allowed is (0, inf) times d, as 0.5d")
        return Batch(share=number)
    if not (number >= 1 and number.is_integer()):
        raise InputError(f"batch {batch!r}: a whole number of samples from 1, or a fraction of d as 0.5d, is expected")
    return Batch(number)
