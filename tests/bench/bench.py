"""Speed of everything that takes time, in one table, ratios first: `make bench`.

    python -m tests.bench.bench [--quick] [--only rollouts/]
    python -m tests.bench.bench --show FILE.json
    python -m tests.bench.bench --tiny --out /tmp/bench.json

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
import statistics
import subprocess
import sys
import traceback
from importlib import metadata
from pathlib import Path

from tests import ROOT

# A row's name, the function that measures it and its arguments. --quick has those with a star.
TABLE = """
* limits                         bench_turns.limits
  rollouts/prompt-310/float32    bench_text.rollouts    prompt-310 float32
* rollouts/prompt-310/bfloat16   bench_text.rollouts    prompt-310 bfloat16
  rollouts/256-tokens/float32    bench_text.rollouts    256-tokens float32
  rollouts/256-tokens/bfloat16   bench_text.rollouts    256-tokens bfloat16
  rollouts/ragged/float32        bench_text.rollouts    ragged float32
* rollouts/ragged/bfloat16       bench_text.rollouts    ragged bfloat16
  rollouts/49152-words/float32   bench_text.rollouts    49152-words float32
  rollouts/49152-words/bfloat16  bench_text.rollouts    49152-words bfloat16
  training/float32               bench_text.training    float32
* training/bfloat16              bench_text.training    bfloat16
  cpu/attention                  bench_text.cpu_form
  step/17x17/float32             bench_trl.whole_step   17x17 float32 maxrl
* step/17x17/bfloat16            bench_trl.whole_step   17x17 bfloat16 maxrl
* step/9x9/float32               bench_trl.whole_step   9x9 float32 maxrl
  step/9x9/bfloat16              bench_trl.whole_step   9x9 bfloat16 maxrl
  rare/17x17/float32             bench_trl.whole_step   17x17 float32 maxrl_rare
  rare/9x9/float32               bench_trl.whole_step   9x9 float32 maxrl_rare
  rounds/9x9/float32             bench_rounds.rounds
* step/images_laptop/float32     bench_images.laptop
  step/resnet50/float32          bench_images.resnet50  float32
  step/resnet50/bfloat16         bench_images.resnet50  bfloat16
* loader                         bench_images.loader
* advantages/tailrl              bench_text.thresholds
* verifiers/maze                 bench_text.mazes
* verifiers/math                 bench_text.answers
  scaling/rollouts               bench_text.scaling     rollouts
  scaling/prompts                bench_text.scaling     prompts
  scaling/length                 bench_text.scaling     length
