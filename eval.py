"""pass@k, best@k and majority vote of checkpoints, with standard errors over prompts.

    python eval.py base=runs/maze9_laptop_sft maxrl=runs/maze9_laptop-maxrl --plot coverage.png
    python eval.py runs/polaris_qwen3_4b-maxrl --task.test beyondaime --samples 1024
    python eval.py runs/imagenet-maxrl --split validation --k 1,16,128

NAME=PATH names a row of the table. Several checkpoints (seeds) with one NAME form one row, and a
grid's folder stands for all of its runs. The script works under torchrun too. The prompts are the
--split of the task that the checkpoints were trained on, or of --task. Responses are sampled as in
the evaluations during the training of the first that has a recipe (--eval-temperature,
--eval-top-p), and the table says how. For a classifier, pass@k is exact, and top-1 accuracy is
added. Where rewards are not 0 or 1, best@k, the expected best reward of k samples, is added, and
pass@k counts rewards of exactly 1. A task whose responses end in an answer gets a column maj@n: is
the most frequent of n answers right? Where several answers can be right, distinct@n counts the
different right ones.
"""

import argparse
import json
import os
import shlex
import sys
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from maxrl.analysis import plots, table
from maxrl.analysis.metrics import best_at_k, exact_best_at_k
from maxrl.learning.config import Config
from maxrl.models import checkpoint
from maxrl.run import build, cli, evaluation_options
from maxrl.run.evaluation import are_verdicts, judge_samples, judged_prompts
from maxrl.run.evaluation_options import drawn
from maxrl.run.logger import LINES
from maxrl.system import distributed, files
from maxrl.system.arguments import check_least, parse, runs_named
from maxrl.system.errors import UsageError, blaming
from maxrl.system.totals import Totals
from maxrl.tasks.base import Task, example_of, is_success
from maxrl.tasks.rewards import Judge, count_faults


def read_arguments(arguments: list[str]) -> tuple[argparse.Namespace, Config]:
    """Return the options, checked as far as that is possible without the task, and the recipe.

    args.checkpoints is a list of (name, directory).
    """
    parser = evaluation_options.option_parser("eval.py", __doc__, "test")
    add = parser.add_argument
    add("checkpoints", nargs="+", metavar="[NAME=]PATH", help="checkpoint or run directory")
    add("--samples", type=int, help="n, rollouts per prompt (64); a classifier's pass@k is exact")
    add(
        "--k",
        type=partial(parse, tuple[int, ...]),
        metavar="K,K",
        help="the k of pass@k, at most n (those of 1,8,64)",
    )
    add("--prompts", type=int, help="number of prompts (256; for a classifier all images)")
    add("--against", help="row to which the others are compared (the last)")
    add("--json", type=Path, help="write counts and table to this file")
    add("--plot", type=Path, help="draw pass@k against k into this file (needs matplotlib)")
    args = evaluation_options.read_options(parser, arguments)
    check(args)
    return args, evaluation_options.complete(args, [path for _, path in args.checkpoints])


def check(args: argparse.Namespace):
    """Refuse what could not be evaluated, before any sampling, and find the checkpoints."""
    args.k = args.k or [k for k in (1, 8, 64) if k <= (args.samples or 64)]
    check_least("k", min(args.k), 1)
    if args.json and args.json.exists():
        raise UsageError(f"{args.json} exists: name another file with --json, or remove it")
    for file in (args.json, args.plot):
        if file and not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
            raise UsageError(
                f"{file.parent} is no directory that can be written to: mkdir -p {file.parent}, or "
                "name another file"
            )
    if args.plot:
        plots.require(args.plot)
    args.checkpoints = [
        (name, checkpoint.find(path)) for name, path in runs_named(args.checkpoints)
    ]
    rows: dict[str, list[Path]] = {}
    for name, path in args.checkpoints:
        row = rows.setdefault(name, [])
        if path in row:
            raise UsageError(
                f"{path} is given twice as {name}: each seed must be a different checkpoint"
            )
        checkpoint.check_intact(path)
        row.append(path)
    args.against = args.against or [*rows][-1]
    if args.against not in rows:
        raise UsageError(f"--against {args.against} is not one of the rows {', '.join(rows)}")
    for name, paths in rows.items():
        evaluation_options.check_row(name, paths)


