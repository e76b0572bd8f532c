"""Kills runs of train.py with SIGKILL and resumes them: nothing may be lost or come out different.

    make torture           or: python -m tests.faults.torture [--kills 200] [--only sft,rl]

Every scenario runs once without interruption. Then it runs again and again, killed at random
moments and before random writes, each time followed by the same command with --resume auto until
the run is over. After every kill, the checkpoints that are there must be intact. At the end, the
directory must have the files and bytes of the uninterrupted run, except for times in metrics.jsonl
and for what recipe.json says about the starts of the run. The exit code is 1 if anything differs.

What a killed process leaves behind is what its system calls have done. A power failure takes more:
what was written and not yet flushed by fsync (see test_saving.py).
"""

import argparse
import atexit
import collections
import contextlib
import ctypes
import itertools
import json
import os
import random
import runpy
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# No pools of threads: a fork has one thread.
os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
import torch  # noqa: E402
import torch._dynamo  # noqa: E402 (the first step of an optimizer takes a second to import it)
from tqdm import tqdm  # noqa: E402

import train  # noqa: E402 (the forks start with it imported)
from data.maze import prepare as maze  # noqa: E402
from maxrl.models import checkpoint  # noqa: E402
from maxrl.system.files import write_json  # noqa: E402
from results.images import glyphs  # noqa: E402
from tests import ROOT  # noqa: E402
from tests.helpers.started import free_port  # noqa: E402
from tests.helpers.wholeness import differences, unsound  # noqa: E402

torch.set_num_threads(1)
tqdm.monitor_interval = 0  # no thread
# The lock of tqdm is shared with all forks, and one that is killed would keep it for ever.
tqdm.set_lock(threading.RLock())
ALL = "--device cpu --precision float32 --out run --resume auto --keep 2"
# 96 mazes are 6 batches, so every run of mazes enters a second epoch.
MAZE = "--task.size 7 --task.directory ../data/7x7 --max-response 20 --prompts 16"
SFT = f"maze9_laptop_sft {MAZE} --eval-every 0 --stop-at-pass 0"
RL = f"maze9_laptop {MAZE} --init ../data/warm --rollouts 8 --steps 7"


@dataclass
class Kill:
    """The end of a life: after `at` seconds, or before its write number `at`, from 1."""

    when: str  # "time" or "write"
    rank: int = 0
    at: float = 0


@dataclass
class Scenario:
    """A run, and what is known of it after it ran without interruption."""

    arguments: str
    ranks: int = 1
    seconds: float = 0.0
    writes: list[list[str]] = field(default_factory=list)  # of each rank


SCENARIOS = {
    "sft": Scenario(f"{SFT} --steps 8 --save-every 2 --schedule cosine --warmup-steps 2"),
    "rl": Scenario(
        f"{RL} --save-every 1 --eval-every 3 --eval-prompts 4 --eval-samples 2 --eval-k 1,2"
    ),
    "minibatches": Scenario(
        f"{RL} --save-every 2 --minibatches 2 --passes 2 --beta 0.01 --eval-every 0"
    ),
    "lora": Scenario(f"{RL} --save-every 3 --lora-rank 2 --eval-every 0"),
    "images": Scenario(
        f"{ROOT}/results/images/recipe.py:images_laptop --task.directory ../data/glyphs "
        "--task.size 12 --task.augment true "
        "--prompts 16 --rollouts 16 --steps 8 --save-every 3 --workers 1 --eval-every 4 "
        "--eval-prompts 20 --eval-k 1,4"
    ),
}
for name in ("sft", "rl", "images"):
    SCENARIOS[f"{name}-2"] = Scenario(SCENARIOS[name].arguments, ranks=2)


class Failed(Exception):
    """A life that ended as none should."""


def live(scenario: Scenario, folder: Path, kill: Kill | None = None) -> bool:
    """One life of the run in folder/run, until it is over or killed; whether it was killed."""
    timed = kill is not None and kill.when == "time"
    limit = time.monotonic() + (kill.at if timed else 120 + 20 * scenario.seconds)
    port = free_port()
    ranks = [fork(scenario, folder, rank, port, kill) for rank in range(scenario.ranks)]
    alive = set(ranks)
    try:
        while alive:
            if time.monotonic() > limit:
                if timed:
                    return True
                raise Failed(f"it hangs; it said: {tail(folder)}")
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in alive:
                alive.remove(pid)
                if os.WIFSIGNALED(status):
                    return True
                if os.WEXITSTATUS(status):
                    raise Failed(f"exit code {os.WEXITSTATUS(status)}; it said: {tail(folder)}")
            time.sleep(0.002)
        return False
    finally:
        # With their workers, for which this process waits as if they were its own.
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-pid, 0)


