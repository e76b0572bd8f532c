"""The exact oracle: a policy so small that every response can be listed, so that no expectation
has to be sampled.

    PYTHONPATH=. python results/gradients/oracle.py --json FILE.json

takes about a minute on one core. Twelve prompts, a transformer of this project, 85 possible
responses. Their probabilities and scores come from the project's own SequencePolicy.backward, in
float64. The file holds pass rates and gradients of log p of five policies: the expected gradient of
a prompt under any estimator is w(p) grad p, with the weight w that tests/proofs enumerate.
"""

import itertools
import json
import platform
import sys
import time
from pathlib import Path

import torch

from maxrl.learning.policy import SequencePolicy
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.tokenizer import Tokenizer
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.sampling.rollouts import Rollouts
from maxrl.tasks.base import Example

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


def facts(seed: int) -> dict:
    """Pass rates p (P,) of a policy, and the inner products (P, P) of grad log p."""
    policy = make_policy(seed)
    rates = []
    gradients = []
    for i, (prompt, target) in enumerate(zip(prompts(), TARGETS)):
        probabilities, scores = enumerated(policy, prompt)
        right = right_ones(probabilities, target, 100 * seed + i)
        p = probabilities[right].sum()
        rates.append(p.item())
        # grad log p is the mean score of the right responses.
        gradients.append(probabilities[right] @ scores[right] / p)
    gradients = torch.stack(gradients)
    return {"p": rates, "gram": (gradients @ gradients.T).tolist()}


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


if __name__ == "__main__":
    main(sys.argv[-1])
