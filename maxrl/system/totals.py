"""Metrics as sums over micro-batches, rounds and ranks, divided in the end."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from maxrl.system import distributed

Metrics = dict[str, float]  # by name
Form = Callable[[np.ndarray], float | None]


class Totals:
    """Metrics by name, each as the parts that add up: `metrics` makes them, over all ranks.

    A part is a number, or a scalar on the device, for which nothing waits before `metrics`. All
    ranks must have the same names: one that may have nothing to add adds 0.
    """

    def __init__(self) -> None:
        # Of each name: what makes the metric of its parts (ranks, parts), and the parts so far.
        self.forms: dict[str, Form] = {}
        self.parts: dict[str, list[Any]] = {}

    def sum(self, name: str, value: Any) -> None:
        """Add to a metric that is a sum."""
        self.add(name, np.sum, value)

    def mean(self, name: str, value: Any, count: Any) -> None:
        """Add to a metric that is the sum of values divided by that of counts, NaN for 0 / 0."""
        self.add(name, ratio, value, count)

    def std(self, name: str, value: Any, squares: Any, count: Any) -> None:
        """Add sums over `count` values, and over their squares, to their standard deviation.

        The divisor is count - 1; NaN for fewer than two values.
        """
        self.add(name, deviation, value, squares, count)

    def highest(self, name: str, value: Any) -> None:
        """Raise a metric that is the highest value."""
        self.add(name, np.max, value, combine=higher)

    def lowest(self, name: str, value: Any) -> None:
        """Lower a metric that is the lowest value."""
        self.add(name, np.min, value, combine=min)

    def add(self, name: str, form: Form, *parts: Any, combine=operator.add) -> None:
        """Add parts to a metric. `form` makes it of the parts of all ranks, (ranks, parts); None
        leaves it out.
        """
        new = [scalar(part) for part in parts]
        if name in self.parts:
            new = list(map(combine, self.parts[name], new))
        self.forms[name] = form
        self.parts[name] = new

    def take(self, other: "Totals") -> None:
        """Take over the metrics of another one, which has other names."""
        self.forms |= other.forms
        self.parts |= other.parts

    def metrics(self) -> Metrics:
        """Return all metrics over the ranks, which must all call this: one collective, one wait."""
        names = sorted(self.parts)
        rows = distributed.gathered([part for name in names for part in self.parts[name]])
        found = {}
        for name in names:
            count = len(self.parts[name])
            found[name] = self.forms[name](rows[:, :count])
            rows = rows[:, count:]
        made = {name: found[name] for name in self.parts}
        return {name: float(value) for name, value in made.items() if value is not None}


def scalar(value: Any) -> Any:
    """Return a part as a number, or as a float64 scalar of a GPU without its graph."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().double() if value.is_cuda else value.item()


def higher(held: Any, value: Any) -> Any:
    return value.clamp(min=held) if isinstance(value, Tensor) else np.maximum(held, value)


def ratio(parts: np.ndarray) -> float:
    """Return the sum of the values divided by that of the counts, (ranks, 2)."""
    value, count = parts.sum(0)
    return value / count if count else np.nan


def deviation(parts: np.ndarray) -> float:
    """Return the standard deviation by the sums of values, squares and counts, (ranks, 3)."""
    value, squares, n = parts.sum(0)
    if n < 2:
        return np.nan
    return (max(0.0, squares - value**2 / n) / (n - 1)) ** 0.5
