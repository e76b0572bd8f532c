"""pass@k of checkpoints, with standard errors over prompts.

    python eval.py base=runs/maze9_laptop_sft maxrl=runs/maze9_laptop-maxrl --samples 256 --plot runs/coverage.png

NAME=PATH names a row of the table; a name given to several checkpoints (seeds) is one row, averaged per prompt. Works
under torchrun too. Prompts come from --split of the task that the first checkpoint was trained on, or from --task.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

import torch
from tqdm import tqdm

from maxrl import checkpoint, distributed
from maxrl.config import UsageError, guess, split_arguments
from maxrl.metrics import mean_and_se, pass_at_k
from maxrl.policy import SequencePolicy, count_successes
from maxrl.sampler import check_prompts
from maxrl.tasks import load_task


def read_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("eval.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", metavar="[NAME=]PATH", help="checkpoint or run directory; before the options")
    parser.add_argument("--samples", type=int, default=64, help="n, rollouts per prompt (64)")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 8, 64], help="the k of pass@k, at most n (1 8 64)")
    parser.add_argument("--prompts", type=int, default=256, help="how many prompts of the split (256)")
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"))
    parser.add_argument("--task", help="task by name; its options follow as --task.size 9 (the checkpoint's own)")
    parser.add_argument("--max-response", type=int, help="longest response in tokens (the checkpoint's own)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0, help="sample from the k most probable tokens only (0: all)")
    parser.add_argument("--top-p", type=float, default=1.0, help="sample from the smallest set of this probability (1: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--precision", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--against", help="row to which the others are compared (the last)")
    parser.add_argument("--json", type=Path, help="write counts and table to this file")
    parser.add_argument("--plot", type=Path, help="draw pass@k against k into this file (needs matplotlib)")
    args, rest = parser.parse_known_args(arguments)
    pairs = split_arguments(rest)
    unknown = [key for key, _ in pairs if not key.startswith("task.")]
    if unknown:
        raise UsageError(f"--{unknown[0]} is not an option (eval.py --help lists all)")
    args.task_options = {key.removeprefix("task."): guess(value) for key, value in pairs}
    return check(args)


def check(args: argparse.Namespace) -> argparse.Namespace:
    """Refuse what could not be evaluated before any sampling; `checkpoints` becomes a list of (name, directory)."""
    if args.samples < 1 or args.prompts < 1:
        raise UsageError(f"--samples {args.samples} and --prompts {args.prompts} must be at least 1")
    if min(args.k) < 1:
        raise UsageError(f"--k {min(args.k)} must be at least 1")
    if args.seed < 0:
        raise UsageError(f"--seed {args.seed} must not be negative")
    if max(args.k) > args.samples:
        raise UsageError(f"pass@{max(args.k)} needs at least as many samples, not --samples {args.samples}")
    if not 0 <= args.temperature < float("inf") or not 0 < args.top_p <= 1 or args.top_k < 0:
        raise UsageError(f"--temperature {args.temperature} --top-k {args.top_k} --top-p {args.top_p} is no distribution: "
                         "temperature and top-k must not be negative, top-p lies in (0, 1]")
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
    trained = json.loads(recipe.read_text())["config"] if recipe.exists() else {}
    if not (args.task or trained):
        raise UsageError(f"{recipe.parent} does not say what it was trained on: name it with --task")
    args.max_response = args.max_response or trained.get("max_response") or 180
    if not args.task or args.task == trained.get("task"):
        args.task, args.task_options = trained["task"], trained["task_options"] | args.task_options
    return args


def evaluate(args: argparse.Namespace) -> dict:
    """Counts of right samples for every checkpoint, over the same prompts and the same noise."""
    rank, _, device = distributed.setup(args.device)
    task = load_task(args.task, args.split, **args.task_options)
    indices = range(min(args.prompts, len(task)))
    if not indices:
        raise UsageError(f"the {args.split} split of task {args.task} is empty")
    rows = []
    for name, path in args.checkpoints:
        try:
            model, tokenizer, stop = checkpoint.load_model(path)
            stop = [tokenizer.id(token) for token in task.stop_tokens] or stop
            check_prompts(model, [tokenizer.encode(task[i].prompt) for i in indices], args.max_response)
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from None
        policy = SequencePolicy(model.to(device), tokenizer, stop, max_tokens=args.max_response,
                                autocast=distributed.use_bfloat16(args.precision, device))
        with tqdm(total=len(indices), desc=f"{name} ({path})", unit=" prompts", leave=False, disable=rank > 0) as bar:
            counts = count_successes(policy, task, indices, args.samples, seed=args.seed, progress=bar.update,
                                     temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
        rows.append({"name": name, "path": str(path), "counts": counts.tolist()})
    return {"command": shlex.join(["python", *sys.argv]), "torch": torch.__version__, "task": args.task,
            "task_options": args.task_options, "split": args.split, "prompts": len(indices), "samples": args.samples,
            "temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p, "seed": args.seed, "checkpoints": rows}


def per_prompt(results: dict, k: int) -> dict[str, list]:
    """{name: pass@k of every prompt}, averaged over the checkpoints of that name (seeds)."""
    table = {}
    for row in results["checkpoints"]:
        table.setdefault(row["name"], []).append(pass_at_k(results["samples"], row["counts"], k))
    return {name: sum(values) / len(values) for name, values in table.items()}


def print_table(results: dict, ks: list[int], against: str):
    """pass@k (standard error over prompts), and each row's difference to `against`, paired over prompts."""
    values = {k: per_prompt(results, k) for k in ks}
    names = list(values[ks[0]])
    width = max(map(len, names)) + 2
    print(f"{results['split']}: {results['prompts']} prompts x {results['samples']} samples (± standard error over prompts)")
    print(" " * width + "".join(f"{f'pass@{k}':^17}" for k in ks))
    for name in names:
        cells = (mean_and_se(values[k][name]) for k in ks)
        print(f"{name:{width}}" + "".join(f"{f'{mean:.3f} ± {se:.3f}':^17}" for mean, se in cells))
    if len(names) > 1:
        print(f"{against} minus each, paired over prompts")
        for name in names:
            if name != against:
                cells = (mean_and_se(values[k][against] - values[k][name]) for k in ks)
                print(f"{name:{width}}" + "".join(f"{f'{mean:+.3f} ± {se:.3f}':^17}" for mean, se in cells))


def curves(results: dict) -> dict[str, dict]:
    """For the figure: every name's pass@k and standard error at k = 1, 2, 4, ... up to the number of samples."""
    ks = [2**i for i in range(results["samples"].bit_length())]
    points = {k: {name: mean_and_se(v) for name, v in per_prompt(results, k).items()} for k in ks}
    return {name: {"k": ks, "mean": [points[k][name][0] for k in ks], "se": [points[k][name][1] for k in ks]}
            for name in points[1]}


def main(arguments: list[str]):
    args = read_arguments(arguments)
    results = evaluate(args)
    if distributed.rank() > 0:
        return
    print_table(results, args.k, args.against)
    results["pass@k"] = curves(results)
    if args.json:
        args.json.write_text(json.dumps(results).replace("NaN", "null") + "\n")  # no error bar from one prompt
    if args.plot:
        from maxrl import plots
        options = ", ".join(f"{key} {value}" for key, value in results["task_options"].items())
        plots.coverage(results["pass@k"], args.against, args.plot, f"{results['task']}, {options}, {results['split']}: "
                       f"{results['prompts']} prompts x {results['samples']} samples")
        print(f"drew {args.plot}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (UsageError, FileNotFoundError) as error:
        distributed.refuse("eval.py", error)
    distributed.cleanup()
