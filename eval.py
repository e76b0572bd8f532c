"""pass@k of checkpoints, with standard errors over prompts.

    python eval.py base=runs/maze9_laptop_sft maxrl=runs/maze9_laptop-maxrl --samples 256 --plot runs/coverage.png
    python eval.py runs/imagenet-maxrl --split validation --k 1 16 128        exact for a classifier, with top-1 accuracy
    python eval.py runs/imagenet-maxrl --split validation --gradient-norms --prompts 1000 --plot norms.png

NAME=PATH names a row of the table; a name given to several checkpoints (seeds) is one row, averaged per prompt. Works
under torchrun too. Prompts come from --split of the task that the first checkpoint was trained on, or from --task.
--gradient-norms: the norm of each prompt's gradient against its pass rate, for each estimator (Figures 6 and 8), exact
for a classifier, from --samples rollouts for a language model (the same rollouts for every estimator).
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from maxrl import checkpoint, distributed
from maxrl.advantages import ADVANTAGES
from maxrl.config import UsageError, guess, split_arguments
from maxrl.gradients import ESTIMATORS, gradient_norms
from maxrl.metrics import exact_pass_at_k, mean_and_se, pass_at_k
from maxrl.policy import count_successes, make_policy
from maxrl.rewards import Rewards
from maxrl.sampler import check_prompts
from maxrl.tasks import load_task


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("eval.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", metavar="[NAME=]PATH", help="checkpoint or run directory; before the options")
    parser.add_argument("--samples", type=int, help="n, rollouts per prompt (64); none for a classifier, which is exact")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 8, 64], help="the k of pass@k, at most n (1 8 64)")
    parser.add_argument("--prompts", type=int, help="how many prompts of the split (256; for a classifier all images)")
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"))
    parser.add_argument("--task", help="task by name; its options follow as --task.size 9 (the checkpoint's own)")
    parser.add_argument("--max-response", type=int, help="longest response in tokens (the checkpoint's own)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0, help="sample from the k most probable tokens only (0: all)")
    parser.add_argument("--top-p", type=float, default=1.0, help="sample from the smallest set of this probability (1: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"),
                        help="of the forward (the checkpoint's own; float32 for --gradient-norms)")
    parser.add_argument("--workers", type=int, default=0, help="processes that decode images (0: none)")
    parser.add_argument("--against", help="row to which the others are compared (the last)")
    parser.add_argument("--json", type=Path, help="write counts and table to this file")
    parser.add_argument("--plot", type=Path, help="draw pass@k against k into this file (needs matplotlib)")
    parser.add_argument("--gradient-norms", action="store_true", help="study gradient norms instead of pass@k")
    parser.add_argument("--estimators", nargs="+", help=f"of --gradient-norms ({' '.join(ESTIMATORS)})")
    parser.add_argument("--rollouts", type=int, help="of --gradient-norms for a classifier: the weight that the estimators "
                        "have with N rollouts (their limit of many)")
    args, rest = parser.parse_known_args(arguments)
    pairs = split_arguments(rest)
    unknown = [key for key, _ in pairs if not key.startswith("task.")]
    if unknown:
        raise UsageError(f"--{unknown[0]} is not an option (eval.py --help lists all)")
    args.task_options = {key.removeprefix("task."): guess(value) for key, value in pairs}
    return check(args)


def check(args: argparse.Namespace) -> argparse.Namespace:
    """Refuse what could not be evaluated before any sampling; `checkpoints` becomes a list of (name, directory)."""
    for name in ("samples", "prompts", "rollouts"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UsageError(f"--{name} {getattr(args, name)} must be at least 1")
    if min(args.k) < 1:
        raise UsageError(f"--k {min(args.k)} must be at least 1")
    for name in ("seed", "workers"):
        if getattr(args, name) < 0:
            raise UsageError(f"--{name} {getattr(args, name)} must not be negative")
    if not 0 <= args.temperature < float("inf") or not 0 < args.top_p <= 1 or args.top_k < 0:
        raise UsageError(f"--temperature {args.temperature} --top-k {args.top_k} --top-p {args.top_p} is no distribution: "
                         "temperature and top-k must not be negative, top-p lies in (0, 1]")
    if (args.estimators or args.rollouts) and not args.gradient_norms:
        raise UsageError("--estimators and --rollouts belong to --gradient-norms")
    if args.gradient_norms and (args.temperature, args.top_k, args.top_p, args.against) != (1, 0, 1, None):
        raise UsageError("--gradient-norms are those of training: leave out --temperature, --top-k, --top-p and --against")
    if (args.rollouts or 0) > 8192:
        raise UsageError(f"--rollouts {args.rollouts}: the exact weight of N rollouts takes N^2 memory; leave it out for the "
                         "limit of many rollouts, or use at most 8192")
    if args.json and args.json.exists():
        raise UsageError(f"{args.json} exists: name another file with --json, or remove it")
    for file in (args.json, args.plot):
        if file and not file.parent.is_dir():
            raise UsageError(f"{file.parent} is no directory: mkdir -p {file.parent}")
    if args.plot:
        from maxrl import plots
        plots.require()
    named = [text.split("=", 1) if "=" in text else (Path(text).name, text) for text in args.checkpoints]
    args.checkpoints = [(name, checkpoint.find(path)) for name, path in named]
    names = [name for name, _ in args.checkpoints]
    args.against = args.against or names[-1]
    if args.against not in names:
        raise UsageError(f"--against {args.against} is not one of the rows {', '.join(dict.fromkeys(names))}")
    recipe = args.checkpoints[0][1] / "recipe.json"
    try:
        trained = checkpoint.recorded(recipe.parent) if recipe.exists() else {}
    except ValueError as error:
        raise UsageError(f"{error}: name the task with --task and move that file away") from None
    if not (args.task or trained):
        raise UsageError(f"{recipe.parent} does not say what it was trained on: name it with --task")
    args.precision = args.precision or ("float32" if args.gradient_norms else trained.get("precision", "auto"))
    args.own_max_response, args.trained = trained.get("max_response") or 180, trained
    if not args.task or args.task == trained.get("task"):
        args.task, args.task_options = trained["task"], trained["task_options"] | args.task_options
    return args


def check_task(args: argparse.Namespace, task):
    """What depends on whether the task is for a classifier: the defaults, and what means nothing to it."""
    if len(task) == 0:
        raise UsageError(f"the {args.split} split of task {args.task} is empty")
    if task.classes:
        if args.samples or (args.temperature, args.top_k, args.top_p) != (1, 0, 1) or args.max_response:
            raise UsageError("a classifier's pass@k is exact: leave out --samples, --temperature, --top-k, --top-p and "
                             "--max-response")
    else:
        args.samples, args.max_response = args.samples or 64, args.max_response or args.own_max_response
        if max(args.k) > args.samples and not args.gradient_norms:
            raise UsageError(f"pass@{max(args.k)} needs at least as many samples, not --samples {args.samples}")
        if args.rollouts or "supervised" in (args.estimators or ()):
            raise UsageError("--rollouts and the estimator supervised are for a classifier; a language model's gradients come "
                             "from --samples rollouts")
    args.prompts = min(args.prompts or (len(task) if task.classes else 256), len(task))
    args.estimators = args.estimators or [name for name in ESTIMATORS if task.classes or name != "supervised"]
    for name in args.estimators if args.gradient_norms else ():
        try:
            ADVANTAGES[name](torch.zeros(1, args.rollouts or args.samples or 2), **ESTIMATORS.get(name, {}))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"--estimators {name}: {error.args[0]}") from None


def load_policy(args: argparse.Namespace, path: Path, task, device):
    try:
        model, tokenizer, stop = checkpoint.load_model(path)
        own = {} if task.classes else {"max_tokens": args.max_response, "aggregation": "sequence"}
        policy = make_policy(model, tokenizer, stop, task, device, seed=args.seed, workers=args.workers,
                             autocast=distributed.use_bfloat16(args.precision, device), **own)
        if not task.classes:
            check_prompts(model, [tokenizer.encode_prompt(task[i].prompt) for i in range(args.prompts)], args.max_response)
        return policy
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def evaluate(args: argparse.Namespace) -> dict:
    """For every checkpoint, over the same prompts and the same noise: counts of right samples, a classifier's exact pass
    rates, or gradient norms."""
    rank, world, device = distributed.setup(args.device)
    task = load_task(args.task, args.split, **args.task_options)
    check_task(args, task)
    if args.trained.get("reward"):
        task.rewards = Rewards(args.trained["reward"], args.trained["reward_weights"]).judge
    if args.gradient_norms and world > 1:
        raise UsageError("--gradient-norms runs in one process: start it without torchrun")
    rows = []
    for name, path in args.checkpoints:
        policy = load_policy(args, path, task, device)
        row = {"name": name, "path": str(path)}
        with tqdm(total=args.prompts, desc=f"{name} ({path})", unit=" prompts", leave=False, disable=rank > 0) as bar:
            if args.gradient_norms:
                p, norms = gradient_norms(policy, task, args.prompts, args.estimators, args.samples or args.rollouts,
                                          progress=bar.update)
                row |= {"pass_rates": digits(p), "norms": {name: digits(values) for name, values in norms.items()}}
            elif task.classes:
                p, right = policy.pass_rates(task, args.prompts, progress=bar.update)
                row |= {"pass_rates": digits(p), "top1": right.long().tolist()}
            else:
                counts = count_successes(policy, task, range(args.prompts), args.samples, seed=args.seed, progress=bar.update,
                                         temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
                row["counts"] = counts.tolist()
        rows.append(row)
    return {"command": shlex.join(["python", *sys.argv]), "torch": torch.__version__, "task": args.task,
            "task_options": args.task_options, "split": args.split, "prompts": args.prompts, "samples": args.samples,
            "temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p, "seed": args.seed,
            "precision": "bfloat16" if policy.autocast else "float32", "classes": len(task.classes),
            "rollouts": args.rollouts, "checkpoints": rows}


def digits(values: torch.Tensor) -> list[float]:
    """Six significant ones: files of 50,000 images stay small."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def over_seeds(results: dict, value) -> dict[str, list]:
    """{name: value(row) of every prompt}, averaged over the checkpoints of that name (seeds)."""
    table = {}
    for row in results["checkpoints"]:
        table.setdefault(row["name"], []).append(value(row))
    return {name: sum(values) / len(values) for name, values in table.items()}