def check_task(args: argparse.Namespace, cfg: Config, task: Task):
    """Refuse options that mean nothing to the task, and set the defaults that depend on it."""
    if task.classes:
        if args.samples or cfg.eval_temperature != 1:
            raise UsageError(
                "a classifier's pass@k is exact: leave out --samples and --temperature"
            )
    else:
        args.samples = args.samples or 64
        if max(args.k) > args.samples:
            raise UsageError(
                f"pass@{max(args.k)} needs at least as many samples, not --samples {args.samples}"
            )
    args.prompts = min(args.prompts or (len(task) if task.classes else 256), len(task))


@torch.no_grad()
def evaluate(args: argparse.Namespace, cfg: Config) -> tuple[dict, BaseException | None]:
    """Return the results of all checkpoints, over the same prompts and the same noise.

    Where one fails after others: the results of these, and its error.
    """
    # A rank whose prompts have short responses, or which has none, may wait for days.
    device = distributed.setup(cfg.device, hours=24 * 30)
    task, judge = evaluation_options.find_task(args, cfg)
    check_task(args, cfg, task)
    guess = guesses(args, cfg, task)
    for _, path in args.checkpoints[1:]:
        # What cannot be loaded, or cannot answer these prompts, is refused before any sampling.
        build.policy_from(replace(cfg, init=str(path)), task, None, path, torch.device("cpu"))
    rows, failed = measure_all(args, cfg, device, task, judge)
    unjudged = [] if task.classes else leave_out(rows, guess)
    low = distributed.use_bfloat16(cfg.precision, device)
    results = {
        "command": shlex.join(["python", *sys.argv]),
        "torch": torch.__version__,
        "task": cfg.task,
        "task_options": cfg.task_options,
        "split": args.split,
        "reward": cfg.reward,
        "reward_weights": cfg.reward_weights,
        "zero_reward_at_limit": cfg.zero_reward_at_limit,
        "prompts": args.prompts,
        "samples": args.samples,
        "max_response": cfg.max_response,
        **drawn(args, cfg),
        "seed": cfg.seed,
        "left_out": getattr(task, "left_out", 0),
        "of": len(task),
        "source": task.source,
        "no_verdict": unjudged,
        **guess,
        "precision": "bfloat16" if low else "float32",
        "classes": len(task.classes),
        "checkpoints": rows,
    }
    return results, failed


