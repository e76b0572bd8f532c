"""Figures that are all numbers: panels of lines, thin ones for seeds, the paper's dashed."""

import textwrap
from pathlib import Path

import numpy as np

from maxrl import plots

METHODS = ("maxrl", "grpo", "rloo")
MAZE17 = "paper: 17x17 mazes, 3.9M parameters"
MAZE9 = "ours: 9x9 mazes, .3M parameters (reduced scale)"
SOLVED = "share of prompts with a success"
OWN_KEYS = ("lines", "levels", "said")
SMALL = {"textcoords": "offset points", "fontsize": 7}
# Rows of the studies that are variants of a method, in paler colours.
plots.STYLE |= {
    "seed 0": ("seed 0", "#117864"),
    "seed 1": ("seed 1", "#a0785a"),
    "seed 2": ("seed 2", "#c2558f"),
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


def line(name: str, x, y, **more) -> dict:
    return {"name": name, "x": x, "y": y, **more}


def panel(title: str, xlabel: str, ylabel: str, lines: list[dict], **axes) -> dict:
    """A panel; `axes` are further settings of matplotlib's axes."""
    return {"lines": lines, "title": title, "xlabel": xlabel, "ylabel": ylabel, **axes}


def theirs(curves: dict) -> list[dict]:
    """The paper's curves {method: (x, y)}."""
    return [line(name, x, y, paper=True) for name, (x, y) in curves.items()]


def over_seeds(name: str, x, values) -> dict:
    """The mean of values (seeds, points), and a thin line for each seed."""
    each = {"seeds": values} if len(values) > 1 else {}
    return line(name, x, values.mean(0), **each)


def level(*panels: dict) -> list[dict]:
    """The panels with one y axis that has zero in it."""
    lines = [one for each in panels for one in each["lines"]]
    top = max(np.max(one.get("seeds", one["y"])) for one in lines)
    bottom = min(np.min(one.get("seeds", one["y"])) for one in lines)
    limits = (min(0, 1.08 * bottom), min(1.02, 1.08 * top))
    return [each | {"ylim": limits} for each in panels]


def pair(paper: tuple, ours: tuple, xlabel: str, **axes) -> list[dict]:
    """The paper's panel and ours with one y axis, each (title, ylabel, curves or lines)."""
    title, ylabel, curves = paper
    left = panel(title, xlabel, ylabel, theirs(curves), **axes)
    title, ylabel, lines = ours
    return level(left, panel(title, xlabel, ylabel, lines, **axes))


def seeds_said(count: int) -> str:
    return "one seed" if count == 1 else f"mean of {count} seeds and each of them (thin)"


def draw(ax, one: dict):
    """Draw a line; None where it needs no entry in the legend."""
    x, y = (np.array(one[key], float) for key in "xy")
    color = plots.colour(one["name"])
    points = one.get("points")
    for seed in one.get("seeds", ()):
        thin = {"ls": "none", "marker": ".", "ms": 4} if points else {"lw": 0.7}
        ax.plot(x, np.array(seed, float), color=color, alpha=0.45, **thin)
    if one.get("pale"):
        ax.plot(x, y, lw=0.8, alpha=0.5, color=color)
        return None
    few = len(x) <= 20
    style = {"ls": "--" if one.get("paper") else "-", "lw": one.get("lw", 1.8)}
    style |= {"marker": "o", "ms": 3} if few else {}
    if points:
        style = {"ls": "none", "marker": points if isinstance(points, str) else "o", "ms": 5}
        style |= {"mfc": "white"}
    (drawn,) = ax.plot(x, y, label=plots.called(one["name"]), color=color, **style)
    return None if one.get("unnamed") else drawn


def picture(numbers: dict, file: Path):
    """Draw a figure that is all numbers, as those of results/figures are.

    title     what the figure shows, above the panels
    caption   below them: scale, seeds, how the lines were made
    columns   panels in a row, 2 without it
    panels    each with `lines` and the settings of its axes (title, xlabel, ylim, ...),
              `levels` {value: sentence} for horizontal lines, `said` on the left or right
    a line    name, x, y; `seeds` are drawn thin, `pale` and `unnamed` are not in the legend,
              `paper` is dashed, `points` (or their marker) has no line
    """
    from matplotlib.pyplot import close

    fig, axes = sheet(len(numbers["panels"]), numbers.get("columns", 2))
    legend = {}
    for ax, each in zip(axes, numbers["panels"]):
        for one in each["lines"]:
            drawn = draw(ax, one)
            if drawn and (one["name"] not in legend or not one.get("paper")):
                legend[one["name"]] = drawn
        ax.set(**{key: each[key] for key in each if key not in OWN_KEYS})
        for value, sentence in each.get("levels", {}).items():
            ax.axhline(float(value), ls=":", lw=1, color="#555555")
            at, side = (0.02, "left") if each.get("said") == "left" else (1, "right")
            where = ((at, float(value)), (0, 2), ("axes fraction", "data"))
            ax.annotate(sentence, *where, ha=side, **SMALL)
        for axis, scale in ((ax.xaxis, ax.get_xscale()), (ax.yaxis, ax.get_yscale())):
            if scale == "log":
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter("")
        if ax.get_xscale() == "linear":
            ax.locator_params(axis="x", nbins=6)
    places = list(plots.STYLE)
    known = [name for name in legend if name.partition("-")[0] in places]
    order = sorted(known, key=lambda name: (places.index(name.partition("-")[0]), name))
    order += sorted(set(legend) - set(known))
    handles = [legend[name] for name in order]
    about = {"title": textwrap.fill(numbers["caption"], 140), "title_fontsize": 8}
    widest = max(len(plots.called(name)) for name in order)
    ncols = min(len(handles), 105 // (widest + 8))
    fig.legend(handles=handles, loc="outside lower center", ncols=ncols, **about)
    fig.suptitle(textwrap.fill(numbers["title"], 92), fontsize=11, fontweight="bold")
    fig.savefig(file, dpi=150)
    close(fig)
    shrink(file)


def sheet(panels: int, columns: int):
    """A figure 1,290 pixels wide and at most 1,100 tall, and its axes."""
    plots.require()
    import matplotlib.pyplot as plt

    plt.rcParams.update(plots.RC)
    rows = -(-panels // columns)
    size = (8.6, 1.4 + (2.9 if rows == 1 else 2.75 * rows))
    fig, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for ax in axes.flat[panels:]:
        ax.set_visible(False)
    return fig, list(axes.flat[:panels])


def shrink(file: Path):
    """256 colours are enough for a figure, in a third of the bytes."""
    from PIL import Image

    Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)
