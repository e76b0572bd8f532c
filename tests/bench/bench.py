"""Speed of everything that takes time, in one table, ratios first: `make bench`.

    PYTHONPATH=.:tests:tests/helpers python tests/bench/bench.py [--quick] [--only rollouts/]
    PYTHONPATH=.:tests:tests/helpers python tests/bench/bench.py --show FILE.json
    PYTHONPATH=.:tests:tests/helpers python tests/bench/bench.py --tiny --out /tmp/bench.json

The contestants of a row take turns after a warm-up: A B C A B C ... The ratio of a row is maxrl's
work per second over that of the best of the others, from medians. Every row runs in a process of
its own, and is written to the file when it is done; rows that the file has are not run again.
--tiny asks whether every row runs: its sizes are small and one process has them all.
"""

import argparse
import datetime
import importlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import traceback
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
ROWS |= {f"cpu/{name}": (TEXT, "cpu_form", [name]) for name in ("linear", "attention")}
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

    from maxrl.parallel.distributed import use_bfloat16

    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "bfloat16": use_bfloat16("auto", torch.device("cpu")),
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
    precision = "bf16" if where["bfloat16"] else "float32"
    return (where["gpu"] or f"cpu{where['cores']}-{precision}").lower().replace(" ", "-")


def measured(name: str, args) -> dict:
    """One row, in this process."""
    import bench_turns

    module, function, arguments = ROWS[name]
    bench_turns.start(args.threads, args.device, args.tiny)
    found = getattr(importlib.import_module(module), function)(*arguments, turns=args.turns)
    return {"name": name, "turns": args.turns} | found


def measure(name: str, args) -> dict:
    """One row, in a process of its own. What it prints last is the row."""
    if args.tiny:
        try:
            return measured(name, args)
        except Exception:
            return {"name": name, "error": traceback.format_exc()[-2000:]}
    told = {name: getattr(args, name) for name in ("threads", "device", "tiny", "turns")}
    code = (
        "import argparse, bench, json; "
        f"row = bench.measured({name!r}, argparse.Namespace(**{told!r})); "
        "print(); print(json.dumps(row))"
    )
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT}/tests/bench:{ROOT}/tests/helpers",
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
    return json.loads(done.stdout.splitlines()[-1])


def run(args) -> dict:
    """Measure the rows that are asked for and not in the file yet."""
    import torch

    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    args.threads = args.threads or torch.get_num_threads()
    where = machine(args.device, args.threads)
    size = "-quick" * args.quick + "-tiny" * args.tiny
    name = f"{where['date']}-{kind(where)}{size}.json"
    file = args.out or ROOT / "results" / "bench" / name
    found = json.loads(file.read_text()) if file.exists() else {"machine": where, "rows": []}
    rows = {row["name"]: row for row in found["rows"]}
    for name in QUICK if args.quick else ROWS:
        wanted = any(part in name for part in args.only or [""])
        if wanted and "error" in rows.get(name, {"error": "not measured"}):
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows[name] = measure(name, args)
            found["rows"] = list(rows.values())
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found, indent=1) + "\n")
    return found


def speeds(row: dict, by: str) -> dict[str, float]:
    """Work per second of every contestant, by the medians of its wall or CPU seconds."""
    return {
        who: row["work"][who] / statistics.median(times[by]) for who, times in row["times"].items()
    }


def ratio(row: dict, by: str) -> float | None:
    """maxrl's speed, the first contestant's, over the best of its rivals'; None of a row without
    any."""
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


def matrix_rate(rows: list[dict], dtype: str, by: str) -> float | None:
    """FLOP/s of a large matrix product, the first of the limits measured in the same run."""
    limits = next((row for row in rows if row["name"] == "limits" and "error" not in row), None)
    rates = speeds(limits, by).items() if limits and dtype else []
    return next((rate for who, rate in rates if who.endswith(dtype)), None)


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


def main():
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--quick", action="store_true", help="the main rows, one turn: under four minutes")
    add("--tiny", action="store_true", help="every row for a moment: does it run?")
    add("--only", nargs="*", help="rows whose names contain one of these")
    add("--turns", type=int, default=0, help="of every contestant (5, with --quick 1)")
    add("--threads", type=int, default=0, help="of the CPU (torch's choice)")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--out", type=Path, help="file of the numbers (results/speed/bench/DATE-MACHINE.json)")
    add("--show", type=Path, help="measure nothing, print the table of this file")
    add("--by", choices=("wall", "cpu"), default="wall", help="seconds of the clock or of the CPU")
    args = parser.parse_args()
    args.turns = args.turns or (1 if args.quick or args.tiny else 5)
    show(json.loads(args.show.read_text()) if args.show else run(args), args.by)


if __name__ == "__main__":
    main()
