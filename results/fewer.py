"""Figure 5 with intervals: how many times fewer samples one method needs than another."""

from typing import Any

import numpy as np

from maxrl.metrics import samples_to_match


def times_fewer(
    ks: Any, coverage_a: Any, coverage_b: Any, draws: int = 1000, seed: int = 0
) -> np.ndarray:
    """How many times fewer samples method b needs for the pass@k of a, with a bootstrap interval.

    ks (M,)                 increasing
    coverage_a, coverage_b  pass@k (seeds, P, M) of every seed and prompt; the prompts are the
                            same, the numbers of seeds may differ
    returns (3, M)          k / samples_to_match(...) of the means, and the ends of the 95 %
                            interval; 0 where b never gets there

    Each draw takes P prompts with replacement, the same ones for a and b, and as many seeds as
    there are, also with replacement: the same ones, as pairs, where a and b have equally many.
    The ends are the 2.5 % and 97.5 % quantiles. An interval over three seeds says little about a
    fourth one.
    """
    ks, a, b = map(np.asarray, (ks, coverage_a, coverage_b))
    rng = np.random.default_rng(seed)
    seeds, prompts, _ = a.shape

    def ratio(times: np.ndarray, of_a: Any, of_b: Any) -> np.ndarray:
        # Dividing a sum once makes equal means equal.
        mean_a = (times @ a)[of_a].sum(0) / (len(a) * prompts)  # (M,)
        mean_b = (times @ b)[of_b].sum(0) / (len(b) * prompts)
        return ks / samples_to_match(ks, mean_a, mean_b)

    found = [ratio(np.ones(prompts), slice(None), slice(None))]
    for _ in range(draws):
        times = np.bincount(rng.integers(prompts, size=prompts), minlength=prompts)  # (P,)
        of_a = rng.integers(seeds, size=seeds)
        of_b = of_a if len(b) == seeds else rng.integers(len(b), size=len(b))
        found.append(ratio(times, of_a, of_b))
    ends = np.quantile(found[1:], (0.025, 0.975), axis=0, method="inverted_cdf")
    return np.stack([found[0], *ends])
