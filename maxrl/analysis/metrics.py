"""Statistics of rewards: pass@k, best@k and standard errors, majority vote, samples to match.

All functions take numpy arrays, torch tensors, lists or numbers, and compute in float64.
"""

from collections.abc import Sequence
from functools import cache
from statistics import multimode
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def _array(values: ArrayLike) -> np.ndarray:
    # A tensor may need gradients, or lie on a GPU.
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values, np.float64)


def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> Any:
    """Unbiased estimate of the chance that at least one of k samples is right.

    1 - C(n-c, k) / C(n, k) (Chen et al. 2021), the share of the k-subsets of n samples, c of them
    right, that hold a right one. It is computed as the product over i < k of (n-c-i)/(n-i), in
    which nothing overflows.

    n, c and k broadcast; numbers give a float. ValueError unless all are whole numbers with
    0 <= c <= n and 1 <= k <= n.
    """
    n, c, k = np.broadcast_arrays(_array(n), _array(c), _array(k))
    whole = np.isfinite(n) & (n == np.floor(n)) & (c == np.floor(c)) & (k == np.floor(k))
    wrong = ~(whole & (c >= 0) & (c <= n) & (k >= 1) & (k <= n))
    if wrong.any():
        got = f"n={n[wrong][0]:g}, c={c[wrong][0]:g}, k={k[wrong][0]:g}"
        raise ValueError(f"pass_at_k needs whole 0 <= c <= n and 1 <= k <= n, but got {got}")
    fail = np.ones(n.shape)
    for i in range(int(k.max(initial=0))):
        step = fail * np.maximum(n - c - i, 0) / np.maximum(n - i, 1)
        fail = np.where(i < k, step, fail)
    return 1 - fail if fail.ndim else float(1 - fail)


def exact_pass_at_k(p: ArrayLike, k: ArrayLike) -> np.ndarray:
    """1 - (1-p)^k for known pass rates p (...), such as a classifier's (Appendix D.4); k >= 1."""
    with np.errstate(divide="ignore"):
        return -np.expm1(_array(k) * np.log1p(-np.minimum(_array(p), 1)))


def best_at_k(rewards: ArrayLike, k: int) -> np.ndarray:
    """Unbiased estimate of the expected largest reward of k samples, (...), from (..., n) of them.

    With the rewards sorted, r_(i) is the largest of C(i-1, k-1) of the C(n, k) subsets. On rewards
    of 0 and 1 this is pass@k; a reward that is NaN makes it NaN.

    ValueError unless k is a whole number with 1 <= k <= n.
    """
    ordered = np.sort(_array(rewards), axis=-1)[..., ::-1]  # (..., n)  r_(n), ..., r_(1)
    n = ordered.shape[-1]
    if k != int(k) or not 1 <= k <= n:
        raise ValueError(f"best_at_k needs a whole 1 <= k <= n, but got n={n}, k={k}")
    # The share of r_(n) is k / n, and that of r_(i-1) is (i-k) / (i-1) times that of r_(i).
    i = np.arange(n, 1, -1)  # (n - 1,)
    falls = np.cumprod(np.maximum(i - k, 0) / (i - 1))  # (n - 1,)
    return ordered @ np.append(1, falls) * (k / n)


def exact_best_at_k(distribution: dict[float, float], ks: ArrayLike) -> np.ndarray:
    """The expected largest of k rewards, (M,) at each of ks (M,), for {reward: its probability}.

    ValueError unless the probabilities are that and add up to 1.
    """
    values, chances = map(_array, zip(*sorted(distribution.items())))
    if not (chances >= 0).all() or abs(chances.sum() - 1) > 1e-6:
        raise ValueError(f"exact_best_at_k needs probabilities that add up to 1, not {chances}")
    below = np.append(0, np.cumsum(chances))[:, None] ** _array(ks)  # (rewards + 1, M)
    return values @ np.diff(below, axis=0)


def samples_to_match(ks: ArrayLike, coverage_a: ArrayLike, coverage_b: ArrayLike) -> np.ndarray:
    """How many samples per prompt method b needs for the pass@k of method a, at each of ks.

    b's curve, which never falls, is interpolated linearly in k; samples_to_match(...) / ks are the
    speed-ups of Figure 5. ks (M,) increasing, coverages (M,), result (M,): ks[0] where b's first
    point is already as good (fewer may suffice), inf where b never gets there. ValueError for other
    shapes, unsorted ks or a curve that falls.
    """
    ks, a, b = map(_array, (ks, coverage_a, coverage_b))
    sorted_ks = (np.diff(ks) > 0).all()
    if not ks.shape == a.shape == b.shape or not sorted_ks or (np.diff(b) < -1e-12).any():
        raise ValueError(
            "samples_to_match needs increasing ks and two coverages at each of them, of which the "
            "second never falls"
        )
    # A little below: equal means may differ by rounding, and of equal points the first counts.
    return np.interp(a - 1e-12, b, ks, right=np.inf)


def majority_vote(answers: Sequence[Sequence], right: ArrayLike) -> np.ndarray:
    """How right the most frequent answer to each prompt is, (P,) in [0, 1].

    answers  P lists of N final answers; None, where a sample has no answer, does not vote
    right    (P, N), which samples are right, 0 or 1

    An answer is as right as its samples are on average, which is 0 or 1 where the verdict looks
    at nothing else. Ties are broken at random, so the value is the mean over the tied answers;
    without any vote it is 0. ValueError where the shapes differ.
    """
    values = []
    for row, verdicts in zip(answers, _array(right), strict=True):
        # Tied answers have equally many samples, so each of them weighs the same in the mean.
        tied = set(multimode(answer for answer in row if answer is not None))
        given = [verdict for answer, verdict in zip(row, verdicts, strict=True) if answer in tied]
        values.append(np.mean(given or 0))
    return np.array(values)


def distinct_right(answers: Sequence[Sequence], right: ArrayLike) -> np.ndarray:
    """How many different answers to each prompt are right, (P,); arguments as in majority_vote."""
    counts = []
    for row, verdicts in zip(answers, _array(right), strict=True):
        given = {answer for answer, verdict in zip(row, verdicts, strict=True) if verdict}
        counts.append(len(given - {None}))
    return np.array(counts, dtype=float)


def mean_and_se(values: ArrayLike) -> tuple[float, float]:
    """Mean of one value per prompt (P,), and its standard error: std / sqrt(P), divisor P - 1.

    The standard error says how much another draw of prompts would change the mean; for one
    prompt it is NaN.
    """
    values = _array(values)
    se = values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else np.nan
    return float(values.mean()), float(se)


@cache
def t_quantile(count: int) -> float:
    """The 97.5 % quantile of Student's t with one degree of freedom less than `count` values."""
    # With t = sqrt(degrees) tan(angle) the density is a power of the cosine.
    degrees = count - 1
    angle = np.linspace(0, np.pi / 2, 100_001)
    density = np.cos(angle) ** (degrees - 1)
    mass = density.cumsum() - density / 2 - density[0] / 2
    return degrees**0.5 * np.tan(np.interp(0.95 * mass[-1], mass, angle))


def half_width(values: ArrayLike) -> float:
    """Half of the 95 % t interval of the mean of values, one of each seed, (seeds,)."""
    values = _array(values)
    return float(t_quantile(len(values)) * values.std(ddof=1) / len(values) ** 0.5)
