"""Learning rates and batches, also in the form of `--rate` and `--batch`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...base.errors import InputError, require_in_interval

FLOW = "flow"
_ALLOWED_RATES = (
    "a positive number, NUMBER,power=P,scale=T (NUMBER / (1 + t/T)^P), NUMBER,warmup=T (rising up to t = T), or flow"
)


@dataclass(frozen=True)
class LearningRateSchedule:
    """A learning rate eta(t) = rate min(1, t / warmup) / (1 + t / scale)^power; gradient flow has eta = 1.

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
        """Return the learning rate at a time, which is the number of steps divided by d."""
        rising = min(1.0, time / self.warmup) if self.warmup > 0 else 1.0
        return self.rate * rising / (1.0 + time / self.scale) ** self.power if self.power else self.rate * rising

    @property
    def is_constant(self) -> bool:
        """Whether the learning rate is the same at all times."""
        return not self.power and not self.warmup

    @property
    def command_line_text(self) -> str:
        """The learning-rate schedule as text in the form of the option `--rate`."""
        if self.flow:
            return FLOW
        text = f"{self.rate:g}"
        if self.power:
            text += f",power={self.power:g},scale={self.scale:g}"
        return text + (f",warmup={self.warmup:g}" if self.warmup else "")

    def require_valid_schedule(self) -> LearningRateSchedule:
        """Return this learning-rate schedule, after checking that its numbers are in range.

        Raises:
            InputError: a number of the schedule is out of range; the message has the range.
        """
        require_in_interval("rate", self.rate, "(0, inf)")
        require_in_interval("scale", self.scale, "(0, inf)")
        require_in_interval("power", self.power, "[0, inf)")
        require_in_interval("warmup", self.warmup, "[0, inf)")
        return self


def parse_learning_rate(rate: LearningRateSchedule | float | str) -> LearningRateSchedule:
    """Return a learning-rate schedule from a number, a text in the form of `--rate`, or a schedule.

    Raises:
        InputError: the rate has another form; the message lists the allowed ones.
    """
    if isinstance(rate, LearningRateSchedule):
        return rate.require_valid_schedule()
    if isinstance(rate, str):
        first, *rest = rate.split(",")
        if first.strip() == FLOW and not rest:
            return LearningRateSchedule(1.0, flow=True)
        given: dict[str, float] = {}
        for part in rest:
            name, found, value = part.partition("=")
            if not found or name.strip() not in ("power", "scale", "warmup"):
                raise InputError(f"rate {rate!r} is not understood; give {_ALLOWED_RATES}")
            given[name.strip()] = _parse_rate_number(value, rate)
        return replace(LearningRateSchedule(_parse_rate_number(first, rate)), **given).require_valid_schedule()  # type: ignore[arg-type]
    return LearningRateSchedule(_parse_rate_number(rate, rate)).require_valid_schedule()


def _parse_rate_number(value: float | str, rate: float | str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"rate {rate!r} is not understood; give {_ALLOWED_RATES}") from None


@dataclass(frozen=True)
class BatchSize:
    """A batch size: a fixed number of samples, or a number in proportion to the dimension d.

    Attributes:
        sentences: samples per step, if their number is fixed.
        share: samples per step divided by d; None if their number is fixed.
    """

    sentences: float = 1.0
    share: float | None = None

    @property
    def command_line_text(self) -> str:
        """The batch size as text in the form of the option `--batch`."""
        return f"{self.sentences:g}" if self.share is None else f"{self.share:g}d"


def parse_batch_size(batch: BatchSize | float | str) -> BatchSize:
    """Return a batch size from a number of samples, or from a text such as 8 or 0.5d.

    Raises:
        InputError: the batch size has another form or is out of range.
    """
    if isinstance(batch, BatchSize):
        return batch
    text = str(batch).strip()
    is_share = text.endswith("d")
    try:
        number = float(text.removesuffix("d") or "1")
    except ValueError:
        number = math.nan
    if is_share:
        if not 0 < number < math.inf:
            raise InputError(f"batch {batch!r}: the fraction of d must be positive and finite, as 0.5d")
        return BatchSize(share=number)
    if not (number >= 1 and number.is_integer()):
        raise InputError(
            f"batch {batch!r} is not understood; give a whole number of samples, at least 1, or a fraction of d as 0.5d"
        )
    return BatchSize(number)
