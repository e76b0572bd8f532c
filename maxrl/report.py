"""One HTML file about runs, which needs no network: `python -m maxrl.report [NAME=]RUN...`.

The page is HTML and SVG within report.html, without a script. Prompts, responses and everything
else that stands in a run is untrusted text: safe() escapes it, and the page's content security
policy forbids the browser to run or load anything.
"""

import argparse
import html
import json
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from string import Template

import numpy as np

from maxrl.errors import UsageError
from maxrl.io import files
from maxrl.io.arguments import named
from maxrl.plots import MEANING, called, colour, script, smooth

TEMPLATE = Path(__file__).with_name("report.html")
# Runs differ in their dashes too, since not everybody can tell the colours apart.
DASHES = ("none", "7 4", "2 4", "9 3 2 3")
METRICS = (
    "reward",
    "frac_reward_zero_mean",
    "entropy",
    "completions/mean_length",
    "completions/clipped_ratio",
    "grad_norm",
    "kl",
)
# At most this many points of a curve, rows of its table, and lines of samples.jsonl.
POINTS = 400
ROWS = 21
LINES = 20

Points = list[tuple[float, float]]
Scales = Callable[[float, float], str]


@dataclass
class Run:
    """The contents of a run directory."""

    name: str  # escaped
    path: str
    options: dict
    rows: list[dict]  # the finite numbers of metrics.jsonl
    samples: list[dict]
    stroke: str  # SVG attributes of its curves


def read(text: str, place: int) -> Run:
    """Read run number `place` of the command line, written [NAME=]DIRECTORY."""
    name, path = named(text)
    folder = Path(path)
    try:
        recipe = files.read_json(folder / "recipe.json")
        options = recipe | recipe["config"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{path} is no run directory: {error}") from None
    rows = [numbers(row) for row, _ in files.json_lines(folder / "metrics.jsonl")]
    rows = [row for row in rows if "step" in row]
    if not rows:
        raise UsageError(f"{path} has no metrics yet: wait until its first step is done")
    if options.get("estimator") == "supervised":
        # Every reward of a supervised run is 1.
        rows = [{key: row[key] for key in row if "reward" not in key} for row in rows]
    samples = [row for row, _ in files.json_lines(folder / "samples.jsonl")]
    shade = colour(str(options.get("estimator"))) or f"hsl({(70 * place + 190) % 360} 70% 35%)"
    stroke = f'stroke="{shade}" stroke-dasharray="{DASHES[place % len(DASHES)]}"'
    options = {key: options[key] for key in options if key not in ("config", "step", "earlier")}
    return Run(safe(called(name)), str(folder), options, rows, samples, stroke)


def numbers(row: dict) -> dict[str, float]:
    """The finite numbers of a row; 1e300 leaves room for sums."""
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, int | float) and abs(value) < 1e300
    }


def safe(value) -> str:
    """Untrusted text, or any JSON value, as HTML; unprintable characters become dots."""
    text = value if isinstance(value, str) else json.dumps(value)
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "\u00b7" for c in text))


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def spread(items: list, most: int) -> list:
    """At most this many of the items, evenly spaced from the first to the last."""
    places = np.linspace(0, len(items) - 1, min(most, len(items)))
    return [items[round(place)] for place in places]


def table(caption: str, head: Iterable[str], rows: Iterable[list]) -> str:
    """An HTML table; the first cell of a row is its header."""
    heads = "".join(f"<th scope=col>{cell}</th>" for cell in head)
    body = ""
    for name, *values in rows:
        cells = "".join(f"<td>{value}</td>" for value in values)
        body += f'<tr><th scope="row">{name}</th>{cells}</tr>'
    return (
        f'<div class="scroll" role="group" aria-label="{caption}" tabindex="0"><table>'
        f"<caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
        "</table></div>"
    )


def folded(summary: str, inside: str, opened: bool = False) -> str:
    return f"<details{' open' * opened}><summary>{summary}</summary>{inside}</details>"


def block(label: str, text: str | None) -> str:
    return f'<p class="quiet">{label}</p><pre tabindex="0">{safe(text)}</pre>' if text else ""


