"""Figures: training curves, coverage, and the weights of estimators.

python -m maxrl plots [NAME=]RUN... --out FILE                        training curves
python -m maxrl plots --weights maxrl,grpo,mine.py:root --out FILE    weights of estimators
python eval.py CHECKPOINT... --plot FILE                              coverage
"""

import io
import itertools
import os
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maxrl.system.arguments import Parser, check_least, check_output, runs_named
from maxrl.system.errors import UsageError, escape_output, refusing
from maxrl.system.files import json_lines, write_bytes

# The name of a method in figures, its colour and its marker in every one of them. Without red and
# green vision, too, methods that are compared are apart in colour or marker.
STYLE = {
    "maxrl": ("MaxRL", "#c0392b", "o"),
    "grpo": ("GRPO", "#2471a3", "s"),
    "rloo": ("RLOO", "#9ccb86", "^"),
    "dr_grpo": ("Dr. GRPO", "#86cde6", "v"),
    "reinforce": ("REINFORCE", "#4b2bd6", "v"),
    "reinforce_mean": ("REINFORCE, mean baseline", "#9a8cff", "v"),
    "maxrl_order": ("MaxRL of order T", "#00594f", "X"),
    "maxrl_leave_two_out": ("MaxRL, leave two out", "#3d7a5a", "<"),
    "tailrl": ("TailRL", "#e07b00", "*"),
    "maxrl_rare": ("MaxRL, rare side", "#7d1f54", "D"),
    "rounds": ("MaxRL in rounds", "#a88400", "P"),
    "supervised": ("cross-entropy", "#1b1b1b", "x"),
    "maximum likelihood": ("maximum likelihood", "#1b1b1b", "x"),
    "base": ("before RL", "#7f7f7f", ""),
    "guess": ("guessing, blind to the prompt", "#1b1b1b", ""),
    "pkpo": ("PKPO", "#b9a2f0", "^"),
    "differential_smoothing": ("differential smoothing", "#00206b", "v"),
}
# Two runs of one method differ in their dashes.
DASHES = ("-", "--", "-.", (0, (1, 1)))
WINDOW = 9  # points of a running mean
SMOOTHED = 30  # fewer points are drawn as they are
MARK = "drawn by maxrl plots"  # stands in every file that is written here
MOST = 4096  # rollouts of an exact weight, whose memory grows with their square
MEANING = {
    "reward": "mean reward",
    "frac_unsolved": "share of prompts without a success",
    "entropy": "entropy, nats",
    "eval/top1": "top-1 accuracy, validation",
    "grad_norm": "gradient norm",
    "kl": "KL to the reference, nats",
    "completions/mean_length": "mean response length, tokens",
    "completions/clipped_ratio": "share of cut responses",
}
RC: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "axes.titlesize": 9,
    "legend.title_fontsize": 8,
}


def require(file: Path | None = None):
    """Raise UsageError if matplotlib is not installed or a figure may not go to this file."""
    # A notebook's kernel names a backend that its environment alone has.
    os.environ["MPLBACKEND"] = "Agg"
    try:
        import matplotlib
    except ImportError:
        raise UsageError("figures need matplotlib: pip install matplotlib") from None
    if file:
        if file.suffix.lower() not in (".png", ".pdf", ".svg"):
            raise UsageError(f"{file} is no figure: use a name that ends in .png, .pdf or .svg")
        check_output(file, MARK)
    matplotlib.use("Agg")