def fork(scenario: Scenario, folder: Path, rank: int, port: int, kill: Kill | None) -> int:
    """Start a rank of a life, in a process group of its own; its id.

    Its writes are noted in folder/writes.RANK, and folder/said gets what it says.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.setpgid(child, child)
        return child
    code = 1
    try:
        os.setpgid(0, 0)
        atexit._clear()  # the exit functions of the parent
        os.chdir(folder)
        # Temporary files that a killed life leaves behind go with those of all trials.
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder.parents[1])
        said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        if scenario.ranks > 1:
            world = str(scenario.ranks)
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": world}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        mine = kill is not None and kill.when == "write" and kill.rank == rank
        watch_writes(f"writes.{rank}", int(kill.at) if mine else 0)
        sys.argv = [train.__file__, *shlex.split(f"{scenario.arguments} {ALL}")]
        runpy.run_path(train.__file__, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def watch_writes(file: str, last: int):
    """Note in a file what Python is about to write below ./run, and send SIGKILL before the write
    number `last`, if that is not 0.
    """
    notes = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    run = f"{Path.cwd()}/run/"
    count = 0

    def hook(event, arguments):
        nonlocal count
        if event not in EVENTS or event == "open" and not arguments[2] & WRITING:
            return
        path = arguments[0]
        # A descriptor is none of the package's own.
        if isinstance(path, int) or not os.path.abspath(os.fsdecode(path)).startswith(run):
            return
        count += 1
        os.write(notes, f"{event} {path}\n".encode())
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def tail(folder: Path) -> str:
    said = (folder / "said").read_text(errors="replace").replace("\r", "\n")
    return "\n    ".join(["", *said.splitlines()[-20:]])


def prepare(work: Path, names: list[str]):
    """Make data and a warm model for the scenarios, then run each of them without interruption."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: this process inherits orphans
    data = work / "data"
    counts = "--size 7 --train 96 --validation 24 --test 24 --workers 1"
    maze.main([*counts.split(), "--out", str(data / "7x7")])
    if any("images" in name for name in names):
        counts = "--classes 12 --size 12 --train 120 --validation 20 --test 1 --workers 1"
        glyphs.main([*counts.split(), "--out", str(data / "glyphs")])
    if any("--init" in SCENARIOS[name].arguments for name in names):
        warm = Scenario(f"{SFT} --steps 150 --lr 4e-3")
        live(warm, new(work / "warm"))
        (data / "warm").symlink_to(checkpoint.find(work / "warm" / "run"))
    for name in tqdm(names, desc="uninterrupted runs"):
        scenario = SCENARIOS[name]
        folder = new(work / name / "whole")
        start = time.monotonic()
        live(scenario, folder)
        scenario.seconds = time.monotonic() - start
        files = [folder / f"writes.{rank}" for rank in range(scenario.ranks)]
        scenario.writes = [file.read_text().splitlines() for file in files]
        rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").open()]
        if not all(row["grad_norm"] > 0 for row in rows):
            raise Failed(f"{name}: a step without a gradient proves nothing")


def new(folder: Path) -> Path:
    """An empty directory that sees the data as ../data."""
    folder.mkdir(parents=True)
    if not (folder.parent / "data").exists():
        (folder.parent / "data").symlink_to("../data")
    return folder


def at_random(scenario: Scenario, rng: random.Random) -> Iterator[Kill]:
    """Kills, one for each life: half of them at a random moment, half before a random write."""
    while True:
        rank = rng.randrange(scenario.ranks)
        writes = len(scenario.writes[rank])
        if writes and rng.random() < 0.5:
            yield Kill("write", rank, rng.randint(1, writes))
        else:
            yield Kill("time", rank, scenario.seconds * rng.uniform(0, 1.05))


def trial(name: str, folder: Path, kills: Iterator[Kill]) -> tuple[list[Kill], list[str]]:
    """Lives until the run is over: the kills that hit, and what is not as it should be."""
    hit = []
    try:
        for kill in itertools.chain(kills, itertools.repeat(None)):
            if not live(SCENARIOS[name], folder, kill):
                return hit, differences(folder.parent / "whole" / "run", folder / "run")
            hit.append(kill)
            if found := unsound(folder / "run"):
                return hit, found
    except Failed as failure:
        return hit, [str(failure)]


def torture(
    work: Path, names: list[str], kills: int, rng: random.Random
) -> tuple[collections.Counter, list[dict]]:
    """At least so many kills: their number by (scenario, kind), and what came out different."""
    counts: collections.Counter = collections.Counter()
    failures = []
    bar = tqdm(total=kills, unit=" kills", desc="kills")
    for number, name in enumerate(itertools.cycle(names)):
        left = kills - sum(counts.values())
        if left <= 0:
            break
        folder = new(work / name / f"trial-{number}")
        hit, found = trial(name, folder, itertools.islice(at_random(SCENARIOS[name], rng), left))
        counts.update((name, kill.when) for kill in hit)
        bar.update(len(hit))
        if found:
            places = [f"{kill.when} {kill.at:.3g}" for kill in hit]
            failures.append({"scenario": name, "kills": places, "differences": found})
            bar.write("\n    ".join([f"NOT EQUAL: {name}, killed {places}", *found[:8]]))
        shutil.rmtree(folder)
    bar.close()
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of moments and places of the kills")
    parser.add_argument("--only", default=",".join(SCENARIOS), help="of %(default)s")
    parser.add_argument("--out", type=Path, help="write the counts to this file")
    args = parser.parse_args()
    names = args.only.split(",")
    with tempfile.TemporaryDirectory() as work:
        prepare(Path(work), names)
        counts, failures = torture(Path(work), names, args.kills, random.Random(args.seed))
    results = {
        "command": shlex.join(["python", *sys.argv]),
        "torch": torch.__version__,
        "kills": sum(counts.values()),
        "failures": failures,
        "counts": [
            {"scenario": name, "kind": kind, "kills": n} for (name, kind), n in counts.items()
        ],
    }
    if args.out:
        write_json(args.out, results)
    print(f"{results['kills']} kills, {len(failures)} runs not equal to the uninterrupted one")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
