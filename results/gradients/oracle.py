"""The exact oracle: a policy so small that every response can be listed, so that no expectation
has to be sampled.

    PYTHONPATH=. python results/gradients/oracle.py --json FILE.json

takes about a minute on one core. Twelve prompts, a transformer of this project, 85 possible
responses. Their probabilities and scores go through the project's own SequencePolicy.backward, in
float64. What an estimator of N rollouts does with them is then a sum over the number of successes
K, which is binomial: given K, its successes are independent draws among the right responses, and
its failures among the wrong ones.

The file holds the facts of five policies. From these follows the gradient of any estimator, as
three numbers:

    cosine  between the expected gradient of the twelve prompts and M, the gradient of their mean
            log p
    length  of the expected gradient, in lengths of M
    noise   root of the trace of the gradient's covariance, in lengths of M, with one group of N
            rollouts a prompt
"""

import functools
import itertools
import json
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch

from maxrl.advantages import ADVANTAGES
from maxrl.learning.policy import SequencePolicy
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.tokenizer import Tokenizer
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.sampling.rollouts import Rollouts
from maxrl.tasks import Example
from results.lab.data import read_json

VOCABULARY = ("a", "b", "c", "d", "end")
END = VOCABULARY.index("end")
LONGEST = 3
# The pass rates, about.
TARGETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
SEEDS = range(5)
SIZES = {
    "model_type": "qwen2",
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
}

# A row's name -> the estimator and its options, which are lowered to N where they are above it.
METHODS = {
    "reinforce": ("reinforce", {}),
    "reinforce_mean": ("reinforce_mean", {}),
    "rloo": ("rloo", {}),
    "grpo": ("grpo", {}),
    "pkpo-8": ("pkpo", {"k": 8}),
    "maxrl_order-4": ("maxrl_order", {"order": 4}),
    "maxrl": ("maxrl", {}),
    "maxrl_success": ("maxrl_success", {}),
    "maxrl_centered": ("maxrl_centered", {}),
    "maxrl_rare": ("maxrl_rare", {}),  # not in the protocol, added later
}


# the policy and its responses
def responses() -> list[tuple[int, ...]]:
    """All of them: up to two letters and the end, or three tokens that the length limit cuts
    off."""
    letters = range(END)
    ended = [(*some, END) for n in range(LONGEST) for some in itertools.product(letters, repeat=n)]
    cut = list(itertools.product(letters, repeat=LONGEST))
    return ended + cut


def prompts() -> list[str]:
    """One for each pass rate: "a a", "a b", ..."""
    pairs = itertools.product(VOCABULARY[:END], repeat=2)
    return [" ".join(pair) for pair in itertools.islice(pairs, len(TARGETS))]


def make_policy(seed: int) -> SequencePolicy:
    """A transformer with random weights in float64."""
    model = Transformer(TransformerConfig.from_hf(SIZES)).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * 0.3 + float("norm" in name))
    tokenizer = Tokenizer.from_vocabulary(VOCABULARY)
    start = Checkpoint(model, tokenizer, [END])
    return SequencePolicy(start, max_tokens=LONGEST, aggregation="sequence", seed=seed)


