"""Samples of a checkpoint on GSM8K or word problems, judged by both verdicts at once: the last
box, and the published code's.

    PYTHONPATH=. python results/smollm2/verdicts.py CHECKPOINT --json FILE.jsonl --prompts 128

FILE.jsonl gets a line a prompt: how many of its samples are right by each verdict, how many have
a box, how many were cut at the limit, their mean length, whether the answer of most is right, and
a right and a wrong response where there are both. The samples are those that eval.py draws with
--seed 0. A command that is given again goes on where it was interrupted.
"""

import argparse
import json
from pathlib import Path

import torch
from tqdm import tqdm

from maxrl.analysis.metrics import majority_vote
from maxrl.learning.policy import SequencePolicy
from maxrl.models import checkpoint
from maxrl.system.distributed import use_bfloat16
from maxrl.tasks.gsm8k import Gsm8k
from maxrl.tasks.verifiers import last_boxed, verify_number, verify_published_batch

AT_ONCE = 256  # rollouts


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--json", dest="file", type=Path, required=True)
    parser.add_argument("--directory", default="gsm8k", help="of the problems, below data/")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--max-response", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    return parser.parse_args()


def verdicts(task: Gsm8k, index: int, responses: list[str], rollouts, i: int) -> dict:
    """The line of one prompt: `index` of the task, group i of the rollouts."""
    answer = task[index].columns["answer"]
    boxed = [verify_number(response, answer) for response in responses]
    published = verify_published_batch(responses, [answer] * len(responses))
    right = torch.tensor([boxed]) == 1
    line = {
        "prompt": index,
        "boxed": int(sum(boxed)),
        "published": int(sum(published)),
        "with_box": sum(last_boxed(response) is not None for response in responses),
        "cut": int((~rollouts.finished[i]).sum()),
        "tokens": round(float(rollouts.lengths[i].float().mean()), 1),
        "majority": float(
            majority_vote([[task.final(response) for response in responses]], right)[0]
        ),
    }
    if 1.0 in boxed and 0.0 in boxed:
        line["right"] = responses[boxed.index(1.0)]
        line["wrong"] = responses[boxed.index(0.0)]
    return line


def main():
    args = arguments()
    done = args.file.read_text().count("\n") if args.file.exists() else 0
    task = Gsm8k("test", args.directory)
    policy = SequencePolicy(
        checkpoint.load(args.checkpoint),
        max_tokens=args.max_response,
        wave_rows=AT_ONCE,
        autocast=use_bfloat16("auto", torch.device("cpu")),
    )
    policy.model.eval()
    # A missing package is said here, before the first samples are drawn.
    verify_published_batch(["1"], ["1"])
    at_once = AT_ONCE // args.samples
    bar = tqdm(total=args.prompts, initial=done, unit=" prompts")
    while done < args.prompts:
        places = range(done, min(done + at_once, args.prompts))
        with torch.no_grad():
            rollouts = policy.rollout(
                [task[i] for i in places],
                args.samples,
                indices=places,
                seed=0,
                temperature=args.temperature,
                top_p=args.top_p,
            )
        lines = []
        for i, responses in enumerate(task.responses(rollouts)):
            lines.append(json.dumps(verdicts(task, places[i], responses, rollouts, i)) + "\n")
        with args.file.open("a") as file:
            file.write("".join(lines))
        done = places.stop
        bar.update(len(places))


if __name__ == "__main__":
    main()