"""
ROWS = {}
QUICK = []
for line in TABLE.strip("\n").splitlines():
    name, *call = line.removeprefix("*").split()
    ROWS[name] = call
    QUICK += [name] * line.startswith("*")
PACKAGES = ("torch", "transformers", "trl", "accelerate", "numpy", "pillow")
ALLOCATORS = ("MALLOC_", "PYTORCH_", "LD_PRELOAD")
HEAD = "ratio | row | maxrl | work | of the matrix rate | the others, maxrl's speed over theirs"


def machine(device: str, threads: int) -> dict:
    """What a number means nothing without."""
    import torch

    from maxrl.run import origin
    from maxrl.system.distributed import use_bfloat16

    found = {each.name.lower(): each.version for each in metadata.distributions()}
    return {
        "date": datetime.date.today().isoformat(),
        "commit": origin.commit(),
        "cpu": origin.processor(),
        "cores": os.cpu_count(),
        "bfloat16": use_bfloat16("auto", torch.device("cpu")),
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "",
        "threads": threads,
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {name: found[name] for name in PACKAGES if name in found},
        "allocator": {k: v for k, v in os.environ.items() if k.startswith(ALLOCATORS)},
    }


def default_file(where: dict, size: str) -> Path:
    precision = "bf16" if where["bfloat16"] else "float32"
    kind = where["gpu"] or f"cpu{where['cores']}-{precision}"
    name = f"{where['date']}-{kind.lower().replace(' ', '-')}{size}.json"
    return ROOT / "results/speed/bench" / name


def measured(name: str, threads: int, device: str, tiny: bool, turns: int) -> dict:
    """One row, in this process."""
    from tests.bench import bench_turns

    function, *arguments = ROWS[name]
    module, _, function = function.partition(".")
    bench_turns.start(threads, device, tiny)
    module = importlib.import_module(f"tests.bench.{module}")
    row = getattr(module, function)(*arguments, turns=turns)
    return {"name": name, "turns": turns} | row


def measure(name: str, args) -> dict:
    """One row, in a process of its own. What it prints last is the row."""
    told = (name, args.threads, args.device, args.tiny, args.turns)
    if args.tiny:
        try:
            return measured(*told)
        except Exception:
            return {"name": name, "error": traceback.format_exc()[-2000:]}
    code = "import json; from tests.bench import bench; "
    code += f"row = bench.measured{told}; print(); print(json.dumps(row))"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": str(args.threads),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TQDM_DISABLE": "1",
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
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
    file = args.out or default_file(where, "-quick" * args.quick + "-tiny" * args.tiny)
    found = json.loads(file.read_text()) if file.exists() else {"machine": where, "rows": []}
    rows = {row["name"]: row for row in found["rows"]}
    for name in QUICK if args.quick else ROWS:
        wanted = any(part in name for part in args.only or [""])
        measured_before = name in rows and "error" not in rows[name]
        if wanted and not measured_before:
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows[name] = measure(name, args)
            found["rows"] = list(rows.values())
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found, indent=1) + "\n")
    return found


def listed(numbers: dict, form: str) -> str:
    return ", ".join(f"{who} {format(number, form)}" for who, number in numbers.items())


def medians(row: dict, by: str) -> dict[str, float]:
    """The wall or CPU seconds of every contestant."""
    return {who: statistics.median(times[by]) for who, times in row["times"].items()}


def speeds(row: dict, by: str) -> dict[str, float]:
    """Work per second of every contestant."""
    return {who: row["work"][who] / seconds for who, seconds in medians(row, by).items()}


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
    for who, seconds in medians(row, by).items():
        series.setdefault(who.rpartition(" ")[0], []).append(seconds)
    series["memory"] = list(row["peaks"].values())
    return {name: max(b / a for a, b in zip(values, values[1:])) for name, values in series.items()}


def share(row: dict, rows: list[dict], by: str) -> str:
    """A row's FLOP/s over those of a large matrix product, the first of the limits measured in the
    same run."""
    for limits in rows:
        if (
            limits["name"] == "limits"
            and "error" not in limits
            and row.keys() >= {"flops", "dtype"}
        ):
            ours, *_ = medians(row, by).values()
            rates = speeds(limits, by)
            peak = next(rate for who, rate in rates.items() if who.endswith(row["dtype"]))
            return f"{row['flops'] / ours / peak:.0%}"
    return ""


def cells(row: dict, rows: list[dict], by: str) -> list[str]:
    """What HEAD says."""
    name = row["name"]
    if "error" in row:
        return ["failed", name, "", "", "", row["error"].splitlines()[-1][:100]]
    name = f"{name}: {row['what']}"
    if "peaks" in row:
        worst = doublings(row, by)
        factors = ", ".join(f"{what} x{factor:.2f}" for what, factor in worst.items())
        points = ", ".join(f"{who} {t:.3g} s" for who, t in medians(row, by).items())
        memory = listed(row["peaks"], ".2f")
        return [f"x{max(worst.values()):.2f}", name, factors, "", "", f"{points}; GiB {memory}"]
    rates = speeds(row, by)
    ours, *others = rates
    seconds = row["times"][ours][by]
    spread = f"{statistics.median(seconds):.3g} s ({min(seconds):.3g}-{max(seconds):.3g})"
    first = ratio(row, by)
    rest = {who: rates[ours] / rates[who] if first else rates[who] for who in others}
    work = f"{rates[ours]:,.4g} {row['unit']}/s"
    first = f"{first:.2f}" if first else ""
    return [first, name, spread, work, share(row, rows, by), listed(rest, ",.4g")]


def show(found: dict, by: str = "wall"):
    """The table as Markdown, from what the file holds alone."""
    where = dict(found["machine"])
    versions = where.pop("versions")
    allocator = where.pop("allocator")
    said = {name: value for name, value in where.items() if value != ""}
    print(listed(said, ""))
    print(f"{listed(versions, '')}; allocator {allocator or 'as it is'}\n")
    print(f"| {HEAD} |\n{'|---' * 6}|")
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
