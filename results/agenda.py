"""The agenda for a GPU, in blocks of at most nine minutes.

    python results/agenda.py                 run the next unfinished block, after saying what it
    will cost
    python results/agenda.py --list          every block: its state, its cost, what is expected of
    it
    python results/agenda.py --dry           the next block's commands, without running them
    python results/agenda.py --block NAME    this one, whatever its state
    python results/agenda.py --show          ours beside the paper's, from what was kept
    python results/agenda.py --tiny          the same blocks in small, on a CPU: a rehearsal

runs/agenda.jsonl has a line for every attempt. A block whose time is up is repeated and resumes its
runs; one that failed comes again after all others. results/gpu/ keeps what is small: metrics
(results/keep.py), recipes, counts. Runs and checkpoints are in runs/agenda/: carry this folder and
runs/agenda.jsonl along to go on with on another machine.
"""

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAVED = 75  # exit code of a training that was asked to end and has saved
WHERE = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(ROOT)}}  # commands run
GRACE = 40  # seconds that it may take for that
METHODS = ("rloo", "grpo", "maxrl")
IMAGES = ("supervised", "maxrl-1024", "maxrl-128", "maxrl-16", "grpo-1024", "reinforce_mean-1024")
# What is expected of the long blocks; from the paper's Figures 12, 17 and 2.
MAZES = (
    "the paper's steps at 256 x 32: at step 800 MaxRL's share of solved prompts is above .6, GRPO's and RLOO's below .25; "
    "at step 1,000 pass@1 is .25, .23 and .10"
)
NEAR = "MaxRL with 1,024 rollouts ends near cross-entropy, with 128 below (ImageNet: 60.2 and 37.7 against 60.6 %)"
FAR = "MaxRL with 16 rollouts, GRPO and REINFORCE stay behind (ImageNet: MaxRL 4.0, REINFORCE .2 %)"


@dataclass
class Phase:
    """Commands that run side by side, and are asked to end after so many seconds."""

    seconds: int
    commands: list[list[str]]


@dataclass
class Block:
    name: str
    cost: str  # beforehand; a guess where nothing was measured on a GPU
    expected: str
    phases: list[Phase]
    needs: tuple[str, ...] = ()  # blocks that must be done
    keeps: tuple[str, ...] = ()  # runs whose metrics stay
    timed: bool = False  # its end is that of its time: a training that has saved is done


