"""The agenda for a GPU, in blocks of at most nine minutes.

    python results/agenda.py                 run the next unfinished block
    python results/agenda.py --list          every block: its state, its cost, what is expected
    python results/agenda.py --dry           the commands of the next block
    python results/agenda.py --block NAME    this one, whatever its state
    python results/agenda.py --show          ours beside the paper's, from what was kept

runs/agenda.jsonl has a line for every attempt. A block whose time is up is repeated and resumes its
runs; one that failed comes again after all others. results/gpu/ keeps what is small; the runs are
in runs/agenda/. Carry both along with runs/agenda.jsonl to go on on another machine.
"""

import argparse
import contextlib
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = os.pathsep.join(str(ROOT / room) for room in ("", "tests", "tests/helpers"))
WHERE = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": ROOMS}}
WORK = Path("runs/agenda")
STATE = Path("runs/agenda.jsonl")
KEPT = Path("results/gpu")
# Exit code of a training that was asked to end and has saved, and the seconds it may take for that.
SAVED = 75
GRACE = 40
METHODS = ("rloo", "grpo", "maxrl")
IMAGES = ("supervised", "maxrl-1024", "maxrl-128", "maxrl-16", "grpo-1024", "reinforce_mean-1024")


@dataclass
class Block:
    name: str
    cost: str  # a guess where nothing was measured on a GPU
    expected: str
    # Commands that run side by side, and are asked to end after so many seconds.
    phases: list[tuple[int, list[str]]]
    needs: str = ""  # a block that must be done
    keeps: tuple[str, ...] = ()  # runs whose metrics stay
    timed: bool = False  # a training that has saved when the time is up is done


def train(recipe: str, run: str, options: str) -> str:
    saving = "--resume auto --save-every-minutes 2 --keep 1"
    return f"train.py {recipe} --out {WORK}/{run} {saving} {options}"


def evaluation(name: str, runs: tuple[str, ...]) -> str:
    checkpoints = " ".join(f"{run}={WORK}/maze17-{run}" for run in runs)
    how = "--split validation --prompts 256 --samples 256 --k 1,32,128,256"
    return f"eval.py {checkpoints} {how} --json {KEPT}/{name}.json"


def checks() -> list[Block]:
    check = f"tests/gpu/gpu_check.py --out {WORK}/gpu_check.jsonl --block"
    bench = f"tests/bench/bench.py --quick --out {KEPT}/bench.json"
    right = "everything runs and is right"
    return [
        Block("check-1", "9 minutes at most", right, [(500, [f"{check} 1"])]),
        Block("check-2", "9 minutes at most", "how fast the parts are", [(500, [f"{check} 2"])]),
        Block("bench", "4 minutes on two CPU cores", "results/bench.md's table", [(480, [bench])]),
    ]


def mazes() -> list[Block]:
    folder = f"{WORK}/mazes17"
    where = f"--task.directory {folder}"
    sizes = "--size 17 --train 1000000 --test 256 --validation 256"
    made = [
        (120, [f"-m data.maze.prepare {sizes} --out {folder}"]),
        (320, [train("maze17_sft", "maze17-base", where)]),
        (60, [evaluation("maze17-0", ("base",))]),
    ]
    cost = "2 to 6 minutes: 1,200 to 2,200 steps of the warm-up"
    keeps = ("maze17-base",)
    blocks = [Block("maze17-base", cost, "pass@1 of .012 or a little more", made, keeps=keeps)]
    sizes = f"{where} --init {WORK}/maze17-base --prompts 256 --rollouts 32 --steps 9000"
    sizes += " --eval-every 0 --save-every 0 --wave-rows 8192 --estimator"
    runs = [train("maze17", f"maze17-{method}", f"{sizes} {method}") for method in METHODS]
    cost = "9 minutes: three runs side by side, about .5 s a step (a guess), so 800 steps"
    expected = "Figures 12 and 17: at step 800 MaxRL's share of solved prompts is above .6, GRPO's "
    expected += "and RLOO's below .25; at step 1,000 pass@1 is .25, .23 and .10"
    for i in (1, 2, 3):
        name = f"maze17-{i}"
        phases = [(430, runs), (60, [evaluation(name, ("base", *METHODS))])]
        keeps = tuple(f"maze17-{method}" for method in METHODS)
        blocks.append(Block(name, cost, expected, phases, "maze17-base", keeps, timed=True))
    return blocks


