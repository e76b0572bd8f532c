"""Numbers over seeds and over prompts, and how they are printed."""

import numpy as np

from maxrl.analysis.metrics import half_width, mean_and_se


def interval(values, sign: str = "") -> str:
    """Mean over seeds and the half-width of its t interval, of values (seeds,); of one seed its
    value."""
    values = np.asarray(values, float)
    mean = f"{values.mean():{sign}.3f}"
    return mean if len(values) == 1 else f"{mean} ± {half_width(values):.3f}"


def side_by_side(values, sign: str = "") -> str:
    """The values themselves, one of each seed."""
    return " / ".join(f"{value:{sign}.3f}" for value in values)


def with_error(values, sign: str = "") -> str:
    """Mean over prompts and its standard error, of values (prompts,)."""
    mean, se = mean_and_se(values)
    return f"{mean:{sign}.3f} ± {se:.3f}"


def p_value(values) -> float:
    """Two-sided p of Student's t test that the mean of values (seeds,) is 0."""
    values = np.asarray(values, float)
    degrees = len(values) - 1
    # With t = sqrt(degrees) tan(angle) the density is a power of the cosine.
    t = abs(values.mean()) * len(values) ** 0.5 / values.std(ddof=1)

    def mass(start: float) -> float:
        angles = np.linspace(start, np.pi / 2, 10_001)
        return np.trapezoid(np.cos(angles) ** (degrees - 1), angles)

    return mass(np.arctan(t / degrees**0.5)) / mass(0)


def holm(ps) -> np.ndarray:
    """Holm's correction of p values (tests,): what is below .05 holds with all the others."""
    ps = np.asarray(ps, float)
    order = ps.argsort()
    scaled = ps[order] * np.arange(len(ps), 0, -1)
    corrected = np.empty_like(ps)
    corrected[order] = np.maximum.accumulate(scaled).clip(max=1)
    return corrected


def ahead(gaps) -> str:
    """On how many seeds a difference is above 0; where both solve everything it is not."""
    return f"{sum(gap > 1e-6 for gap in gaps)} of {len(gaps)}"
