"""One HTML file about runs, which needs no network: `python -m maxrl report [NAME=]RUN...`.

The page is report.html with tables, samples and the figure of plots.py; it has no script. Prompts,
responses and everything else that stands in a run is untrusted text: safe() escapes it, and the
page's content security policy forbids the browser to run or load anything.
"""

import base64
import html
import json
import os
from collections.abc import Callable
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
    samples: list[dict]


def read(name: str, path: str) -> Run:
    """Read a run directory."""
    folder = Path(path)
    with refusing(f"{path} is no run directory: ", OSError, ValueError, LookupError, TypeError):
        recipe = files.read_json(folder / "recipe.json")
        options = recipe | recipe["config"]
        samples = [row for row, _ in files.json_lines(folder / "samples.jsonl")]
    rows = plots.read_metrics(path)
    options = {key: options[key] for key in options if key not in ("config", "step")}
    return Run(name, path, options, rows, samples)


def safe(value: object) -> str:
    """Untrusted text, or any JSON value, as HTML; unprintable characters become dots."""
    if value is None:
        text = "–"
    elif isinstance(value, float):
        text = f"{value:.6g}"
    else:
        text = value if isinstance(value, str) else json.dumps(value)
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "\u00b7" for c in text))


def table(caption: str, runs: list[Run], about: Callable[[Run], dict]) -> str:
    """An HTML table with a column for each run and a row for each key of about(run)."""
    columns = [about(run) for run in runs]
    heads = "".join(f"<th scope=col>{safe(run.name)}</th>" for run in runs)
    body = ""
    for key in dict.fromkeys(key for column in columns for key in column):
        cells = "".join(f"<td>{safe(column.get(key))}</td>" for column in columns)
        body += f"<tr><th scope=row>{safe(key)}</th>{cells}</tr>"
    return scrolling(
        caption,
        f"<table><caption>{caption}</caption><thead><tr><td></td>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table>",
    )


def scrolling(label: str, wide: str) -> str:
    """HTML that a narrow screen scrolls sideways."""
    return f'<div class="scroll" role="group" aria-label="{label}" tabindex="0">{wide}</div>'


def metrics(run: Run) -> dict:
    """The last value of each metric, and how many steps are done."""
    last: dict = {}
    for row in run.rows:
        last |= row | {"step": row["step"] + 1}
    return last


def options(runs: list[Run]) -> str:
    """A table of the options of one run, or of those that differ between several runs."""

    def differs(key: str, value: object) -> bool:
        return len(runs) == 1 or any(run.options.get(key) != value for run in runs)

    def shown(run: Run) -> dict:
        return {key: value for key, value in run.options.items() if differs(key, value)}

    return table("Options", runs, shown)


def curves(runs: list[Run]) -> str:
    """The training curves as an image that stands in the page itself."""
    image = plots.training({run.name: [run.rows] for run in runs})
    text = base64.b64encode(image).decode()
    drawn = f'<img alt="curves of metrics.jsonl over the steps" src="data:image/png;base64,{text}">'
    return scrolling("Curves", drawn)


def samples(runs: list[Run]) -> str:
    """Right and wrong rollouts of each run, the newest first and unfolded."""
    parts = ""
    for run in runs:
        parts += f"<h3>{safe(run.name)}</h3>"
        every = len(run.samples) // LINES + 1
        for row in run.samples[::-every]:
            opened = " open" if row is run.samples[-1] else ""
            with refusing(f"{run.path}/samples.jsonl: ", LookupError, TypeError):
                parts += f"<details{opened}>{step_block(row)}</details>"
        if not run.samples:
            parts += "<p>It has no samples.jsonl, which --show-every 20 writes.</p>"
    return parts


def step_block(row: dict) -> str:
    """A row of samples.jsonl."""
    prompts = row["prompts"]
    rates = ", ".join(f"{prompt['right']} of {row['rollouts']}" for prompt in prompts)
    title = safe(f"step {row['step'] + 1}: {rates} right")
    return f"<summary>{title}</summary>{''.join(map(prompt_block, prompts))}"


def prompt_block(prompt: dict) -> str:
    about = text_block("prompt", prompt["prompt"]) + text_block("answer", prompt["answer"])
    responses = "".join(map(response_block, prompt["responses"]))
    return f'<div class="prompt">{about}<div class="pair">{responses}</div></div>'


def response_block(response: dict) -> str:
    reward = response["reward"]
    verdict = {None: "without a verdict", 1: "right"}.get(reward, "wrong")
    title = f"{verdict}: reward {safe(reward)}, {response['length']} tokens"
    if response["read"] is not None:
        title += f", read {response['read']}"
    text = text_block("drawn", response["drawn"]) + text_block("response", response["response"])
    return f'<section class="{verdict[:5]}"><h4>{safe(title)}</h4>{text}</section>'


def text_block(label: str, text: str | None) -> str:
    return f'<p class="quiet">{label}</p><pre tabindex="0">{safe(text)}</pre>' if text else ""


def page(runs: list[Run]) -> str:
    """The whole page."""
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        names=", ".join(safe(run.name) for run in runs),
        paths=" ".join(safe(run.path) for run in runs),
        curves=curves(runs),
        metrics=table("The last value of each metric", runs, metrics),
        samples=samples(runs),
        options=options(runs),
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