def images() -> list[Block]:
    folder = f"{WORK}/glyphs1000x64"
    sizes = "--classes 1000 --size 64 --train 200000 --validation 5000 --test 5000"
    prepare = f"-m data.glyphs.prepare {sizes} --out {folder}"
    what = "200,000 drawn images of 1,000 classes"
    blocks = [Block("images-data", "minutes on 16 cores", what, [(500, [prepare])])]
    how = f"--task.directory {folder} --task.size 64 --task.augment false --steps 8000"
    how += " --warmup-steps 100 --eval-every 1000 --eval-prompts 5000 --workers 4"
    cost = "2 to 8 minutes: 8,000 steps, three side by side, 9 ms a step alone (a guess)"
    near = "MaxRL with 1,024 rollouts ends near cross-entropy, with 128 below (ImageNet: 60.2 and "
    near += "37.7 against 60.6 %)"
    far = "MaxRL with 16 rollouts, GRPO and REINFORCE stay behind (ImageNet: 4.0, REINFORCE .2 %)"
    for i, expected in enumerate((near, far)):
        names = IMAGES[3 * i : 3 * i + 3]
        runs = []
        for name in names:
            estimator, _, rollouts = name.partition("-")
            own = f"--estimator {estimator} --rollouts {rollouts or 1} {how}"
            runs.append(train("imagenet", f"images-{name}", own))
        keeps = tuple(f"images-{name}" for name in names)
        blocks.append(Block(f"images-{i + 1}", cost, expected, [(480, runs)], "images-data", keeps))
    return blocks


def history() -> dict[str, str]:
    """{block: how its last attempt ended}; "begun" for one that did not come to its end."""
    rows = map(json.loads, STATE.read_text().splitlines()) if STATE.exists() else []
    return {row["block"]: row["state"] for row in rows}


def next_block(blocks: list[Block]) -> Block | None:
    """The first block that is not done and can begin, those that failed last."""
    states = {"": "done"} | history()
    ready = [b for b in blocks if states.get(b.name) != "done" and states.get(b.needs) == "done"]
    return min(ready, key=lambda block: states.get(block.name) == "failed", default=None)


def note(block: Block, state: str, **more):
    STATE.parent.mkdir(parents=True, exist_ok=True)
    with STATE.open("a") as file:
        file.write(json.dumps({"block": block.name, "state": state} | more) + "\n")


def run(block: Block) -> str:
    """Run a block; how it ended: done, unfinished (its time was up) or failed."""
    WORK.mkdir(parents=True, exist_ok=True)
    KEPT.mkdir(parents=True, exist_ok=True)
    note(block, "begun")
    begin = time.monotonic()
    codes: list[int] = []
    for seconds, commands in block.phases:
        codes += side_by_side(seconds, commands, WORK / block.name)
        if set(codes) - {0, SAVED}:
            break
    for name in block.keeps:
        if (WORK / name / "metrics.jsonl").exists():
            folder = KEPT / "runs" / name
            shutil.rmtree(folder, ignore_errors=True)
            keep = [sys.executable, "results/keep.py", WORK / name, folder]
            subprocess.run(keep, check=True, **WHERE)
    state = "unfinished" if SAVED in codes and not block.timed else "done"
    state = "failed" if set(codes) - {0, SAVED} else state
    note(block, state, seconds=round(time.monotonic() - begin), codes=codes)
    return state


