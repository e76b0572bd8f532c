"""What eval.py prints and draws of its results: tables, sentences, curves."""

import math

import numpy as np

from maxrl.metrics import exact_pass_at_k, mean_and_se, pass_at_k


def over_seeds(results: dict, value) -> dict[str, list]:
    """{name: value(row) of every prompt}, averaged over the checkpoints of that name (seeds)."""
    table = {}
    for row in results["checkpoints"]:
        table.setdefault(row["name"], []).append(value(row))
    return {name: np.mean(values, axis=0) for name, values in table.items()}


def per_prompt(results: dict, k: int) -> dict[str, list]:
    """{name: pass@k of every prompt}."""
    if results["classes"]:
        return over_seeds(results, lambda row: exact_pass_at_k(row["pass_rates"], k))
    return over_seeds(results, lambda row: pass_at_k(results["samples"], row["counts"], k))


def print_table(results: dict, passes: list[int], against: str):
    """pass@k and majority vote (standard error over prompts), and each row's difference to `against`, paired over prompts."""
    passed = {k: per_prompt(results, k) for k in passes}
    values = {f"pass@{k}": rates for k, rates in passed.items()}
    if results["classes"]:
        values["top-1"] = over_seeds(results, lambda row: row["top1"])
    if all("majority" in row for row in results["checkpoints"]):
        values[f"maj@{results['samples']}"] = over_seeds(results, lambda row: row["majority"])
    ks = list(values)
    names = list(passed[passes[0]])
    width = max(map(len, names)) + 2
    print(f"{where(results)}: {drawn(results)} (± standard error over prompts)")
    print(" " * width + "".join(f"{k:^17}" for k in ks))
    for name in names:
        print_row(name, width, [values[k][name] for k in ks], ".3f")
    if len(names) > 1:
        print(f"{against} minus each, paired over prompts")
        for name in names:
            if name != against:
                print_row(name, width, [values[k][against] - values[k][name] for k in ks], "+.3f")
    print(in_words(passed, against))


def print_row(name: str, width: int, columns: list, form: str):
    """columns: of every prompt a value; `form` of their mean."""
    cells = [f"{mean:{form}} ± {se:.3f}" for mean, se in map(mean_and_se, columns)]
    print(f"{name:{width}}" + "".join(f"{cell:^17}" for cell in cells))


def in_words(values: dict[str, dict], against: str) -> str:
    """The table's first and last k as sentences; `values` {k: {name: pass@k of every prompt}}. More and fewer are said where
    the difference is over two standard errors, paired over prompts."""
    first = min(values)
    tries = {k: "at one try" if k == 1 else f"within {k} tries" for k in (first, max(values))}
    names = list(values[first])
    solved = []
    for name in names:
        shares = [f"{values[k][name].mean():.0%}" for k in tries]
        solved.append(f"{name} {' / '.join(shares)}")
    lines = [f"Solved {' / '.join(tries.values())}: {', '.join(solved)}."]
    for k, when in tries.items():
        level = "neither clearly more nor fewer than"
        verdicts = {"more than": [], level: [], "fewer than": []}
        for name in names:
            mean, se = mean_and_se(values[k][against] - values[k][name])
            verdict = "more than" if mean > 0 else "fewer than"
            if abs(mean) <= 2 * se:
                verdict = level
            if name != against and len(values[k][name]) > 1:  # one prompt has no standard error
                verdicts[verdict].append(name)
        said = [f"{verdict} {listed(others)}" for verdict, others in verdicts.items() if others]
        if said:
            lines.append(f"{when.capitalize()} {against} solves {', '.join(said)}.")
    return "\n".join(lines)


def listed(names: list[str]) -> str:
    """a, b and c."""
    return " and ".join(", ".join(names).rsplit(", ", 1))


def where(results: dict) -> str:
    return results["split"] + (f" ({results['source']})" if results["source"] else "")


def drawn(results: dict) -> str:
    """What was evaluated, and how: prompts that were left out and an unusual distribution are said."""
    count = f"{results['prompts']:,}" if results["prompts"] == results["of"] else (
        f"the first {results['prompts']:,} of {results['of']:,}")
    if results["classes"]:
        return f"{count} images, exact"
    cut = []
    if results["top_k"]:
        cut.append(f"top-k {results['top_k']}")
    if results["top_p"] != 1:
        cut.append(f"top-p {results['top_p']}")
    if results.get("no_verdict"):
        cut.append(f"{len(results['no_verdict'])} without a verdict left out")
    return ", ".join([f"{count} prompts x {results['samples']} samples, temperature {results['temperature']:g}", *cut])


def print_faults(results: dict):
    """Of verifiers that work in processes of their own: what makes a right answer wrong is said, where it has happened."""
    slow = sum(row.get("rewards/verifier_timeouts", 0) for row in results["checkpoints"])
    died = sum(row.get("rewards/verifier_deaths", 0) for row in results["checkpoints"])
    if slow or died:
        print(f"math-verify: {slow:g} comparisons took too long and count as wrong, {died:g} of its processes died")


def print_norms(results: dict, edges=(0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1)):
    """Median gradient norm of the prompts whose pass rate lies between two edges."""
    print(f"{where(results)}: {drawn(results)}; median gradient norm of the prompts with a pass rate up to")
    print(f"{'':30}" + "".join(f"{edge:>9g}" for edge in edges))
    for row in results["checkpoints"]:
        bins = np.searchsorted(edges, row["pass_rates"])  # bin i: above edge i-1, up to edge i
        counts = np.bincount(bins, minlength=len(edges))
        print(f"{row['name'] + ', prompts':30}" + "".join(f"{n:9}" for n in counts))
        for name, norms in row["norms"].items():
            norms = np.array(norms)
            cells = [f"{np.median(norms[bins == i]):.3g}" if n else "-" for i, n in enumerate(counts)]
            print(f"{row['name'] + ', ' + name:30}" + "".join(f"{cell:>9}" for cell in cells))


def curves(results: dict) -> dict[str, dict]:
    """For the figure: every name's pass@k and standard error at k = 1, 2, 4, ... up to the number of samples (classes)."""
    ks = [2**i for i in range((results["samples"] or results["classes"]).bit_length())]
    result = {}
    for k in ks:
        for name, values in per_prompt(results, k).items():
            mean, se = mean_and_se(values)
            curve = result.setdefault(name, {"k": ks, "mean": [], "se": []})
            curve["mean"].append(mean)
            curve["se"].append(None if math.isnan(se) else se)  # of one prompt there is none
    return result