def figure(panels: int) -> tuple[Any, list]:
    """A figure with this many panels, two in a row, 1,290 pixels wide, and the list of its axes."""
    require()
    import matplotlib.pyplot as plt

    plt.rcParams.update(RC)
    rows = -(-panels // 2)
    columns = min(panels, 2)
    fig = plt.figure(figsize=(8.6, 3.2 * rows), layout="constrained")
    return fig, [fig.add_subplot(rows, columns, place) for place in range(1, panels + 1)]


def save(fig, file: Path | None, caption: str, told: str = "", size: int = 8) -> bytes:
    """Write the figure with one legend below the panels, where it covers no data.

    told  how the lines were made (smoothing, bands): the title of the legend
    size  of the caption's letters, points

    Returns the content of the file, or without one that of a PNG.
    """
    import matplotlib.pyplot as plt

    lines: dict = {}
    texts = [fig.suptitle(textwrap.fill(caption, 1040 // size), fontsize=size)]
    for ax in fig.axes:
        handles, labels = ax.get_legend_handles_labels()
        lines |= dict(zip(labels, handles))
        texts += [ax.title, ax.yaxis.label]
    if lines:
        title = textwrap.fill(told, 130)
        where = {"loc": "outside lower center", "ncols": 4}
        texts += fig.legend(lines.values(), lines.keys(), title=title, **where).get_texts()
    for text in texts:
        # Two dollars in a name or a path are no formula.
        text.set_parse_math(False)
    image = io.BytesIO()
    kind = file.suffix[1:] if file else "png"
    fig.savefig(image, format=kind, dpi=150, metadata={"Creator": MARK})
    plt.close(fig)
    if file:
        write_bytes(file, image.getvalue())
    return image.getvalue()


class Look(NamedTuple):
    """How a method appears in figures and tables."""

    label: str
    colour: str | None  # None for matplotlib's next one
    marker: str


def look(name: str) -> Look:
    """The look of a row such as maxrl or maxrl-128, whose label is "MaxRL, 128".

    What follows the dash matters for colour and marker only if STYLE has the whole name.
    """
    method, dash, rest = name.partition("-")
    plain = STYLE.get(method.lower())
    _, colour, marker = STYLE.get(name.lower()) or plain or (name, None, "o")
    label = plain[0] if plain else name
    if plain and dash:
        label = f"{label}, {rest}"
    return Look(label, colour, marker)


def styles(names: Iterable[str]) -> dict[str, dict]:
    """Return how matplotlib draws each curve: guesses dotted, and a method or colour that another
    curve has with the next dashes.
    """
    found = {}
    seen: Counter = Counter()
    # Of matplotlib's colours without the red, which is MaxRL's.
    others = (f"C{i}" for i in itertools.count() if i % 10 != 3)
    for name in names:
        of = look(name)
        kind = of.colour or name.partition("-")[0]
        dashes = ":" if name == "guess" else DASHES[seen[kind] % len(DASHES)]
        seen[kind] += 1
        color = of.colour or next(others)
        found[name] = dict(label=of.label, color=color, marker=of.marker, linestyle=dashes)
    return found


def coverage(panels: dict[str, dict[str, dict]], file: Path, caption: str):
    """Draw pass@k, and best@k if there is one, against k.

    panels  {"pass@k": {name: {"k": [], "mean": [], "se": []}}}
    """
    fig, axes = figure(len(panels))
    for ax, (measure, curves) in zip(axes, panels.items()):
        for name, style in styles(curves).items():
            ks = curves[name]["k"]
            mean = np.array(curves[name]["mean"])
            se = [error or 0 for error in curves[name]["se"]]
            ax.semilogx(ks, mean, base=2, ms=3, **style)
            ax.fill_between(ks, mean - se, mean + se, alpha=0.2, color=style["color"], lw=0)
        # Rewards, and so the best of k, may be negative.
        lowest = min(0, ax.get_ylim()[0])
        ax.set(xlabel="k, samples per prompt", ylabel=measure, ylim=(lowest, None))
        ax.xaxis.set_major_formatter("{x:g}")
    save(fig, file, caption, "bands: ± standard error over prompts, of several seeds over these")


def training(
    runs: dict[str, list],
    file: Path | None = None,
    caption: str = "",
    panels: list[str] | None = None,
) -> bytes:
    """Draw metrics over steps, as the mean over seeds with a band from the lowest to the highest.

    runs    {name: the rows of metrics.jsonl, for each of its seeds}
    panels  keys of the rows; by default those of MEANING and pass@k

    Returns what save() does.
    """
    known = {key for seeds in runs.values() for rows in seeds for row in rows for key in row}
    panels = panels or default_panels(known) or ["reward"]
    for key in panels:
        if key not in known:
            raise UsageError(f"{key} is in none of the runs' metrics.jsonl: choose --panels")
    fig, axes = figure(len(panels))
    for ax, key in zip(axes, panels):
        for name, style in styles(runs).items():
            curve(ax, runs[name], key, style)
        plain = key.removeprefix("eval/")
        label = MEANING.get(key, plain if plain == key else f"{plain}, validation")
        ax.set(xlabel="step", ylabel=label, ylim=(min(0, ax.get_ylim()[0]), None))
        ax.xaxis.get_major_locator().set_params(integer=True)
    told = []
    if any(len(rows) >= SMOOTHED for seeds in runs.values() for rows in seeds):
        told.append(f"pale: each of {SMOOTHED} points or more, strong: mean of {WINDOW}")
    if any(len(seeds) > 1 for seeds in runs.values()):
        told.append("band: from the lowest seed to the highest")
    return save(fig, file, caption, "; ".join(told))


def default_panels(known: set[str]) -> list[str]:
    """The metrics of MEANING, and the smallest and largest k of pass@k and of best@k."""
    ends: dict[str, None] = {}
    for measure in ("eval/pass@", "eval/best@"):
        evaluated = [key for key in known if key.startswith(measure)]
        evaluated.sort(key=lambda key: int(key.split("@")[1]))
        ends |= dict.fromkeys([*evaluated[:1], *evaluated[-1:]])
    return [*(key for key in MEANING if key in known), *ends]


def curve(ax, seeds: list[list[dict]], key: str, style: dict):
    """Draw one metric of one method.

    With SMOOTHED points or more it is drawn pale, and strong as a running mean; an evaluation is
    never smoothed.
    """
    steps, values = over_steps(seeds, key)
    if not len(steps):
        return
    color = style["color"]
    evaluation = key.startswith("eval/")
    if len(steps) >= SMOOTHED and not evaluation:
        ax.plot(steps, values.mean(0), lw=0.7, alpha=0.3, color=color)
        values = smooth(values, WINDOW)
    shown = {} if evaluation else {"marker": ""}
    ax.plot(steps, values.mean(0), ms=3, lw=1.4, **style | shown)
    if len(values) > 1:
        ax.fill_between(steps, values.min(0), values.max(0), alpha=0.2, lw=0, color=color)


def over_steps(seeds: list[list[dict]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps (steps,) at which every seed has the metric, and its values (seeds, steps).

    Seeds without the metric are left out.
    """
    found = []
    for rows in seeds:
        points = {row["step"] + 1: row[key] for row in rows if row.get(key) is not None}
        if points:
            found.append(points)
    steps = sorted(set.intersection(*map(set, found))) if found else []
    return np.array(steps), np.array([[points[step] for step in steps] for points in found])


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred running mean over the steps of values (seeds, steps), shorter at both ends."""
    half = window // 2
    means = [values[:, max(0, i - half) : i + half + 1].mean(1) for i in range(values.shape[1])]
    return np.stack(means, 1)


def weights(names: list[str], rollouts: int, file: Path, caption: str):
    """Draw the weights w(p) of estimators with N rollouts, and dashed their limits of many.

    The first panel is over log p, for hard prompts, and the second over p, for easy ones. Of a
    reward of several values p is the chance to reach a threshold of it: tailrl and rloo have the
    weight w(p) at each, and weight(name, p_t, ...) gives it for all.
    """
    # These import torch, which a report does without.
    from maxrl.advantages import weight
    from maxrl.advantages.registry import find

    fig, axes = figure(2)
    # Below a pass rate of about 1/N the weights are flat.
    reach = max(7, np.log(10 * rollouts))
    p = 1 / (1 + np.exp(-np.linspace(-reach, reach, 400)))
    for ax, scale in zip(axes, ("log", "linear")):
        for place, name in enumerate(names):
            style = {"color": look(name).colour or f"C{place}"}
            style["label"] = look(Path(name).name).label
            with refusing(f"--weights {name}: ", KeyError, TypeError, ValueError):
                rule = find(name)
                ax.plot(p, weight(rule, p, rollouts=rollouts), **style)
                if rule.limit:
                    ax.plot(p, weight(rule, p), "--", color=style["color"], lw=1)
        ax.set(xlabel="pass rate p", xscale=scale, yscale="log", ylabel="weight w(p)")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter("{x:g}")
    told = f"lines: exact, {rollouts} rollouts; dashed: the limit of many, where it is known"
    save(fig, file, caption, told)


def comma_list(text: str) -> list[str]:
    return text.split(",")


def check_curves(option: str, names: list[str]) -> None:
    """UsageError if two estimators of a command have one name in its figure."""
    shown = [Path(name).name for name in names]
    for name in shown:
        if shown.count(name) > 1:
            raise UsageError(f"--{option}: two curves would be called {name}, choose other names")


def read_runs(words: list[str]) -> dict[str, list]:
    """{name: the rows of metrics.jsonl, for each of its runs} of words [NAME=]RUN."""
    runs: dict[str, list] = {}
    for name, path in runs_named(words):
        runs.setdefault(name, []).append(read_metrics(path))
    return runs


def read_metrics(run: str) -> list[dict]:
    """The rows of a run's metrics.jsonl; UsageError if there is none."""
    with refusing(f"{run} is no run directory: ", OSError, ValueError):
        rows = [row for row, _ in json_lines(Path(run) / "metrics.jsonl")]
    if not rows:
        raise UsageError(f"{run} is no run directory, or its first step is not done yet")
    return rows


def main(arguments: list[str]):
    """Run the command line."""
    parser = Parser("python -m maxrl plots")
    add = parser.add_argument
    add("runs", nargs="*", metavar="[NAME=]RUN", help="one name: seeds of a curve; or a grid's")
    add("--out", type=Path, required=True, help="file of the figure: .png, .pdf or .svg")
    add("--weights", type=comma_list, help="estimators or FILE.py:FUNCTION, instead of runs")
    add("--rollouts", type=int, default=16, metavar="N", help="N of --weights (16)")
    add("--panels", type=comma_list, help="keys of metrics.jsonl: reward,entropy,eval/pass@1")
    add("--caption", default="")
    args = parser.parse_options(arguments)
    if bool(args.runs) == bool(args.weights):
        raise UsageError("name either runs or estimators, these as --weights maxrl,grpo")
    check_least("rollouts", args.rollouts, 1, MOST)
    require(args.out)
    if args.weights:
        check_curves("weights", args.weights)
        weights(args.weights, args.rollouts, args.out, args.caption)
    else:
        training(read_runs(args.runs), args.out, args.caption, args.panels)
    print(f"drew {args.out}")


def script(program: Callable[[list[str]], None]):
    """Run a `main`; what the user can mend is said in one sentence, with exit code 2."""
    escape_output()
    try:
        program(sys.argv[1:])
    except (UsageError, OSError) as error:
        sys.stderr.write(f"maxrl: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    script(main)
