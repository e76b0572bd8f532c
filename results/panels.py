"""Figures that are all numbers: panels of lines with bands over seeds, the paper's dashed."""

from pathlib import Path

import numpy as np

from maxrl import plots

METHODS = ("maxrl", "grpo", "rloo")
MAZE17 = "paper: 17x17 mazes, 3.9M parameters"
MAZE9 = "ours: 9x9 mazes, .3M parameters (reduced scale)"
SOLVED = "share of prompts with a success"
# Rows of the studies that are variants of a method, in paler colours.
plots.STYLE |= {
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
    """The mean of values (seeds, points), with a band from the lowest to the highest."""
    band = {"low": values.min(0), "high": values.max(0)} if len(values) > 1 else {}
    return line(name, x, values.mean(0), **band)


def level(*panels: dict) -> list[dict]:
    """The panels with one y axis that has zero in it."""
    lines = [one for each in panels for one in each["lines"]]
    top = max(np.max(one.get("high", one["y"])) for one in lines)
    bottom = min(np.min(one.get("low", one["y"])) for one in lines)
    limits = (min(0, 1.08 * bottom), min(1.02, 1.08 * top))
    return [each | {"ylim": limits} for each in panels]


def pair(paper: tuple, ours: tuple, xlabel: str, **axes) -> list[dict]:
    """The paper's panel and ours with one y axis, each (title, ylabel, curves or lines)."""
    title, ylabel, curves = paper
    left = panel(title, xlabel, ylabel, theirs(curves), **axes)
    title, ylabel, lines = ours
    return level(left, panel(title, xlabel, ylabel, lines, **axes))


def seeds_said(count: int) -> str:
    if count == 1:
        return "one seed"
    return f"mean of {count} seeds, bands from the lowest to the highest"


def draw(ax, one: dict):
    """Draw a line; None where it needs no entry in the legend."""
    x, y = (np.array(one[key], float) for key in "xy")
    color = plots.colour(one["name"])
    if one.get("pale"):
        ax.plot(x, y, lw=0.7, alpha=0.3, color=color)
        return None
    few = len(x) <= 13
    style = {"ls": "--" if one.get("paper") else "-"} | ({"marker": "o", "ms": 3} if few else {})
    if one.get("points"):
        style = {"ls": "none", "marker": "o", "mfc": "white", "ms": 3 if few else 2}
    (drawn,) = ax.plot(x, y, lw=1.4, label=plots.called(one["name"]), color=color, **style)
    if "low" in one:
        ax.fill_between(x, one["low"], one["high"], alpha=0.2, lw=0, color=drawn.get_color())
    return drawn


def mark(ax, step: float, sentence: str):
    """A vertical line with a sentence beside it."""
    side, away = ("right", -3) if step > np.mean(ax.get_xlim()) else ("left", 3)
    ax.axvline(step, ls=":", lw=1, color="#555555")
    place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    ax.annotate(sentence, (step, 0.02), xytext=(away, 0), ha=side, fontsize=7, **place)


def picture(numbers: dict, file: Path):
    """Draw a figure that is all numbers, as those of results/figures are.

    caption, told   above and below the panels
    panels          each with `lines` and the settings of its axes (title, xlabel, ylim, ...),
                    `marks` {step: sentence}, and `zero` for a line there
    a line          name, x, y; with `low` and `high` it has a band, with `pale` it is only that,
                    with `paper` it is dashed, with `points` it has points alone
    """
    fig, axes = plots.figure(len(numbers["panels"]))
    legend = {}
    for ax, each in zip(axes, numbers["panels"]):
        for one in each["lines"]:
            drawn = draw(ax, one)
            if drawn and (one["name"] not in legend or not one.get("paper")):
                legend[one["name"]] = drawn
        if each.get("zero"):
            ax.axhline(0, lw=0.8, color="#555555")
        for step, sentence in each.get("marks", {}).items():
            mark(ax, float(step), sentence)
        ax.set(**{key: each[key] for key in each if key not in ("lines", "marks", "zero")})
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
    plots.save(fig, [legend[name] for name in order], file, numbers["caption"], numbers["told"])
    shrink(file)


def shrink(file: Path):
    """256 colours are enough for a figure, in a third of the bytes."""
    from PIL import Image

    Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)
