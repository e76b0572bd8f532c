"""Peak memory and time of log-probabilities and their gradient: all logits at once, or in chunks as maxrl/losses.py does.

    make bench                     or: PYTHONPATH=. python tests/bench_memory.py [--tokens 2048] [--json FILE]

V = 150,000 as in Qwen's vocabulary, hidden size 256. Each contestant runs in a process of its own, whose peak is what its
resident memory rose by; `saved` is what autograd keeps between forward and backward, the weights left out.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from bench import describe_machine

from maxrl.losses import CHUNK, log_probs_and_entropies, token_log_probs

V, HIDDEN = 150_000, 256
CONTESTANTS = {"all logits": lambda hidden, head, targets: token_log_probs(head(hidden), targets),
               "in chunks": lambda hidden, head, targets: log_probs_and_entropies(hidden, head, targets)[0]}


def saved_bytes(function, parameters=()) -> tuple[torch.Tensor, int]:
    """The function's result and the bytes that autograd keeps for its backward, each storage once, parameters left out."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = function()
    own = {p.untyped_storage().data_ptr() for p in parameters}
    return result, sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in own)


def high_water() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, tokens: int) -> dict:
    """In this process, once."""
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(HIDDEN, V, bias=False), torch.randn(tokens, HIDDEN, requires_grad=True)
    targets = torch.randint(V, (tokens,))
    head.weight.grad = torch.zeros_like(head.weight)
    (hidden[:1] @ head.weight[:1].mT).sum().backward()  # the libraries' own memory is there before the count
    before, start = high_water(), time.perf_counter()
    log_probs, saved = saved_bytes(lambda: CONTESTANTS[name](hidden, head, targets), [head.weight, hidden])
    log_probs.sum().backward()
    return {"who": name, "tokens": tokens, "seconds": time.perf_counter() - start, "peak": high_water() - before,
            "saved": saved, "gradient": float(head.weight.grad.norm())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--json", help="write all results to this file")
    parser.add_argument("--only", choices=CONTESTANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args.only, args.tokens)))
        return
    where, results = describe_machine(torch.device("cpu")), []
    print(f"{where}\n\nlog-probabilities, forward and backward: {args.tokens:,} tokens, V = {V:,}, hidden {HIDDEN}, float32, "
          f"chunks of {CHUNK // V} tokens")
    for name in CONTESTANTS:
        command = [sys.executable, __file__, "--only", name, "--tokens", str(args.tokens)]
        out = subprocess.run(command, capture_output=True, text=True)
        if out.returncode:
            sys.exit(f"{name}: exit code {out.returncode}\n{out.stderr}")
        results.append(found := json.loads(out.stdout))
        print(f"  {name:20} {found['seconds']:7.2f} s  peak {found['peak'] / 2**20:9,.0f} MiB  saved "
              f"{found['saved'] / 2**20:9,.1f} MiB  gradient's norm {found['gradient']:.6g}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"where": where, "results": results}, file)


if __name__ == "__main__":
    main()
