"""Speed of everything that takes time, in one table, ratios first: `make bench`, or `make bench OPTIONS=--quick`.

    PYTHONPATH=. python tests/bench/bench.py [--quick] [--only rollouts/] [--turns 5] [--out FILE] [--resume] [--device cuda]
    PYTHONPATH=. python tests/bench/bench.py --show results/bench/FILE.json [--by cpu] [--plot FILE.png]

A row has contestants that take turns after a warm-up: A B C A B C ... Its ratio is maxrl's work per second over that of
the best of the others. Every row runs in a process of its own, so that its peak memory is its own, and is written to the
file when it is done: --resume runs the rows that the file does not have. Seconds are medians (min-max).
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TYPES = ("float32", "bfloat16")
TEXT, TRL, IMAGES = "bench_text", "bench_trl", "bench_images"
# A row's name: the module and the function that measures it, and its arguments.
ROWS = {"limits": ("bench_turns", "limits", [])}
ROWS |= {
    f"rollouts/{shape}/{dtype}": (TEXT, "rollouts", [shape, dtype])
    for shape in ("prompt-310", "256-tokens", "ragged", "49152-words")
    for dtype in TYPES
}
ROWS |= {f"training/{dtype}": (TEXT, "training", [dtype]) for dtype in TYPES}
ROWS |= {
    f"step/{size}/{dtype}": (TRL, "whole_step", [size, dtype, "maxrl"])
    for size in ("17x17", "9x9")
    for dtype in TYPES
}
ROWS |= {
    f"rare/{size}/float32": (TRL, "whole_step", [size, "float32", "maxrl_rare"])
    for size in ("17x17", "9x9")
}
ROWS |= {"rounds/9x9/float32": (TRL, "rounds", [])}
ROWS |= {"step/images_laptop/float32": (IMAGES, "laptop", [])}
ROWS |= {f"step/resnet50/{dtype}": (IMAGES, "resnet50", [dtype]) for dtype in TYPES}
ROWS |= {
    "loader": (IMAGES, "loader", []),
    "verifiers/maze": (TEXT, "mazes", []),
    "verifiers/math": (TEXT, "answers", []),
    "memory/log-probs": ("bench_memory", "log_probabilities", []),
}
ROWS |= {f"scaling/{axis}": (TEXT, "scaling", [axis]) for axis in ("rollouts", "prompts", "length")}
QUICK = (
    "limits",
    "rollouts/prompt-310/bfloat16",
    "rollouts/ragged/bfloat16",
    "training/bfloat16",
    "step/17x17/bfloat16",
    "step/9x9/float32",
    "step/images_laptop/float32",
    "loader",
    "verifiers/maze",
    "verifiers/math",
)


# --------------------------------------------------------- the machine -----------------------------------------------------
def cpu_model() -> str:
    try:
        return re.search(r"^model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text(), re.M).group(
            1
        )
    except (OSError, AttributeError):
        return platform.processor() or platform.machine()


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """Of the repository, with a + where files differ from it; "" where there is no git."""

    def git(*words):
        return subprocess.run(
            ["git", "-C", ROOT, *words], capture_output=True, text=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + "+" * bool(
            git("status", "--porcelain", "-uno")
        )
    except OSError:
        return ""


def machine(device: str, threads: int) -> dict:
    """What a number means nothing without."""
    import torch

    from maxrl.parallel.distributed import bfloat16_unit

    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "bfloat16": bfloat16_unit() or "neither",
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "",
        "threads": threads,
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {
            name: version(name)
            for name in ("torch", "transformers", "trl", "accelerate", "numpy", "pillow")
        },
        "allocator": {
            k: v
            for k, v in os.environ.items()
            if k.startswith(("MALLOC_", "PYTORCH_", "LD_PRELOAD"))
        },
    }


def kind(where: dict) -> str:
    """A machine's name in a file's name."""
    return (where["gpu"] or f"cpu{where['cores']}-{where['bfloat16']}").lower().replace(" ", "-")


# ------------------------------------------------------------ a run --------------------------------------------------------
def measure(name: str, args) -> dict:
    """One row, in a process of its own. What it prints last is the row."""
    module, function, arguments = ROWS[name]
    code = (
        f"import json, bench_turns, {module}; bench_turns.start({args.threads}, {args.device!r}); "
        f"print(); print(json.dumps({module}.{function}(*{arguments!r}, turns={args.turns})))"
    )
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT}/tests:{ROOT}/tests/helpers",
        "OMP_NUM_THREADS": str(args.threads),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TQDM_DISABLE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        return {"name": name, "error": done.stderr.strip()[-2000:]}
    return {"name": name, "turns": args.turns} | json.loads(done.stdout.splitlines()[-1])


def run(args):
    """Measure the rows that are asked for and not in the file yet."""
    import torch

    args.device = (
        ("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device
    )
    args.threads = args.threads or torch.get_num_threads()
    where = machine(args.device, args.threads)
    file = (
        args.out
        or ROOT / "results" / "bench" / f"{where['date']}-{kind(where)}{'-quick' * args.quick}.json"
    )
    found = {"machine": where, "rows": []}
    if file.exists():
        if not args.resume:
            sys.exit(
                f"bench.py: {file} is there already: --resume runs the rows that it lacks, --out FILE writes another"
            )
        found = json.loads(file.read_text())
        for name in ("commit", "threads", "versions", "allocator"):
            if found["machine"][name] != where[name]:
                sys.exit(
                    f"bench.py: {file} was measured with {name} {found['machine'][name]}, here it is {where[name]}"
                )
    chosen = [
        name
        for name in (QUICK if args.quick else ROWS)
        if any(part in name for part in args.only or [""])
    ]
    if not chosen:
        sys.exit(
            f"bench.py: no row is called {' or '.join(args.only)}; there are {', '.join(ROWS)}"
        )
    for name in chosen:
        if any(row["name"] == name and "error" not in row for row in found["rows"]):
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        found["rows"] = [row for row in found["rows"] if row["name"] != name] + [
            measure(name, args)
        ]
        found["rows"].sort(key=lambda row: list(ROWS).index(row["name"]))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
    return found


# ----------------------------------------------------------- the table -----------------------------------------------------
def speeds(row: dict, by: str) -> dict[str, float]:
    """Work per second of every contestant, by the medians of its wall or CPU seconds."""
    return {
        who: row["work"][who] / statistics.median(times[by]) for who, times in row["times"].items()
    }


def ratio(row: dict, by: str) -> float | None:
    """maxrl's speed, the first contestant's, over the best of its rivals'; None of a row without any."""
    rates = speeds(row, by)
    ours, *_ = rates.values()
    rivals = [rates[who] for who in row.get("rivals", [])]
    return ours / max(rivals) if rivals else None