def per_prompt(results: dict, k: int) -> dict[str, list]:
    """{name: pass@k of every prompt}."""
    if results["classes"]:
        return over_seeds(results, lambda row: exact_pass_at_k(row["pass_rates"], k))
    return over_seeds(results, lambda row: pass_at_k(results["samples"], row["counts"], k))


def print_table(results: dict, ks: list[int], against: str):
    """pass@k (standard error over prompts), and each row's difference to `against`, paired over prompts."""
    values = {f"pass@{k}": per_prompt(results, k) for k in ks}
    if results["classes"]:
        values["top-1"] = over_seeds(results, lambda row: np.array(row["top1"]))
    ks, names = list(values), list(values[f"pass@{ks[0]}"])
    width = max(map(len, names)) + 2
    print(f"{results['split']}: {drawn(results)} (± standard error over prompts)")
    print(" " * width + "".join(f"{k:^17}" for k in ks))
    for name in names:
        cells = (mean_and_se(values[k][name]) for k in ks)
        print(f"{name:{width}}" + "".join(f"{f'{mean:.3f} ± {se:.3f}':^17}" for mean, se in cells))
    if len(names) > 1:
        print(f"{against} minus each, paired over prompts")
        for name in names:
            if name != against:
                cells = (mean_and_se(values[k][against] - values[k][name]) for k in ks)
                print(f"{name:{width}}" + "".join(f"{f'{mean:+.3f} ± {se:.3f}':^17}" for mean, se in cells))


