"""Kills runs of train.py with SIGKILL, hundreds of times, and resumes them: nothing may be lost or come out different.

    make torture           or: PYTHONPATH=. python tests/faults/torture.py [--kills 200] [--seed 0] [--only sft,rl] [--out FILE]

A run of every scenario is made once by `python train.py`, or torchrun, without interruption. Then it is made again and again
with kills, each followed by the same command with --resume auto until the run is over: --kills of them at random moments, of
the whole run ("time") or of one of its two ranks 0.3 seconds before the other ("rank"), then at its write steps (see
torture_child.py): before, after and halfway through one of each kind, and with a failure of the power. After every kill the
checkpoints that are there must be whole. At the end the run directory must have the files and the bytes of the uninterrupted
one; of metrics.jsonl the values that are no times, of recipe.json what is not about the starts of the run. Then the newest
checkpoint of a finished run is damaged, file by file: this must be noticed, and the run go on from the one before to the
same end. Exit code 1 where something is otherwise.
"""

import argparse
import collections
import contextlib
import ctypes
import itertools
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}  # no pools of threads: a fork has one thread
import torture_child  # noqa: E402

torture_child.install()
import torch  # noqa: E402
from tqdm import tqdm  # noqa: E402
from wholeness import damages, differences, unnoticed, unsound  # noqa: E402

import train  # noqa: E402, F401 (what the forks start with)
from data.glyphs import prepare as glyphs  # noqa: E402
from data.maze import prepare as maze  # noqa: E402
from maxrl import checkpoint  # noqa: E402
from maxrl.io.files import write_json  # noqa: E402

torch.set_num_threads(1)
tqdm.monitor_interval = 0  # its thread
tqdm.set_lock(
    threading.RLock()
)  # its own is shared with all forks: one that is killed in it would keep it for ever
ROOT = torture_child.ROOT
PARTIAL = ("write", "os.write", "save_file")  # write steps that can be done by half
STEPWISE = (
    "before",
    "after",
    "power",
    "half",
)  # kinds of kills at a write step; the last where it is PARTIAL
ALL = [
    "--device",
    "cpu",
    "--precision",
    "float32",
    "--out",
    "run",
    "--resume",
    "auto",
    "--keep",
    "2",
]
MAZE = [
    "--task.size",
    "7",
    "--task.directory",
    "../data/7x7",
    "--max-response",
    "20",
    "--prompts",
    "16",
]
RL = ["maze9_laptop", *MAZE, "--init", "../data/warm", "--rollouts", "8"]
EVALUATED = ["--eval-prompts", "4", "--eval-samples", "2", "--eval-k", "1,2"]


@dataclass
class Kill:
    """The end of a life."""

    when: str  # time, rank, or one of STEPWISE
    rank: int = 0
    at: float = 0  # seconds of life; number of the write step
    step: tuple = ()  # the kind of that step, once it has hit


@dataclass
class Scenario:
    """A run, and what is known of it once it was made without interruption."""

    arguments: list[str]  # of train.py
    ranks: int = 1
    torchrun: bool = False  # else the ranks are forked
    seconds: float = 0.0  # that the uninterrupted run takes
    steps: list[list] = field(default_factory=list)  # write steps [call, path] of every rank
    interrupted: Kill | None = None  # in its last checkpoint,
    resumed: list = field(default_factory=list)  # and the write steps of the life after this one