def doublings(row: dict, by: str) -> dict[str, float]:
    """Of a scaling row the worst factor from one point to the next, of time and of memory."""
    series = {}
    for who, times in row["times"].items():
        series.setdefault(who.rpartition(" ")[0], []).append(statistics.median(times[by]))
    series["memory"] = list(row["peaks"].values())
    return {name: max(b / a for a, b in zip(values, values[1:])) for name, values in series.items()}


def best_steps(rows: list[dict], by: str) -> list[str]:
    """Of a whole step's rows, maxrl in its better precision against TRL in its own."""
    best = {}
    for row in rows:
        if row.get("rivals") == ["TRL"]:
            size = row["name"].rpartition("/")[0]
            for who, rate in speeds(row, by).items():
                best[size, who] = max(rate, best.get((size, who), 0))
    return [
        f"{size}: maxrl's better precision over TRL's {rate / best[size, 'TRL']:.2f}"
        for (size, who), rate in best.items()
        if who == "maxrl"
    ]


def matrix_rate(rows: list[dict], dtype: str, by: str) -> float | None:
    """FLOP/s of a large matrix product, as measured in the same run."""
    limits = next((row for row in rows if row["name"] == "limits" and "error" not in row), None)
    return limits and speeds(limits, by).get(f"[2048,2048]x[2048,2048] {dtype}")


