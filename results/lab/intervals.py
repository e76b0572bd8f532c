"""Numbers over seeds and over prompts, and how they are printed."""

from functools import cache

import numpy as np

from maxrl.analysis.metrics import mean_and_se


@cache
def t_quantile(count: int) -> float:
    """The 97.5 % quantile of Student's t with one degree of freedom less than `count` values."""
    # With t = sqrt(degrees) tan(angle) the density is a power of the cosine.
    degrees = count - 1
    angle = np.linspace(0, np.pi / 2, 100_001)
    density = np.cos(angle) ** (degrees - 1)
    mass = density.cumsum() - density / 2 - density[0] / 2
    return degrees**0.5 * np.tan(np.interp(0.95 * mass[-1], mass, angle))


def half_width(values) -> float:
    """Half of the 95 % t interval of the mean of values, one of each seed, (seeds,)."""
    values = np.asarray(values, float)
    return t_quantile(len(values)) * values.std(ddof=1) / len(values) ** 0.5


def interval(values, sign: str = "", digits: int = 3) -> str:
    """Mean over seeds and the half-width of its t interval, of values (seeds,); of one seed its
    value."""
    values = np.asarray(values, float)
    mean = f"{values.mean():{sign}.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {half_width(values):.{digits}f}"


def side_by_side(values) -> str:
    """The values themselves, one of each seed."""
    return " / ".join(f"{value:.3f}" for value in values)


def with_error(values, sign: str = "") -> str:
    """Mean over prompts and its standard error, of values (prompts,)."""
    mean, se = mean_and_se(values)
    return f"{mean:{sign}.3f} ± {se:.3f}"


def ahead(gaps) -> str:
    """On how many seeds a difference is above 0; where both solve everything it is not."""
    return f"{sum(gap > 1e-6 for gap in gaps)} of {len(gaps)}"
