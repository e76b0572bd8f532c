"""Speed of rollouts and of the training step on the 17x17 maze model, random weights, everything in one run.

    make bench                     or: PYTHONPATH=. python tests/bench.py [--repeats 3] [--json FILE] [--device cuda]

Rollouts: 8 prompts x 32 rollouts x 48 forced tokens, against transformers' generate (which also stops nowhere) on the
same weights. Training: forward and backward of those rollouts, a quarter of each group right, with the prompt shared by
its group against plain [prompt + response] rows. The contestants take turns; medians, and the spread as (min-max).
"""

import argparse
import json
import os
import platform
import resource
import statistics
import time

import tiny
import torch

from maxrl import distributed
from maxrl.advantages import ADVANTAGES
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.policy import SequencePolicy
from maxrl.recipes import maze17
from maxrl.rollouts import Rollouts
from maxrl.sampler import generate, noise

P, N, L, PROMPT = 8, 32, 48, 310


def peer(model, device, dtype):
    """transformers' Qwen2 with the same weights."""
    import transformers
    theirs = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**model.config.to_hf())).eval()
    theirs.load_state_dict(model.state_dict())
    theirs.generation_config.eos_token_id = None  # nothing stops a response: all have L tokens
    return theirs.to(device, dtype)


def timed(function, device) -> float:
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def take_turns(contestants: dict, repeats: int, device) -> dict[str, list[float]]:
    """Seconds of every contestant, each warmed up once, then A B C A B C ..."""
    for function in contestants.values():
        timed(function, device)
    seconds = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, function in contestants.items():
            seconds[name].append(timed(function, device))
    return seconds


def rollouts(model, prompts, low: bool, device) -> dict:
    theirs = peer(model, device, torch.bfloat16 if low else torch.float32)
    tiled = torch.stack(prompts).repeat_interleave(N, 0).to(device)
    uniforms = noise(0, 0, range(P), N, L)

    def ours():
        with torch.autocast(device.type, torch.bfloat16, enabled=low):
            samples = generate(model, prompts, N, L, [], uniforms)
        assert samples.tokens.shape == (P, N, L)

    def other(cache):
        with torch.no_grad():
            out = theirs.generate(tiled, attention_mask=torch.ones_like(tiled), do_sample=True, temperature=1.0, top_k=0,
                                  top_p=1.0, max_new_tokens=L, min_new_tokens=L, cache_implementation=cache,
                                  disable_compile=True, pad_token_id=0)
        assert out.shape == (P * N, PROMPT + L)

    return {"maxrl": ours, "transformers, dynamic cache": lambda: other("dynamic"),
            "transformers, static cache": lambda: other("static")}


def training(model, prompts, low: bool, device) -> dict:
    tokens = torch.randint(0, 32, (P, N, L), generator=torch.Generator().manual_seed(1)).to(device)
    lengths = torch.full((P, N), L, device=device)
    batch = Rollouts(prompts, tokens, lengths, lengths > 0, None)
    rewards = (torch.arange(N) < N // 4).float().expand(P, N)
    advantages = ADVANTAGES["maxrl"](rewards)

    def step(share):
        tiny.share_prompts(model, share)
        budget = 8192 if share else PROMPT + N // 2 * L  # of plain rows, half a group: 5,728 tokens
        policy = SequencePolicy(model, None, [7], max_tokens=L, autocast=low, micro_batch_tokens=budget)
        model.zero_grad()
        policy.backward(batch, advantages)

    return {"prompt shared": lambda: step(True), "plain rows": lambda: step(False)}


def describe_machine(device) -> str:
    cpu = f"{torch.get_num_threads()} CPU threads, {platform.machine()}"
    where = torch.cuda.get_device_name() if device.type == "cuda" else cpu
    allocator = {k: v for k, v in os.environ.items() if k.startswith("MALLOC_")}
    return f"torch {torch.__version__}, {where}, allocator {allocator or 'as it is'}"


def report(title: str, seconds: dict[str, list[float]], count: int, results: list, unit: str = "tokens"):
    ours = statistics.median(next(iter(seconds.values())))
    print(f"\n{title}")
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"  {name:30} {median:7.2f} s ({min(times):.2f}-{max(times):.2f})  {count / median:9,.0f} {unit}/s  "
              f"{median / ours:5.2f}x")
        results.append({"what": title, "who": name, "seconds": times, unit: count})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="write all timings to this file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", choices=("rollouts", "training"))
    args = parser.parse_args()
    import transformers
    transformers.logging.set_verbosity_error()
    device = distributed.setup(args.device)[2]
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.from_hf(maze17().model)).to(device)
    prompts = [torch.randint(0, 32, (PROMPT,)) for _ in range(P)]
    where = f"transformers {transformers.__version__}, {describe_machine(device)}"
    print(where)
    results = []
    for low in (False, True):
        dtype = "bfloat16" if low else "float32"
        if args.only != "training":
            seconds = take_turns(rollouts(model, prompts, low, device), args.repeats, device)
            report(f"rollouts, {dtype}: {P} prompts x {N} rollouts x {L} tokens", seconds, P * N * L, results)
        if args.only != "rollouts":
            seconds = take_turns(training(model, prompts, low, device), args.repeats, device)
            report(f"training step, {dtype}: forward + backward of the same", seconds, P * N * L, results)
    print(f"\npeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"where": where, "results": results}, file)


if __name__ == "__main__":
    main()
