"""Statistics: pass@k with its standard error, majority vote, samples to match a coverage and how many fewer, reward groups.

All functions take numpy arrays, torch tensors, lists or numbers, and compute in float64.
"""

from statistics import multimode

import numpy as np


def _array(values) -> np.ndarray:
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    return np.asarray(values, np.float64)


def _whole(name: str, values) -> np.ndarray:
    array = _array(values)
    whole = np.isfinite(array) & (array == np.floor(array))
    if not whole.all():
        raise ValueError(
            f"pass_at_k takes whole numbers as {name}, not {array[~whole][0]:g}; use counts of samples"
        )
    return array


def pass_at_k(n, c, k):
    """Chance that at least one of k samples is right, estimated without bias from n samples of which c are right.

    1 - C(n-c, k) / C(n, k) (Chen et al. 2021): the share of the k-subsets of the n samples that hold a right one, as
    the product over i < k of (n-c-i)/(n-i), in which nothing overflows. n, c, k broadcast; numbers give a float.
    ValueError unless 0 <= c <= n and 1 <= k <= n, all whole.
    """
    n, c, k = np.broadcast_arrays(_whole("n", n), _whole("c", c), _whole("k", k))
    refused = {
        "needs 0 <= c <= n; use the number of right samples among the n": (c < 0) | (c > n),
        "needs 1 <= k <= n; use a smaller k or draw more samples": (k < 1) | (k > n),
    }
    for needs, wrong in refused.items():
        if wrong.any():
            raise ValueError(
                f"pass_at_k got n={n[wrong][0]:g}, c={c[wrong][0]:g}, k={k[wrong][0]:g} but {needs}"
            )
    fail = np.ones(n.shape)
    for i in range(int(k.max(initial=0))):
        step = fail * np.maximum(n - c - i, 0) / np.maximum(n - i, 1)
        fail = np.where(i < k, step, fail)
    return 1 - fail if fail.ndim else float(1 - fail)


def exact_pass_at_k(p, k):
    """1 - (1-p)^k: pass@k if the pass rate p itself is known, as a classifier's is (Appendix D.4). For p (...), k >= 1."""
    p = _array(p)
    if not ((p >= 0) & (p <= 1 + 1e-12)).all() or not np.min(k) >= 1:
        raise ValueError(
            f"exact_pass_at_k needs pass rates in [0, 1] and k >= 1, got k={k} and p up to {p.max():g}; "
            "use pass_at_k for counts"
        )
    with np.errstate(divide="ignore"):
        return -np.expm1(k * np.log1p(-np.minimum(p, 1)))


def majority_vote(answers, right) -> np.ndarray:
    """Say whether the answer that most of a prompt's N samples give is right: one value in [0, 1] per prompt, (P,).

    answers: P lists of N final answers, None where a sample has none and does not vote. right (P, N): which samples are
    right, 0 or 1. An answer is as right as its samples are on average, which is 0 or 1 where the verdict looks at nothing
    else. Between answers with equally many votes one is drawn, so the value is their mean; without any vote it is 0.
    ValueError where the shapes differ or `right` holds other values.
    """
    right = _array(right)  # (P, N)
    if right.ndim != 2 or [len(row) for row in answers] != [right.shape[1]] * len(right):
        raise ValueError(
            f"majority_vote takes as many answers as verdicts, P lists of N and (P, N), not verdicts of shape "
            f"{right.shape} for {len(answers)} lists of answers"
        )
    if not np.isin(right, (0, 1)).all():
        raise ValueError("majority_vote takes verdicts of 0 and 1; use rewards == 1")
    values = []
    for row, verdicts in zip(answers, right):
        # Answers with equally many votes have equal weight in the mean over their verdicts.
        tied = set(multimode(answer for answer in row if answer is not None))
        given = [verdict for answer, verdict in zip(row, verdicts) if answer in tied]
        values.append(np.mean(given or 0))
    return np.array(values)


def mean_and_se(values) -> tuple[float, float]:
    """Mean of one value per prompt (P,) and its standard error over prompts, std / sqrt(P) with divisor P - 1.

    The error is NaN for one prompt. It says how much another draw of prompts would change the mean.
    """
    values = _array(values)
    if values.ndim != 1 or not values.size:
        raise ValueError(
            f"mean_and_se takes one value per prompt, shape (P,) with P >= 1, not {values.shape}; "
            "use values.mean(axis=1) for several per prompt"
        )
    se = values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else np.nan
    return float(values.mean()), float(se)


def pass_at_k_table(successes, n, ks) -> dict:
    """{k: (mean pass@k, standard error over prompts)} from counts of right samples (P,) among n, a number or (P,)."""
    return {int(k): mean_and_se(pass_at_k(n, np.atleast_1d(_array(successes)), k)) for k in ks}


