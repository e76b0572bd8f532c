"""A run directory: who may write to it, how a run resumes from it, and when a run saves or stops.

maxrl/models/checkpoint.py lists the files, and maxrl/system/files.py makes sure that each of them
is complete. During a run there is also a file `lock`.
"""

import contextlib
import fcntl
import os
import platform
import shlex
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import torch

from maxrl.learning.config import FREE_ON_RESUME, Config
from maxrl.models import checkpoint
from maxrl.run import origin
from maxrl.run.cli import DISK_FULL, disk_full, say, warn
from maxrl.run.recipes import read_record
from maxrl.system import distributed, files, user_code
from maxrl.system.errors import RunError, UsageError

# The exit code of a run that a signal stopped and that was saved (EX_TEMPFAIL of sysexits.h).
STOPPED = 75
# The directories that this process has locked: it would get the lock of a file a second time.
HELD: set[Path] = set()
# Schedulers send SIGTERM, or SIGUSR1 some time before it. Ctrl-C sends SIGINT.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Run:
    """The hold of this process on a run directory, for the duration of a `with` block.

    On several ranks, only the main rank reads and writes the directory, and it decides for all.

    resumed  the checkpoint to resume from, or None
    steps    the number of steps before that checkpoint
    reached  whether pass@1 has reached --stop-at-pass
    stopped  whether a signal or a callback has asked the run to stop; known after ends()
    skipped  the number of consecutive steps, up to the last one, without a finite gradient
    name     what a tracker calls the run, if not as its directory
    code     checksums of the user's files at the last start, which the main rank knows
    """

    resumed: Path | None = None
    steps = 0
    reached = False
    stopped = False
    skipped = 0
    past = ""  # metrics.jsonl of that checkpoint
    name = ""
    lock: TextIO | None = None
    signalled: float | None = None  # when the first signal arrived
    asked = False  # whether a callback has asked the run to stop; of any rank after ends()
    # What messages say that the user can do; the run of a script has others.
    scripted = False
    resume = "the same command with --resume auto"
    begin = "--resume auto"
    another = "--out DIR"

    def __init__(self, cfg: Config, recipe: str, task, validation):
        """recipe is its name. A resumed run must have the same splits, task and validation, which
        is None without evaluations."""
        self.cfg = cfg
        self.recipe = recipe
        self.path = Path(cfg.out)
        self.task = task
        self.examples = len(task)
        self.validations = 0 if validation is None else len(validation)
        # A digest is "" if it is not known.
        self.data = {"train": task.digest}
        if validation is not None:
            self.data["validation"] = validation.digest
        self.code: dict[str, str] = {}
        self.main = distributed.rank() == 0

    def __enter__(self) -> "Run":
        found = ""
        with contextlib.ExitStack() as ending:
            ending.callback(self.release)
            ending.callback(os.chdir, os.getcwd())
            if self.main:
                try:
                    found = str(self.acquire() or "")
                except (UsageError, ValueError, OSError) as error:
                    code = DISK_FULL if disk_full(error) else UsageError.code
                    raise RunError(str(error), code) from None
            found = distributed.from_main(found)
            self.ending = ending.pop_all()
        self.resumed = Path(found) if found else None
        return self

    def acquire(self) -> Path | None:
        """Take the directory for this run; return its newest intact checkpoint, if there is one."""
        run = self.path
        self.made = [folder for folder in (run, *run.parents) if not folder.exists()]
        run.mkdir(parents=True, exist_ok=True)
        self.lock = lock(run)
        HELD.add(run.resolve())
        # A run that failed before the end of its first step has left nothing to keep.
        metrics = run / "metrics.jsonl"
        begun = checkpoints(run) or metrics.exists() and metrics.stat().st_size
        if self.cfg.resume == "no" and begun:
            raise UsageError(
                f"{run} already holds a run: {self.resume} resumes it, {self.another} starts "
                "another"
            )
        if self.cfg.resume == "yes" and not begun:
            raise UsageError(
                f"{run} holds no checkpoint to resume from: is it the right directory? {self.begin}"
                " starts a run there"
            )
        found = newest_intact(run)
        if begun:
            self.check_same(found or run)
        # Remains of a process that was killed while it wrote or removed a checkpoint.
        for left in [*run.glob("step-*.incomplete"), *run.glob("step-*.removed")]:
            shutil.rmtree(left, ignore_errors=True)
        if not found:
            if begun:
                say(f"{run} has no checkpoint yet: the run starts again, and so do its metrics")
            return None
        checkpoint.set_latest(run, found.name)
        self.prune()
        return found

    @checkpoint.one_sentence()
    def check_same(self, folder: Path):
        """Refuse to resume with another recipe, or other data, than folder/recipe.json records."""
        old = files.read_json(folder / "recipe.json")
        # The shape of a decrease depends on its length.
        free = FREE_ON_RESUME - (set() if self.cfg.schedule == "constant" else {"steps"})
        new = self.cfg.to_dict()
        another = f"begin a new run: {self.another}"
        for name, value in read_record(folder).items():
            if name not in free and value != new[name]:
                said = f"{self.path} was started with {name} = {value!r}, not {new[name]!r}: "
                # A run that it names may have gone on.
                again = f"name it with --init {value}" if name == "init" else ""
                if not self.scripted:
                    again = again or f"repeat {old['command']!r}"
                    said += f"{again} with --resume auto, or "
                raise UsageError(said + another)
        self.code = dict(old.get("code") or {})
        # A split that one of both starts lacks is not compared.
        before = self.data | old["data"]
        now = old["data"] | self.data
        if old["examples"] != self.examples or before != now:
            raise UsageError(
                f"{self.path} was started with other data of the same name: put them back, or "
                f"{another}"
            )

    @checkpoint.one_sentence()
    def restore(self, policy, optimizer) -> int:
        """Give the optimizer its state back; return the step to continue with."""
        if not self.resumed:
            return 0
        checkpoint.load_optimizer(self.resumed, policy.model, optimizer)
        state = files.read_json(self.resumed / "state.json")
        self.skipped = int(state["skipped"])
        if state.get("bfloat16", policy.autocast) != policy.autocast:
            now = "bfloat16" if policy.autocast else "float32"
            warn(
                f"{self.resumed} was trained in another precision than {now}: --precision auto "
                "chooses another one on this machine"
            )
        self.reached = bool(state["reached"])
        self.steps = int(state["step"])
        self.past = (self.resumed / "metrics.jsonl").read_text()
        return self.cfg.steps if self.reached else self.steps

    def start(self, step: int) -> Path:
        """Record this start in recipe.json and return the directory.

        From now on, a signal waits for the end of the step.
        """
        named = [self.cfg.task, self.cfg.estimator, *self.cfg.reward]
        code = user_code.checksums(named)
        for file, now in code.items():
            if self.code.get(file, now) != now:
                warn(f"{file} has changed since the last start: the run goes on with it")
        world = distributed.world_size()
        launcher = "python" if world == 1 else f"torchrun --nproc-per-node {world}"
        self.record = {
            "recipe": self.recipe,
            "name": self.name,
            "step": step,
            "command": f"{launcher} {shlex.join(sys.argv)}",
            "ranks": world,
            "commit": origin.commit(),
            "machine": origin.processor(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "config": self.cfg.to_dict(),
            "examples": self.examples,
            "data": self.data,
            "code": code,
        }
        # The last start that trained has made what is here.
        if self.main and step < self.cfg.steps:
            files.write_json(self.path / "recipe.json", self.record)
        # A reward function may change the directory.
        self.path = self.path.absolute()
        self.process = os.getpid()
        self.saved = time.monotonic()
        # Other threads, in which a script may train, cannot set handlers.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self.ending.callback(signal.signal, number, signal.signal(number, self.on_signal))
        return self.path

    def on_signal(self, number: int, frame):
        """Ask the run to stop after this step. A second signal ends the process at once."""
        if os.getpid() != self.process:
            # A reward function may fork processes. Its terminate() must end them, whereas Ctrl-C
            # reaches every process of a terminal and is meant for the run.
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        now = time.monotonic()
        if self.signalled is None:
            self.signalled = now
            said = f"\n{signal.Signals(number).name}: finishing this step, then saving\n"
            # Nobody may read this any more: Ctrl-C has also ended the `tee` of `| tee log`.
            with contextlib.suppress(OSError):
                os.write(2, said.encode())
        # Within a second it is the same signal: torchrun forwards what the terminal has sent.
        elif now - self.signalled > 1:
            os._exit(128 + number)

    def ends(self, step: int, metrics: dict[str, float], policy, optimizer, logger) -> bool:
        """Save after this step if that is due, and return whether the run ends here.

        All ranks agree on both.
        """
        self.reached = 0 < self.cfg.stop_at_pass <= metrics.get("eval/pass@1", 0)
        finished = self.reached or step + 1 == self.cfg.steps
        minutes = self.main and self.cfg.save_every_minutes
        due = minutes and time.monotonic() - self.saved >= 60 * minutes
        asked = distributed.gathered([self.signalled is not None, self.asked, due])  # (ranks, 3)
        signalled, self.asked, save = (bool(column.any()) for column in asked.T)
        self.stopped = (signalled or self.asked) and not finished
        every = self.cfg.save_every and (step + 1) % self.cfg.save_every == 0
        if finished or every or self.stopped or save:
            self.save(policy, optimizer, step, logger)
        return self.reached or self.stopped

    def save(self, policy, optimizer, step: int, logger):
        """Save a checkpoint after `step`, point `latest` to it, and remove the oldest ones."""
        name = f"step-{step + 1:06d}"
        state = {
            "step": step + 1,
            "reached": self.reached,
            "skipped": self.skipped,
            "bfloat16": policy.autocast,
        }
        # All ranks take part in gathering what is sharded.
        whole = policy.checkpoint
        if self.cfg.shard:
            model, optimizer = policy.gathered.state(optimizer)
            whole = replace(whole, model=model)
        if self.main:
            checkpoint.save(
                self.path / name,
                whole,
                recipe=self.record,
                optimizer=optimizer,
                state=state,
                metrics=logger.history(),
            )
            checkpoint.set_latest(self.path, name)
            self.prune()
        self.saved = time.monotonic()
        distributed.barrier()

    def prune(self):
        """Remove the oldest checkpoints if there are more than --keep."""
        if self.cfg.keep:
            for old in checkpoints(self.path)[: -self.cfg.keep]:
                files.remove(old)

    def count_skipped(self, step: int, stats: dict[str, float]):
        """Count consecutive steps without a finite gradient; UsageError after --max-skipped."""
        # It is the share of the step's updates.
        self.skipped = self.skipped + 1 if stats["skipped_updates"] == 1 else 0
        if self.skipped == 1 and self.main:
            say(f"the gradient of step {step} is not finite: no update")
        if self.skipped >= self.cfg.max_skipped:
            raise UsageError(
                f"the gradient is not finite: {self.skipped} steps in a row, up to step {step} "
                f"(--max-skipped {self.cfg.max_skipped}): start another run with a lower --lr "
                "or --precision float32, with --init from the last checkpoint if there is one"
            )

    def __exit__(self, *exception):
        self.ending.close()

    def release(self):
        """Give the directory back; remove what acquire() made if it is still empty."""
        if self.lock:
            (self.path / "lock").unlink(missing_ok=True)
            HELD.discard(self.path.resolve())
            self.lock.close()
            self.lock = None
            with contextlib.suppress(OSError):
                for folder in self.made:
                    folder.rmdir()


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, the oldest first."""
    found = [path for path in run.glob("step-*") if path.name[5:].isdigit()]
    return sorted(found, key=lambda path: int(path.name[5:]))


def newest_intact(run: Path) -> Path | None:
    """The newest checkpoint whose checksums hold; damaged ones after it are renamed.

    Returns None if there is no checkpoint. Raises UsageError if all of them are damaged.
    """
    damaged: list[tuple[Path, str]] = []
    for path in reversed(checkpoints(run)):
        problem = files.first_problem(path)
        if not problem:
            for bad, why in damaged:
                shutil.rmtree(f"{bad}.damaged", ignore_errors=True)
                bad.rename(f"{bad}.damaged")
                say(f"{why}: resuming from {path.name}; the damaged one is now {bad}.damaged")
            return path
        damaged.append((path, problem))
    if damaged:
        raise UsageError(
            f"{run} holds no intact checkpoint ({damaged[0][1]}): start another run with --out DIR"
        )
    return None


def lock(run: Path) -> TextIO:
    """Open and lock RUN/lock. The lock lasts until the file is closed or this process ends."""
    if run.resolve() in HELD:
        raise UsageError(f"{run} is in use by this process: name another directory with --out")
    file = open(run / "lock", "a+")  # noqa: SIM115 (it stays open for as long as the run)
    try:
        # Forked processes do not inherit this kind of lock.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        raise UsageError(
            f"{run} is in use by {file.read().strip() or 'another process'}: "
            "name another directory with --out"
        ) from None
    except OSError as error:
        say(f"{run}: no file locks here ({error.strerror}), so a second run would not be noticed")
    # The run that held it has ended in the meantime and removed it.
    if not os.fstat(file.fileno()).st_nlink:
        file.close()
        return lock(run)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file
