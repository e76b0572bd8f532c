"""What eval.py prints and draws of its results: tables, sentences, curves."""

import math

import numpy as np

from maxrl.metrics import exact_pass_at_k, mean_and_se, pass_at_k, times_fewer


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


def coverage(results: dict, ks) -> dict[str, np.ndarray]:
    """{name: pass@k of each of its checkpoints (seeds) and of every prompt at each of ks, (seeds, P, M)}."""
    table = {}
    for row in results["checkpoints"]:
        if results["classes"]:
            values = exact_pass_at_k(np.array(row["pass_rates"])[:, None], ks)
        else:
            values = pass_at_k(results["samples"], np.array(row["counts"])[:, None], ks)
        table.setdefault(row["name"], []).append(values)
    return {name: np.stack(values) for name, values in table.items()}


def powers(results: dict) -> list[int]:
    """k = 1, 2, 4, ... up to the number of samples (classes)."""
    return [2**i for i in range((results["samples"] or results["classes"]).bit_length())]


def print_table(results: dict, passes: list[int], against: str):
    """pass@k and majority vote (standard error over prompts), and each row's difference to `against`, paired over prompts."""
    passed = {k: per_prompt(results, k) for k in passes}
    values = {f"pass@{k}": rates for k, rates in passed.items()}
    if results["classes"]:
        values["top-1"] = over_seeds(results, lambda row: row["top1"])
    elif results["samples"] not in passes:
        values["solved"] = per_prompt(results, results["samples"])
    if all("majority" in row for row in results["checkpoints"]):
        values[f"maj@{results['samples']}"] = over_seeds(results, lambda row: row["majority"])
    ks = list(values)
    names = list(passed[passes[0]])
    width = max(map(len, names)) + 2
    print(f"{where(results)}: {drawn(results)} (± standard error over prompts)")
    print(" " * width + "".join(f"{k:^20}" for k in ks))
    for name in names:
        print_row(name, width, [values[k][name] for k in ks], ".3f")
    if len(names) > 1:
        print(f"{against} minus each, paired over prompts")
        for name in names:
            if name != against:
                print_row(name, width, [values[k][against] - values[k][name] for k in ks], "+.3f")
        print_fewer(results["times_fewer"], passes, width)
    print(in_words(passed, against))


def print_row(name: str, width: int, columns: list, form: str):
    """columns: of every prompt a value; `form` of their mean."""
    cells = [f"{mean:{form}} ± {se:.3f}" for mean, se in map(mean_and_se, columns)]
    print(f"{name:{width}}" + "".join(f"{cell:^20}" for cell in cells))


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
    count = (
        f"{results['prompts']:,}"
        if results["prompts"] == results["of"]
        else (f"the first {results['prompts']:,} of {results['of']:,}")
    )
    if results["classes"]:
        return f"{count} images, exact"
    cut = []
    if results["top_k"]:
        cut.append(f"top-k {results['top_k']}")
    if results["top_p"] != 1:
        cut.append(f"top-p {results['top_p']}")
    if results.get("no_verdict"):
        cut.append(f"{len(results['no_verdict'])} without a verdict left out")
    return ", ".join(
        [
            f"{count} prompts x {results['samples']} samples, temperature {results['temperature']:g}",
            *cut,
        ]
    )


def print_faults(results: dict):
    """Of verifiers that work in processes of their own: what makes a right answer wrong is said, where it has happened."""
    slow = sum(row.get("rewards/verifier_timeouts", 0) for row in results["checkpoints"])
    died = sum(row.get("rewards/verifier_deaths", 0) for row in results["checkpoints"])
    if slow or died:
        print(
            f"math-verify: {slow:g} comparisons took too long and count as wrong, {died:g} of its processes died"
        )


def print_norms(results: dict, edges=(0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1)):
    """Median gradient norm of the prompts whose pass rate lies between two edges."""
    print(
        f"{where(results)}: {drawn(results)}; median gradient norm of the prompts with a pass rate up to"
    )
    print(f"{'':30}" + "".join(f"{edge:>9g}" for edge in edges))
    for row in results["checkpoints"]:
        bins = np.searchsorted(edges, row["pass_rates"])  # bin i: above edge i-1, up to edge i
        counts = np.bincount(bins, minlength=len(edges))
        print(f"{row['name'] + ', prompts':30}" + "".join(f"{n:9}" for n in counts))
        for name, norms in row["norms"].items():
            norms = np.array(norms)
            cells = [
                f"{np.median(norms[bins == i]):.3g}" if n else "-" for i, n in enumerate(counts)
            ]
            print(f"{row['name'] + ', ' + name:30}" + "".join(f"{cell:>9}" for cell in cells))


def curves(results: dict) -> dict[str, dict]:
    """For the figure: every name's pass@k and standard error over prompts."""
    ks = powers(results)
    result = {}
    for name, values in coverage(results, ks).items():
        mean, se = zip(*map(mean_and_se, values.mean(0).T))
        result[name] = {
            "k": ks,
            "mean": list(mean),
            "se": [None if math.isnan(error) else error for error in se],
        }
    return result


def fewer(results: dict, passes: list[int], against: str) -> dict:
    """How many times fewer samples `against` needs for each row's pass@k (Figure 5), with the interval of times_fewer."""
    ks = sorted({*powers(results), *passes})
    table = coverage(results, ks)
    rows = {}
    for name in table:
        if name != against:
            times, low, high = times_fewer(ks, table[name], table[against]).tolist()
            rows[name] = {"times": times, "low": low, "high": high}
    return {
        "of": against,
        "k": ks,
        "interval": "95 %, bootstrap over prompts and seeds, paired",
        "rows": rows,
    }


def print_fewer(found: dict, passes: list[int], width: int):
    """The result of fewer(). A bound (< or ≥) is said where the samples drawn show no more."""
    print(
        f"times fewer samples that {found['of']} needs for each one's pass@k [{found['interval']}]"
    )
    for name, row in found["rows"].items():
        cells = []
        for k in passes:
            times, low, high = (
                bounded(row[key][found["k"].index(k)], k, found["k"][-1])
                for key in ("times", "low", "high")
            )
            cells.append(f"{times} [{low}, {high}]" if k > 1 else "")
        print(f"{name:{width}}" + "".join(f"{cell:^20}" for cell in cells).rstrip())


def bounded(times: float, k: int, most: int) -> str:
    """k / samples: 0 if all `most` samples are too few, k if a single one is enough, perhaps more than enough."""
    if times == 0:
        return f"<{k / most:.2g}"
    return f"≥{k}" if times == k else f"{times:.3g}"


def histogram(counts: list[int]) -> dict[int, int]:
    """{K: how many prompts have K right samples}."""
    return dict(zip(*(part.tolist() for part in np.unique(counts, return_counts=True))))
