"""What eval.py prints and draws of its results: tables and curves."""

import math
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

import numpy as np

from maxrl.analysis.metrics import (
    exact_pass_at_k,
    half_width,
    mean_and_se,
    pass_at_k,
    samples_to_match,
)

GUESS = "guess"  # the row of guesses that are blind to the prompt


def over_seeds(results: dict, value: Callable[[dict], object]) -> dict[str, np.ndarray]:
    """Return {name: value(row)}, stacked over the checkpoints (seeds) of that name."""
    found: dict[str, list] = {}
    for row in results["checkpoints"]:
        found.setdefault(row["name"], []).append(value(row))
    return {name: np.stack(values) for name, values in found.items()}


def coverage(results: dict, ks: Sequence[int], measure: str = "pass") -> dict[str, np.ndarray]:
    """Return {name: pass@k}, (seeds, P, M), of each checkpoint and prompt at each of the M ks.

    measure  "best": return best@k, at ks of `powers`; of verdicts it is pass@k
    """

    def value(row: dict) -> np.ndarray:
        if measure == "best" and "best" in row:
            return np.stack([row["best"][str(k)] for k in ks], axis=1)
        if results["classes"]:
            return exact_pass_at_k(np.array(row["pass_rates"])[:, None], ks)
        return pass_at_k(results["samples"], np.array(row["counts"])[:, None], ks)

    return over_seeds(results, value)


def guessed(results: dict, ks: Sequence[int], measure: str) -> np.ndarray:
    """Return pass@k or best@k (P, M) of guesses that are blind to the prompt."""
    if measure == "best" and "guess_best" in results:
        return np.stack([results["guess_best"][str(k)] for k in ks], axis=1)
    return exact_pass_at_k(np.array(results["guess"])[:, None], ks)


def powers(largest: int, others: Iterable[int] = ()) -> list[int]:
    """Return k = 1, 2, 4, ... up to the number of samples, or of classes, and the others."""
    return sorted({2**i for i in range(largest.bit_length())} | set(others))


def print_table(results: dict, passes: Sequence[int], against: str):
    """Print pass@k, best@k and majority vote with their errors, and differences."""
    columns: dict[str, dict] = {}  # {column: {name: (seeds, P)}}
    guesses: list[tuple[float, float]] = []
    for measure in measures(results):
        found = coverage(results, passes, measure)
        for i, k in enumerate(passes):
            columns[f"{measure}@{k}"] = {name: values[..., i] for name, values in found.items()}
        if results.get("guess"):
            guesses += map(mean_and_se, guessed(results, passes, measure).T)
    n = results["samples"]
    fields = {"top1": "top-1", "majority": f"maj@{n}", "distinct": f"distinct@{n}"}
    for field, column in fields.items():
        if field in results["checkpoints"][0]:
            columns[column] = over_seeds(results, itemgetter(field))
    names = list(columns[f"pass@{passes[0]}"])
    width = max(map(len, [*names, GUESS])) + 2
    several = len(results["checkpoints"]) > len(names)
    also = ", of several seeds the 95 % t interval over these" if several else ""
    source = f" ({results['source']})" if results["source"] else ""
    said = f"{results['split']}{source}: {drawn(results)}"
    print(f"{said} (± standard error over prompts{also})")
    print(" " * width + "".join(f"{column:^20}" for column in columns))
    for name in names:
        print_row(name, width, [estimate(rates[name]) for rates in columns.values()], ".3f")
    if guesses:
        print_row(GUESS, width, guesses, ".3f")
    if len(names) > 1:
        over = "prompts, and over seeds as they are given" if several else "prompts"
        print(f"{against} minus each, paired over {over}")
        for name in filter(against.__ne__, names):
            differences = [difference(rates[against], rates[name]) for rates in columns.values()]
            print_row(name, width, differences, "+.3f")
        if said := in_samples(results, max(passes), against):
            print(said)


def measures(results: dict) -> list[str]:
    """Return what coverage() can measure: "pass", and "best" if rewards are not 0 or 1."""
    graded = any("best" in row for row in results["checkpoints"])
    return ["pass", "best"] if graded else ["pass"]


def estimate(values: np.ndarray) -> tuple[float, float]:
    """Return the mean of values (seeds, P) and its error: of one seed the standard error over
    prompts, of several the 95 % t interval over seeds, which differ by more than their prompts do.
    """
    if len(values) == 1:
        return mean_and_se(values[0])
    return float(values.mean()), half_width(values.mean(1))


