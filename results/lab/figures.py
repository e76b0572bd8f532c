"""Figures that are all numbers: panels of curves, thin ones for seeds, the paper's dashed."""

import json
from pathlib import Path

import numpy as np

from maxrl.analysis import plots
from maxrl.analysis.metrics import half_width
from results.lab.data import paper, write_entries
from results.lab.guessing import best_guess

# Settings of a panel that are not those of matplotlib's axes.
OWN_KEYS = ("lines", "levels", "zero")
# Rows of the studies that are variants of a method, in colours of their own.
plots.STYLE |= {
    "maxrl-128": ("MaxRL", "#f2a27a", "D"),
    "maxrl-16": ("MaxRL", "#e0b000", "P"),
    "maxrl-4096": ("MaxRL", "#7d1f54", "v"),
    "maxrl-16384": ("MaxRL", "#f2a27a", "D"),
    "expected": ("MaxRL in expectation", "#e0b000", "P"),
    "grpo-128": ("GRPO", "#86cde6", "^"),
    "rare": plots.STYLE["maxrl_rare"],
    "rounds16": ("MaxRL in rounds, 16 prompts", *plots.STYLE["maxrl_rare"][1:]),
    "rounds32": ("MaxRL in rounds, 32 prompts", *plots.STYLE["rounds"][1:]),
    "grpo32x16": ("GRPO, 32 x 16", *plots.STYLE["grpo"][1:]),
    "smoothing": plots.STYLE["differential_smoothing"],
}


def curve(name: str, x, y, **more) -> dict:
    return {"name": name, "x": x, "y": y, **more}


def panel(title: str, xlabel: str, ylabel: str, lines: list[dict], **axes) -> dict:
    """A panel; `axes` are further settings of matplotlib's axes."""
    return {"lines": lines, "title": title, "xlabel": xlabel, "ylabel": ylabel, **axes}


def theirs(curves: dict) -> list[dict]:
    """The paper's curves {method: (x, y)}."""
    return [curve(name, x, y, paper=True) for name, (x, y) in curves.items()]


def seed_curves(name: str, x, values) -> dict:
    """The mean of values (seeds, points), and a thin line for each seed."""
    values = np.array(values)
    each = {"seeds": values} if len(values) > 1 else {}
    return curve(name, x, values.mean(0), **each)


def banded(name: str, x, values, **more) -> dict:
    """The mean of values (seeds, points), and half of its 95 % t interval as a band or as bars."""
    values = np.array(values)
    if len(values) > 1:
        more = {"band": [half_width(each) for each in values.T]} | more
    return curve(name, x, values.mean(0), **more)


def penalised(line: dict, method: str) -> dict:
    """The line of a method with a KL penalty: in the method's colour, dashed, with open markers."""
    return line | {"like": method, "dashed": True, "hollow": True}


def gap_panel(ks, lines: list[dict]) -> dict:
    """Differences in pass@k, MaxRL minus another, against k."""
    axes = {"xscale": "log", "xticks": ks, "xlim": (0.85, 75), "zero": True}
    title = "above 0: MaxRL has the higher pass@k; below: GRPO"
    return panel(title, "k, samples", "difference in pass@k", lines, **axes)


def guess_curve(name: str, ks) -> dict:
    """pass@k of the best guess at a test set."""
    return curve("guess", ks, best_guess(name, ks))


def guess_level(name: str, k: int) -> dict[str, str]:
    """The best guess at one k, a level of a panel."""
    return {f"{best_guess(name, [k])[0]:.3f}": "guessing"}


def level(*panels: dict) -> list[dict]:
    """The panels with one y axis that has zero in it."""
    lines = [one for each in panels for one in each["lines"]]
    values = [np.add(one.get("seeds", one["y"]), one.get("band", 0)) for one in lines]
    top = max(map(np.max, values))
    bottom = min(map(np.min, values))
    limits = (min(0, 1.08 * bottom), min(1.02, 1.08 * top))
    return [each | {"ylim": limits} for each in panels]


def pair(paper: tuple, ours: tuple, xlabel: str, guessed: dict, **axes) -> list[dict]:
    """The paper's panel and ours with one y axis, each (title, ylabel, curves or lines); `guessed`
    is a level of ours."""
    title, ylabel, curves = paper
    left = panel(title, xlabel, ylabel, theirs(curves), **axes)
    title, ylabel, lines = ours
    both = level(left, panel(title, xlabel, ylabel, lines, **axes))
    both[1]["levels"] = guessed
    return both


