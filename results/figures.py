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
from results import gradient_figures, image_figures, maze_figures, planned_figures, text_figures
from results.panels import line, over_seeds, pair, panel, picture, seeds_said
from results.reading import RESULTS, paper, read_json


def figure1() -> dict:
    """What each objective weighs, exactly: no run is needed."""
    kinds = {
        "rloo": ("rloo", {}),
        "grpo": ("grpo", {}),
        "maxrl-16": ("maxrl", {"order": 15}),
        "maxrl-128": ("maxrl", {"order": 127}),
        "maxrl-1024": ("maxrl", {"order": 1023}),
        "maximum likelihood": ("maxrl", {}),
    }

    p = np.logspace(-4, np.log10(0.98), 81)
    found = {
        name: np.array([weight(method, value, **options) for value in p])
        for name, (method, options) in kinds.items()
    }
    weights = [line(name, p, w) for name, w in found.items()]
    shares = [line(name, p, w * p) for name, w in found.items()]
    axes = {"xscale": "log", "yscale": "log"}
    right = "share of maximum likelihood's weight"
    return {
        "title": "MaxRL gives prompts the weight of maximum likelihood, down to a pass rate of 1/N",
        "caption": "The gradient of a prompt is w(p) grad p (Table 2), exact. MaxRL, 128 is with "
        "128 rollouts: order 127. GRPO and maximum likelihood: limit of many rollouts; GRPO leaves "
        "the right panel at 1.6 and reaches 7",
        "panels": [
            panel("weight", "pass rate p", "weight w(p) of a prompt", weights, **axes),
            panel(right, "pass rate p", "w(p) p", shares, xscale="log", ylim=(0, 1.6)),
        ],
    }


def figure2(rate: str, title: str) -> dict:
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
            ("ours: 200 drawn classes (reduced scale)", ours_k, lines),
            "step",
        )
    return {
        "title": title,
        "caption": "Figures 2 and 9, validation images; numbers are rollouts of an image (GRPO, "
        f"128: the paper alone). Ours: .09M parameters, rate {rate} for all; 1,024 rollouts are 5 "
        "a class (paper: 1), pass@25 of 200 classes as pass@128 of 1,000. Solid: ours, "
        f"{seeds_said(3)}; dashed: the paper's",
        "panels": panels,
    }


FIGURES = {
    "figure1": figure1,
    "figure2_200_classes": lambda: figure2(
        "1.0", "With five rollouts a class MaxRL ends where cross-entropy does (200 classes)"
    ),
    "figure2_200_classes_lr0.1": lambda: figure2(
        "0.1", "At the paper's rate, .1, MaxRL nearly reaches cross-entropy, and GRPO hardly starts"
    ),
    "figure2_1000_classes": image_figures.figure2,
    "figure2_8000_steps": image_figures.figure2_longer,
    "figure8": image_figures.figure8,
    "figure6": gradient_figures.figure6,
    "oracle": gradient_figures.oracle_rollouts,
    "oracle_orders": gradient_figures.oracle_orders,
    "oracle_rare": gradient_figures.oracle_rare,
    "order": image_figures.order,
    "order_few": image_figures.order_few,
    **maze_figures.FIGURES,
    **planned_figures.FIGURES,
    **text_figures.FIGURES,
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
            print(f"{name}: not run, results/planned/README.md has the command")
            continue
        write_text(args.out / f"{name}.json", json.dumps(numbers, allow_nan=False) + "\n")
        if not args.numbers:
            picture(numbers, args.out / f"{name}.png")
        print(f"{name}: {numbers['title']}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(f"figures: {error}")