def difference(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Return the mean and error of first minus second, (seeds, P) each.

    One model, such as a base, is paired with every seed; other numbers of seeds are not paired.
    """
    if 1 in (len(first), len(second)) or len(first) == len(second):
        return estimate(first - second)
    (mean, error), (other, its_error) = estimate(first), estimate(second)
    return mean - other, math.hypot(error, its_error)


def print_row(name: str, width: int, columns: Iterable[tuple[float, float]], form: str):
    """Print the mean and error of each column."""
    # A single prompt has no error.
    found = [f"{mean:{form}} ± {error:.3f}" for mean, error in columns]
    cells = [cell.removesuffix(" ± nan") for cell in found]
    print(f"{name:{width}}" + "".join(f"{cell:^20}" for cell in cells))


def in_samples(results: dict, k: int, against: str) -> str:
    """Return in how many samples one row reaches the others' pass@k (the paper's Figure 5), if that
    is above 0.
    """
    ks = powers(results["samples"] or results["classes"], [k])
    curves = {name: values.mean((0, 1)) for name, values in coverage(results, ks).items()}
    own = curves.pop(against)
    said = []
    for name, curve in curves.items():
        if curve[ks.index(k)] == 0:
            continue
        # Linear between powers of 2. The other row may have its pass@k with fewer samples than k.
        its = samples_to_match(ks, curve, curve)[ks.index(k)]
        need = samples_to_match(ks, curve, own)[ks.index(k)]
        few = "1 sample" if need == ks[0] else f"about {need:.3g} samples"
        few = few if need <= k else f"more than {k} samples"
        said.append(f"of {name} in {few} ({name} itself in {its:.3g})")
    return f"{against} reaches the pass@{k} {', '.join(said)}." if said else ""


def drawn(results: dict) -> str:
    """Return how many prompts and samples there were, and from which distribution."""
    count = f"{results['prompts']:,}"
    if results["prompts"] < results["of"]:
        count = f"the first {count} of {results['of']:,}"
    if results["classes"]:
        return f"{count} images, exact"
    samples = f"{count} prompts x {results['samples']} samples"
    said = [samples, f"temperature {results['temperature']:g}"]
    if results["top_k"]:
        said.append(f"top-k {results['top_k']}")
    if results["top_p"] != 1:
        said.append(f"top-p {results['top_p']}")
    if results.get("zero_reward_at_limit"):
        said.append("cut responses are wrong")
    if results.get("no_verdict"):
        said.append(f"{len(results['no_verdict'])} without a verdict left out")
    return ", ".join(said)


def print_rewards(results: dict):
    """Print the mean of each reward function if there are several, or of one that is not pass@1."""
    if results["classes"]:
        return
    # The table has the prompts alone that all of them have judged.
    where = " where each has a verdict" if results.get("no_verdict") else ""
    for row in results["checkpoints"]:
        said = [f"{key[8:-5]} {row[key]:.3f}" for key in row if key.endswith("/mean")]
        if len(said) > 1:
            print(f"{row['name']}: mean rewards{where} {', '.join(said)}")
        elif not math.isclose(row["reward"], np.mean(row["counts"]) / results["samples"]):
            print(f"{row['name']}: mean reward{where} {row['reward']:.3f}")


def print_cut(results: dict):
    """Print of which rows more than one response in twenty was cut by the length limit."""
    for row in results["checkpoints"]:
        share = np.mean(row.get("clipped", 0))
        if share > 0.05:
            limit = results["max_response"]
            print(
                f"{row['name']}: {share:.0%} of responses have no end within --max-response {limit}"
            )


def print_faults(results: dict):
    """Print how often verifier processes failed, and so counted an answer as wrong, if they did."""
    for row in results["checkpoints"]:
        slow = row.get("rewards/verifier_timeouts", 0)
        failed = row.get("rewards/verifier_failures", 0)
        if slow or failed:
            print(
                f"{row['name']}: {slow:g} comparisons of math-verify took too long and count as "
                f"wrong, {failed:g} failed otherwise"
            )


def curves(results: dict, measure: str) -> dict[str, dict]:
    """Return every name's pass@k or best@k and standard error, over prompts or seeds."""
    ks = powers(results["samples"] or results["classes"])
    result = {}
    rows = coverage(results, ks, measure)  # (seeds, P, M)
    if results.get("guess"):
        rows[GUESS] = guessed(results, ks, measure)[None]
    for name, values in rows.items():
        # Of several seeds over these: the mean of each stands for it.
        units = values.mean(1) if len(values) > 1 else values[0]  # (seeds or P, M)
        mean, se = zip(*map(mean_and_se, units.T))
        # JSON has no NaN, the error of a single prompt.
        errors = [None if math.isnan(error) else error for error in se]
        result[name] = {"k": ks, "mean": list(mean), "se": errors}
    return result
