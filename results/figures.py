"""Redraw the figures that stand beside the paper's, from the files under results/.

    PYTHONPATH=. python results/figures.py                  all of them, as `make figures`
    PYTHONPATH=. python results/figures.py figure1 --out .  one, into another folder

Each function makes one figure, NAME.json with the numbers drawn and NAME.png, or None where its
study has not been run. Ours is solid, the paper's dashed: in the same axes where both are the same
quantity, else in two panels with one y axis.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from maxrl import plots
from maxrl.advantages import weight
from maxrl.errors import UsageError
from maxrl.io.files import write_text
from results import gradient_figures, image_figures, maze_figures
from results.panels import line, over_seeds, pair, panel, picture, seeds_said
from results.reading import RESULTS, paper, read_json


def figure1() -> dict:
    """What each objective weighs, exactly: no run is needed."""
    kinds = {
        "reinforce": ("reinforce", {}),
        "grpo": ("grpo", {}),
        "maxrl-16": ("maxrl", {"order": 15}),
        "maxrl-128": ("maxrl", {"order": 127}),
        "maxrl-1024": ("maxrl", {"order": 1023}),
        "maximum likelihood": ("maxrl", {}),
    }

    def weights(title: str, p: np.ndarray, **axes) -> dict:
        lines = []
        for name, (method, options) in kinds.items():
            lines.append(line(name, p, [weight(method, value, **options) for value in p]))
        return panel(title, "pass rate p", "weight w(p) of a prompt", lines, **axes)

    small = np.logspace(-4, np.log10(0.98), 81)
    whole = np.linspace(0.02, 0.98, 97)
    return {
        "caption": "The gradient of a prompt is w(p) grad p (Table 2). MaxRL, 128 is with 128 "
        "rollouts: order 127",
        "told": "exact; GRPO and maximum likelihood: limit of many rollouts",
        "panels": [
            weights("hard prompts", small, xscale="log", yscale="log"),
            weights("all prompts", whole, ylim=(0, 12)),
        ],
    }


def figure2(rate: str) -> dict:
    """Images: pass@1 and pass@k over training, 200 drawn classes beside ImageNet."""
    study = read_json("images_laptop/curves.json")
    panels = []
    for theirs_k, ours_k in (("pass@1", "pass@1"), ("pass@128", "pass@25")):
        lines = []
        for name, seeds in study[f"lr {rate}"].items():
            values = np.array([seed[ours_k] for seed in seeds.values()])
            lines.append(over_seeds(name.replace("_mean", ""), study["steps"], values))
        curves = paper(9)[theirs_k] | paper(2)[theirs_k]
        panels += pair(
            (image_figures.IMAGENET, theirs_k, curves),
            ("ours: 200 drawn classes, .09M parameters (reduced scale)", ours_k, lines),
            "step",
        )
    return {
        "caption": "Figures 2 and 9: validation images over training. Ours: learning "
        f"rate {rate} for all; pass@25 of 200 classes as pass@128 of 1,000; 1,024 rollouts are 5 "
        "a class (paper: 1)",
        "told": f"solid: ours, {seeds_said(3)}; dashed: the paper's",
        "panels": panels,
    }


def norms_200_classes() -> dict:
    """One cross-entropy model and four weights: the formulas of Figure 8 on the same gradients."""
    (row,) = read_json("images_laptop/norms.json")["checkpoints"]
    panels = []
    for name, values in row["norms"].items():
        one = line(name.replace("_mean", ""), row["pass_rates"], values, points=True)
        title = f"ours: weight of {plots.called(one['name'])} (reduced scale)"
        labels = ("pass rate of the image", "gradient norm")
        panels.append(panel(title, *labels, [one], ylim=(0, 120)))
    return {
        "caption": "Not Figure 8: one cross-entropy model of 200 drawn classes. The gradient of "
        "p, times each objective's weight in the limit of many rollouts",
        "panels": panels,
        "told": "1,000 validation images, exact; MaxRL's weight is 1/p there, as cross-entropy's",
    }


FIGURES = {
    "figure1": figure1,
    "figure2_200_classes": lambda: figure2("1.0"),
    "figure2_200_classes_lr0.1": lambda: figure2("0.1"),
    "norms_200_classes": norms_200_classes,
    "figure2_1000_classes": image_figures.figure2,
    "figure8": image_figures.figure8,
    "figure6": gradient_figures.figure6,
    "oracle": gradient_figures.oracle_rollouts,
    "oracle_orders": gradient_figures.oracle_orders,
    "oracle_rare": gradient_figures.oracle_rare,
    "order": image_figures.order,
    "order_few": image_figures.order_few,
    **maze_figures.FIGURES,
}


def plain(value):
    """Numbers of five significant digits, in lists: the same on every machine."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(part) for part in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.5g}")
    return int(value) if isinstance(value, np.integer) else value


def main(arguments: list[str]):
    parser = argparse.ArgumentParser(
        "results/figures.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FIGURES)}")
    parser.add_argument("--out", type=Path, default=RESULTS / "figures")
    parser.add_argument("--numbers", action="store_true", help="the JSON alone, without matplotlib")
    args = parser.parse_args(arguments)
    unknown = set(args.names) - set(FIGURES)
    if unknown:
        raise UsageError(f"no figure {min(unknown)}: name some of {', '.join(FIGURES)}")
    if not args.numbers:
        plots.require()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or FIGURES:
        numbers = plain(FIGURES[name]())
        if numbers is None:
            print(f"{name}: not run, results/README.md has the command")
            continue
        write_text(args.out / f"{name}.json", json.dumps(numbers, allow_nan=False) + "\n")
        if not args.numbers:
            picture(numbers, args.out / f"{name}.png")
        print("\n    ".join([name, *numbers.get("says", [])]))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(f"figures: {error}")