def few_problems(title: str, caption: str, places: tuple, curves: dict, every: int, tests: str):
    """The paper's Figure 4 beside ours: {k: {method: values (seeds, evaluations)}}, with so many
    epochs between evaluations; `places` are the titles of the paper's panel and of ours."""
    source, ours = places
    panels = []
    for theirs_k, (k, methods) in zip(("pass@1", "pass@128"), curves.items()):
        lines = []
        for name, values in methods.items():
            epochs = every * np.arange(values.shape[1]) * 1.0
            lines.append(seed_curves(name, epochs, values))
        known = {name: xy for name, xy in paper(4)[theirs_k].items() if name in methods}
        left, right = (source, theirs_k, known), (ours, f"pass@{k}", lines)
        panels += pair(left, right, "epochs", guess_level(tests, k))
    return {"title": title, "caption": f"Figure 4, held-out problems. {caption}", "panels": panels}


def seeds_said(count: int) -> str:
    return f"mean of {count} seeds and each of them (thin)"


def plain(numbers: dict) -> dict:
    """Numbers of five significant digits, in lists: the same on every machine."""
    text = json.dumps(numbers, default=lambda value: value.tolist())
    return json.loads(text, parse_float=lambda digits: float(f"{float(digits):.5g}"))


def draw_all(figures: dict, study: Path, known: dict, pictures: bool):
    """Write the numbers of {name: figure()} into the study's figures.json, beside those known, and
    figures/NAME.png if there are to be pictures."""
    made = {}
    study.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        made[name] = plain(figure())
        if pictures:
            (study / "figures").mkdir(exist_ok=True)
            picture(made[name], study / "figures" / f"{name}.png")
        print(f"{name}: {made[name]['title']}")
    write_entries(study, "figures", known | made, "figures")


def draw_line(ax, one: dict):
    x, y = (np.array(one[key], float) for key in "xy")
    look = plots.look(one.get("like", one["name"]))
    color, points = look.colour, one.get("points")
    for seed in one.get("seeds", ()):
        ax.plot(x, np.array(seed, float), color=color, alpha=0.45, lw=0.7)
    dashes = "--" if one.get("paper") or one.get("dashed") else "-"
    style = {"ls": ":" if one["name"] == "guess" else "none" if points else dashes, "lw": 1.8}
    style |= {"marker": look.marker if len(x) <= 20 else "", "ms": 4}
    if points or one.get("hollow"):
        style["mfc"] = "white"
    ax.plot(x, y, label=plots.look(one["name"]).label, color=color, **style)
    if "band" in one:
        band = np.array(one["band"], float)
        if points or one.get("bars"):
            ax.errorbar(x, y, band, color=color, ls="none", lw=1, capsize=2)
        else:
            ax.fill_between(x, y - band, y + band, color=color, alpha=0.18, lw=0)


def draw_panel(ax, each: dict):
    for one in each["lines"]:
        draw_line(ax, one)
    ax.set(**{key: each[key] for key in each if key not in OWN_KEYS})
    if each.get("zero"):
        ax.axhline(0, lw=0.8, color="#1b1b1b", zorder=1)
    for value, sentence in each.get("levels", {}).items():
        ax.axhline(float(value), ls=":", lw=1, color="#555555")
        where = ((0.02, float(value)), (0, 2), ("axes fraction", "data"), "offset points")
        ax.annotate(sentence, *where, fontsize=7)
    for axis, scale in ((ax.xaxis, ax.get_xscale()), (ax.yaxis, ax.get_yscale())):
        if scale == "log":
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")


def picture(numbers: dict, file: Path):
    """Draw a figure that is all numbers, 1,290 pixels wide and at most 1,100 tall.

    title     what the figure shows, above the panels
    caption   below them: scale, seeds, how the lines were made
    panels    each with `lines` and the settings of its axes (title, xlabel, ylim, ...),
              `levels` {value: sentence} for horizontal lines, `zero` for a line at 0
    a line    name, x, y; `seeds` are drawn thin, `band` around it (at points: bars), `paper` or
              `dashed` is dashed, `points` have no line; `like` has the colour of another name,
              `hollow` open markers, `bars` a band as bars
    """
    from PIL import Image

    fig, axes = plots.figure(len(numbers["panels"]))
    for ax, each in zip(axes, numbers["panels"]):
        draw_panel(ax, each)
    # Room for the caption.
    fig.set_figheight(fig.get_figheight() + 0.9)
    plots.save(fig, file, numbers["title"], numbers["caption"], size=11)
    # 256 colours are enough for a figure, in a third of the bytes.
    Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)
