"""Numbers over seeds and over prompts, and how they are printed."""

import numpy as np

from maxrl.analysis.metrics import half_width, mean_and_se


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
