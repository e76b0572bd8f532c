"""The tables of README.md from the JSON files of the protocol.

PYTHONPATH=. python results/images_laptop/summarise.py results/images_laptop/rates.json results/images_laptop/test.json
"""

import json
import statistics
import sys
from pathlib import Path

from maxrl.metrics import exact_pass_at_k, mean_and_se
from maxrl.plots import called
from results.summarise import head, line

COLUMNS = {
    "pass@1": lambda row: row["pass_rates"],
    "pass@25": lambda row: exact_pass_at_k(row["pass_rates"], 25),
    "top-1": lambda row: row["top1"],
}


def main(rates: str, test: str):
    table = {}  # method -> {rate: pass@1} on seed 100
    for row in json.loads(Path(rates).read_text())["checkpoints"]:
        method, _, rate = Path(row["path"]).parts[-2].rpartition("-lr")
        table.setdefault(method, {})[float(rate)] = [
            statistics.mean(f(row)) for f in COLUMNS.values()
        ]
    head(
        "pass@1 / pass@25 / top-1, seed 100, validation",
        *(f"{rate:g}" for rate in sorted(table["supervised"])),
        "best",
    )
    for method, values in table.items():
        best = max(values, key=lambda rate: values[rate][0])
        line(
            [
                called(method),
                *(" / ".join(f"{v:.3f}" for v in values[rate]) for rate in sorted(values)),
                f"{best:g}",
            ]
        )
    seeds = {}
    for row in json.loads(Path(test).read_text())["checkpoints"]:
        seeds.setdefault(row["name"], []).append(row)
    head("method", "seed", *COLUMNS)
    for method, rows in seeds.items():
        for i, row in enumerate(rows):
            line(
                [
                    called(method),
                    str(i),
                    *("{:.3f} ± {:.3f}".format(*mean_and_se(f(row))) for f in COLUMNS.values()),
                ]
            )
    head("3 seeds, ± over seeds", *COLUMNS)
    for method, rows in seeds.items():
        means = [[statistics.mean(f(row)) for row in rows] for f in COLUMNS.values()]
        line(
            [
                called(method),
                *(
                    f"{statistics.mean(m):.3f} ± {statistics.stdev(m) / len(m) ** 0.5:.3f}"
                    for m in means
                ),
            ]
        )
    head("cross-entropy minus", "seed", *COLUMNS)
    for method, rows in seeds.items():
        for i, row in enumerate(rows):
            if method != "supervised":
                gaps = [
                    [a - b for a, b in zip(f(seeds["supervised"][i]), f(row))]
                    for f in COLUMNS.values()
                ]
                line(
                    [
                        called(method),
                        str(i),
                        *("{:+.3f} ± {:.3f}".format(*mean_and_se(gap)) for gap in gaps),
                    ]
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