def drawn(results: dict) -> str:
    return f"{results['prompts']} images, exact" if results["classes"] else (
        f"{results['prompts']} prompts x {results['samples']} samples")


def print_norms(results: dict, edges=(0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1)):
    """Median gradient norm of the prompts whose pass rate lies between two edges."""
    print(f"{results['split']}: {drawn(results)}; median gradient norm of the prompts with a pass rate up to")
    print(f"{'':30}" + "".join(f"{edge:>9g}" for edge in edges))
    for row in results["checkpoints"]:
        bins = np.searchsorted(edges, row["pass_rates"])  # bin i: above edge i-1, up to edge i
        counts = np.bincount(bins, minlength=len(edges))
        print(f"{row['name'] + ', prompts':30}" + "".join(f"{n:9}" for n in counts))
        for name, norms in row["norms"].items():
            medians = [np.median(np.array(norms)[bins == i]) if n else np.nan for i, n in enumerate(counts)]
            print(f"{row['name'] + ', ' + name:30}" + "".join(f"{'-' if np.isnan(m) else f'{m:.3g}':>9}" for m in medians))


def curves(results: dict) -> dict[str, dict]:
    """For the figure: every name's pass@k and standard error at k = 1, 2, 4, ... up to the number of samples (classes)."""
    ks = [2**i for i in range((results["samples"] or results["classes"]).bit_length())]
    points = {k: {name: mean_and_se(v) for name, v in per_prompt(results, k).items()} for k in ks}
    se = {name: [points[k][name][1] for k in ks] for name in points[1]}  # of one prompt there is none
    return {name: {"k": ks, "mean": [points[k][name][0] for k in ks], "se": [None if s != s else s for s in se[name]]}
            for name in points[1]}


def main(arguments: list[str]):
    args = read_arguments(arguments)
    results = evaluate(args)
    if distributed.rank() > 0:
        return
    if args.gradient_norms:
        print_norms(results)
    else:
        print_table(results, args.k, args.against)
        results["pass@k"] = curves(results)
    if args.json:
        args.json.write_text(json.dumps(results, allow_nan=False) + "\n")
    if args.plot:
        from maxrl import plots
        options = ", ".join(f"{key} {value}" for key, value in results["task_options"].items())
        caption = f"{results['task']}, {options}, {results['split']}: {drawn(results)}"
        if args.gradient_norms:
            plots.gradient_norms(results["checkpoints"], args.plot, caption)
        else:
            plots.coverage(results["pass@k"], args.against, args.plot, caption)
        print(f"drew {args.plot}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (UsageError, OSError) as error:
        distributed.refuse("eval.py", error)
    distributed.cleanup()
