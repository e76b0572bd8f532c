"""Small models, rollouts and mazes that several test files share."""

import math

import numpy as np
import torch

from maxrl.learning.packing import micro_batch
from maxrl.learning.policy import SequencePolicy
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.tokenizer import Tokenizer
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.sampling.rollouts import Rollouts
from maxrl.tasks import Example, Task
from maxrl.tasks.maze import ID, VOCABULARY
from tests.helpers.tensors import close, seeded

SIZES = dict(
    model_type="qwen2",
    vocab_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    tie_word_embeddings=True,
    sliding_window=None,  # mistral has one by default
)


class Killed(BaseException):
    """What a test raises where a run is killed: nothing but `finally` notices."""


def model(dtype=torch.float64, seed=0, **changes) -> Transformer:
    """A transformer of SIZES, all of whose parameters are random: zero biases and unit norms would
    hide mistakes.
    """
    torch.manual_seed(seed)
    result = Transformer(TransformerConfig.from_hf(SIZES | changes))
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            one = 1.0 if "norm" in name else 0.0
            parameter.copy_(
                one + torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.2)
            )
    return result.to(dtype)


def dice(**chances) -> Transformer:
    """A model that throws the same dice for every token, whatever came before: its logits are set
    by hand. So what it samples is known from the noise alone, on every machine. Every parameter of
    a layer is there; none changes the states."""
    result = model(torch.float32, tie_word_embeddings=False)
    logits = torch.full((len(VOCABULARY),), -30.0)
    for token, chance in chances.items():
        logits[ID[token]] = math.log(chance)
    with torch.no_grad():
        result.model.embed_tokens.weight.fill_(1)
        result.model.norm.weight.fill_(1)  # the states after it: 1 everywhere
        result.lm_head.weight.copy_(
            (logits / SIZES["hidden_size"])[:, None].expand(-1, SIZES["hidden_size"])
        )
        for layer in result.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return result


class Up(Task):
    """Right is what begins with UP.

    `--task tests.helpers.tiny:Up`; the recipe's own options, a size and a directory, mean nothing
    here.
    """

    def __init__(self, split, **options):
        pass

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return Example(f"<bos> UP LEFT {VOCABULARY[8 + index % 10]}", "")

    def verify(self, response, example):
        return float(response.startswith("UP"))


class Parity(Task):
    """Succeeds when the response has an even number of tokens, its end token among them."""

    stop_tokens = ("DONE", "<eos>")

    def __getitem__(self, index):
        return Example(" ".join(["UP"] * (index + 1)), "")

    def verify(self, response, example):
        return float(len(response.split(" ")) % 2 == 0)


class PlainRows(Transformer):
    """An oracle: every row is its prompt and its response, as if the rows of a group had nothing in
    common.
    """

    def forward(self, tokens, prefix=None, prefix_lengths=None):
        if prefix is None:
            return super().forward(tokens)
        (G, M, L), lengths = tokens.shape, prefix_lengths.tolist()
        rows = tokens.new_zeros(G, M, prefix.shape[1] + L)
        for g, n in enumerate(lengths):
            rows[g, :, :n] = prefix[g, :n]
            rows[g, :, n : n + L] = tokens[g]
        hidden = super().forward(rows)
        return torch.stack([hidden[g, :, n : n + L] for g, n in enumerate(lengths)])


def row_logits(some_model, prompt, response) -> torch.Tensor:
    """Logits (n, V) that a response of n tokens is predicted by, of one plain row."""
    row = torch.tensor([*prompt, *response])
    return some_model.lm_head(some_model(row[None, None, :-1])[0, 0, len(prompt) - 1 :])


def share_prompts(transformer, share: bool):
    """Let a model, in place, run a group's prompt once, as it does, or with every row."""
    transformer.__class__ = Transformer if share else PlainRows