# 96 mazes are 6 batches: every run of mazes enters a second epoch.
SCENARIOS = {
    "sft": Scenario(
        [
            "maze9_laptop_sft",
            *MAZE,
            "--eval-every",
            "0",
            "--stop-at-pass",
            "0",
            "--steps",
            "8",
            "--save-every",
            "2",
            "--schedule",
            "cosine",
            "--warmup-steps",
            "2",
        ]
    ),
    "rl": Scenario([*RL, "--steps", "7", "--save-every", "1", "--eval-every", "3", *EVALUATED]),
    "minibatches": Scenario(
        [
            *RL,
            "--steps",
            "7",
            "--save-every",
            "2",
            "--minibatches",
            "2",
            "--passes",
            "2",
            "--beta",
            "0.01",
            "--entropy-bonus",
            "0.01",
            "--eval-every",
            "0",
        ]
    ),
    "lora": Scenario(
        [
            *RL,
            "--steps",
            "7",
            "--save-every",
            "3",
            "--lora-rank",
            "2",
            "--lora-merge",
            "true",
            "--eval-every",
            "0",
        ]
    ),
    "images": Scenario(
        [
            "images_laptop",
            "--task.directory",
            "../data/glyphs",
            "--task.size",
            "12",
            "--task.augment",
            "true",
            "--prompts",
            "16",
            "--rollouts",
            "16",
            "--steps",
            "8",
            "--save-every",
            "3",
            "--workers",
            "1",
            "--eval-every",
            "4",
            "--eval-prompts",
            "20",
            "--eval-k",
            "1,4",
        ]
    ),
}
SCENARIOS |= {
    f"{name}-2": Scenario(SCENARIOS[name].arguments, ranks=2) for name in ("sft", "rl", "images")
}
SCENARIOS["sft-torchrun"] = Scenario(SCENARIOS["sft"].arguments, ranks=2, torchrun=True)


class Failed(Exception):
    """A life that ended as none should; what is wrong in one sentence and what it said."""


# ------------------------------------------------------------------------------------------------------------- lives


def live(scenario: Scenario, folder: Path, kill: Kill | None = None, fresh: bool = False) -> bool:
    """One life of the run in folder/run, until it is over or killed; whether it was killed."""
    start, timed = time.monotonic(), kill and kill.when in ("time", "rank")
    pids = begin(scenario, folder, kill, fresh)
    limit = start + (kill.at if timed else 120 + 20 * scenario.seconds)
    alive, dead = set(pids), False
    try:
        while alive and not dead:
            if time.monotonic() > limit:
                if not timed:
                    say_where(alive)
                    raise Failed(f"it hangs; it said: {tail(folder, 60)}")
                if kill.when == "rank":
                    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                        os.kill(pids[kill.rank], signal.SIGKILL)
                    time.sleep(0.3)
                return True
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in alive:
                alive.remove(pid)
                if os.WIFEXITED(status) and os.WEXITSTATUS(status):
                    raise Failed(
                        f"a life ended with exit code {os.WEXITSTATUS(status)}; it said: {tail(folder)}"
                    )
                dead = os.WIFSIGNALED(status)
            time.sleep(0.002)
    finally:
        end_all()
    return dead


def say_where(pids: set[int]):
    """Has processes and their children say where they are, in the file of what the life says."""
    parents = {
        int(stat.split()[0]): int(stat.rpartition(")")[2].split()[1])
        for stat in (file.read_text() for file in Path("/proc").glob("[0-9]*/stat"))
    }
    for pid in (pid for pid, parent in parents.items() if {pid, parent} & pids):
        os.kill(pid, signal.SIGUSR2)
        time.sleep(1)