def cells(row: dict, rows: list[dict], by: str) -> list[str]:
    """Ratio; what; maxrl's seconds, work per second and share of the matrix rate; the others."""
    if "error" in row:
        return ["failed", row["name"], "", "", "", row["error"].splitlines()[-1][:100]]
    rates = speeds(row, by)
    ours, *others = rates
    seconds = row["times"][ours][by]
    spread = f"{statistics.median(seconds):.3g} s ({min(seconds):.3g}-{max(seconds):.3g})"
    peak = matrix_rate(rows, row.get("dtype", ""), by)
    share = (
        f"{row['flops'] / statistics.median(seconds) / peak:.0%}" if peak and "flops" in row else ""
    )
    if "peaks" in row:
        worst = doublings(row, by)
        first = f"x{max(worst.values()):.2f}"
        points = ", ".join(
            f"{who} {statistics.median(times[by]):.3g} s" for who, times in row["times"].items()
        )
        memory = ", ".join(f"{who} {peak:.2f}" for who, peak in row["peaks"].items())
        return [
            first,
            f"{row['name']}: {row['what']}",
            ", ".join(f"{k} x{v:.2f}" for k, v in worst.items()),
            "",
            "",
            f"{points}; GiB {memory}",
        ]
    first = f"{ratio(row, by):.2f}" if ratio(row, by) else ""
    others = {who: rates[ours] / rates[who] if "rivals" in row else rates[who] for who in others}
    rest = ", ".join(f"{who} {number:,.4g}" for who, number in others.items())
    return [
        first,
        f"{row['name']}: {row['what']}",
        spread,
        f"{rates[ours]:,.4g} {row['unit']}/s",
        share,
        rest,
    ]


def show(found: dict, by: str = "wall"):
    """The table as Markdown, from what the file holds alone."""
    where = dict(found["machine"])
    versions = ", ".join(f"{name} {number}" for name, number in where.pop("versions").items())
    print(
        ", ".join(
            f"{name} {value}"
            for name, value in where.items()
            if value != "" and name != "allocator"
        )
    )
    print(f"{versions}; allocator {where['allocator'] or 'as it is'}\n")
    head = [
        "ratio",
        "row",
        "maxrl",
        "work",
        "of the matrix rate",
        "the others, maxrl's speed over theirs",
    ]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for row in found["rows"]:
        print(f"| {' | '.join(cells(row, found['rows'], by))} |")
    print(*best_steps(found["rows"], by), sep="\n")


def plot(found: dict, file: Path, by: str):
    """A bar for each row with rivals from elsewhere, and for training with plain rows: its ratio."""
    from maxrl import plots

    rows = [
        row
        for row in found["rows"]
        if row.get("rivals") and row["name"].startswith(("rollouts", "training", "step"))
    ]
    values = [ratio(row, by) for row in rows]
    fig, (axis,) = plots.figure(1)
    fig.delaxes(fig.axes[1])
    axis.set_subplotspec(fig.add_gridspec(1, 1)[0])  # the whole width
    fig.set_size_inches(8.6, 0.28 * len(rows) + 1)
    axis.barh([row["name"] for row in rows], values, color=[plots.colour("maxrl")] * len(rows))
    axis.bar_label(axis.containers[0], fmt="%.1f", padding=3)
    axis.axvline(1, color=plots.colour("base"), lw=1)
    axis.invert_yaxis()
    where = found["machine"]
    name = where["gpu"] or f"{where['cpu']}, {where['threads']} threads"
    plots.save(fig, [], file, f"maxrl's speed over that of the best of the others: {name}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="the main rows, one turn: under four minutes"
    )
    parser.add_argument(
        "--only", nargs="*", metavar="NAME", help="rows whose names have this in them"
    )
    parser.add_argument(
        "--turns", type=int, default=0, help="of every contestant (5, with --quick 1)"
    )
    parser.add_argument(
        "--threads", type=int, default=0, help="of the CPU (as torch takes by itself)"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="(results/bench/DATE-MACHINE.json)"
    )
    parser.add_argument("--resume", action="store_true", help="only the rows that the file lacks")
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="measure nothing: print the table of this file"
    )
    parser.add_argument(
        "--by", choices=("wall", "cpu"), default="wall", help="seconds of the clock or of the CPU"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw the ratios")
    args = parser.parse_args()
    args.turns = args.turns or (1 if args.quick else 5)
    found = json.loads(args.show.read_text()) if args.show else run(args)
    show(found, args.by)
    if args.plot:
        plot(found, args.plot, args.by)


if __name__ == "__main__":
    main()