def side_by_side(seconds: int, commands: list[str], log: Path) -> list[int]:
    """Run commands with what they print in LOG-0.log, LOG-1.log, ...; their exit codes."""
    with contextlib.ExitStack() as stack:
        processes = []
        for i, words in enumerate(map(shlex.split, commands)):
            print("$ python", *words, flush=True)
            if "--json" in words:
                # An attempt before this one may have left it.
                Path(words[-1]).unlink(missing_ok=True)
            file = stack.enter_context(open(f"{log}-{i}.log", "a"))
            command = [sys.executable, *words]
            process = subprocess.Popen(command, stdout=file, stderr=file, **WHERE)
            stack.callback(process.kill)
            processes.append(process)
        wait(processes, seconds)
        for process in processes:
            process.terminate()
        wait(processes, GRACE)
    return [process.wait() for process in processes]


def wait(processes: list[subprocess.Popen], seconds: float):
    end = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0, end - time.monotonic()))


def smoothed(rows: list[dict]) -> float:
    """The share of prompts with a success as Figure 12 has it: a moving average of .99 a step, of
    lines of five steps."""
    value = 1 - rows[0]["frac_reward_zero_mean"]
    for row in rows[1:]:
        value = 0.99**5 * value + (1 - 0.99**5) * (1 - row["frac_reward_zero_mean"])
    return value


def at(points: list[list[float]], step: int) -> float:
    """A curve's value, on straight lines between its points."""
    before = [point for point in points if point[0] <= step][-1]
    after = next((point for point in points if point[0] > step), before)
    share = (step - before[0]) / ((after[0] - before[0]) or 1)
    return before[1] + share * (after[1] - before[1])


def show(kept: Path, paper: Path = ROOT / "results/paper"):
    """Ours beside the paper's, at the step that each run has reached."""
    solved = json.loads((paper / "figure12.json").read_text())["series"]
    passed = json.loads((paper / "figure17.json").read_text())["series"]
    head = (
        "17x17, 256 x 32 | steps | solved | Figure 12 | pass@1 | Figure 17 | pass@128 | Figure 17"
    )
    print(f"| {head} |\n|{'---|' * 8}")
    counts = {}
    for file in sorted(kept.glob("maze17-[1-9].json")):  # the last one counts
        results = json.loads(file.read_text())
        counts = {row["name"]: row["counts"] for row in results["checkpoints"]}
    for method in METHODS:
        file = kept / "runs" / f"maze17-{method}" / "metrics.jsonl"
        if not file.exists() or method not in counts:
            continue
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        step = rows[-1]["step"] + 1
        cells = [f"{smoothed(rows):.3f}", f"{at(solved[f'17x17 maze | {method}'], step) / 100:.3f}"]
        for k in (1, 128):
            # 0 where a rehearsal has fewer samples than k.
            ways = math.comb(results["samples"], k) * len(counts[method])
            fails = sum(math.comb(results["samples"] - c, k) for c in counts[method])
            cells.append(f"{1 - fails / ways:.3f}" if ways else "-")
            cells.append(f"{at(passed[f'pass@{k} | {method}'], step):.3f}")
        print(f"| {method} | {step} | {' | '.join(cells)} |")
    print("Figure 17 has a point every 1,000 steps. Solved: moving average of .99.")


def describe(block: Block):
    state = history().get(block.name, "not run")
    print(f"{block.name}: {state}\n  costs     {block.cost}\n  expected  {block.expected}")


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("list", "dry", "show"):
        parser.add_argument(f"--{name}", action="store_true")
    blocks = {block.name: block for block in [*checks(), *mazes(), *images()]}
    parser.add_argument("--block", choices=blocks)
    args = parser.parse_args()
    os.chdir(ROOT)
    block = blocks[args.block] if args.block else next_block(list(blocks.values()))
    if args.show:
        show(KEPT)
    elif args.list:
        for each in blocks.values():
            describe(each)
    elif block is None:
        print("nothing is left to run")
    else:
        describe(block)
        if args.dry:
            print(
                *(f"$ python {command}" for _, phase in block.phases for command in phase), sep="\n"
            )
        else:
            state = run(block)
            print(f"{block.name}: {state}")
            return int(state == "failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
