"""One HTML file about runs, which needs no network: `python -m maxrl report [NAME=]RUN...`.

The page is report.html with tables, samples and the figure of plots.py; it has no script. Prompts,
responses and everything else that stands in a run is untrusted text: safe() escapes it, and the
page's content security policy forbids the browser to run or load anything.
"""

import base64
import html
import json
import os
from dataclasses import dataclass
from pathlib import Path
from string import Template

from maxrl.analysis import plots
from maxrl.system import files
from maxrl.system.arguments import Parser, check_output, runs_named
from maxrl.system.errors import refusing

TEMPLATE = Path(__file__).with_name("report.html")
LINES = 20  # of samples.jsonl, at most


@dataclass
class Run:
    """The contents of a run directory."""

    name: str
    path: str
    options: dict
    rows: list[dict]  # of metrics.jsonl
    samples: str  # as HTML

    def last(self) -> dict:
        """The last value of each metric, and how many steps are done."""
        values: dict = {}
        for row in self.rows:
            values |= row | {"step": row["step"] + 1}
        return values


def read(name: str, path: str) -> Run:
    """Read a run directory."""
    folder = Path(path)
    with refusing(f"{path} is no run directory: ", OSError, ValueError, LookupError, TypeError):
        recipe = files.read_json(folder / "recipe.json")
        options = recipe | recipe["config"]
        samples = [row for row, _ in files.json_lines(folder / "samples.jsonl")]
        every = len(samples) // LINES + 1
        newest_first = "".join(map(step_block, samples[::-every]))
    options = {key: options[key] for key in options if key not in ("config", "step")}
    return Run(name, path, options, plots.read_metrics(path), newest_first)


def safe(value: object) -> str:
    """Untrusted text, or any JSON value, as HTML; unprintable characters become dots."""
    if value is None:
        text = "–"
    elif isinstance(value, float):
        text = f"{value:.6g}"
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "\u00b7" for c in text))


def table(names: list[str], columns: list[dict], differing: bool = False) -> str:
    """The rows of an HTML table with a column for each run.

    differing  whether to leave out the rows in which all runs are alike
    """
    rows: list[list] = [["", *names]]
    for key in dict.fromkeys(key for column in columns for key in column):
        first, *others = [column.get(key) for column in columns]
        if not differing or any(other != first for other in others):
            rows.append([key, first, *others])
    text = ""
    for head, *values in rows:
        cells = "".join(f"<td>{safe(value)}</td>" for value in values)
        text += f"<tr><th>{safe(head)}</th>{cells}</tr>"
    return text


def step_block(row: dict) -> str:
    """A row of samples.jsonl as HTML: prompts, and beside each other what was answered."""
    text = f"<h4>step {row['step'] + 1}</h4>"
    for prompt in row["prompts"]:
        count = f"{prompt['right']} of {row['rollouts']} right, answer {prompt['answer']}"
        responses = "".join(map(response_block, prompt["responses"]))
        text += f"<p>{safe(count)}</p><pre>{safe(prompt['prompt'])}</pre><div>{responses}</div>"
    return text


def response_block(response: dict) -> str:
    """A rollout, as its task draws it and as a text."""
    reward = response["reward"]
    kind = {None: "", 1: "right"}.get(reward, "wrong")
    about = f"reward {safe(reward)}, {response['length']} tokens, read {response['read']}"
    texts = [about, response["drawn"] or "", response["response"]]
    shown = "\n\n".join(texts)
    return f'<pre class="{kind}">{safe(shown)}</pre>'


def page(runs: list[Run]) -> str:
    """The whole page."""
    names = [run.name for run in runs]
    samples = ""
    for run in runs:
        none = "<p>It has no samples.jsonl, which --show-every 20 writes.</p>"
        samples += f"<h3>{safe(run.name)}</h3>{run.samples or none}"
    image = plots.training({run.name: [run.rows] for run in runs})
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        names=safe(", ".join(names)),
        paths=safe(" ".join(run.path for run in runs)),
        image=base64.b64encode(image).decode(),
        metrics=table(names, [run.last() for run in runs]),
        samples=samples,
        options=table(names, [run.options for run in runs], differing=len(runs) > 1),
    )


def main(arguments: list[str]):
    """Run the command line."""
    parser = Parser("python -m maxrl report", description="one HTML page of runs")
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN", help="or a grid's folder")
    parser.add_argument("--out", type=Path, help="by default report.html where all the runs are")
    args = parser.parse_options(arguments)
    runs = [read(name, path) for name, path in runs_named(args.runs)]
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name += f" ({run.path})"
    common = os.path.commonpath([os.path.abspath(run.path) for run in runs])
    out = args.out or Path(common) / "report.html"
    check_output(out, "maxrl report of")
    files.write_text(out, page(runs))
    print(f"wrote {out}")


if __name__ == "__main__":
    plots.script(main)
