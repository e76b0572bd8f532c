"""The rows of bench.py about language models: rollouts and training steps against transformers,
scaling, verifiers."""

import itertools
import math
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch

from maxrl.advantages import ADVANTAGES
from maxrl.learning.policy import SequencePolicy
from maxrl.models import attention
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.tokenizer import Tokenizer
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.run.recipes import maze17
from maxrl.sampling.rollouts import Rollouts
from maxrl.sampling.sampler import generate, noise
from maxrl.tasks.maze import ID, VOCABULARY, Maze
from maxrl.tasks.maze import generate as make_mazes
from maxrl.tasks.verifiers import verify_math_batch
from tests.bench import bench_turns
from tests.bench.bench_turns import Times, autocast, contest, peak_gb, row, sized, timed
from tests.helpers import tiny
from tests.helpers.published import SMOLLM2
from tests.helpers.tensors import seeded

WORDS = Tokenizer.from_vocabulary(VOCABULARY)
SMOLLM2_135M = SMOLLM2 | dict(
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
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
# What doubles, and with what: prompts, rollouts, tokens of a response and of a prompt.
POINTS = {
    "rollouts": [(1, n, 48, 310) for n in (64, 128, 256, 512, 1024, 2048)],
    "prompts": [(p, 32, 48, 310) for p in (1, 2, 4, 8, 16)],
    "length": [(4, 16, n, 94) for n in (16, 32, 64, 128, 256, 512)],
}


def random_model(sizes: dict) -> Transformer:
    """A model with random weights, whose tokens are all about equally likely."""
    torch.manual_seed(0)
    chosen = sizes | sized({}, SMALL) | {"initializer_range": 0.02}
    with bench_turns.device:
        return Transformer(TransformerConfig.from_hf(chosen))


def random_prompts(count: int, length: int, vocabulary: int = 32) -> list[torch.Tensor]:
    return list(torch.randint(0, vocabulary - 1, (count, length), generator=seeded()))


def policy(model, stop=7, **options) -> SequencePolicy:
    """It stops at DONE alone, so that a model with random weights writes about as much as one that
    was trained."""
    options = {"max_tokens": 180, "micro_batch_tokens": 8192} | options
    return SequencePolicy(Checkpoint(model, WORDS, [stop]), **options)


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


def stored(lengths, prompts) -> Rollouts:
    """Rollouts of random tokens and of these lengths (P, N)."""
    shape = (*lengths.shape, int(lengths.max()))
    tokens = torch.randint(0, 32, shape, generator=seeded(1))
    return Rollouts(prompts, tokens, lengths, lengths > 0, None)


def quarter_right(P: int, N: int) -> torch.Tensor:
    return (torch.arange(N) < N // 4).float().expand(P, N)


def advantages(lengths) -> torch.Tensor:
    """Those of MaxRL, of groups a quarter of which is right."""
    return ADVANTAGES["maxrl"](quarter_right(*lengths.shape))


def peer(model, dtype):
    """transformers' model with the same weights; nothing stops a response."""
    import transformers

    config = transformers.AutoConfig.for_model(**model.config.to_hf())
    made = transformers.AutoModelForCausalLM.from_config(config)
    made.load_state_dict(model.state_dict())
    made.generation_config.eos_token_id = None
    return made.eval().to(bench_turns.device, dtype)


def products(model, rows: int, steps: int):
    """The linear layers of so many decode steps, with as many rows, and nothing else: what every
    eager sampler computes."""
    device = bench_turns.device
    half = torch.is_autocast_enabled(device.type)
    dtype = torch.bfloat16 if half else torch.float32
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    sizes = {layer.in_features for layer in layers}
    inputs = {size: torch.randn(rows, size, device=device, dtype=dtype) for size in sizes}
    for _ in range(steps):
        for layer in layers:
            layer(inputs[layer.in_features])


def rollouts(shape: str, dtype: str, turns: int) -> dict:
    """Sampling against transformers' generate, whose rows end at the same lengths."""
    ragged = shape == "ragged"
    P, N, L, prompt_length = sized(SHAPES[shape], (2, 4, 8, 9))
    model = random_model(SMOLLM2_135M if shape == "49152-words" else maze17().model)
    last = model.config.vocab_size - 1
    lengths = ragged_lengths(P, N, longest=L) if ragged else torch.full((P, N), L)
    L = int(lengths.max())
    prompts = random_prompts(P, prompt_length, model.config.vocab_size)
    uniforms = forced(lengths, L)

    def ours():
        with autocast(dtype):
            samples = generate(model, prompts, uniforms, [last])
        assert torch.equal(samples.lengths.cpu(), lengths)

    theirs = peer(model, getattr(torch, dtype))
    tiled = torch.stack(prompts).repeat_interleave(N, 0).to(bench_turns.device)
    ends = lengths.flatten().to(bench_turns.device)

    def end_there(ids, scores):
        now = ends == ids.shape[1] - prompt_length + 1
        scores[:, -1] = torch.where(now, torch.inf, -torch.inf)
        others = now[:, None] & (scores < torch.inf)
        return scores.masked_fill(others, -torch.inf).nan_to_num(posinf=0)

    ending = {"min_new_tokens": L}
    if ragged:
        ending = {"logits_processor": [end_there], "eos_token_id": last}

    @torch.no_grad()
    def other(cache):
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
            max_new_tokens=L,
            **ending,
        )
        assert out.shape == (P * N, prompt_length + L)

    @torch.no_grad()
    def least():
        with autocast(dtype):
            products(model, P * N, L)

    rivals = {"dynamic cache": lambda: other("dynamic"), "static cache": lambda: other("static")}
    bound = {} if ragged else {"its products alone": least}
    contestants = {"maxrl": ours} | rivals | bound
    mean = lengths.float().mean()
    tokens = f"{mean:.0f} tokens (longest {L})" if ragged else f"{L} tokens"
    what = f"{P} x {N} x {tokens} after a prompt of {prompt_length}, against transformers' generate"
    more = {"dtype": dtype, "rivals": list(rivals)}
    return contest(what, contestants, turns, int(lengths.sum()), "token", **more)


def training(dtype: str, turns: int) -> dict:
    """Forward and backward: a prompt that its group shares against plain rows, at equal and at
    ragged lengths."""
    N, prompt_length = sized((128, 310), (8, 9))
    model = random_model(maze17().model)
    prompts = random_prompts(2, prompt_length)
    lengths = {"ragged": ragged_lengths(2, N), "equal": torch.full((2, N), 45)}
    contestants = {}
    work = {}

    def add(name, share):
        # Plain rows take so long that a quarter of the rows has to do; in micro-batches as large as
        # those of the others.
        chosen = lengths[name] if share else lengths[name][:, : N // 4]
        budget = 8192 if share else prompt_length + 16 * int(chosen.max())
        learner = policy(model, autocast=dtype == "bfloat16", micro_batch_tokens=budget)

        def step():
            tiny.share_prompts(model, share)
            model.zero_grad()
            learner.backward(stored(chosen, prompts), advantages(chosen))

        who = f"{name}, {'prompt shared' if share else 'plain rows'}"
        contestants[who] = step
        work[who] = int(chosen.sum())

    for name, share in itertools.product(lengths, (True, False)):
        add(name, share)
    what = "2 x 128 of lognormal lengths, mean 45, at most 180, after a prompt of 310"
    more = {"dtype": dtype, "rivals": ["ragged, plain rows"]}
    return contest(what, contestants, turns, work, "live token", **more)


def cpu_form(turns: int) -> dict:
    """A training step with attention by products and without it."""
    N, prompt_length = sized((32, 310), (4, 9))
    learner = policy(random_model(maze17().model), autocast=True)
    batch = stored(ragged_lengths(2, N), random_prompts(2, prompt_length))

    def step():
        learner.backward(batch, advantages(batch.lengths))

    def without():
        with mock.patch.object(attention, "KEYS", 0):
            step()

    contestants = {"with": step, "without": without}
    what = "forward and backward of 2 x 32 ragged responses, attention by products and without"
    more = {"dtype": "bfloat16", "rivals": ["without"]}
    return contest(what, contestants, turns, int(batch.lengths.sum()), "live token", **more)


def scaling(axis: str, turns: int) -> dict:
    """Seconds and peak memory while rollouts, prompts or lengths double; the points ascend, since a
    peak only rises."""
    dtype = "bfloat16" if bench_turns.low() else "float32"
    model = random_model(maze17().model | {"max_position_embeddings": 1024})
    times = Times()
    calls = {}
    peaks = {}

    def add(P, N, L, prompt_length):
        prompts = random_prompts(P, prompt_length)
        lengths = torch.full((P, N), L)
        learner = policy(model, max_tokens=L, autocast=dtype == "bfloat16")
        batch = stored(lengths, prompts)
        uniforms = forced(lengths, L)

        def sample():
            with learner.precision():
                generate(model, prompts, uniforms, [31])

        def backward():
            model.zero_grad()
            learner.backward(batch, advantages(lengths))

        sample()
        backward()
        point = str({"prompts": P, "rollouts": N, "length": L}[axis])
        peaks[point] = peak_gb()
        calls[f"rollouts {point}"] = sample
        calls[f"backward {point}"] = backward

    for point in sized(POINTS[axis], POINTS[axis][:2]):
        add(*point)
    for _ in range(max(1, turns // 2)):
        for who, call in calls.items():
            times.note(who, *timed(call))
    return row(f"the worst of the doublings of {axis}", times, 1, "point", dtype=dtype, peaks=peaks)


class FreshMazes(Maze):
    """A few mazes that no file holds, whose rewards are judged and then replaced: a quarter of each
    group is right."""

    def __init__(self, size: int, count: int):
        self.size = size
        self.mazes = make_mazes(size, count, np.random.default_rng(0))

    def rewards(self, examples, rollouts):
        return quarter_right(*super().rewards(examples, rollouts).shape)


def thresholds(turns: int) -> dict:
    """Advantages at every threshold of the reward: the closed form, and any order."""
    P, N = sized((32, 1024), (2, 8))
    rewards = torch.rand(P, N, generator=seeded())
    verdicts = quarter_right(P, N)
    contestants = {
        "tailrl": lambda: ADVANTAGES["tailrl"](rewards),
        "order 8 over thresholds": lambda: ADVANTAGES["maxrl_order"](
            rewards, order=8, thresholds=True
        ),
        "Algorithm 1 on verdicts": lambda: ADVANTAGES["maxrl"](verdicts),
    }
    what = f"advantages of {P} x {N} rewards; sorting them is most of the closed form"
    return contest(
        what, contestants, 4 * turns, P * N, "reward", rivals=["Algorithm 1 on verdicts"]
    )


def mazes(turns: int) -> dict:
    """Verdicts on maze responses: the walk of all token ids at once, and text by text."""
    task = FreshMazes(17, 32)
    examples = [task[i] for i in range(32)]
    moves = torch.tensor([ID[word] for word in ("UP", "DOWN", "LEFT", "RIGHT")])
    tokens = moves[torch.randint(4, (32, 128, 37), generator=seeded())]
    tokens[..., -1] = ID["DONE"]
    for i, example in enumerate(examples):  # a quarter finds the way
        right = [ID[word] for word in example.answer.split()][:37]
        tokens[i, :32, : len(right)] = torch.tensor(right)
    lengths = torch.full((32, 128), 37)
    batch = Rollouts([], tokens, lengths, lengths > 0, WORDS)
    few = SimpleNamespace(tokens=tokens[:4], lengths=lengths[:4], text=batch.text)
    contestants = {
        "token ids, batched": lambda: Maze.rewards(task, examples, batch),
        "texts": lambda: super(Maze, task).rewards(examples[:4], few),
    }
    work = {"token ids, batched": 32 * 128, "texts": 4 * 128}
    what = "32 x 128 responses of up to 37 tokens: a quarter right, the others random moves"
    return contest(what, contestants, 4 * turns, work, "response", rivals=["texts"])


def answers(turns: int) -> dict:
    """Verdicts on boxed LaTeX answers that math-verify has to compare, in its processes."""
    count = sized(64, 4)
    numbers = itertools.count(1)  # other answers each time: equal pairs are compared once

    def ask():
        asked = [next(numbers) for _ in range(count)]
        responses = [rf"so it is \boxed{{\frac{{{2 * i}}}{{6}}}}" for i in asked]
        golds = [rf"\frac{{{i}}}{{3}}" for i in asked]
        assert verify_math_batch(responses, golds) == [1.0] * count

    what = f"{count} boxed fractions, all equal to the answer but not to the letter"
    return contest(what, {"verify_math_batch": ask}, turns, count, "response")