def listed(policy: SequencePolicy, prompt: str) -> Rollouts:
    """Every response once, as the rollouts of one prompt."""
    rows = responses()
    tokens = torch.tensor([[*row, 0, 0][:LONGEST] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    ids = policy.encode_prompts([Example(prompt, "")])
    finished = torch.tensor([row[-1] == END for row in rows])
    return Rollouts(ids, tokens[None], lengths[None], finished[None], policy.tokenizer)


def enumerated(policy: SequencePolicy, prompt: str):
    """Probabilities (85,) and scores (85, parameters) of all responses, by the policy's own
    backward."""
    rollouts = listed(policy, prompt)
    count = rollouts.lengths.numel()
    log_probs = []
    scores = []
    for i in range(count):
        # The loss is minus the mean of A log m: with A = count for one response, minus its log m.
        advantages = torch.zeros(1, count, dtype=torch.float64)
        advantages[0, i] = count
        policy.model.zero_grad(set_to_none=True)
        stats = policy.backward(rollouts, advantages).metrics()
        log_probs.append(-stats["loss"])
        scores.append(torch.cat([-p.grad.flatten() for p in policy.model.parameters()]))
    return torch.tensor(log_probs, dtype=torch.float64).exp(), torch.stack(scores)


def right_ones(probabilities: torch.Tensor, target: float, seed: int) -> torch.Tensor:
    """Return which responses (85,) are right: drawn at random, as long as their probability stays
    below the target."""
    order = torch.randperm(len(probabilities), generator=torch.Generator().manual_seed(seed))
    right = torch.zeros(len(probabilities), dtype=torch.bool)
    for i in order.tolist():
        total = probabilities[right].sum() + probabilities[i]
        if total <= target:
            right[i] = True
    return right


def spread(probabilities: torch.Tensor, scores: torch.Tensor):
    """Mean (parameters,) of the scores under these probabilities, and the trace of their
    covariance."""
    share = probabilities / probabilities.sum()
    mean = share @ scores
    return mean, share @ (scores - mean).square().sum(1)


def facts(seed: int) -> dict:
    """What the estimators' moments need of a policy.

    p        (P,) pass rates
    gram     (P, P) inner products of grad log p
    success  (P,) trace of the covariance of the score of a right response
    failure  (P,) the same of a wrong response
    """
    policy = make_policy(seed)
    result = {"p": [], "success": [], "failure": []}
    gradients = []
    for i, (prompt, target) in enumerate(zip(prompts(), TARGETS)):
        probabilities, scores = enumerated(policy, prompt)
        right = right_ones(probabilities, target, 100 * seed + i)
        mean, success = spread(probabilities[right], scores[right])
        _, failure = spread(probabilities[~right], scores[~right])
        gradients.append(mean)  # grad log p is the mean score of the right responses
        result["p"].append(probabilities[right].sum().item())
        result["success"].append(success.item())
        result["failure"].append(failure.item())
    gradients = torch.stack(gradients)
    result["gram"] = (gradients @ gradients.T).tolist()
    return result


def main(file: str):
    began = time.monotonic()
    result = {
        "command": f"python results/gradients/oracle.py --json {file}",
        "policies": [facts(seed) for seed in SEEDS],
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - began),
    }
    Path(file).write_text(json.dumps(result) + "\n")
    print(f"wrote {file} in {result['seconds']} s")


# what an estimator makes of it; S policies at once


def by_successes(name: str, N: int, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """(N + 1,) each: the advantage of a success and of a failure where K = 0, ..., N of N rollouts
    succeed. That of a success means nothing at K = 0, that of a failure at K = N."""
    rewards = torch.ones(N + 1, N, dtype=torch.float64).tril(-1)  # row K: K ones first
    advantages = ADVANTAGES[name](rewards, **options)
    return advantages[:, 0], advantages[:, -1]


def moments(name: str, options: dict, N: int, p, gram, success, failure):
    """The weight w (S, P) and the trace (S, P) of the covariance of one prompt's gradient from N
    rollouts, exact.

    The expected gradient of a prompt is w grad p.
    """
    of_success, of_failure = by_successes(name, N, **options)
    K = torch.arange(N + 1, dtype=torch.float64)
    # How likely 0 to N successes are, (S, P, N + 1).
    chance = torch.distributions.Binomial(N, p[..., None]).log_prob(K).exp()
    # Given K the gradient is, in expectation, this multiple of grad p ...
    gained = K * of_success / p[..., None]
    lost = (N - K) * of_failure / (1 - p[..., None])
    multiple = (gained - lost) / N
    w = (chance * multiple).sum(-1)
    # ... and around that its K successes and N - K failures scatter on their own.
    scatter = K * of_success.square() * success[..., None]
    scatter = scatter + (N - K) * of_failure.square() * failure[..., None]
    within = (chance * scatter).sum(-1) / N**2
    between = (chance * (multiple - w[..., None]).square()).sum(-1)
    squares = gram.diagonal(dim1=-2, dim2=-1)  # |grad log p|^2
    return w, within + between * p.square() * squares


def batch(w, trace, p, gram) -> dict:
    """cosine, length and noise of the mean gradient of all prompts, (S,) each."""
    expected = w * p  # grad p = p grad log p
    target = gram.sum((-2, -1)).sqrt()
    length = torch.einsum("...i,...ij,...j", expected, gram, expected).sqrt()
    along = (expected[..., None] * gram).sum((-2, -1))
    return {
        "cosine": along / (length * target),
        "length": length / target,
        "noise": trace.sum(-1).sqrt() / target,
    }


@functools.cache
def kept_facts() -> dict[str, torch.Tensor]:
    """The facts of the kept policies: p, success and failure (S, P), gram (S, P, P)."""
    policies = read_json("gradients/oracle.json")["policies"]
    return {
        key: torch.tensor([policy[key] for policy in policies], dtype=torch.float64)
        for key in policies[0]
    }


@functools.cache
def exact(method: str, N: int, order: int = 0, scatter: int = 1) -> dict[str, np.ndarray]:
    """cosine, length and noise of a row of METHODS or of maxrl_order, (S,) each.

    scatter  so many times the variance of each score, and the same mean: longer responses, with
             tokens that decide nothing
    """
    name, options = ("maxrl_order", {"order": order}) if order else METHODS[method]
    lowered = {key: min(value, N) for key, value in options.items()}
    facts = dict(kept_facts())
    for key in ("success", "failure"):
        facts[key] = scatter * facts[key]
    found = batch(*moments(name, lowered, N, **facts), facts["p"], facts["gram"])
    return {key: values.numpy() for key, values in found.items()}


if __name__ == "__main__":
    main(sys.argv[-1])
