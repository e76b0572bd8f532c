"""The figures.

python -m maxrl.plots [NAME=]RUN... --out FILE                        training curves
python -m maxrl.plots --weights maxrl,grpo,mine.py:root --out FILE    what estimators weigh
python eval.py CHECKPOINT... --plot FILE                              the others
"""

import argparse
import sys
import textwrap
from pathlib import Path

import numpy as np

from maxrl.errors import UsageError
from maxrl.io.arguments import check_least, named
from maxrl.io.files import json_lines
from maxrl.metrics import samples_to_match

# A method as people call it, and its colour in every figure.
STYLE = {
    "maxrl": ("MaxRL", "#c0392b"),
    "grpo": ("GRPO", "#2471a3"),
    "rloo": ("RLOO", "#7d8c3a"),
    "dr_grpo": ("Dr. GRPO", "#16a085"),
    "reinforce": ("REINFORCE", "#8e5ea2"),
    "reinforce_mean": ("REINFORCE", "#8e5ea2"),
    "maxrl_order": ("MaxRL of order T", "#e67e22"),
    "maxrl_rare": ("MaxRL, rare side", "#7b241c"),
    "rounds": ("MaxRL in rounds", "#d68910"),
    "supervised": ("cross-entropy", "#1b1b1b"),
    "maximum likelihood": ("maximum likelihood", "#1b1b1b"),
    "base": ("before RL", "#7f7f7f"),
    "pkpo": ("PKPO", "#d4a017"),
    "differential_smoothing": ("differential smoothing", "#c2558f"),
    "self": ("SELF", "#a0785a"),
    "exact order n": ("exact order N", "#e67e22"),
    "exact order n - 1": ("exact order N - 1", "#d4ac0d"),
    "maxrl-128": ("MaxRL", "#e67e22"),
    "maxrl-16": ("MaxRL", "#f5b041"),
    "grpo-128": ("GRPO", "#7fb3d5"),
    "grpo-entropy bonus": ("GRPO", "#7fb3d5"),
    "maxrl-not clipped": ("MaxRL", "#e67e22"),
    "grpo-not clipped": ("GRPO", "#7fb3d5"),
    "maxrl-32x16": ("MaxRL", "#f1948a"),
    "rounds-32x8,8,16": ("MaxRL in rounds", "#f8c471"),
    "grpo-32x16": ("GRPO", "#7fb3d5"),
}
OWN = ("C9", "C5", "C7", "C6")  # colours that no method has, for estimators of the user's
MEANING = {
    "reward": "mean reward",
    "frac_reward_zero_mean": "share of prompts without a success",
    "entropy": "entropy, nats",
    "eval/top1": "top-1 accuracy, validation",
    "grad_norm": "gradient norm",
    "kl": "KL to the reference, nats",
    "completions/mean_length": "mean response length, tokens",
    "completions/clipped_ratio": "share of cut responses",
}


def require(file: Path | None = None):
    """UsageError with the command that installs matplotlib if it is missing, and for a file that it
    cannot draw."""
    try:
        import matplotlib
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise UsageError("figures need matplotlib: pip install matplotlib") from None
    if file and file.suffix[1:].lower() not in FigureCanvasBase.filetypes:
        raise UsageError(f"{file} is no name for a figure: use one that ends in .png, .pdf or .svg")
    matplotlib.use("Agg")