def measure_all(
    args, cfg: Config, device, task: Task, judge: Judge
) -> tuple[list[dict], BaseException | None]:
    """Return a row of each checkpoint, or of those before the first that fails, and its error."""
    rank, world = distributed.rank(), distributed.world_size()
    rows: list[dict] = []
    for name, path in args.checkpoints:
        about = {"desc": f"{name} ({path})", "unit": " prompts", "leave": False}
        if not sys.stderr.isatty():
            lines = SimpleNamespace(write=line, flush=int)
            about |= {"file": lines, "mininterval": LINES, "miniters": 0}
        # The prompts of this rank, the first of `world` ranks.
        with tqdm(total=-(-args.prompts // world), disable=rank > 0, **about) as bar:
            try:
                row = measure(args, cfg, path, device, task, judge, bar)
            except (Exception, KeyboardInterrupt) as error:
                # The rows before it may have taken hours; they are those of the main rank.
                if rank or not rows:
                    raise
                cli.say(f"{name} ({path}) failed: only the rows before it are kept")
                return rows, error
        faults = Totals()
        count_faults(faults)
        rows.append({"name": name, "path": str(path)} | row | faults.metrics())
    return rows, None


def measure(args, cfg: Config, path: Path, device, task: Task, judge: Judge, bar: tqdm) -> dict:
    """Return the counts of right samples of a checkpoint, or a classifier's exact pass rates."""
    # This policy is freed before that of the next row is loaded.
    policy: Any = build.policy_from(replace(cfg, init=str(path)), task, None, path, device)
    if task.classes:
        p, right = policy.pass_rates(task, args.prompts, progress=bar.update)
        return {"pass_rates": digits(p), "top1": right.long().tolist()}
    policy.watch = partial(show_tokens, bar)
    rewards, answers = judge_samples(
        policy,
        task,
        range(args.prompts),
        args.samples,
        judge=judge,
        seed=cfg.seed,
        progress=bar.update,
        **drawn(args, cfg),
    )
    counts = is_success(rewards).sum(1).where(judged_prompts(rewards), -1)
    if (counts < 0).all():
        raise UsageError(
            "no prompt has a verdict on all of its samples: the reward functions return None"
        )
    row = {"counts": counts.tolist(), "reward": float(rewards.nanmean())}
    row |= {name: digits(values) for name, values in answers.items()}
    if not are_verdicts(rewards):
        ks = table.powers(args.samples, args.k)
        row["best"] = {str(k): digits(best_at_k(rewards, k)) for k in ks}
    return row | judge.means()


def line(bar: str):
    """Print a bar as a line whenever it is drawn again, where there is no terminal."""
    if bar.strip():
        cli.say(bar.strip())


def show_tokens(bar: tqdm, where: str):
    """Show how far a wave is: with long responses it takes minutes until a prompt is done."""
    bar.set_postfix_str(where, refresh=False)
    bar.update(0)


def leave_out(rows: list[dict], guess: dict) -> list[int]:
    """Remove prompts on which a row has no verdict (a count of -1) from all rows and guesses.

    The rows thus stay paired over prompts. Returns the indices of the removed prompts.
    """
    counts = [row["counts"] for row in rows]
    judged = [min(column) >= 0 for column in zip(*counts)]
    if not any(judged):
        raise UsageError("no prompt has a verdict on all samples of all rows")
    for row in [*rows, guess]:
        # "best" has a list for each k.
        for values in [row, row.get("best", {}), row.get("guess_best", {})]:
            for name, column in values.items():
                if isinstance(column, list):
                    values[name] = [*compress(column, judged)]
    return [i for i, known in enumerate(judged) if not known]


def guesses(args, cfg: Config, task: Task) -> dict[str, Any]:
    """Return a guess's pass rate on each prompt, or no pass rates if the task does not know them.

    If a guess may get rewards other than 0 and 1, its best@k is returned too. UsageError if the
    task's code fails or returns something else.
    """
    if task.classes:
        return {"guess": [1 / len(task.classes)] * args.prompts}
    with blaming(f"the task {cfg.task}'s guess()"):
        chances = []
        for i in range(args.prompts):
            one = None if cfg.reward else task.guess(example_of(task, i))
            if one is None:
                return {"guess": []}
            chances.append(one if isinstance(one, dict) else {1.0: float(one), 0.0: 1.0 - one})
        ks = table.powers(args.samples, args.k)
        best = np.array([exact_best_at_k(one, ks) for one in chances])  # (prompts, M)
    known: dict[str, Any] = {"guess": [one.get(1.0, 0.0) for one in chances]}
    if any(set(one) - {0, 1} for one in chances):
        known["guess_best"] = {str(k): digits(values) for k, values in zip(ks, best.T)}
    return known


def digits(values: torch.Tensor | np.ndarray) -> list[float]:
    """Return six significant digits, so that files of 50,000 images stay small."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def main(arguments: list[str]):
    """Evaluate, write the files that were asked for and print the table."""
    args, cfg = read_arguments(arguments)
    results, failed = evaluate(args, cfg)
    if distributed.rank() > 0:
        return
    names = [row["name"] for row in results["checkpoints"]]
    against = args.against if args.against in names else names[-1]
    curves = {f"{name}@k": table.curves(results, name) for name in table.measures(results)}
    try:
        write_files(args, results | curves, curves)
    finally:
        # Printed even if the files could not be written, and last because its reader may have gone.
        table.print_table(results, args.k, against)
        table.print_rewards(results)
        table.print_cut(results)
        table.print_faults(results)
    if failed:
        raise failed


def write_files(args: argparse.Namespace, results: dict, curves: dict):
    """Write the files that were asked for; `curves` are the panels of the figure."""
    if args.json:
        files.write_text(args.json, json.dumps(results) + "\n")
    if args.plot:
        options = [f"{key} {value}" for key, value in results["task_options"].items()]
        about = ", ".join([results["task"], *options, results["split"]])
        caption = f"{about}: {table.drawn(results)}"
        plots.coverage(curves, args.plot, caption)
        cli.say(f"drew {args.plot}")


if __name__ == "__main__":
    with cli.script("eval.py", OSError, files.DataError):
        main(sys.argv[1:])