def samples_to_match(ks, coverage_a, coverage_b) -> np.ndarray:
    """Return how many samples per prompt method b needs for the pass@k that method a has at each of ks.

    Linear interpolation in k on b's curve: samples_to_match(...) / ks are the speed-ups of the paper's Figure 5.
    ks (M,) increasing, coverages (M,), result (M,): ks[0] where b's first point is already as good (it may need fewer),
    inf where b never gets there (more than ks[-1]). ValueError for other shapes or unsorted ks.
    """
    ks = _array(ks)
    a = _array(coverage_a)
    b = _array(coverage_b)
    if ks.ndim != 1 or not ks.size or not ks.shape == a.shape == b.shape:
        raise ValueError(
            f"samples_to_match takes three lists of one length, not shapes {ks.shape}, {a.shape} and "
            f"{b.shape}; use the coverage of both methods at the same ks"
        )
    if (np.diff(ks) <= 0).any() or not np.isfinite([a, b]).all():
        raise ValueError(
            f"samples_to_match needs increasing ks and finite coverages, got ks={ks.tolist()}; sort them"
        )
    # b at ks[j] matches a at ks[i]; equal means may differ by rounding.
    reached = b >= a[:, None] - 1e-12  # (M, M)
    right = reached.argmax(axis=1)  # (M,)  first such j
    left = np.maximum(right - 1, 0)
    between = right > left  # (M,)  there b[left] < a <= b[right]
    share = np.where(between, a - b[left], 0) / np.where(between, b[right] - b[left], 1)  # (M,)
    return np.where(reached.any(axis=1), ks[left] + share * (ks[right] - ks[left]), np.inf)


def times_fewer(ks, coverage_a, coverage_b, draws: int = 1000, seed: int = 0) -> np.ndarray:
    """Return how many times fewer samples method b needs for the pass@k of method a, and a 95 % bootstrap interval.

    ks (M,)                 increasing
    coverage_a, coverage_b  pass@k of every seed (checkpoint) and prompt at each of ks, (seeds, P, M); the prompts are the same,
                            the numbers of seeds may differ
    returns (3, M)          k / samples_to_match(...) of the means, and the interval's ends; 0 where b never gets there

    Each draw takes P prompts with replacement, the same ones for a and b, and as many seeds as there are, with replacement: the
    same ones where both have equally many, which then are pairs. The ends are the 2.5 % and 97.5 % quantiles. Three seeds say
    little of a fourth one, and so does an interval over three.
    """
    ks, a, b = map(_array, (ks, coverage_a, coverage_b))
    if not a.ndim == b.ndim == 3 or a.shape[1] != b.shape[1]:
        raise ValueError(
            f"times_fewer takes pass@k of the same prompts, (seeds, P, M), not shapes {a.shape} and {b.shape}"
        )
    rng = np.random.default_rng(seed)
    seeds, prompts, _ = a.shape
    mean_a = a.sum((0, 1)) / (len(a) * prompts)  # (M,)
    mean_b = b.sum((0, 1)) / (len(b) * prompts)
    found = [ks / samples_to_match(ks, mean_a, mean_b)]
    for _ in range(draws):
        times = np.bincount(rng.integers(prompts, size=prompts), minlength=prompts)  # (P,)
        mine = rng.integers(seeds, size=seeds)
        others = mine if len(b) == seeds else rng.integers(len(b), size=len(b))
        # A sum is divided once: so equal means are equal.
        drawn_a = (times @ a)[mine].sum(0) / (len(a) * prompts)  # (M,)
        drawn_b = (times @ b)[others].sum(0) / (len(b) * prompts)
        found.append(ks / samples_to_match(ks, drawn_a, drawn_b))
    ends = np.quantile(found[1:], (0.025, 0.975), axis=0, method="inverted_cdf")
    return np.stack([found[0], *ends])


def group_sums(rewards) -> dict:
    """Sums over the groups of rewards (P_local, N), to be added over ranks; group_means makes means of them. A rollout without
    a verdict (NaN) counts nowhere; its group must have another one.

    reward                  mean reward
    reward_std              std over all rollouts of the batch, divisor their number - 1, as TRL 1.16 has it; NaN for one
    frac_reward_zero_mean   share of prompts without any success: Algorithm 1 learns nothing from them
    frac_reward_one_mean    share of prompts that always succeed: nobody learns anything from them
    frac_reward_zero_std    share of prompts whose rewards are all the same: these two, for rewards of 0 and 1
    """
    rewards = _array(rewards)  # (P_local, N)
    if rewards.ndim != 2 or not rewards.shape[1]:
        raise ValueError(
            f"group statistics take rewards of shape (P, N) with N >= 1, not {rewards.shape}; "
            "use rewards.reshape(P, N)"
        )
    lowest = np.fmin.reduce(rewards, axis=1)  # (P_local,)
    highest = np.fmax.reduce(rewards, axis=1)
    parts = {
        "rollouts": ~np.isnan(rewards),
        "squares": rewards**2,
        "reward": rewards,
        "frac_reward_zero_mean": (lowest == 0) & (highest == 0),
        "frac_reward_one_mean": (lowest == 1) & (highest == 1),
        "frac_reward_zero_std": lowest == highest,
    }
    return {"groups": len(rewards)} | {name: float(np.nansum(part)) for name, part in parts.items()}


def group_means(sums: dict) -> dict:
    """Sums of group_sums, added over ranks or not, to means over groups and the std over rollouts (NaN without any group)."""
    sums = dict(sums)
    groups = sums.pop("groups") or np.nan
    n = sums.pop("rollouts")
    squares = sums.pop("squares")
    reward = sums.pop("reward") / (n or np.nan)
    means = {"reward": reward} | {name: value / groups for name, value in sums.items()}
    variance = max(0.0, squares - n * means["reward"] ** 2) / (n - 1) if n > 1 else np.nan
    return means | {"reward_std": variance**0.5}