def round_numbers(low: float, high: float) -> list[float]:
    """At most seven round numbers that enclose the interval."""
    unit = 10 ** math.floor(math.log10(high - low))
    step = next(unit * factor for factor in (0.2, 0.5, 1, 2) if high - low <= 5 * unit * factor)
    return [i * step for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def chart(title: str, curves: list[tuple[Run, Points]], window: int = 1) -> str:
    """Curves over the steps as SVG, and the table of the numbers behind them; nothing without any.

    window  a curve of 30 points or more is drawn pale, and strong as the mean over so many points
    """
    curves = [(run, points) for run, points in curves if points]
    if not curves:
        return ""
    xs = sorted({x for _, points in curves for x, _ in points})
    ys = [0, *(y for _, points in curves for _, y in points)]
    steps = round_numbers(0, xs[-1])
    flat = max(ys) - min(ys) < 1e-300
    levels = round_numbers(min(ys), 1 if flat else max(ys))
    at = scales(steps[-1], levels[0], levels[-1])
    parts = grid(steps, levels, at)
    for run, points in curves:
        if len(points) >= 30 and window > 1:
            parts += polyline(run, points, at, 'opacity=".3"')
            means = smooth(np.array([[y for _, y in points]]), window)[0].tolist()
            points = [(x, y) for (x, _), y in zip(points, means)]
        parts += polyline(run, points, at, 'stroke-width="2"')
    known = [dict(points) for _, points in curves]
    rows = [[f"{x:g}", *(number(points.get(x)) for points in known)] for x in spread(xs, ROWS)]
    behind = table(f"{title}, by step", ["step", *(run.name for run, _ in curves)], rows)
    return (
        f'<figure><figcaption>{title}</figcaption><svg viewBox="0 0 420 250" role="img" '
        f'aria-label="{title}">{parts}</svg>{folded(f"Numbers: {title}", behind)}</figure>'
    )


def scales(right: float, bottom: float, top: float) -> Scales:
    """The function from data to the coordinates of a chart, as SVG writes them."""

    def at(x: float, y: float) -> str:
        return f"{48 + 350 * x / right:.1f} {205 - 190 * (y - bottom) / (top - bottom):.1f}"

    return at


def grid(steps: list[float], levels: list[float], at: Scales) -> str:
    """The axes of a chart."""
    parts = '<text class="x" x="223" y="244">step</text>'
    for x in steps:
        place = at(x, levels[0])
        parts += f'<text class="x" transform="translate({place})" y="18">{x:g}</text>'
    for level in levels:
        place = at(0, level)
        parts += f'<path class="grid" d="M{place}h350"/>'
        parts += f'<text class="y" transform="translate({place})" x="-6" y="4">{level:.4g}</text>'
    return parts


def polyline(run: Run, points: Points, at: Scales, attributes: str) -> str:
    # The first point stands twice, so that a single one is a dot.
    places = ", ".join(at(*point) for point in [points[0], *spread(points, POINTS)])
    return f'<polyline {run.stroke} {attributes} points="{places}"/>'


def curves(runs: list[Run]) -> str:
    """Charts of METRICS and of pass@k over the steps."""
    passes = sorted({k for run in runs for row in run.rows for k in evaluated(row)})
    drawn = ""
    for key in (*METRICS, *(f"eval/pass@{k}" for k in passes)):
        found = []
        for run in runs:
            found.append((run, [(row["step"] + 1, row[key]) for row in run.rows if key in row]))
        title = MEANING.get(key, f"{key[5:]}, validation")
        drawn += chart(title, found, window=1 if key.startswith("eval/") else 9)
    return drawn


def evaluated(row: dict) -> dict[int, float]:
    """{k: pass@k} of a line of metrics.jsonl."""
    pattern = re.compile(r"eval/pass@([1-9]\d{0,8})")
    found = {key: pattern.fullmatch(key) for key in row}
    return {int(match[1]): row[key] for key, match in found.items() if match}


def coverage(runs: list[Run]) -> str:
    """A table of pass@k at the last evaluation of each run."""
    found = [next(filter(None, map(evaluated, reversed(run.rows))), {}) for run in runs]
    rows = []
    for k in sorted({k for passes in found for k in passes}):
        rows.append([k, *(number(passes.get(k)) for passes in found)])
    if not rows:
        return "<p>No run has an evaluation.</p>"
    return table("pass@k of the last evaluation, by k", ["k", *(run.name for run in runs)], rows)


def samples(runs: list[Run]) -> str:
    """Right and wrong rollouts of each run, those of its last step unfolded."""
    parts = ""
    for run in runs:
        parts += f"<h3>{run.name}</h3>"
        for row in spread(run.samples, LINES):
            prompts = row["prompts"]
            rates = ", ".join(f"{prompt['right']} of {row['rollouts']}" for prompt in prompts)
            title = safe(f"step {row['step'] + 1}: {rates} right")
            parts += folded(title, "".join(map(prompt_block, prompts)), row is run.samples[-1])
        if not run.samples:
            parts += "<p>It has no samples.jsonl, which --show-every 20 writes.</p>"
    return parts


def prompt_block(prompt: dict) -> str:
    about = block("prompt", prompt["prompt"]) + block("answer", prompt["answer"])
    responses = "".join(map(response_block, prompt["responses"]))
    return f'<div class="prompt">{about}<div class="pair">{responses}</div></div>'


def response_block(response: dict) -> str:
    reward = response["reward"]
    verdict = {None: "without a verdict", 1: "right"}.get(reward, "wrong")
    title = f"{verdict}: reward {number(reward)}, {response['length']} tokens"
    if response["read"] is not None:
        title += f", read {response['read']}"
    text = block("drawn", response["drawn"]) + block("response", response["response"])
    return f'<section class="{verdict[:5]}"><h4>{safe(title)}</h4>{text}</section>'


def overview(runs: list[Run]) -> str:
    rows = []
    for run in runs:
        last = run.rows[-1]
        path = f'<path {run.stroke} stroke-width="3" d="M0 6h40"/>'
        swatch = f'<svg viewBox="0 0 40 12" aria-hidden="true">{path}</svg>'
        steps = f"{last['step'] + 1} of {safe(run.options.get('steps'))}"
        about = [safe(run.options.get(key)) for key in ("recipe", "estimator")]
        reward = number(last.get("reward"))
        rows.append([swatch + run.name, safe(run.path), *about, steps, reward])
    head = ["run", "directory", "recipe", "estimator", "steps", "reward of the last step"]
    return table("The runs", head, rows)


def options(runs: list[Run]) -> str:
    """A table of the options of one run, or of those that differ between several runs."""
    rows = []
    for key in dict.fromkeys(key for run in runs for key in run.options):
        values = [safe(run.options.get(key)) for run in runs]
        differs = len(set(values)) > 1 and key not in ("command", "out")
        if differs or len(runs) == 1:
            rows.append([safe(key), *values])
    return table("Options", ["option", *(run.name for run in runs)], rows)


def times(runs: list[Run]) -> str:
    """A table of times, speeds and memory, means over the steps."""
    pattern = re.compile("seconds|.*_per_second$|memory/")
    keys = list(dict.fromkeys(key for run in runs for key in run.rows[-1] if pattern.match(key)))
    rows = []
    for run in runs:
        found = [[row[key] for row in run.rows if key in row] for key in keys]
        rows.append([run.name, *(number(fmean(values) if values else None) for values in found)])
    return table("Mean of a step; evaluations are not in it", ["run", *map(safe, keys)], rows)


def page(runs: list[Run]) -> str:
    """The whole page."""
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        names=", ".join(run.name for run in runs),
        paths=" ".join(safe(run.path) for run in runs),
        overview=overview(runs),
        curves=curves(runs),
        coverage=coverage(runs),
        samples=samples(runs),
        times=times(runs),
        options=options(runs),
    )


def main(arguments: list[str]):
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m maxrl.report", description="one HTML page of runs")
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN")
    parser.add_argument("--out", type=Path, help="by default report.html where all the runs are")
    args = parser.parse_args(arguments)
    runs = [read(text, place) for place, text in enumerate(args.runs)]
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name += f" ({safe(run.path)})"
    common = os.path.commonpath([os.path.abspath(run.path) for run in runs])
    out = args.out or Path(common) / "report.html"
    files.write_text(out, page(runs))
    print(f"wrote {out}")


if __name__ == "__main__":
    script(main)
