"""One HTML file on runs, which needs no network and no other file: `python -m maxrl.report [NAME=]RUN... [--out FILE]`.

It is HTML and SVG within report.html, without a script. Whatever stands in a run, prompts and responses before all, is text of
others: safe() makes it harmless, and the page forbids the browser to run or load anything.
"""

import argparse
import html
import json
import math
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from string import Template

import numpy as np

from maxrl.errors import UsageError
from maxrl.io import files
from maxrl.io.arguments import named
from maxrl.study.plots import MEANING, called, colour, smooth

TEMPLATE = Path(__file__).with_name("report.html")
DASHES = (
    "none",
    "7 4",
    "2 4",
    "9 3 2 3",
)  # of the first run, the second, ...: colour alone is not for everybody
METRICS = (
    "reward",
    "frac_reward_zero_mean",
    "entropy",
    "completions/mean_length",
    "completions/clipped_ratio",
    "grad_norm",
    "kl",
)
POINTS, ROWS, LINES = 400, 21, 20  # at most so many of a curve, of its table, of samples.jsonl
SHARES = (
    "none right",
    "up to 1/4",
    "up to 1/2",
    "up to 3/4",
    "more",
    "all right",
)  # of the rollouts of a prompt
SHADES = ("#d9d9d9", "#c6dbef", "#85bcdb", "#4292c6", "#1764ab", "#08306b")
MARKS = (
    ("((?:##)+)", "b"),
    (r"((?:\.\.)+)", "i"),
    ("(xx)", "em"),
)  # walls of a drawn maze, the way, where it fails


@dataclass
class Run:
    """What the files of a run directory say."""

    name: str  # as HTML
    path: str
    options: dict
    rows: list[dict]  # of metrics.jsonl, what are numbers
    samples: list[dict]
    stroke: str  # of its curves: attributes of SVG


def read(text: str, place: int) -> Run:
    """Run number `place`: [NAME=]DIRECTORY, as the command has it."""
    name, path = named(text)
    folder = Path(path)
    try:
        recipe = files.read_json(folder / "recipe.json")
        config = dict(recipe.pop("config"))
        recipe["starts"] = 1 + len(recipe.pop("earlier", ()))
    except OSError as error:
        raise UsageError(
            f"{path} is no run directory ({error}): python -m maxrl.report runs/demo0/maxrl names one"
        ) from None
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(
            f"{path} is a run whose recipe.json is damaged ({error}): leave it out"
        ) from None
    # Rewards of a supervised run are all 1 and say nothing.
    supervised = config.get("estimator") == "supervised"
    rows = []
    for row, _ in files.json_lines(folder / "metrics.jsonl"):
        known = {key: value for key, value in row.items() if not (supervised and "reward" in key)}
        rows.append(
            {
                key: value
                for key, value in known.items()
                if isinstance(value, int | float) and abs(value) < 1e300
            }
        )
    rows = [row for row in rows if "step" in row]
    if not rows:
        raise UsageError(
            f"{path} has no line in its metrics.jsonl: wait until the first step is done"
        )
    recipe.pop("step", None)  # at which it was started last
    samples = [row for row, _ in files.json_lines(folder / "samples.jsonl")]
    shade = colour(str(config.get("estimator"))) or f"hsl({(70 * place + 190) % 360} 70% 35%)"
    stroke = f'stroke="{shade}" stroke-dasharray="{DASHES[place % len(DASHES)]}"'
    return Run(safe(called(name)), str(folder), recipe | config, rows, samples, stroke)


# ---------------------------------------------------------- HTML ----------------------------------------------------
def safe(value) -> str:
    """A text of anybody's, or another value, as HTML; what is no character to print is a dot."""
    text = value if isinstance(value, str) else json.dumps(value)
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "\u00b7" for c in text))


def number(value) -> str:
    return "–" if value is None else f"{value:.6g}"


def spread(items: list, most: int) -> list:
    """At most so many of them, the first and the last among them."""
    places = np.linspace(0, len(items) - 1, min(most, len(items)))
    return [items[round(place)] for place in places]


