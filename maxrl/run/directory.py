"""A run directory: who may write there, how a run goes on from it, when it is saved, and what may stop it.

maxrl/checkpoint.py lists the files; maxrl/io/files.py makes sure that each of them is complete. Next to them lies `lock`
while the run goes on.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import torch

from maxrl import checkpoint
from maxrl.config import FREE_ON_RESUME, Config
from maxrl.errors import RunError, UsageError
from maxrl.io import files
from maxrl.parallel import distributed
from maxrl.run import samples
from maxrl.run.cli import say

STOPPED = (
    75  # exit code of a run that a signal has stopped and that was saved (sysexits.h: "try again")
)
DISK_FULL = 74  # of a run whose files could not be written (sysexits.h: "input/output error")
DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
LOGS = ("metrics.jsonl", samples.NAME)
STARTED = (
    "step",
    "command",
    "ranks",
    "torch",
    "python",
)  # what recipe.json says of each start of the run
SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
)  # schedulers send the first or (Slurm) the last, people the second


class Run:
    """This process's hold on a run directory, from `with` to its end; on several ranks the main one decides for all.

    .resumed is the checkpoint to go on from, or None; .stopped, after `due`, says that a signal has asked for the end.
    """

    lock = None
    signalled = None  # when the first signal came
    stopped = False
    skipped = 0  # steps in a row whose gradient was not finite
    # Of the checkpoint to resume from:
    reached = False
    steps = 0

    def __init__(self, cfg: Config, recipe: str, task, validation=None):
        """recipe: its name. task, validation: the splits, of which a resumed run must have the same."""
        self.cfg = cfg
        self.recipe = recipe
        self.path = Path(cfg.out)
        self.task = task
        self.examples = len(task)
        self.data = {"train": task.digest}  # "" where it is not known
        if validation is not None:
            self.data["validation"] = validation.digest
        self.main = distributed.rank() == 0
        self.old_handlers = {}
        self.earlier = []  # what recipe.json says of earlier starts of the run

    def __enter__(self):
        found = ""
        refusal = ()
        if self.main:
            try:
                found = str(self.acquire() or "")
            except (UsageError, OSError) as error:
                self.release()
                refusal = (
                    (self.disk_full_sentence(error), DISK_FULL)
                    if disk_full(error)
                    else (str(error),)
                )
        found, refusal = distributed.from_main([found, refusal])
        if refusal:
            raise UsageError(*refusal)
        self.resumed = Path(found) if found else None
        return self

    def acquire(self) -> Path | None:
        """Takes the directory for this run; the newest whole checkpoint in it, None for a new run."""
        run = self.path
        log = run / "metrics.jsonl"
        if run.is_file():
            raise UsageError(f"--out {run} is a file, not a directory")
        for name in LOGS:
            if (run / name).is_dir():
                raise UsageError(
                    f"{run / name} is a directory, not a file: move it away, or name another --out"
                )
        self.made = [folder for folder in (run, *run.parents) if not folder.exists()]
        run.mkdir(parents=True, exist_ok=True)
        self.lock = lock(run)
        saved = [path.name for path in checkpoints(run)]
        there = saved + [name for name in ("recipe.json", *LOGS, "latest") if (run / name).exists()]
        steps = log.read_bytes().count(b"\n") if log.exists() else 0  # that are finished
        if not steps and "recipe.json" in there and not {*there} - {"recipe.json", *LOGS}:
            say(
                f"{run} holds a run that ended before its first step was done: this one takes its place"
            )
            there = []  # what kept it from starting is fixed now; reward_error_*.jsonl stay
        if self.cfg.resume == "no" and there:
            goes_on = (
                f"repeats its {steps} steps, of which none was saved"
                if steps and not saved
                else "goes on with it"
            )
            raise UsageError(
                f"{run} already holds a run: --resume auto {goes_on}, --out DIR starts another"
            )
        found = newest_intact(run)
        if self.cfg.resume == "yes" and not found:
            raise UsageError(
                f"{run} holds no checkpoint to resume from: --resume auto starts one, --out DIR names another"
            )
        if there:
            old = recorded(found, run)
            compare(self.cfg, old, run)
            if old["examples"] != self.examples:
                raise UsageError(
                    f"{run} was started with {old['examples']} training examples, not {self.examples}: the data "
                    "has changed; put it back, or start another run with --out DIR"
                )
            for split, digest in self.data.items():
                if digest != old["data"].get(split, digest):
                    raise UsageError(
                        f"{run} was started with other {split} data of the same name: put that back, or start "
                        "another run with --out DIR"
                    )
            self.earlier = [*old["earlier"], {name: old[name] for name in STARTED}]
        for left in [*run.glob("step-*.incomplete"), *run.glob("step-*.removed")]:
            shutil.rmtree(
                left, ignore_errors=True
            )  # of a run that was killed while it wrote or removed a checkpoint
        if not found:
            return None
        checkpoint.set_latest(run, found.name)
        self.prune()  # what a run that was killed after its last checkpoint had still to remove
        lora = found / "lora"  # of a merged model
        return lora if lora.exists() else found

    def restore(self, policy, optimizer) -> int:
        """The step to go on with; the optimizer gets its state back."""
        if not self.resumed:
            return 0
        try:
            checkpoint.load_optimizer(self.resumed, policy.model, optimizer)
        except (ValueError, FileNotFoundError) as error:
            raise UsageError(str(error)) from None
        state = saved_state(self.resumed)
        world = distributed.world_size()
        self.skipped = state["skipped"]
        self.reached = state["reached"]
        self.steps = state["step"]
        if state["ranks"] != world and self.main:
            say(
                f"{self.path} was saved by {state['ranks']} ranks and goes on with {world}: the prompts come in the same "
                "order, what is computed is equal up to rounding"
            )
        return self.cfg.steps if self.reached else self.steps

    def start(self, step: int) -> Path:
        """The directory, with this run's recipe.json; from here on a signal waits for the end of the step."""
        world = distributed.world_size()
        launcher = "python" if world == 1 else f"torchrun --nproc-per-node {world}"
        self.record = {
            "recipe": self.recipe,
            "step": step,
            "command": f"{launcher} {shlex.join(sys.argv)}",
            "ranks": world,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "config": self.cfg.to_dict(),
            "examples": self.examples,
            "data": self.data,
            "earlier": self.earlier,
        }
        if self.main:
            files.write_json(self.path / "recipe.json", self.record)
        self.process = os.getpid()
        self.saved = time.monotonic()
        # When a signal came last, shared with the processes that the run forks.
        self.last_signal = ctypes.c_double.from_buffer(mmap.mmap(-1, 8))
        for number in SIGNALS:
            if (
                number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
            ):  # Ctrl-C is not for the background
                self.old_handlers[number] = signal.signal(number, self.on_signal)
        return self.path

    def on_signal(self, number: int, frame):
        """A signal: the step is finished and saved; another one, a second later, ends the process as it is."""
        if os.getpid() != self.process:
            self.on_signal_in_a_fork(number)
            return
        now = time.monotonic()
        self.last_signal.value = now
        if (
            self.signalled and now - self.signalled > 1
        ):  # torchrun hands on what the terminal has sent already
            os._exit(128 + number)
        if not self.signalled:
            self.signalled = now
            said = f"\n{signal.Signals(number).name}: finishing this step, then saving; again to end at once\n"
            try:
                os.write(2, said.encode())
            except OSError:  # nobody reads on: Ctrl-C has ended a `| tee log` too
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    def on_signal_in_a_fork(self, number: int):
        """In a process that the run has forked, say for its rewards: what was sent to all of them the run deals with, which
        wants to finish its step; what was sent to this one alone (terminate() of multiprocessing) ends it."""
        time.sleep(0.2)  # the run has heard it by then, if it was sent to all
        if number != signal.SIGINT and time.monotonic() - self.last_signal.value > 2:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def due(self, step: int, metrics: dict) -> bool:
        """Whether to save after this step; all ranks agree on it, on whether to stop and on whether pass@1 is reached."""
        self.reached = 0 < self.cfg.stop_at_pass <= metrics.get("eval/pass@1", 0)
        finished = self.reached or step + 1 == self.cfg.steps
        minutes = self.main and self.cfg.save_every_minutes
        asked = distributed.all_reduce(
            {
                "stop": self.signalled is not None,
                "save": minutes and time.monotonic() - self.saved >= 60 * minutes,
            },
            "max",
        )
        self.stopped = bool(asked["stop"]) and not finished
        every = self.cfg.save_every and (step + 1) % self.cfg.save_every == 0
        return bool(finished or every or asked["stop"] or asked["save"])

    def save(self, policy, optimizer, step: int, logger):
        """A checkpoint of after `step`; then `latest` names it, then the oldest ones may go."""
        name = f"step-{step + 1:06d}"
        state = {
            "step": step + 1,
            "reached": self.reached,
            "skipped": self.skipped,
            "ranks": distributed.world_size(),
        }
        whole = (
            policy.gathered_state(optimizer) if self.cfg.shard else {"optimizer": optimizer}
        )  # by all ranks together
        if self.main:
            history = logger.history()  # on disk before the checkpoint that follows it
            policy.save(
                self.path / name,
                recipe=self.record,
                state=state,
                metrics=history,
                merge=self.cfg.lora_merge,
                **whole,
            )
            checkpoint.set_latest(self.path, name)
            self.prune()
        self.saved = time.monotonic()
        distributed.barrier()

    def prune(self):
        """The oldest checkpoints go, where there are more than --keep."""
        if self.cfg.keep:
            for old in checkpoints(self.path)[: -self.cfg.keep]:
                files.remove(old)

    def count_skipped(self, step: int, stats: dict, rollouts, rewards, advantages):
        """Counts the steps in a row that had an update whose gradient was not finite; keeps the batch of the first."""
        self.skipped = self.skipped + 1 if stats["skipped_updates"] else 0
        if self.skipped == 1:
            file = self.path / f"not_finite_step{step:06d}_rank{distributed.rank()}.jsonl"
            rows = (
                {
                    "reward": float(rewards[i, j]),
                    "advantage": float(advantages[i, j]),
                    **rollouts.row(i, j),
                }
                for i, j in rewards.isfinite().nonzero().tolist()
            )
            files.write_text(file, "".join(json.dumps(row) + "\n" for row in rows))
            say(
                f"the gradient of step {step} is not finite, its update is left out; the batch is in {file}"
            )
        if self.skipped >= self.cfg.max_skipped:
            raise UsageError(
                f"the gradient is not finite: {self.skipped} steps in a row, up to step {step} (--max-skipped "
                f"{self.cfg.max_skipped}): start another run from here with --init {self.path}, --out DIR and a "
                "lower --lr or --precision float32"
            )

    def __exit__(self, kind, error, traceback):
        for number, handler in self.old_handlers.items():
            signal.signal(number, handler)
        self.release()
        if disk_full(error):
            raise RunError(self.disk_full_sentence(error), DISK_FULL) from error

    def disk_full_sentence(self, error) -> str:
        whole = checkpoints(self.path)
        left = f"{whole[-1].name} is whole" if whole else "there is no checkpoint yet"
        return f"{self.path} cannot be written to ({disk_full(error)}): make room, then go on with --resume auto; {left}"

    def release(self):
        if self.lock:
            (self.path / "lock").unlink(missing_ok=True)
            self.lock.close()
            self.lock = None
            with contextlib.suppress(OSError):  # not empty: as a rule
                for folder in self.made:
                    folder.rmdir()  # refused before anything was done