def figure(panels: int, **options):
    """Panels, two a row, in a page's width of 1,290 pixels."""
    require()
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "legend.frameon": False,
            "axes.titlesize": 9,
            "legend.title_fontsize": 8,
        }
    )
    rows = -(-panels // 2)
    fig, axes = plt.subplots(
        rows, 2, figsize=(8.6, 3.2 * rows), layout="constrained", squeeze=False, **options
    )
    for ax in axes.flat[panels:]:
        ax.set_visible(False)
    return fig, list(axes.flat[:panels])


def save(fig, lines, file: Path, caption: str, told: str = ""):
    """The figure with one legend below its panels, where it covers no data; the file whole or not at all."""
    import matplotlib.pyplot as plt
    from PIL import Image

    if lines:
        fig.legend(
            handles=lines, loc="outside lower center", ncols=4, title=textwrap.fill(told, 130)
        )
    fig.suptitle(textwrap.fill(caption, 130), fontsize=8)
    aside = file.with_stem(f"{file.stem}.incomplete")
    try:
        fig.savefig(aside, dpi=150)
        if file.suffix == ".png":  # 256 colours are enough, in a third of the bytes
            Image.open(aside).convert("RGB").quantize(256).save(aside, optimize=True)
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
        plt.close(fig)


def colour(name: str):
    """Of a method, whatever follows a dash; fewer rollouts are paler."""
    name = name.lower()
    method = name if name in STYLE else name.partition("-")[0]
    return STYLE.get(method, (name, None))[1]


def called(name: str) -> str:
    """A row's name for people: maxrl-128 is "MaxRL, 128"."""
    method, dash, rest = name.partition("-")
    style = STYLE.get(method.lower())
    if style is None:
        return name
    return f"{style[0]}, {rest}" if dash else style[0]


def coverage(curves: dict, against: str, file: Path, caption: str):
    """pass@k against k with standard errors, beside the samples that the other rows need to match `against`.

    curves {name: {"k": [], "mean": [], "se": []}}, all at the same k.
    """
    reference = curves[against]
    ks = reference["k"]
    fig, (left, right) = figure(2)
    lines = {}
    for name, curve in curves.items():
        mean = np.array(curve["mean"])
        se = [error or 0 for error in curve["se"]]
        (line,) = left.semilogx(
            ks, mean, "o-", base=2, ms=3, label=called(name), color=colour(name)
        )
        lines[name] = line
        left.fill_between(ks, mean - se, mean + se, alpha=0.2, color=line.get_color(), lw=0)
    left.set(xlabel="k, samples per prompt", ylabel="pass@k", ylim=(0, None))
    right.loglog(ks, ks, ":", base=2, color=lines[against].get_color())
    others = [name for name in curves if name != against]
    for i, name in enumerate(others, 1):
        samples = samples_to_match(ks, reference["mean"], curves[name]["mean"])
        color = lines[name].get_color()
        right.plot(ks, samples, "o-", ms=3, color=color)
        # More than all samples drawn: an arrow at the edge.
        right.plot(ks, np.where(np.isinf(samples), ks[-1] * 1.4**i, np.nan), "^", ms=5, color=color)
    right.set(xlabel=f"k of {called(against)}", ylabel=f"samples to match (▲: over {ks[-1]})")
    for axis in (left.xaxis, right.xaxis, right.yaxis):
        axis.set_major_formatter("{x:g}")
    save(fig, lines.values(), file, caption, "bands: ± standard error over prompts")


def training(runs: dict, file: Path, caption: str, panels, window: int):
    """Metrics over steps (reward, prompts without a success, entropy, validation pass@k unless named).

    runs {name: the rows of its seeds' metrics.jsonl}: drawn are their mean, and a band from the lowest to the highest. What
    is no evaluation and has 30 points or more is drawn as it is, pale, and as its mean over `window` of them (an odd number).
    """
    last = next(iter(runs.values()))[0]
    evaluated = [key for key in set().union(*last) if key.startswith("eval/pass@")]
    evaluated.sort(key=lambda key: int(key.split("@")[1]))
    panels = panels or [
        "reward",
        "frac_reward_zero_mean",
        "entropy",
        *evaluated[:1],
        *evaluated[1:][-1:],
    ]
    known = {key for seeds in runs.values() for rows in seeds for row in rows for key in row}
    for key in panels:
        if key not in known:
            raise UsageError(f"--panels {key} is in none of the runs' metrics.jsonl")
    fig, axes = figure(len(panels))
    lines = {}
    told = set()
    for ax, key in zip(axes, panels):
        evaluation = key.startswith("eval/")
        for place, (name, seeds) in enumerate(runs.items()):
            steps, values = over_steps(seeds, key)  # (steps,), (seeds, steps)
            if not len(steps):
                continue
            style = {
                "color": colour(name) or f"C{place}"
            }  # one for a name, pale and strong, in every panel
            if window > 1 and len(steps) >= 30 and not evaluation:
                ax.plot(steps, values.mean(0), lw=0.7, alpha=0.3, **style)
                values = smooth(values, window)
                what = "step" if np.diff(steps).max() == 1 else "point"
                told.add(f"pale: each {what}; strong: mean of {window} {what}s")
            (line,) = ax.plot(
                steps,
                values.mean(0),
                "o-" if evaluation else "-",
                ms=3,
                lw=1.4,
                label=called(name),
                **style,
            )
            lines.setdefault(name, line)
            if len(values) > 1:
                ax.fill_between(
                    steps, values.min(0), values.max(0), alpha=0.2, lw=0, color=line.get_color()
                )
                told.add(f"{len(values)} seeds: mean, and from the lowest to the highest")
        plain = f"{key.removeprefix('eval/')}, validation" if evaluation else key
        ax.set(xlabel="step", ylabel=MEANING.get(key, plain), ylim=(min(0, ax.get_ylim()[0]), None))
    save(fig, lines.values(), file, caption, "; ".join(sorted(told)))


def picture(numbers: dict, file: Path):
    """Draw a figure that is all numbers, as those of results/figures are: what is drawn can be read and compared.

    caption, told   above and below the panels
    panels          each with `lines` and the settings of its axes (title, xlabel, ylim, ...), `marks` {step: sentence},
                    `zero` for a line there
    a line          name, x, y; with `low` and `high` it has a band, with `pale` it is only that, with `paper` it is dashed,
                    with `points` it has points alone
    """
    fig, axes = figure(len(numbers["panels"]))
    legend = {}
    for ax, panel in zip(axes, numbers["panels"]):
        for line in panel["lines"]:
            name = line["name"]
            x, y, low, high = (
                np.array(line.get(key, []), float) for key in ("x", "y", "low", "high")
            )
            style = {"color": colour(name)}
            if line.get("pale"):
                ax.plot(x, y, lw=0.7, alpha=0.3, **style)
                continue
            style["ls"] = "--" if line.get("paper") else "-"
            if len(x) <= 13:
                style |= {"marker": "o", "ms": 3}
            if line.get("points"):
                style |= {
                    "ls": "none",
                    "marker": "o",
                    "mfc": "white",
                    "ms": 3 if len(x) <= 13 else 2,
                }
            (drawn,) = ax.plot(x, y, lw=1.4, label=called(name), **style)
            if len(low):
                ax.fill_between(x, low, high, alpha=0.2, lw=0, color=drawn.get_color())
            if name not in legend or not line.get("paper"):
                legend[name] = drawn
        if panel.get("zero"):
            ax.axhline(0, lw=0.8, color="#555555")
        for step, sentence in panel.get("marks", {}).items():
            step = float(step)
            side, away = ("right", -3) if step > np.mean(ax.get_xlim()) else ("left", 3)
            ax.axvline(step, ls=":", lw=1, color="#555555")
            ax.annotate(
                sentence,
                (step, 0.02),
                xycoords=("data", "axes fraction"),
                xytext=(away, 0),
                textcoords="offset points",
                ha=side,
                fontsize=7,
            )
        ax.set(
            **{key: value for key, value in panel.items() if key not in ("lines", "marks", "zero")}
        )
        for axis, scale in ((ax.xaxis, ax.get_xscale()), (ax.yaxis, ax.get_yscale())):
            if scale == "log":
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("")
        if ax.get_xscale() == "linear":
            ax.locator_params(axis="x", nbins=6)
    places = {method: place for place, method in enumerate(STYLE)}
    order = sorted(legend, key=lambda name: (places.get(name.partition("-")[0], len(places)), name))
    save(fig, [legend[name] for name in order], file, numbers["caption"], numbers["told"])


def over_steps(seeds: list, key: str):
    """The steps at which all the seeds that have a metric have it, (steps,), and its values, (seeds, steps)."""
    found = []
    for rows in seeds:
        points = {row["step"] + 1: row[key] for row in rows if row.get(key) is not None}
        if points:
            found.append(points)
    steps = sorted(set.intersection(*map(set, found))) if found else []
    return np.array(steps), np.array([list(map(points.get, steps)) for points in found])


def smooth(values, window: int):
    """Centred running mean over steps (seeds, steps), shorter at the ends."""
    half = window // 2
    means = [values[:, max(0, i - half) : i + half + 1].mean(1) for i in range(values.shape[1])]
    return np.stack(means, 1)


def gradient_norms(rows: list[dict], file: Path, caption: str):
    """One point per prompt: gradient norm against pass rate; a panel for each checkpoint and estimator, of one scale."""
    panels = [(row, name) for row in rows for name in row["norms"]]
    fig, axes = figure(len(panels), sharey=True)
    for ax, (row, name) in zip(axes, panels):
        ax.plot(row["pass_rates"], row["norms"][name], ".", ms=3, alpha=0.4, color=colour(name))
        ax.set(
            xlabel="pass rate",
            ylabel="gradient norm of a prompt",
            xlim=(-0.02, 1.02),
            title=f"{called(row['name'])}: gradient of {called(name)}",
        )
    save(fig, [], file, caption)


def weights(names: list[str], rollouts: int, file: Path, caption: str):
    """What estimators weigh, over log p for hard prompts and over p for easy ones."""
    fig, axes = figure(2)
    for ax, scale in zip(axes, ("log", "linear")):
        lines = []
        for place, name in enumerate(names):
            style = {"color": colour(name) or OWN[place % 4], "label": called(Path(name).name)}
            try:
                lines.append(weight_line(ax, name, rollouts, style))
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(f"--weights {name}: {error.args[0]}") from None
        ax.set(xlabel="pass rate p", xscale=scale, yscale="log", ylabel="weight w(p)")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter("{x:g}")
    told = f"lines: exact, {rollouts} rollouts; dashed: the limit of many, where it is known"
    save(fig, lines, file, caption, told)


def weight_line(ax, rule, rollouts: int, style: dict, **options):
    """The weight w(p) of N rollouts; dashed the limit of many, where that is known."""
    from maxrl.advantages import weight  # needs torch, which a report does without
    from maxrl.registry import find

    rule = find(rule)
    reach = max(7, np.log(10 * rollouts))  # below a pass rate of 1/N the weights are flat
    p = 1 / (1 + np.exp(-np.linspace(-reach, reach, 400)))
    (line,) = ax.plot(p, weight(rule, p, rollouts=rollouts, **options), **style)
    if rule.limit:
        ax.plot(p, weight(rule, p, **options), "--", color=line.get_color(), lw=1)
    return line


def main(arguments: list[str]):
    parser = argparse.ArgumentParser(
        "python -m maxrl.plots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="*", metavar="[NAME=]RUN")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--weights",
        type=lambda text: text.split(","),
        metavar="ESTIMATOR,ESTIMATOR",
        help="estimators by name, or FILE.py:FUNCTION, instead of runs",
    )
    parser.add_argument("--rollouts", type=int, default=16, metavar="N", help="of --weights (16)")
    parser.add_argument(
        "--panels",
        default=(),
        type=lambda text: text.split(","),
        metavar="METRIC,METRIC",
        help="of metrics.jsonl (reward, entropy, eval/pass@k, ...)",
    )
    parser.add_argument(
        "--smooth",
        type=int,
        default=9,
        metavar="STEPS",
        help="mean over so many steps, odd (9); 1: none",
    )
    parser.add_argument("--caption", default="")
    args = parser.parse_args(arguments)
    if bool(args.runs) == bool(args.weights):
        raise UsageError("name either runs or estimators, these as --weights maxrl,grpo")
    check_least("rollouts", args.rollouts, 1)
    if args.smooth < 1 or args.smooth % 2 == 0:
        raise UsageError(
            f"--smooth {args.smooth} has no middle step: use an odd number, such as {max(args.smooth, 0) + 1}"
        )
    if not args.out.parent.is_dir():
        raise UsageError(f"{args.out.parent} is no directory: mkdir -p {args.out.parent}")
    require(args.out)
    runs = {}
    for text in args.runs:
        name, path = named(text)
        metrics = Path(path) / "metrics.jsonl"
        if not metrics.exists():
            raise UsageError(f"{path} is no run directory: it holds no metrics.jsonl")
        runs.setdefault(name, []).append([row for row, _ in json_lines(metrics)])
    if args.weights:
        weights(args.weights, args.rollouts, args.out, args.caption)
    else:
        training(runs, args.out, args.caption, args.panels, args.smooth)
    print(f"drew {args.out}")


def script():
    """`python -m maxrl.plots`."""
    try:
        main(sys.argv[1:])
    except UsageError as error:
        print(f"plots: {error}", file=sys.stderr)
        sys.exit(2)