def policy(transformer=None, share_prompt: bool = True, **options) -> SequencePolicy:
    """Of model() unless another is given. Stops at the maze's DONE (7) and <eos> (2); up to 12
    tokens.
    """
    transformer = transformer or model()
    options = {"max_tokens": 12} | options
    for each in filter(None, (transformer, options.get("reference"))):
        share_prompts(each, share_prompt)
    return SequencePolicy(
        Checkpoint(transformer, Tokenizer.from_vocabulary(VOCABULARY), [2, 7]), **options
    )


def examples(*texts) -> list[Example]:
    """Prompts without answers."""
    return [Example(text, "") for text in texts]


def prompts(lengths, seed=0):
    """One-dimensional id tensors of these lengths."""
    generator = seeded(seed)
    return [torch.randint(1, 32, (n,), generator=generator) for n in lengths]


def rollouts(prompt_lengths=(9, 5, 1, 7), N=4, L=6, seed=0, dtype=torch.float64) -> Rollouts:
    """Stored rollouts of random tokens (the padding's 0 too) and lengths; one of them L tokens
    long.
    """
    generator = seeded(seed)
    P = len(prompt_lengths)
    tokens = torch.randint(32, (P, N, L), generator=generator)
    lengths = torch.randint(1, L + 1, (P, N), generator=generator)
    lengths[-1, 0] = L
    tokens = tokens * (torch.arange(L) < lengths[..., None])
    return Rollouts(
        prompts(prompt_lengths, seed),
        tokens,
        lengths,
        torch.ones(P, N, dtype=torch.bool),
        Tokenizer.from_vocabulary(VOCABULARY),
        torch.zeros(P, N, L, dtype=dtype),
        torch.zeros(P, N, L, dtype=dtype),
    )


def same(ours, theirs):
    """Rollouts have the same tokens, and up to rounding the same log-probs and entropies."""
    for name in ("tokens", "lengths", "finished"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for name in ("log_probs", "entropies"):
        close(getattr(ours, name), getattr(theirs, name), name=name)


def whole(some_rollouts):
    """All rows of all groups as one MicroBatch, in their order."""
    P, N = some_rollouts.lengths.shape
    columns = np.tile(np.arange(N), (P, 1))
    return micro_batch(some_rollouts, np.arange(P), columns, "cpu", some_rollouts.lengths)


def gradient(some_policy, some_rollouts, advantages) -> torch.Tensor:
    """What backward adds to .grad, as one vector (parameters,)."""
    some_policy.model.zero_grad(set_to_none=True)
    some_policy.backward(some_rollouts, advantages)
    return grads(some_policy.model)


def grads(some_model) -> torch.Tensor:
    """The gradients of all parameters that are trained, as one vector."""
    parameters = [p for p in some_model.parameters() if p.requires_grad]
    return torch.cat([p.grad.flatten() for p in parameters])


def distance(a, b) -> float:
    """Relative distance of two vectors."""
    return float((a - b).norm() / b.norm())


def chain(following: dict[int, int], **changes) -> Transformer:
    """A model that writes one text alone: after a token comes, but for one time in 10^12, the one
    that `following` names. At most hidden_size tokens."""
    result = model(torch.float32, tie_word_embeddings=False, **changes)
    with torch.no_grad():
        for parameter in result.parameters():
            parameter.zero_()
        result.model.norm.weight.fill_(1)
        result.model.embed_tokens.weight.fill_diagonal_(1)
        for before, after in following.items():
            result.lm_head.weight[after, before] = 8  # times 32**0.5 behind the norm: a logit of 45
    return result


class Ragged(Up):
    """Prompts of four lengths, with answers. Right is what begins with a word of even number, as
    half of the responses of random weights do.
    """

    vocabulary = VOCABULARY

    def __getitem__(self, index):
        words = ["<bos>", *["UP"] * (index % 4), VOCABULARY[8 + index % 10]]
        return Example(" ".join(words), " ".join(["LEFT", *["DOWN"] * (index % 3), "DONE"]))

    def verify(self, response, example):
        return float(ID.get(response.partition(" ")[0], 1) % 2 == 0)