class Agenda:
    """The blocks, with paths and sizes for a GPU or, tiny, for a rehearsal."""

    def __init__(self, tiny: bool):
        self.tiny = tiny
        self.work = Path("runs/agenda_tiny" if tiny else "runs/agenda")
        self.state = self.work.with_suffix(".jsonl")
        self.kept = self.work / "kept" if tiny else Path("results/gpu")
        self.blocks = [*self.checks(), *self.mazes(), *self.images()]

    def train(self, recipe: str, run: str, *options, small=()) -> list[str]:
        words = [
            "train.py",
            recipe,
            "--out",
            self.work / run,
            "--resume",
            "auto",
            "--save-every-minutes",
            2,
            "--keep",
            1,
        ]
        return [*map(str, [*words, *(small if self.tiny else options)])]

    def checks(self) -> list[Block]:
        check = [
            "tests/gpu/gpu_check.py",
            "--out",
            str(self.work / "gpu_check.jsonl"),
            "--seconds",
            "480",
        ]
        if self.tiny:
            check += ["--device", "cpu", "--tiny", "--only", "versions"]
        bench = [
            "tests/bench/bench.py",
            "--quick",
            "--out",
            str(self.kept / "bench.json"),
            "--resume",
        ]
        if self.tiny:
            bench += ["--turns", "1", "--only", "verifiers/maze"]
        return [
            Block(
                "check-1",
                "9 minutes at most",
                "everything runs and is right",
                [Phase(500, [[*check, "--block", "1"]])],
            ),
            Block(
                "check-2",
                "9 minutes at most",
                "how fast the parts are",
                [Phase(500, [[*check, "--block", "2"]])],
            ),
            Block(
                "bench",
                "under 4 minutes on two CPU cores, unknown on a GPU",
                "results/bench.md's table for this machine",
                [Phase(480, [bench])],
            ),
        ]

    def mazes(self) -> list[Block]:
        size, train, held_out = (7, 96, 24) if self.tiny else (17, 1_000_000, 256)
        folder = self.work / f"mazes{size}"
        where = ["--task.directory", folder]
        prepare = [
            "-m",
            "data.maze.prepare",
            "--size",
            size,
            "--train",
            train,
            "--test",
            held_out,
            "--validation",
            held_out,
            "--out",
            folder,
        ]
        small = ["--task.size", 7, *where, "--device", "cpu", "--steps", 2, "--prompts", 4]
        base = self.train(
            "maze9_laptop_sft" if self.tiny else "maze17_sft",
            "maze17-base",
            *where,
            small=[*small, "--stop-at-pass", 0, "--eval-every", 0],
        )
        runs = [
            self.train(
                "maze9_laptop" if self.tiny else "maze17",
                f"maze17-{method}",
                *where,
                "--estimator",
                method,
                "--init",
                self.work / "maze17-base",
                "--prompts",
                256,
                "--rollouts",
                32,
                "--steps",
                9000,
                "--eval-every",
                0,
                "--save-every",
                0,
                "--wave-rows",
                8192,
                small=[
                    *small,
                    "--estimator",
                    method,
                    "--init",
                    self.work / "maze17-base",
                    "--rollouts",
                    4,
                    "--eval-every",
                    0,
                ],
            )
            for method in METHODS
        ]
        made = [
            Phase(120, [[*map(str, prepare)]]),
            Phase(320, [base]),
            Phase(60, [self.evaluation("maze17-0", ["base"])]),
        ]
        blocks = [
            Block(
                "maze17-base",
                "2 to 6 minutes: 1,200 to 2,200 steps of the warm-up",
                "pass@1 of .012 or a little more",
                made,
                keeps=("maze17-base",),
            )
        ]
        for i in (1, 2, 3):
            phases = [
                Phase(430, runs),
                Phase(60, [self.evaluation(f"maze17-{i}", ["base", *METHODS])]),
            ]
            blocks.append(
                Block(
                    f"maze17-{i}",
                    "9 minutes: three runs side by side, about .5 s a step (a guess), so 800 steps",
                    MAZES,
                    phases,
                    needs=("maze17-base",),
                    timed=True,
                    keeps=tuple(f"maze17-{method}" for method in METHODS),
                )
            )
        return blocks

    def evaluation(self, name: str, runs: list[str]) -> list[str]:
        samples, k = (4, "1,4") if self.tiny else (256, "1,32,128,256")
        checkpoints = [f"{run}={self.work}/maze17-{run}" for run in runs]
        size = ["--device", "cpu", "--prompts", 4] if self.tiny else ["--prompts", 256]
        return [
            *map(
                str,
                [
                    "eval.py",
                    *checkpoints,
                    "--split",
                    "validation",
                    *size,
                    "--samples",
                    samples,
                    "--k",
                    k,
                    "--json",
                    self.kept / f"{name}.json",
                ],
            )
        ]

    def images(self) -> list[Block]:
        classes, pixels, train, held_out = (
            (10, 16, 512, 20) if self.tiny else (1000, 64, 200_000, 5000)
        )
        folder = self.work / f"glyphs{classes}x{pixels}"
        sizes = {
            "classes": classes,
            "size": pixels,
            "train": train,
            "validation": held_out,
            "test": held_out,
            "out": folder,
        }
        prepare = [
            "-m",
            "data.glyphs.prepare",
            *(f"--{name}={value}" for name, value in sizes.items()),
        ]
        runs = []
        for name in IMAGES:
            estimator, _, rollouts = name.partition("-")
            how = [
                "--estimator",
                estimator,
                "--rollouts",
                rollouts or 1,
                "--task.directory",
                folder,
                "--task.size",
                pixels,
                "--task.augment",
                "false",
            ]
            runs.append(
                self.train(
                    "images_laptop" if self.tiny else "imagenet",
                    f"images-{name}",
                    *how,
                    "--steps",
                    8000,
                    "--warmup-steps",
                    100,
                    "--eval-every",
                    1000,
                    "--eval-prompts",
                    held_out,
                    "--workers",
                    4,
                    small=[
                        *how,
                        "--steps",
                        2,
                        "--warmup-steps",
                        0,
                        "--prompts",
                        16,
                        "--eval-every",
                        0,
                        "--device",
                        "cpu",
                    ],
                )
            )
        data = Block(
            "images-data",
            "minutes on 16 cores",
            "200,000 drawn images of 1,000 classes",
            [Phase(500, [prepare])],
        )
        blocks = [data]
        for i, expected in enumerate((NEAR, FAR)):
            half = slice(3 * i, 3 * i + 3)
            blocks.append(
                Block(
                    f"images-{i + 1}",
                    "2 to 8 minutes: 8,000 steps, three side by side, 9 ms a step alone (a guess)",
                    expected,
                    [Phase(480, runs[half])],
                    needs=("images-data",),
                    keeps=tuple(f"images-{name}" for name in IMAGES[half]),
                )
            )
        return blocks

    def history(self) -> dict[str, str]:
        """{block: how its last attempt ended}; "begun" for one that did not come to its end."""
        if not self.state.exists():
            return {}
        rows = map(json.loads, self.state.read_text().splitlines())
        return {row["block"]: row["state"] for row in rows}

    def next(self) -> Block | None:
        """The first block that is not done, those that failed last; None when all are done or wait
        for one that is not."""
        states = self.history()
        open_ = [block for block in self.blocks if states.get(block.name) != "done"]
        ready = [
            block for block in open_ if all(states.get(name) == "done" for name in block.needs)
        ]
        return min(ready, key=lambda block: states.get(block.name) == "failed", default=None)

    def note(self, row: dict):
        self.state.parent.mkdir(parents=True, exist_ok=True)
        with self.state.open("a") as file:
            file.write(json.dumps({"time": time.strftime("%Y-%m-%d %H:%M:%S")} | row) + "\n")

    def run(self, block: Block) -> str:
        """Run a block; how it ended: done, unfinished (its time was up) or failed."""
        self.work.mkdir(parents=True, exist_ok=True)
        self.kept.mkdir(parents=True, exist_ok=True)
        self.note({"block": block.name, "state": "begun"})
        begin = time.monotonic()
        ended = []
        for phase in block.phases:
            codes = side_by_side(phase, self.work / block.name)
            ended += codes
            if any(code not in (0, SAVED) for code in codes):
                break
        for run in block.keeps:
            self.keep(run)
        state = "done"
        if any(code not in (0, SAVED) for code in ended):
            state = "failed"
        elif SAVED in ended and not block.timed:
            state = "unfinished"
        self.note(
            {
                "block": block.name,
                "state": state,
                "seconds": round(time.monotonic() - begin),
                "codes": ended,
            }
        )
        return state

    def keep(self, run: str):
        """What stays of a run; it replaces what an earlier block left of the same run."""
        if (self.work / run / "metrics.jsonl").exists():
            folder = self.kept / "runs" / run
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run(
                [sys.executable, "results/keep.py", self.work / run, folder], check=True, **WHERE
            )