def begin(scenario: Scenario, folder: Path, kill: Kill | None, fresh: bool) -> list[int]:
    """Start the processes of a life: forks, or where `fresh`, as anybody would start them. Their ids by rank."""
    arguments = [*scenario.arguments, *ALL]
    if fresh or scenario.torchrun:
        several = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(scenario.ranks),
        ]
        start = [sys.executable, *several] if scenario.ranks > 1 else [sys.executable]
        return [torture_child.spawn(folder, [*start, str(ROOT / "train.py"), *arguments])]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(scenario.ranks):
        group = (
            {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": scenario.ranks,
                "LOCAL_WORLD_SIZE": scenario.ranks,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            if scenario.ranks > 1
            else {}
        )
        where = (kill.when, kill.at) if kill and kill.when in STEPWISE and kill.rank == rank else ()
        pids.append(
            torture_child.fork(
                folder, arguments, {name: str(value) for name, value in group.items()}, *where
            )
        )
    return pids


def end_all():
    """SIGKILL to every process that descends from this one, which inherits orphans; none is left when it returns."""
    while True:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                parent = int(Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == os.getpid():
                    os.kill(int(entry), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def tail(folder: Path, lines: int = 8) -> str:
    return "\n    ".join(
        [
            "",
            *(folder / "said")
            .read_text(errors="replace")
            .replace("\r", "\n")
            .splitlines()[-lines:],
        ]
    )


# --------------------------------------------------------------------------------------------------------- the trials


def prepare(work: Path, names: list[str]):
    """Data and a warmed-up model for the scenarios, then their uninterrupted runs: fresh, and forked to number the steps."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans become this process's children
    data = work / "data"
    maze.main(
        [
            "--size",
            "7",
            "--train",
            "96",
            "--validation",
            "24",
            "--test",
            "24",
            "--workers",
            "1",
            "--out",
            str(data / "7x7"),
        ]
    )
    if any("images" in name for name in names):
        glyphs.main(
            [
                "--classes",
                "12",
                "--size",
                "12",
                "--train",
                "120",
                "--validation",
                "20",
                "--test",
                "1",
                "--workers",
                "1",
                "--out",
                str(data / "glyphs"),
            ]
        )
    if any("--init" in SCENARIOS[name].arguments for name in names):
        warm = Scenario(
            [*SCENARIOS["sft"].arguments, "--steps", "150", "--save-every", "0", "--lr", "4e-3"]
        )
        if live(warm, new(work / "warm")):
            raise Failed("the warm-up was killed")
        (data / "warm").symlink_to(checkpoint.find(work / "warm" / "run"))
    for name in tqdm(names, desc="uninterrupted runs"):
        scenario = SCENARIOS[name]
        live(scenario, new(work / name / "fresh"), fresh=True)
        start = time.monotonic()
        live(scenario, new(work / name / "forked"))
        scenario.seconds = time.monotonic() - start
        if found := differences(work / name / "fresh" / "run", work / name / "forked" / "run"):
            raise Failed(f"{name}: two uninterrupted runs differ: {'; '.join(found[:5])}")
        norms = [
            json.loads(line)["grad_norm"]
            for line in (work / name / "fresh/run/metrics.jsonl").open()
        ]
        if not all(norm > 0 for norm in norms):
            raise Failed(f"{name}: a step without a gradient proves nothing, {norms}")
        if not scenario.torchrun:
            scenario.steps = [noted(work / name / "forked", rank) for rank in range(scenario.ranks)]
            last = max(n for n, (call, _) in enumerate(scenario.steps[0], 1) if call == "save_file")
            folder, scenario.interrupted = new(work / name / "resumed"), Kill("half", 0, last)
            live(scenario, folder, scenario.interrupted)
            live(scenario, folder)
            scenario.resumed = noted(folder, 0)


def new(folder: Path) -> Path:
    """An empty directory that sees the data as ../data."""
    folder.mkdir(parents=True)
    if not (folder.parent / "data").exists():
        (folder.parent / "data").symlink_to("../data")
    return folder


def kinds(steps: list[list], start: str):
    """The kind of each write step: its part of the life (`start`, or "a step" after the first line of metrics.jsonl), a call
    on a file, of a checkpoint whatever its number, and which one of these since the last line was written."""
    part, seen = start, collections.Counter()
    for call, path in steps:
        kind = part, call, re.sub(r"step-\d+", "step-N", path)
        seen[kind] += 1
        yield (*kind, seen[kind])
        if (call, path) == ("write", "metrics.jsonl"):
            part, seen = "a step", collections.Counter()


def write_steps(names: list[str]) -> dict[tuple, list[tuple]]:
    """{kind of write step: where it is done}, each place a scenario and the kills that lead to it, the last one without its
    manner: in a first life, or at the start of one that resumes."""
    found = collections.defaultdict(list)
    for name in names:
        for rank, steps in enumerate(SCENARIOS[name].steps):
            for number, kind in enumerate(kinds(steps, "start"), 1):
                found[kind].append((name, [], rank, number))
        for number, kind in enumerate(kinds(SCENARIOS[name].resumed, "resume"), 1):
            if kind[0] == "resume":
                found[kind].append((name, [SCENARIOS[name].interrupted], 0, number))
    return found


def noted(folder: Path, rank: int) -> list[list]:
    """The write steps of a rank's last life in this folder."""
    return [json.loads(line) for line in (folder / f"steps.{rank}").read_text().splitlines()]


def injected(names: list[str], rng: random.Random) -> list[tuple[str, list[Kill]]]:
    """A trial for every kind of write step and each way to be killed there: (scenario, kills), shuffled."""
    plan = []
    for kind, places in write_steps(names).items():
        for when in STEPWISE if kind[1] in PARTIAL else STEPWISE[:3]:
            name, before, rank, number = rng.choice(places)
            plan.append((name, [*before, Kill(when, rank, number)]))
    rng.shuffle(plan)
    return plan


def at_random(scenario: Scenario, rng: random.Random):
    """Kills, one for each life, for as long as the run is not over."""
    while True:
        earliest = 0.5 if scenario.torchrun else 0  # its first half is spent on imports
        kind = (
            "rank"
            if scenario.ranks > 1 and not scenario.torchrun and rng.random() < 0.3
            else "time"
        )
        yield Kill(
            kind, rng.randrange(scenario.ranks), scenario.seconds * rng.uniform(earliest, 1.05)
        )


def trial(name: str, folder: Path, kills, most: int) -> tuple[list[Kill], list[str]]:
    """Lives until the run is over: the kills that hit, at most so many, and what is not as it must be."""
    hit, scenario = [], SCENARIOS[name]
    try:
        while True:
            kill = next(kills, None) if len(hit) < most else None
            if live(scenario, folder, kill):
                hit.append(kill)
                if kill.when in STEPWISE:
                    kill.step = list(
                        kinds(noted(folder, kill.rank), "start" if len(hit) == 1 else "resume")
                    )[-1]
                if found := unsound(folder / "run"):
                    return hit, found
            elif kill and kill.when in STEPWISE:
                raise Failed(
                    f"write step {kill.at} of rank {kill.rank} was not reached: other steps than in the first run"
                )
            else:
                return hit, differences(folder.parent / "fresh" / "run", folder / "run")
    except Failed as failure:
        return hit, [str(failure)]


def torture(
    work: Path, names: list[str], kills: int, writes: int | None, rng: random.Random
) -> dict:
    """`kills` kills at random and those at write steps, or `writes` trials of these: counts, and what came out different."""
    plan, failures, every, covered = (
        injected(names, rng)[:writes],
        [],
        set(write_steps(names)),
        set(),
    )
    turns = itertools.cycle(
        [name for name in names if not SCENARIOS[name].torchrun] * 4 + names
    )  # torchrun starts slowly
    counts = collections.Counter()  # of (scenario, kind of kill, whether the run came out equal)
    bar = tqdm(total=kills + sum(len(planned) for _, planned in plan), unit=" kills", desc="kills")
    for number in itertools.count():
        others = kills - sum(n for key, n in counts.items() if key[1] not in STEPWISE)
        if others <= 0 and not plan or len(failures) >= 20:
            break
        name, planned = plan.pop() if plan and (number % 2 or others <= 0) else (next(turns), [])
        folder = new(work / name / f"trial-{number}")
        hit, found = trial(
            name,
            folder,
            iter(planned) if planned else at_random(SCENARIOS[name], rng),
            len(planned) or others,
        )
        counts.update((name, kill.when, not found) for kill in hit)
        covered |= {kill.step for kill in hit} & every
        bar.update(len(hit))
        if found:
            places = ", ".join(map(place, hit))
            failures.append({"scenario": name, "kills": places, "differences": found})
            bar.write("\n    ".join([f"NOT EQUAL: {name}, killed {places}", *found[:8]]))
        shutil.rmtree(folder)
    bar.close()
    return {
        "kills": sum(counts.values()),
        "equal": sum(n for key, n in counts.items() if key[2]),
        "write steps": len(every),
        "write steps hit": len(covered),
        "failures": failures,
        "counts": [
            {
                "scenario": name,
                "kind": when,
                "kills": sum(n for key, n in counts.items() if key[:2] == (name, when)),
                "equal": counts[name, when, True],
            }
            for name, when in dict.fromkeys(key[:2] for key in counts)
        ],
    }


def place(kill: Kill) -> str:
    if kill.when in STEPWISE:
        return f"{kill.when} write step {kill.at}: {' '.join(map(str, kill.step))}"
    return f"{'one rank ' * (kill.when == 'rank')}after {kill.at:.2f} s"


def damage_all(work: Path, names: list[str], rng: random.Random) -> dict:
    """Damages every file of the newest checkpoint of finished runs in 121 ways, which must be noticed; then in one way of
    them while the run is resumed, which must say so and take the checkpoint before."""
    tried, resumed, failures = 0, 0, []
    for name in tqdm([n for n in names if SCENARIOS[n].ranks == 1], desc="damage"):
        whole = work / name / "fresh" / "run"
        newest = checkpoint.find(whole)
        more, missed = unnoticed(newest, rng)
        tried += more
        for file in sorted(f.relative_to(newest) for f in newest.rglob("*") if f.is_file()):
            folder = new(work / name / f"damage-{resumed}")
            shutil.copytree(whole, folder / "run")
            bad = folder / "run" / newest.name / file
            what, left = rng.choice([*damages(bad.read_bytes(), rng), ("taken away", None)])
            bad.unlink() if left is None else bad.write_bytes(left)
            try:
                live(SCENARIOS[name], folder)
                aside = folder / "run" / f"{newest.name}.damaged"
                noticed = (
                    aside.exists() and f"{newest.name}.damaged" in (folder / "said").read_text()
                )
                shutil.rmtree(aside, ignore_errors=True)
                wrong = differences(whole, folder / "run") + ["it was not noticed"] * (not noticed)
            except Failed as failure:
                wrong = [str(failure)]
            missed += [f"{file} {what}: {'; '.join(wrong[:4])}"] if wrong else []
            resumed += 1
            shutil.rmtree(folder)
        failures += [f"{name}: {sentence}" for sentence in missed]
    for sentence in failures[:20]:
        print(f"NOT NOTICED OR NOT EQUAL: {sentence}")
    return {"damages": tried, "resumed": resumed, "failures": failures}


def table(counts: list[dict]) -> str:
    """Scenarios by kinds of kill, each `equal of kills`."""
    kinds = [kind for kind in ("time", "rank", *STEPWISE) if any(c["kind"] == kind for c in counts)]
    lines = [f"{'equal of kills':14}" + "".join(f"{kind:>12}" for kind in kinds)]
    for name in [name for name in SCENARIOS if any(c["scenario"] == name for c in counts)]:
        cells = {
            c["kind"]: f"{c['equal']} of {c['kills']}" for c in counts if c["scenario"] == name
        }
        lines.append(f"{name:14}" + "".join(f"{cells.get(kind, '-'):>12}" for kind in kinds))
    return "\n".join(lines)


def report(results: dict, damage: dict | None = None) -> int:
    """Prints the counts; the exit code."""
    print(table(results["counts"]))
    print(
        f"{results['equal']} of {results['kills']} kills: the resumed run equals the uninterrupted one; "
        f"{results['write steps hit']} of {results['write steps']} kinds of write steps were hit"
    )
    if damage:
        print(
            f"{damage['damages']} damages to files of checkpoints, {damage['resumed']} resumed runs, "
            f"{len(damage['failures'])} unnoticed or not equal"
        )
    return int(bool(results["failures"] or damage and damage["failures"]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="at random moments (%(default)s)")
    parser.add_argument(
        "--writes", type=int, help="trials at write steps (every kind of them, in every way)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the moments and places of the kills"
    )
    parser.add_argument("--only", default=",".join(SCENARIOS), help="of %(default)s")
    parser.add_argument("--out", type=Path, help="write the counts to this file")
    args = parser.parse_args(argv)
    names, rng = args.only.split(","), random.Random(args.seed)
    if not set(names) <= set(SCENARIOS):
        parser.error(f"--only {args.only}: there are {', '.join(SCENARIOS)}")
    with tempfile.TemporaryDirectory() as work:
        prepare(Path(work), names)
        results = torture(Path(work), names, args.kills, args.writes, rng)
        damage = damage_all(Path(work), names, rng)
    if args.out:
        command = shlex.join(
            ["python", "tests/faults/torture.py", *(sys.argv[1:] if argv is None else argv)]
        )
        write_json(
            args.out, {"command": command, "torch": torch.__version__, **results, "damage": damage}
        )
    return report(results, damage)


if __name__ == "__main__":
    sys.exit(main())
