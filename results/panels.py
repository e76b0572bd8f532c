"""The panels of a figure: lines with bands over seeds, the paper's dashed, and axes that can be compared."""

import numpy as np

METHODS = ("maxrl", "grpo", "rloo")
MAZE17 = "paper: 17x17 mazes, 3.9M parameters"
MAZE9 = "ours: 9x9 mazes, .3M parameters (reduced scale)"
SOLVED = "share of prompts with a success"


def line(name: str, x, y, **more) -> dict:
    return {"name": name, "x": x, "y": y, **more}


def theirs(curves: dict, **axes) -> dict:
    """A panel of the paper's curves {method: (x, y)}."""
    return {"lines": [line(name, x, y, paper=True) for name, (x, y) in curves.items()], **axes}


def over_seeds(name: str, x, values) -> dict:
    """The mean of values (seeds, points), with a band from the lowest to the highest where there are several."""
    band = {"low": values.min(0), "high": values.max(0)} if len(values) > 1 else {}
    return line(name, x, values.mean(0), **band)


def level(*panels):
    """Panels with one y axis that has zero in it."""
    lines = [one for panel in panels for one in panel["lines"]]
    top = max(np.max(one.get("high", one["y"])) for one in lines)
    bottom = min(np.min(one.get("low", one["y"])) for one in lines)
    for panel in panels:
        panel["ylim"] = (min(0, 1.08 * bottom), min(1.02, 1.08 * top))


def seeds_said(count: int) -> str:
    return (
        f"mean of {count} seeds, bands from the lowest to the highest" if count > 1 else "one seed"
    )