def side_by_side(phase: Phase, log: Path) -> list[int]:
    """Run a phase's commands; their exit codes. What they print goes to LOG-0.log, LOG-1.log, ...,
    its end also to here."""
    processes, logs = [], []
    try:
        for i, words in enumerate(phase.commands):
            print("$ python", *words, flush=True)
            if "--json" in words:  # of an attempt before this one
                Path(words[words.index("--json") + 1]).unlink(missing_ok=True)
            logs.append(Path(f"{log}-{i}.log"))
            with logs[-1].open("a") as file:
                processes.append(
                    subprocess.Popen([sys.executable, *words], **WHERE, stdout=file, stderr=file)
                )
        end = time.monotonic() + phase.seconds
        for process in processes:
            wait(process, end - time.monotonic())
        for process in processes:
            process.terminate()  # saves and ends; nothing to one that has ended
        end = time.monotonic() + GRACE
        for process in processes:
            wait(process, end - time.monotonic())
    finally:
        for process in processes:
            process.kill()
    for file in logs:
        print(*file.read_text().splitlines()[-8:], sep="\n")
    return [process.wait() for process in processes]


def wait(process: subprocess.Popen, seconds: float):
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0, seconds))


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
    print(
        "| 17x17, 256 x 32 | steps | solved | Figure 12 | pass@1 | Figure 17 | pass@128 | Figure 17 |\n|"
        + "---|" * 8
    )
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
    print(
        "Figure 17 has a point every 1,000 steps: between them a straight line. Solved: moving average of .99."
    )


def describe(block: Block, state: str):
    print(f"{block.name}: {state}\n  costs     {block.cost}\n  expected  {block.expected}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("list", "dry", "show", "tiny"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--block")
    args = parser.parse_args(arguments)
    os.chdir(ROOT)
    agenda = Agenda(args.tiny)
    names = [block.name for block in agenda.blocks]
    if args.block and args.block not in names:
        parser.error(f"--block {args.block} is not one of {', '.join(names)}")
    if args.show:
        show(agenda.kept)
        return 0
    states = agenda.history()
    if args.list:
        for block in agenda.blocks:
            describe(block, states.get(block.name, "not run"))
        return 0
    block = agenda.blocks[names.index(args.block)] if args.block else agenda.next()
    if block is None:
        print("nothing is left to run")
        return 0
    describe(block, states.get(block.name, "not run"))
    if args.dry:
        for phase in block.phases:
            for words in phase.commands:
                print("$ python", *words)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    state = agenda.run(block)
    print(f"{block.name}: {state}")
    return int(state == "failed")


if __name__ == "__main__":
    sys.exit(main())
