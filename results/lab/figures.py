"""Figures that are all numbers: panels of curves, thin ones for seeds, the paper's dashed."""

import json
import textwrap
from pathlib import Path

import numpy as np

from maxrl.analysis import plots
from maxrl.analysis.metrics import half_width
from maxrl.analysis.table import coverage, powers
from maxrl.system.files import write_text
from results.lab.data import in_blocks, paper
from results.lab.guessing import guessing

MAZE17 = "paper: 17x17 mazes, 3.9M parameters"
MAZE9 = "ours: 9x9 mazes, .3M parameters (reduced scale)"
SOLVED = "share of prompts with a success"
OWN_KEYS = ("lines", "levels", "said", "zero")
SMALL = {"textcoords": "offset points", "fontsize": 7}
# Rows of the studies that are variants of a method, in colours of their own.
plots.STYLE |= {
    "maxrl-128": ("MaxRL", "#f2a27a", "D"),
    "maxrl-16": ("MaxRL", "#e0b000", "P"),
    "maxrl-4096": ("MaxRL", "#7d1f54", "v"),
    "maxrl-16384": ("MaxRL", "#f2a27a", "D"),
    "expected": ("MaxRL in expectation", "#e0b000", "P"),
    "grpo-128": ("GRPO", "#86cde6", "^"),
    "maxrl-kl.04": ("MaxRL", "#f2a27a", "D"),
    "grpo-kl.04": ("GRPO", "#86cde6", "^"),
    "rare": plots.STYLE["maxrl_rare"],
    "smoothing": plots.STYLE["differential_smoothing"],
    "muon": ("MaxRL in rounds, Muon", "#00594f", "X"),
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
    return curve(name, x, values.mean(0), band=[half_width(each) for each in values.T], **more)


def penalised(line: dict, method: str) -> dict:
    """The line of a method with a KL penalty: in the method's colour, dashed, with open markers."""
    return line | {"like": method, "dashed": True, "hollow": True}


def guess_curve(name: str, ks) -> dict:
    """pass@k of guesses at a test set."""
    return curve("guess", ks, guessing(name, ks))


def guess_level(name: str, k: int) -> dict[str, str]:
    """The same at one k, a level of a panel."""
    return {f"{guessing(name, [k])[0]:.3f}": "guessing"}


def level(*panels: dict) -> list[dict]:
    """The panels with one y axis that has zero in it."""
    lines = [one for each in panels for one in each["lines"]]
    values = [np.add(one.get("seeds", one["y"]), one.get("band", 0)) for one in lines]
    top = max(map(np.max, values))
    bottom = min(map(np.min, values))
    limits = (min(0, 1.08 * bottom), min(1.02, 1.08 * top))
    return [each | {"ylim": limits} for each in panels]


def pair(paper: tuple, ours: tuple, xlabel: str, **axes) -> list[dict]:
    """The paper's panel and ours with one y axis, each (title, ylabel, curves or lines)."""
    title, ylabel, curves = paper
    left = panel(title, xlabel, ylabel, theirs(curves), **axes)
    title, ylabel, lines = ours
    return level(left, panel(title, xlabel, ylabel, lines, **axes))


def figure17_panels(ours: dict[str, list[dict]], mazes: str) -> list[dict]:
    """The paper's Figure 17 beside our lines {"pass@1": lines, "pass@32": lines} over training.

    mazes  the test set at which guesses are drawn
    """
    panels = []
    for k, lines in ours.items():
        curves = {name: points for name, points in paper(17)[k].items() if name != "base"}
        left = (MAZE17, f"{k}, held-out mazes", curves)
        panels += pair(left, (MAZE9, f"{k}, training mazes", lines), "step")
        panels[-1]["levels"] = guess_level(mazes, int(k.partition("@")[2]))
    return panels


def block_curves(found: dict, key: str, size: int) -> list[dict]:
    """Means over blocks of steps of the runs {method: {seed: rows}}."""
    lines = []
    for name, seeds in found.items():
        blocks = [in_blocks(rows, key, size).T for rows in seeds.values()]
        values = np.array([sum(each) / len(each) for each in blocks])
        lines.append(seed_curves(name, size // 2 + size * np.arange(values.shape[1]), values))
    return lines


def coverage_curves(results: dict) -> list[dict]:
    """pass@k of a test against k."""
    ks = powers(results["samples"] or results["classes"])
    curves = coverage(results, ks)
    return [seed_curves(name, ks, values.mean(1)) for name, values in curves.items()]


def seeds_said(count: int) -> str:
    return "one seed" if count == 1 else f"mean of {count} seeds and each of them (thin)"


def plain(numbers: dict) -> dict:
    """Numbers of five significant digits, in lists: the same on every machine."""
    text = json.dumps(numbers, default=lambda value: value.tolist())
    return json.loads(text, parse_float=lambda digits: float(f"{float(digits):.5g}"))


def write(name: str, numbers: dict, folder: Path, pictures: bool):
    """Write NAME.json, and NAME.png if there are to be pictures."""
    numbers = plain(numbers)
    write_text(folder / f"{name}.json", json.dumps(numbers, allow_nan=False) + "\n")
    if pictures:
        picture(numbers, folder / f"{name}.png")
    print(f"{name}: {numbers['title']}")


def draw_line(ax, one: dict):
    """Draw a line; None where it needs no entry in the legend."""
    x, y = (np.array(one[key], float) for key in "xy")
    like = one.get("like", one["name"])
    color = plots.look(like).colour
    points = one.get("points")
    for seed in one.get("seeds", ()):
        thin = {"ls": "none", "marker": ".", "ms": 4} if points else {"lw": 0.7}
        ax.plot(x, np.array(seed, float), color=color, alpha=0.45, **thin)
    few = len(x) <= 20
    marker = plots.look(like).marker
    dashes = (
        "--" if one.get("paper") or one.get("dashed") else ":" if one["name"] == "guess" else "-"
    )
    style = {"ls": one.get("ls", dashes), "lw": one.get("lw", 1.8)}
    style |= {"marker": marker, "ms": 3.5} if few else {}
    if points:
        style = {"ls": "none", "marker": points if isinstance(points, str) else marker, "ms": 5}
        style |= {"mfc": "white"}
    if one.get("hollow"):
        style |= {"mfc": "white", "ms": 4.5}
    (drawn,) = ax.plot(x, y, label=plots.look(one["name"]).label, color=color, **style)
    if "band" in one:
        band = np.array(one["band"], float)
        if points or one.get("bars"):
            ax.errorbar(x, y, band, color=color, ls="none", lw=1, capsize=0 if points else 2)
        else:
            ax.fill_between(x, y - band, y + band, color=color, alpha=0.18, lw=0)
    return None if one.get("unnamed") else drawn


def draw_panel(ax, each: dict, legend: dict):
    """Draw a panel, and put its lines into the legend {name: line}."""
    for one in each["lines"]:
        drawn = draw_line(ax, one)
        if drawn and (one["name"] not in legend or not one.get("paper")):
            legend[one["name"]] = drawn
    ax.set(**{key: each[key] for key in each if key not in OWN_KEYS})
    if each.get("zero"):
        ax.axhline(0, lw=0.8, color="#1b1b1b", zorder=1)
    for value, sentence in each.get("levels", {}).items():
        ax.axhline(float(value), ls=":", lw=1, color="#555555")
        at, side = (0.02, "left") if each.get("said") == "left" else (1, "right")
        where = ((at, float(value)), (0, 2), ("axes fraction", "data"))
        ax.annotate(sentence, *where, ha=side, **SMALL)
    for axis, scale in ((ax.xaxis, ax.get_xscale()), (ax.yaxis, ax.get_yscale())):
        if scale == "log":
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
    if ax.get_xscale() == "linear" and "xticks" not in each:
        ax.locator_params(axis="x", nbins=6)


def picture(numbers: dict, file: Path):
    """Draw a figure that is all numbers, 1,290 pixels wide and at most 1,100 tall.

    title     what the figure shows, above the panels
    caption   below them: scale, seeds, how the lines were made
    columns   panels in a row, 2 without it
    panels    each with `lines` and the settings of its axes (title, xlabel, ylim, ...),
              `levels` {value: sentence} for horizontal lines, `said` on the left or right, `zero`
              for a line at 0
    a line    name, x, y; `seeds` are drawn thin, `band` around it (at points: bars), `unnamed` is
              not in the legend, `paper` or `dashed` is dashed, `points` (or a marker) have no line;
              `like` has the colour of another name, `hollow` open markers, `bars` a band as bars
    """
    import matplotlib.pyplot as plt
    from PIL import Image

    plt.rcParams.update(plots.RC)
    panels, columns = numbers["panels"], numbers.get("columns", 2)
    rows = -(-len(panels) // columns)
    size = (8.6, 1.4 + (2.9 if rows == 1 else 2.75 * rows))
    fig, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    legend: dict = {}
    for ax, each in zip(axes.flat, panels):
        draw_panel(ax, each, legend)
    styles = list(plots.STYLE)
    known = [name for name in legend if name.partition("-")[0] in styles]
    order = sorted(known, key=lambda name: (styles.index(name.partition("-")[0]), name))
    order += sorted(set(legend) - set(known))
    about = {"title": textwrap.fill(numbers["caption"], 140), "title_fontsize": 8}
    widest = max((len(plots.look(name).label) for name in order), default=0)
    about["ncols"] = max(1, min(len(order), 105 // (widest + 8)))
    fig.legend(handles=[legend[name] for name in order], loc="outside lower center", **about)
    fig.suptitle(textwrap.fill(numbers["title"], 92), fontsize=11, fontweight="bold")
    fig.savefig(file, dpi=150)
    plt.close(fig)
    # 256 colours are enough for a figure, in a third of the bytes.
    Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)
