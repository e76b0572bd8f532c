"""The rows of bench.py about language models: rollouts and training steps against transformers,
scaling, verifiers."""

import math
from types import SimpleNamespace
from unittest import mock

import bench_turns
import numpy as np
import tiny
import torch
from bench_turns import Times, peak_gb, row, sized, take_turns, timed

from maxrl.advantages import ADVANTAGES
from maxrl.io.tokenizer import Tokenizer
from maxrl.models import attention, cpu
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.policy import SequencePolicy
from maxrl.recipes import maze17
from maxrl.rollouts import Rollouts
from maxrl.sampling.sampler import generate, noise
from maxrl.tasks.maze import ID, VOCABULARY, Maze
from maxrl.tasks.maze import generate as make_mazes
from maxrl.verifiers import verify_math_batch

SMOLLM2 = dict(  # SmolLM2-135M's sizes
    model_type="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
    tie_word_embeddings=True,
)
SHAPES = {  # prompts, rollouts of each, tokens of each (the longest, if ragged), tokens of a prompt
    "prompt-310": (8, 32, 48, 310),
    "256-tokens": (4, 16, 256, 94),
    "ragged": (4, 16, 180, 310),
    "49152-words": (2, 8, 64, 100),
}
SMALL = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def random_model(sizes: dict) -> Transformer:
    """A model with random weights, whose tokens are all about equally likely."""
    torch.manual_seed(0)
    chosen = sizes | sized({}, SMALL) | {"initializer_range": 0.02}
    return Transformer(TransformerConfig.from_hf(chosen)).to(bench_turns.device)


def random_prompts(count: int, length: int, vocabulary: int) -> list[torch.Tensor]:
    return list(
        torch.randint(
            0, vocabulary - 1, (count, length), generator=torch.Generator().manual_seed(0)
        )
    )


def ragged_lengths(*shape: int, longest: int = 180) -> torch.Tensor:
    """Lengths of responses as they are: lognormal, mean 45, standard deviation half of it, at most
    180."""
    spread = math.sqrt(math.log(1 + 0.5**2))
    drawn = np.random.default_rng(0).lognormal(math.log(45) - spread**2 / 2, spread, shape)
    return torch.from_numpy(drawn.round().clip(1, longest).astype(np.int64))


def forced(lengths, longest: int) -> torch.Tensor:
    """Noise (P, N, longest) with which every row draws the last word of the vocabulary at its
    length and not before.

    The last word is what the highest uniform number draws, and never one below a half where no word
    has half the chance.
    """
    uniforms = noise(0, 0, range(len(lengths)), lengths.shape[1], longest) / 2
    return uniforms.scatter(2, lengths[..., None] - 1, 1 - 2**-53)


def peer(model, dtype):
    """transformers' model with the same weights; nothing stops a response."""
    import transformers

    made = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**model.config.to_hf())
    )
    made.load_state_dict(model.state_dict())
    made.generation_config.eos_token_id = None
    return made.eval().to(bench_turns.device, dtype)


def products(model, rows: int, steps: int):
    """The linear layers of so many decode steps, with as many rows, and nothing else: what every
    eager sampler computes."""
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    inputs = {
        layer.in_features: torch.randn(rows, layer.in_features, device=bench_turns.device)
        for layer in layers
    }
    if torch.is_autocast_enabled(bench_turns.device.type):
        inputs = {size: x.bfloat16() for size, x in inputs.items()}
    for _ in range(steps):
        for layer in layers:
            layer(inputs[layer.in_features])


