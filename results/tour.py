"""Runs the cells of results/tour.ipynb, as Jupyter does, and keeps what they print and show.

python results/tour.py
"""

import base64
import contextlib
import io
import json
import os
from pathlib import Path

import matplotlib

NOTEBOOK = Path(__file__).resolve().with_name("tour.ipynb")


def outputs(code: str, names: dict) -> list[dict]:
    """Run the code of a cell among these names; return its texts and figures, in their order."""
    import matplotlib.pyplot as plt

    found: list[dict] = []
    printed = io.StringIO()

    def keep_text():
        lines = printed.getvalue().splitlines(keepends=True)
        if lines:
            found.append({"name": "stdout", "output_type": "stream", "text": lines})
        printed.seek(0)
        printed.truncate()

    def show():
        keep_text()
        picture = io.BytesIO()
        plt.savefig(picture, format="png", dpi=72, metadata={"Software": None})
        data = {"image/png": base64.b64encode(picture.getvalue()).decode()}
        found.append({"data": data, "metadata": {}, "output_type": "display_data"})
        plt.close("all")

    shown = plt.show
    plt.show = show
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, NOTEBOOK.name, "exec"), names)
    finally:
        plt.show = shown
    keep_text()
    return found


def main() -> None:
    matplotlib.use("Agg")
    os.chdir(NOTEBOOK.parent)
    notebook = json.loads(NOTEBOOK.read_text())
    names = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, 1):
        cell["outputs"] = outputs("".join(cell["source"]), names)
        cell["execution_count"] = count
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