def table(caption: str, head, rows) -> str:
    """Rows of cells; the first one of each names it."""
    body = "".join(f'<tr><th scope="row">{row[0]}</th>{cells("td", row[1:])}</tr>' for row in rows)
    return (
        f'<div class="scroll" role="group" aria-label="{caption}" tabindex="0"><table><caption>{caption}</caption>'
        f"<thead><tr>{cells('th scope=col', head)}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def cells(tag: str, values) -> str:
    return "".join(f"<{tag}>{value}</{tag[:2]}>" for value in values)


def folded(summary: str, inside: str, opened: bool = False) -> str:
    return f"<details{' open' * opened}><summary>{summary}</summary>{inside}</details>"


def block(label: str, text: str) -> str:
    return f'<p class="quiet">{label}</p><pre tabindex="0" role="group" aria-label="{label}">{safe(text)}</pre>'


def bar(parts) -> str:
    """Parts of a whole next to each other."""
    whole = sum(parts) or 1
    spans = [
        f'<span style="width:{100 * part / whole:.2f}%;background:{shade}"></span>'
        for part, shade in zip(parts, SHADES)
    ]
    return f'<div class="bar" aria-hidden="true">{"".join(spans)}</div>'


# --------------------------------------------------------- curves ---------------------------------------------------
def round_numbers(low: float, high: float) -> list[float]:
    """At most seven of them, from `low` or below it to `high` or above."""
    unit = 10 ** math.floor(math.log10(high - low))
    step = next(unit * factor for factor in (0.2, 0.5, 1, 2) if high - low <= 5 * unit * factor)
    return [i * step for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def chart(title: str, label: str, curves: list, marks: dict | None = None, window: int = 1) -> str:
    """A drawing of curves [(run, [(x, y), ...])], and a table of what they go through; nothing where there are no points.

    label, marks  of the x axis: its name and {x: text}; round numbers where there are no marks
    window        the strong line is a mean over so many points, where there are 30 or more
    """
    curves = [(run, points) for run, points in curves if points]
    if not curves:
        return ""
    xs = sorted({x for _, points in curves for x, _ in points})
    ys = [0, *(y for _, points in curves for _, y in points)]
    marks = marks or {x: f"{x:g}" for x in round_numbers(0, xs[-1])}
    flat = max(ys) - min(ys) < 1e-300
    levels = round_numbers(min(ys), 1 if flat else max(ys))
    left = min(marks)
    width = max(marks) - left or 1

    def at(x, y) -> str:
        down = 205 - 190 * (y - levels[0]) / (levels[-1] - levels[0])
        return f"{48 + 350 * (x - left) / width:.1f} {down:.1f}"

    parts = [f'<text class="x" x="223" y="244">{label}</text>']
    parts += [
        f'<text class="x" transform="translate({at(x, levels[0])})" y="18">{text}</text>'
        for x, text in marks.items()
    ]
    for level in levels:
        parts.append(
            f'<path class="grid" d="M{at(left, level)}h350"/>'
            f'<text class="y" transform="translate({at(left, level)})" x="-6" y="4">{level:.4g}</text>'
        )
    said = []
    for run, points in curves:
        said.append(f"{run.name} from {number(points[0][1])} to {number(points[-1][1])}")
        if len(points) >= 30 and window > 1:
            parts.append(line(run, at, points, 'opacity=".3"'))
            means = smooth(np.array([[y for _, y in points]]), window)[0].tolist()
            points = [(x, y) for (x, _), y in zip(points, means)]
        parts.append(line(run, at, points, 'stroke-width="2"'))
    known = [dict(points) for _, points in curves]
    rows = [
        [marks.get(x, f"{x:g}"), *(number(points.get(x)) for points in known)]
        for x in spread(xs, ROWS)
    ]
    numbers = table(f"{title}, by {label}", [label, *(run.name for run, _ in curves)], rows)
    return (
        f'<figure><figcaption>{title}</figcaption><svg viewBox="0 0 420 250" role="img" aria-label="{title}: '
        f'{"; ".join(said)}">{"".join(parts)}</svg>{folded(f"Numbers: {title}", numbers)}</figure>'
    )


def line(run: Run, at, points: list, attributes: str) -> str:
    """A single point is a dot."""
    places = ", ".join(at(*point) for point in [points[0], *spread(points, POINTS)])
    return f'<polyline {run.stroke} {attributes} points="{places}"/>'


def curves(runs: list[Run]) -> str:
    """METRICS and pass@k over the steps, in the colours of maxrl.plots."""
    passes = sorted({k for run in runs for row in run.rows for k in evaluated(row)})
    drawn = []
    for key in (*METRICS, *(f"eval/pass@{k}" for k in passes)):
        found = [
            (run, [(row["step"] + 1, row[key]) for row in run.rows if key in row]) for run in runs
        ]
        title = MEANING.get(key, f"{key[5:]}, validation")
        drawn.append(chart(title, "step", found, window=1 if key.startswith("eval/") else 9))
    return "".join(drawn)


def evaluated(row: dict) -> dict[int, float]:
    """{k: pass@k} of a line of metrics.jsonl."""
    return {
        int(key[10:]): value
        for key, value in row.items()
        if re.fullmatch(r"eval/pass@[1-9]\d{0,8}", key)
    }


def coverage(runs: list[Run]) -> str:
    """pass@k against k by the last evaluation of each run."""
    found = []
    marks = {}
    for run in runs:
        last = next((at_k for row in reversed(run.rows) if (at_k := evaluated(row))), {})
        marks |= {math.log2(k): str(k) for k in last}
        found.append((run, [(math.log2(k), last[k]) for k in sorted(last)]))
    return (
        chart("pass@k of the last evaluation", "k", found, marks)
        or "<p>No run has an evaluation.</p>"
    )


# --------------------------------------------------------- samples --------------------------------------------------
def groups(run: Run) -> str:
    """How many prompts have how large a share of right rollouts, step by step."""
    rows = []
    for row in spread(run.samples, LINES):
        counts = [0] * len(SHARES)
        for right, prompts in row["successes"].items():
            share = int(right) / row["rollouts"]
            counts[math.ceil(4 * share) + (share == 1)] += prompts
        rows.append([row["step"] + 1, bar(counts), *counts])
    heads = [
        f'{share}<span class="key" style="background:{shade}"></span>'
        for share, shade in zip(SHARES, SHADES)
    ]
    return table(
        f"{run.name}: prompts by their share of right rollouts", ["step", "shares", *heads], rows
    )


def shown(run: Run) -> str:
    """Right and wrong rollouts, those of the last step unfolded."""
    parts = []
    for row in spread(run.samples, LINES):
        rates = ", ".join(
            f"{prompt['right']:d} of {row['rollouts']:d}" for prompt in row["prompts"]
        )
        prompts = "".join(map(prompt_block, row["prompts"]))
        parts.append(
            folded(f"step {row['step'] + 1}: {rates} right", prompts, row is run.samples[-1])
        )
    return "".join(parts)


def prompt_block(prompt: dict) -> str:
    about = "".join(block(name, prompt[name]) for name in ("prompt", "answer") if prompt[name])
    if prompt["responses"][0]["drawn"]:
        about = folded("Prompt and answer as text", about)
    responses = "".join(map(response_block, prompt["responses"]))
    return f'<div class="prompt">{about}<div class="pair">{responses}</div></div>'


def response_block(response: dict) -> str:
    reward, drawn, text = (
        response["reward"],
        response["drawn"],
        block("response", response["response"]),
    )
    verdict = {None: "without a verdict", 1: "right"}.get(reward, "wrong")
    title = f"{verdict}: reward {number(reward)}, {response['length']:d} tokens"
    if response["read"] is not None:
        title += f", read {safe(response['read'])}"
    if drawn:
        picture = safe(drawn)
        for pattern, tag in MARKS if drawn.startswith("##") else ():
            picture = re.sub(pattern, rf"<{tag}>\1</{tag}>", picture)
        last = safe(drawn.splitlines()[-1])
        text = f'<pre class="maze" role="img" tabindex="0" aria-label="{last}">{picture}</pre>{folded("As text", text)}'
    return f'<section class="{verdict[:5]}"><h4>{title}</h4>{text}</section>'


def of_each(section, runs: list[Run]) -> str:
    """A section on samples.jsonl for each run that has one."""
    parts = []
    for run in runs:
        try:
            told = (
                section(run)
                if run.samples
                else "<p>It has no samples.jsonl, as --show-every 20 writes it.</p>"
            )
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            raise UsageError(
                f"{run.path}/samples.jsonl is not one that train.py has written: move it away"
            ) from None
        parts.append(f"<h3>{run.name}</h3>{told}")
    return "".join(parts)


# ------------------------------------------------------ what it was -------------------------------------------------
def overview(runs: list[Run]) -> str:
    rows = []
    for run in runs:
        last = run.rows[-1]
        swatch = f'<svg viewBox="0 0 40 12" aria-hidden="true"><path {run.stroke} stroke-width="3" d="M0 6h40"/></svg>'
        rows.append(
            [
                swatch + run.name,
                safe(run.path),
                safe(run.options.get("recipe")),
                safe(run.options.get("estimator")),
                f"{last['step'] + 1} of {safe(run.options.get('steps'))}",
                number(last.get("reward")),
            ]
        )
    return table(
        "The runs",
        ["run", "directory", "recipe", "estimator", "steps", "reward of the last step"],
        rows,
    )


def options(runs: list[Run], differing: bool = False) -> str:
    """What recipe.json says of each run; `differing`: only what is not the same in all of them."""
    rows = []
    for key in dict.fromkeys(key for run in runs for key in run.options):
        values = [safe(run.options[key]) if key in run.options else "–" for run in runs]
        if (
            not differing
            or len({*values}) > 1
            and key not in ("command", "out", "resume", "starts")
        ):
            rows.append([safe(key), *values])
    if not rows:
        return "<p>Nothing differs.</p>"
    return table(
        "Options that differ" if differing else "All options",
        ["option", *(run.name for run in runs)],
        rows,
    )


def times(runs: list[Run]) -> str:
    """Means over the steps."""
    pattern = re.compile("seconds|.*_per_second$|memory/")
    keys = list(dict.fromkeys(key for run in runs for key in run.rows[-1] if pattern.match(key)))
    rows = []
    for run in runs:
        found = [[row[key] for row in run.rows if key in row] for key in keys]
        rows.append([run.name, *(number(fmean(values) if values else None) for values in found)])
    return table("Mean of a step; evaluations are not in it", ["run", *map(safe, keys)], rows)


def page(runs: list[Run]) -> str:
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        names=", ".join(run.name for run in runs),
        paths=" ".join(safe(run.path) for run in runs),
        overview=overview(runs),
        differences=options(runs, differing=True),
        curves=curves(runs),
        coverage=coverage(runs),
        groups=of_each(groups, runs),
        samples=of_each(shown, runs),
        times=times(runs),
        options=options(runs),
    )


def main(arguments: list[str]):
    parser = argparse.ArgumentParser("python -m maxrl.report", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="[NAME=]RUN")
    parser.add_argument(
        "--out", type=Path, help="report.html in the run, or in the directory that has all of them"
    )
    args = parser.parse_args(arguments)
    runs = [read(text, place) for place, text in enumerate(args.runs)]
    names = Counter(run.name for run in runs)
    for run in runs:
        if names[run.name] > 1:
            run.name += f" ({safe(run.path)})"
    out = (
        args.out
        or Path(os.path.commonpath([os.path.abspath(run.path) for run in runs])) / "report.html"
    )
    if not out.parent.is_dir():
        raise UsageError(f"{out.parent} is no directory: mkdir -p {out.parent}")
    text = page(runs)
    # Up to the title a report on the same runs is the same.
    if out.exists() and not (
        out.is_file() and out.read_text(errors="replace").startswith(text.partition("<title>")[0])
    ):
        raise UsageError(
            f"{out} is there and is no report on these runs: name another file with --out"
        )
    files.write_text(out, text)
    print(f"wrote {out}")


def script():
    """`python -m maxrl.report`."""
    try:
        main(sys.argv[1:])
    except (UsageError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        sys.exit(2)
