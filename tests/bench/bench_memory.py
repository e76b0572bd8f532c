"""The row of bench.py about log-probabilities and their gradient: all logits at once, or in chunks as maxrl/losses.py does.

V = 150,000 as in Qwen's vocabulary, hidden size 256. Each contestant runs in a process of its own, whose peak is what its
resident memory rose by; `saved` is what autograd keeps between forward and backward, the weights left out.
"""

import json
import resource
import subprocess
import sys

import torch
from bench_turns import Times, now, row

from maxrl.losses import log_probs_and_entropies, token_log_probs

V, HIDDEN = 150_000, 256
CONTESTANTS = {
    "in chunks": lambda hidden, head, targets: log_probs_and_entropies(hidden, head, targets)[0],
    "all logits": lambda hidden, head, targets: token_log_probs(head(hidden), targets),
}


def saved_bytes(function, parameters=()) -> tuple[torch.Tensor, int]:
    """The function's result and the bytes that autograd keeps for its backward, each storage once, parameters left out."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = function()
    own = {p.untyped_storage().data_ptr() for p in parameters}
    return result, sum(
        t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in own
    )


def high_water() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, tokens: int) -> dict:
    """In this process, once."""
    torch.manual_seed(0)
    head, hidden = (
        torch.nn.Linear(HIDDEN, V, bias=False),
        torch.randn(tokens, HIDDEN, requires_grad=True),
    )
    targets = torch.randint(V, (tokens,))
    head.weight.grad = torch.zeros_like(head.weight)
    (
        hidden[:1] @ head.weight[:1].mT
    ).sum().backward()  # the libraries' own memory is there before the count
    before, (wall, cpu) = high_water(), now()
    log_probs, saved = saved_bytes(
        lambda: CONTESTANTS[name](hidden, head, targets), [head.weight, hidden]
    )
    log_probs.sum().backward()
    later, after = now()
    return {"seconds": (later - wall, after - cpu), "peak": high_water() - before, "saved": saved}


def log_probabilities(turns: int, tokens: int = 2048) -> dict:
    """The row: each contestant once, in a process of its own, whose peak is its own."""
    times, peaks = Times(), {}
    for name in CONTESTANTS:
        code = f"import bench_memory, json; print(json.dumps(bench_memory.measure({name!r}, {tokens})))"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
        times.note(name, *found["seconds"])
        peaks[name] = found["peak"] / 2**20, found["saved"] / 2**20
    sizes = ", ".join(
        f"{name}: peak {peak:,.0f} MiB, kept {kept:,.0f}" for name, (peak, kept) in peaks.items()
    )
    what = f"{tokens:,} tokens, V = {V:,}, hidden {HIDDEN}, forward and backward. {sizes}"
    return row(what, times, tokens, "token", dtype="float32", rivals=["all logits"])