def rollouts(shape: str, dtype: str, turns: int) -> dict:
    """Sampling against transformers' generate, whose rows end at the same lengths."""
    P, N, L, Lp = sized(SHAPES[shape], (2, 4, 8, 9))
    model = random_model(SMOLLM2 if shape == "49152-words" else maze17().model)
    V = model.config.vocab_size
    lengths = ragged_lengths(P, N, longest=L) if shape == "ragged" else torch.full((P, N), L)
    L = int(lengths.max())
    prompts = random_prompts(P, Lp, V)
    uniforms = forced(lengths, L)
    theirs = peer(model, getattr(torch, dtype))
    tiled = torch.stack(prompts).repeat_interleave(N, 0).to(bench_turns.device)
    ends = lengths.flatten().to(bench_turns.device)

    def ours():
        with torch.autocast(bench_turns.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            samples = generate(model, prompts, uniforms, [V - 1])
        assert torch.equal(samples.lengths.cpu(), lengths)

    def end_there(ids, scores):
        now = ends == ids.shape[1] - Lp + 1
        scores[:, -1] = torch.where(now, torch.inf, -torch.inf)
        return scores.masked_fill(now[:, None] & (scores < torch.inf), -torch.inf).nan_to_num(
            posinf=0
        )

    def other(cache):
        length = {"max_new_tokens": L, "min_new_tokens": L}
        if shape == "ragged":
            length = {"max_new_tokens": L, "logits_processor": [end_there], "eos_token_id": V - 1}
        with torch.no_grad():
            out = theirs.generate(
                tiled,
                attention_mask=torch.ones_like(tiled),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                cache_implementation=cache,
                disable_compile=True,
                pad_token_id=0,
                **length,
            )
        assert out.shape == (P * N, Lp + L)

    @torch.no_grad()
    def least():
        with torch.autocast(bench_turns.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            products(model, P * N, L)

    rivals = {"dynamic cache": lambda: other("dynamic"), "static cache": lambda: other("static")}
    bound = {} if shape == "ragged" else {"its products alone": least}
    times, flops = take_turns({"maxrl": ours} | rivals | bound, turns)
    tokens = (
        f"{L} tokens" if shape != "ragged" else f"{lengths.float().mean():.0f} tokens (longest {L})"
    )
    what = f"{P} x {N} x {tokens} after a prompt of {Lp}, against transformers' generate"
    return row(
        what, times, int(lengths.sum()), "token", dtype=dtype, rivals=list(rivals), flops=flops
    )


def stored(lengths, prompts) -> Rollouts:
    """Rollouts of random tokens and of these lengths (P, N)."""
    tokens = torch.randint(
        0, 32, (*lengths.shape, int(lengths.max())), generator=torch.Generator().manual_seed(1)
    )
    return Rollouts(prompts, tokens, lengths, lengths > 0, None)


def quarter_right(P: int, N: int) -> torch.Tensor:
    return (torch.arange(N) < N // 4).float().expand(P, N)


def training(dtype: str, turns: int) -> dict:
    """Forward and backward: a prompt that its group shares against plain rows, at equal and at
    ragged lengths."""
    (N, Lp), model = sized((128, 310), (8, 9)), random_model(maze17().model)
    prompts = random_prompts(2, Lp, 32)
    lengths = {"equal": torch.full((2, N), 45), "ragged": ragged_lengths(2, N)}

    def step(which, share):
        # Plain rows take so long that a quarter of the rows has to do; in micro-batches as large as
        # those of the others.
        chosen = lengths[which] if share else lengths[which][:, : N // 4]
        tiny.share_prompts(model, share)
        budget = 8192 if share else Lp + 16 * int(chosen.max())
        policy = SequencePolicy(
            model,
            None,
            [7],
            max_tokens=180,
            autocast=dtype == "bfloat16",
            micro_batch_tokens=budget,
        )
        model.zero_grad()
        policy.backward(stored(chosen, prompts), ADVANTAGES["maxrl"](quarter_right(*chosen.shape)))
        work[f"{which}, {'prompt shared' if share else 'plain rows'}"] = int(chosen.sum())

    work = {}
    contestants = {
        "ragged, prompt shared": lambda: step("ragged", True),
        "ragged, plain rows": lambda: step("ragged", False),
        "equal, prompt shared": lambda: step("equal", True),
        "equal, plain rows": lambda: step("equal", False),
    }
    times, flops = take_turns(contestants, turns)
    what = "2 x 128 of lognormal lengths, mean 45, at most 180, after a prompt of 310"
    return row(
        what, times, work, "live token", dtype=dtype, rivals=["ragged, plain rows"], flops=flops
    )


def cpu_form(name: str, turns: int) -> dict:
    """A training step with a form of models/cpu.py and without it; 1 where the CPU is not one that
    takes the form."""
    dtype = {"linear": "float32", "attention": "bfloat16"}[name]
    N, Lp = sized((32, 310), (4, 9))
    model, prompts = random_model(maze17().model), random_prompts(2, Lp, 32)
    batch = stored(ragged_lengths(2, N), prompts)
    advantages = ADVANTAGES["maxrl"](quarter_right(2, N))
    policy = SequencePolicy(
        model, None, [7], max_tokens=180, autocast=dtype == "bfloat16", micro_batch_tokens=8192
    )

    def without():
        off = {
            "linear": mock.patch.object(cpu, "mkl_is_slow", lambda: False),
            "attention": mock.patch.object(attention, "KEYS", 0),
        }
        with off[name]:
            policy.backward(batch, advantages)

    contestants = {"with": lambda: policy.backward(batch, advantages), "without": without}
    times, _ = take_turns(contestants, turns)
    what = "forward and backward of 2 x 32 ragged responses, with the form and without"
    work = int(batch.lengths.sum())
    return row(what, times, work, "live token", dtype=dtype, rivals=["without"])


def scaling(axis: str, turns: int) -> dict:
    """Seconds and peak memory while rollouts, prompts or lengths double; the points ascend, since a
    peak only rises."""
    points = {
        "rollouts": [(1, n, 48, 310) for n in (64, 128, 256, 512, 1024, 2048)],
        "prompts": [(p, 32, 48, 310) for p in (1, 2, 4, 8, 16)],
        "length": [(4, 16, n, 94) for n in (16, 32, 64, 128, 256, 512)],
    }[axis]
    points = sized(points, points[:2])
    moving = {"rollouts": 1, "prompts": 0, "length": 2}[axis]
    model = random_model(maze17().model | {"max_position_embeddings": 1024})
    calls, peaks, times = [], {}, Times()
    for P, N, L, Lp in points:
        prompts, lengths = random_prompts(P, Lp, 32), torch.full((P, N), L)
        policy = SequencePolicy(
            model, None, [7], max_tokens=L, micro_batch_tokens=8192, autocast=bench_turns.low()
        )
        batch, advantages, uniforms = (
            stored(lengths, prompts),
            ADVANTAGES["maxrl"](quarter_right(P, N)),
            forced(lengths, L),
        )
        place = str((P, N, L)[moving])

        def sample(policy=policy, prompts=prompts, N=N, L=L, uniforms=uniforms):
            with policy.precision():
                generate(model, prompts, uniforms, [31])

        def backward(policy=policy, batch=batch, advantages=advantages):
            model.zero_grad()
            policy.backward(batch, advantages)

        calls += [(f"rollouts {place}", sample), (f"backward {place}", backward)]
        sample()
        backward()
        peaks[place] = peak_gb()
    for _ in range(max(1, turns // 2)):
        for who, call in calls:
            times.note(who, *timed(call))
    dtype = "bfloat16" if bench_turns.low() else "float32"
    return row(f"the worst of the doublings of {axis}", times, 1, "point", dtype=dtype, peaks=peaks)


class FreshMazes(Maze):
    """A few mazes that no file holds, whose rewards are judged and then replaced: a quarter of each
    group is right."""

    def __init__(self, size: int, count: int):
        self.size, self.mazes = size, make_mazes(size, count, np.random.default_rng(0))

    def rewards(self, examples, rollouts):
        return quarter_right(*super().rewards(examples, rollouts).shape)


def mazes(turns: int) -> dict:
    """Verdicts on maze responses: the walk of all token ids at once, and text by text."""
    task = FreshMazes(17, 32)
    examples, moves = (
        [task[i] for i in range(32)],
        [ID[word] for word in ("UP", "DOWN", "LEFT", "RIGHT")],
    )
    tokens = torch.tensor(moves)[
        torch.randint(4, (32, 128, 37), generator=torch.Generator().manual_seed(0))
    ]
    tokens[..., -1] = ID["DONE"]
    for i, example in enumerate(examples):  # a quarter finds the way
        right = [ID[word] for word in example.answer.split()][:37]
        tokens[i, :32, : len(right)] = torch.tensor(right)
    batch = Rollouts(
        [],
        tokens,
        torch.full((32, 128), 37),
        torch.ones(32, 128).bool(),
        Tokenizer.from_vocabulary(VOCABULARY),
    )
    few = SimpleNamespace(tokens=batch.tokens[:4], lengths=batch.lengths[:4], text=batch.text)
    contestants = {
        "token ids, batched": lambda: Maze.rewards(task, examples, batch),
        "texts": lambda: super(Maze, task).rewards(examples[:4], few),
    }
    times, _ = take_turns(contestants, 4 * turns)
    work = {"token ids, batched": 32 * 128, "texts": 4 * 128}
    return row("32 x 128 responses of up to 37 tokens", times, work, "response", rivals=["texts"])


def answers(turns: int) -> dict:
    """Verdicts on boxed LaTeX answers that math-verify has to compare, in its processes."""
    count, turn = sized(64, 4), iter(range(10**9))

    def ask():
        n = count * next(turn)  # other answers each time: equal pairs are compared once
        responses = [
            rf"so it is \boxed{{\frac{{{2 * i}}}{{6}}}}" for i in range(n + 1, n + count + 1)
        ]
        golds = [rf"\frac{{{i}}}{{3}}" for i in range(n + 1, n + count + 1)]
        assert verify_math_batch(responses, golds) == [1.0] * count

    times, _ = take_turns({"verify_math_batch": ask}, turns)
    what = f"{count} boxed fractions, all equal to the answer but not to the letter"
    return row(what, times, count, "response")