def disk_full(error) -> str:
    """What the system says where an error is that of a full disk, or of a file that may not grow; else ""."""
    said = re.search(r"os error (\d+)", str(error))  # as safetensors says it
    number = int(said[1]) if said else getattr(error, "errno", None)
    return os.strerror(number) if number in DISK_FULL_ERRORS else ""


def checkpoints(run: Path) -> list[Path]:
    """The run's checkpoints, the oldest first."""
    found = [path for path in run.glob("step-*") if re.fullmatch(r"step-\d{6,}", path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def newest_intact(run: Path) -> Path | None:
    """The newest checkpoint that is what its checksums say; newer ones that are damaged get another name."""
    damaged = []
    for path in reversed(checkpoints(run)):
        why = files.first_problem(path)
        if why:
            damaged.append((path, why))
            continue
        for bad, why in damaged:
            aside = bad.with_name(f"{bad.name}.damaged")
            while aside.exists():
                aside = aside.with_name(aside.name + "_")
            bad.rename(aside)
            say(f"{why}: going on from {path.name}, what is damaged is now {aside}")
        return path
    if damaged:
        raise UsageError(
            f"{run} holds no checkpoint that is whole ({damaged[0][1]}): start another run with --out DIR"
        )
    return None


def saved_state(checkpoint: Path) -> dict:
    """state.json of a checkpoint; UsageError for what train.py does not write."""
    file = checkpoint / "state.json"
    try:
        state = files.read_json(file)
        folder = checkpoint.parent if checkpoint.name == "lora" else checkpoint
        if folder.name != f"step-{state['step']:06d}" or type(state["reached"]) is not bool:
            raise ValueError(f"{file} is not of {folder.name}")
        for name in ("step", "skipped", "ranks"):
            if type(state[name]) is not int or state[name] < 0:
                raise ValueError(f"{file} has counts that are none")
        return state
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{file} is not one that train.py has written ({error}): start another run with --out DIR"
        ) from None


def recorded(found: Path | None, run: Path) -> dict:
    """The recipe.json of a checkpoint, or of a run that has none yet."""
    folder = found or run
    try:
        recipe = (
            {"data": {}}
            | files.read_json(folder / "recipe.json")
            | {"config": checkpoint.recorded(folder)}
        )
    except FileNotFoundError:
        raise UsageError(
            f"{run} holds no recipe.json to resume its run from: --out DIR starts another"
        ) from None
    except ValueError as error:
        raise UsageError(f"{error}: --out DIR starts another run") from None
    kinds = dict.fromkeys(STARTED, object) | {"earlier": list, "examples": int, "data": dict}
    if not all(name in recipe and isinstance(recipe[name], kind) for name, kind in kinds.items()):
        raise UsageError(
            f"{folder / 'recipe.json'} is not one that train.py has written: --out DIR starts another run"
        )
    return recipe


def compare(cfg: Config, recipe: dict, run: Path):
    """Refuses to resume a run under a recipe that differs from its own."""
    new = cfg.to_dict()
    old = recipe["config"]
    free = FREE_ON_RESUME - (
        {"steps"} if cfg.schedule == "cosine" else set()
    )  # its shape depends on its length
    for name in new:
        if name not in free and old[name] != new[name]:
            raise UsageError(
                f"{run} was started with {name} = {old[name]!r}, not {new[name]!r}: "
                f"resume it as it was, or start another with --out DIR"
            )


def lock(run: Path):
    """The open file RUN/lock, which this process holds until it closes it or ends, however that happens."""
    while True:
        file = open(run / "lock", "a+")  # noqa: SIM115 (it stays open as long as the run goes on)
        try:
            fcntl.lockf(
                file, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # of the process, not inherited by those that it forks
        except OSError as error:
            file.seek(0)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                say(
                    f"{run}: this file system has no locks ({error.strerror}); a second run there would not be noticed"
                )
                return file
            raise UsageError(
                f"{run} is in use by {file.read().strip() or 'another process'}: wait until it has ended, or name "
                "another directory with --out"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(run / "lock")):
                break
        file.close()  # the run that had it has removed it in the meantime
    file.seek(0)
    if stale := file.read().strip():
        say(f"{run}: taking over from {stale}, which ended without giving it back")
    file.truncate(0)
    with contextlib.suppress(OSError):  # on a full disk the lock has no text
        file.write(
            f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
        )
        file.flush()
    return file
