"""The figures. Training curves: `python -m maxrl.plots [NAME=]RUN... --out FILE`; the others: `eval.py --plot FILE`."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from maxrl.config import UsageError, refuse_blanks
from maxrl.metrics import samples_to_match

COLOURS = {"maxrl": "#c0392b", "grpo": "#2471a3", "rloo": "#7d8c3a", "base": "#7f7f7f", "supervised": "#1b1b1b",
           "reinforce_mean": "#7d8c3a", "maxrl-128": "#e67e22", "maxrl-16": "#f5b041", "grpo-128": "#7fb3d5"}


def require():
    """UsageError with the command that mends it where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError("figures need matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")


def figure(panels: int, rows: int = 1):
    require()
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                         "grid.alpha": 0.25, "legend.frameon": False})
    return plt.subplots(rows, panels, figsize=(4.4 * panels, 3.4 * rows), layout="constrained")


def colour(name: str):
    """Of a method, whatever follows a dash; fewer rollouts are paler."""
    return COLOURS.get(name.lower(), COLOURS.get(name.lower().split("-")[0]))


def coverage(curves: dict, against: str, file: Path, caption: str):
    """pass@k against k with standard errors, beside the samples that the other rows need to match `against`.

    curves {name: {"k": [], "mean": [], "se": []}}, all at the same k.
    """
    ks, reference = curves[against]["k"], curves[against]["mean"]
    needed = {name: samples_to_match(ks, reference, c["mean"]) for name, c in curves.items() if name != against}
    fig, (left, right) = figure(2)
    for name, c in curves.items():
        line, = left.plot(c["k"], c["mean"], "o-", ms=3, label=name, color=colour(name))
        low, high = ([m + sign * (s or 0) for m, s in zip(c["mean"], c["se"])] for sign in (-1, 1))
        left.fill_between(c["k"], low, high, alpha=0.2, color=line.get_color(), lw=0)
    left.set(xscale="log", xlabel="k (samples per prompt)", ylabel="pass@k", title="Coverage")
    left.set_xscale("log", base=2)
    left.legend()
    right.plot(ks, ks, ":", color=colour(against), label=against)
    for i, (name, samples) in enumerate(needed.items()):
        reached = [(k, n) for k, n in zip(ks, samples) if n != float("inf")]
        line, = right.plot(*(zip(*reached) if reached else ((), ())), "o-", ms=3, label=name, color=colour(name))
        for k, n in zip(ks, samples):
            if n == float("inf"):  # above all samples drawn: an arrow at the edge
                right.plot(k, ks[-1] * 1.4**(i + 1), "^", ms=5, color=line.get_color())
    right.set(xlabel=f"k of {against}", ylabel="samples to match its pass@k",
              title=f"Samples to match {against}  (▲: not with {ks[-1]})")
    right.set_xscale("log", base=2)
    right.set_yscale("log", base=2)
    right.legend()
    fig.suptitle(caption, fontsize=8)
    fig.savefig(file, dpi=150)


def training(runs: dict[str, list[Path]], file: Path, caption: str = "", panels=()):
    """Metrics over steps (reward, prompts without a success, entropy, validation pass@k unless named); a name's runs are
    its seeds."""
    loaded = {name: [[json.loads(line) for line in (run / "metrics.jsonl").open()] for run in paths]
              for name, paths in runs.items()}
    last = next(iter(loaded.values()))[0]
    evaluated = sorted({key for row in last for key in row if key.startswith("eval/pass@")}, key=lambda k: int(k.split("@")[1]))
    panels = panels or ["reward", "frac_reward_zero_mean", "entropy", *evaluated[:1], *evaluated[1:][-1:]]
    for key in panels:
        if not any(key in row for seeds in loaded.values() for rows in seeds for row in rows):
            raise UsageError(f"--panels {key} is in none of the runs' metrics.jsonl")
    fig, axes = figure(len(panels))
    for ax, key in zip(np.atleast_1d(axes), panels):
        for name, seeds in loaded.items():
            for i, rows in enumerate(seeds):
                points = [(row["step"] + 1, row[key]) for row in rows if key in row]
                if not points:
                    continue
                x, y = zip(*points)
                if not key.startswith("eval/"):
                    y = smooth(y)
                style = "o-" if key.startswith("eval/") else "-"
                ax.plot(x, y, style, ms=3, lw=1.2, color=colour(name), label=None if i else name)
        ax.set(xlabel="step", title={"frac_reward_zero_mean": "prompts without a success"}.get(key, key))
    np.atleast_1d(axes)[0].legend(fontsize=7)
    fig.suptitle(caption, fontsize=8)
    fig.savefig(file, dpi=150)


def gradient_norms(rows: list[dict], file: Path, caption: str):
    """One point per prompt: gradient norm against pass rate; a panel for each estimator, a row for each checkpoint."""
    fig, axes = figure(len(rows[0]["norms"]), len(rows))
    for row, line in zip(rows, np.reshape(axes, (len(rows), -1))):
        for ax, (name, norms) in zip(line, row["norms"].items()):
            ax.plot(row["pass_rates"], norms, ".", ms=3, alpha=0.4, color=colour(name))
            ax.set(xlabel="pass rate", title=f"{row['name']}, gradient of {name}", xlim=(-0.02, 1.02))
        line[0].set(ylabel="gradient norm of a prompt")
    fig.suptitle(caption, fontsize=8)
    fig.savefig(file, dpi=150)


def smooth(values, window: int = 9) -> list[float]:
    """Centred running mean, shorter at the ends."""
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def main(arguments: list[str]):
    parser = argparse.ArgumentParser("python -m maxrl.plots", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--panels", default=(), type=lambda text: text.split(","), metavar="METRIC,METRIC",
                        help="of metrics.jsonl (reward, entropy, eval/pass@k, ...)")
    parser.add_argument("--caption", default="")
    refuse_blanks(arguments, ("panels",))
    args = parser.parse_args(arguments)
    if not args.out.parent.is_dir():
        raise UsageError(f"{args.out.parent} is no directory: mkdir -p {args.out.parent}")
    runs = {}
    for text in args.runs:
        name, path = text.split("=", 1) if "=" in text else (Path(text).name, text)
        if not (Path(path) / "metrics.jsonl").exists():
            raise UsageError(f"{path} is no run directory: it holds no metrics.jsonl")
        runs.setdefault(name, []).append(Path(path))
    training(runs, args.out, args.caption, args.panels)
    print(f"drew {args.out}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(f"plots: {error}")
