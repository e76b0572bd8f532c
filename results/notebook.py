"""Makes results/tour.ipynb of results/tour.py, without Jupyter: runs its cells and keeps what they
print and draw.

PYTHONPATH=. python results/notebook.py
"""

import base64
import contextlib
import io
import json
import os
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent


def cells(text: str) -> list[tuple[str, str]]:
    """[("markdown" or "code", source)] of a script whose cells begin with "# %%" or "# %%
    [markdown]"."""
    found = []
    for part in re.split(r"(?m)^# %%", text)[1:]:
        title, _, body = part.partition("\n")
        body = body.strip("\n")
        if title.strip() == "[markdown]":
            found.append(("markdown", re.sub(r"(?m)^# ?", "", body)))
        else:
            found.append(("code", body))
    return found


def outputs(source: str, names: dict) -> list[dict]:
    """What a code cell prints and draws, in the notebook's terms. names: what the cells before it
    have defined."""
    import matplotlib.pyplot as plt

    plt.close("all")  # what others may have left open
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(source, "tour.py", "exec"), names)
    found = []
    for number in plt.get_fignums():
        file = io.BytesIO()
        plt.figure(number).savefig(file, format="png", dpi=80, bbox_inches="tight")
        picture = base64.b64encode(file.getvalue()).decode()
        found.append(
            {"output_type": "display_data", "metadata": {}, "data": {"image/png": picture}}
        )
    plt.close("all")
    if said.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": lines(said.getvalue())})
    return found


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def notebook(text: str) -> dict:
    made = []
    names = {"__name__": "__main__"}
    for number, (kind, source) in enumerate(cells(text)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines(source)}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": outputs(source, names)}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": made,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "Agg"
    os.chdir(HERE)
    made = notebook(Path("tour.py").read_text())
    Path("tour.ipynb").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
