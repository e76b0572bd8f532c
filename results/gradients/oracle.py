"""The exact oracle: a policy so small that every response can be listed, so that no expectation
has to be sampled.

    PYTHONPATH=. python results/gradients/oracle.py --json FILE.json

takes about a minute on one core. Twelve prompts, a transformer of this project, 85 possible
responses. Their probabilities and scores go through the project's own SequencePolicy.backward, in
float64. What an estimator of N rollouts does with them is then a sum over the number of successes
K, which is binomial: given K, its successes are independent draws among the right responses, and
its failures among the wrong ones.

The file holds the facts of five policies, and for each estimator and N three numbers from which
the tables follow:

    cosine  between the expected gradient of the twelve prompts and M, the gradient of their mean
            log p
    length  of the expected gradient, in lengths of M
    noise   root of the trace of the gradient's covariance, in lengths of M, with one group of N
            rollouts a prompt
"""

import itertools
import json
import platform
import sys
import time
from pathlib import Path

import torch

from maxrl.advantages import ADVANTAGES
from maxrl.io.tokenizer import Tokenizer
from maxrl.models.transformer import Transformer, TransformerConfig
from maxrl.policy import SequencePolicy
from maxrl.rollouts import Rollouts
from maxrl.tasks import Example
from results.lab.successes import by_successes

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

ROLLOUTS = [2**i for i in range(1, 12)]
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
ORDERS = {N: [2**i for i in range(N.bit_length())] for N in (16, 64, 256)}
# Not in the protocol, added after its run: the scores scatter so many times as much, their means
# stay.
NOISIER = {"factors": (10, 100), "methods": ("rloo", "grpo", "maxrl")}
CONTROL = {"rollouts": 16, "batches": 2000, "methods": ("rloo", "grpo", "maxrl")}


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
    return SequencePolicy(
        model, tokenizer, [END], max_tokens=LONGEST, aggregation="sequence", seed=seed
    )


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
        stats = policy.backward(rollouts, advantages)
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


# what an estimator makes of it
def moments(name: str, options: dict, N: int, p, gram, success, failure):
    """The weight w (P,) and the trace (P,) of the covariance of one prompt's gradient from N
    rollouts, exact.

    The expected gradient of a prompt is w grad p.
    """
    of_success, of_failure = by_successes(name, N, **options)
    K = torch.arange(N + 1, dtype=torch.float64)
    p = p[:, None]  # (P, 1)
    chance = torch.distributions.Binomial(N, p).log_prob(K).exp()  # (P, N + 1)
    # Given K the gradient is, in expectation, this multiple of grad p ...
    multiple = (K * of_success / p - (N - K) * of_failure / (1 - p)) / N
    w = (chance * multiple).sum(1)
    # ... and around that its K successes and N - K failures scatter on their own.
    around = (
        K * of_success.square() * success[:, None]
        + (N - K) * of_failure.square() * failure[:, None]
    ) / N**2
    between = (
        (chance * (multiple - w[:, None]).square()).sum(1) * p[:, 0].square() * gram.diagonal()
    )
    return w, (chance * around).sum(1) + between


def live(name: str, options: dict, N: int, p):
    """(P,), the expected share of a group's rollouts that have an advantage: no others are trained
    on."""
    of_success, of_failure = by_successes(name, N, **options)
    K = torch.arange(N + 1, dtype=torch.float64)
    chance = torch.distributions.Binomial(N, p[:, None]).log_prob(K).exp()  # (P, N + 1)
    return (chance * (K * (of_success != 0) + (N - K) * (of_failure != 0))).sum(1) / N


def batch(w, trace, p, gram) -> dict:
    """cosine, length and noise of the mean gradient of all prompts."""
    P = len(p)
    of_log = torch.ones(P, dtype=torch.float64)
    expected = w * p  # grad p = p grad log p
    target = (of_log @ gram @ of_log).sqrt()
    length = (expected @ gram @ expected).sqrt()
    return {
        "cosine": (expected @ gram @ of_log / (length * target)).item(),
        "length": (length / target).item(),
        "noise": (trace.sum().sqrt() / target).item(),
    }


def row(method: str, name: str, options: dict, N: int, policies: list[dict]) -> dict:
    """An estimator's numbers, a list over the policies for each."""
    options = {key: min(value, N) for key, value in options.items()}
    found = []
    for policy in policies:
        p, gram = policy["p"], policy["gram"]
        w, trace = moments(name, options, N, p, gram, policy["success"], policy["failure"])
        found.append(batch(w, trace, p, gram))
    lists = {key: [rounded(one[key]) for one in found] for key in found[0]}
    return {"method": method, "rollouts": N} | options | lists


def tensors(policy: dict) -> dict:
    return {key: torch.tensor(values, dtype=torch.float64) for key, values in policy.items()}


def noisier(policy: dict, factor: float) -> dict:
    """The facts of a policy with longer responses: tokens that decide nothing add scatter to each
    score, and no mean."""
    return policy | {"success": factor * policy["success"], "failure": factor * policy["failure"]}


def noisier_rows(policies: list[dict]) -> list[dict]:
    found = []
    for factor in NOISIER["factors"]:
        changed = [noisier(policy, factor) for policy in policies]
        for method in NOISIER["methods"]:
            rows = [row(method, *METHODS[method], N, changed) for N in ROLLOUTS]
            found += [{"factor": factor} | one for one in rows]
    return found


# sampled, as a control
def control(seed: int, policy: dict) -> list[dict]:
    """The same moments from sampled batches: rollouts of SequencePolicy, their scores by
    enumeration.

    signal is the gradient along M, square the gradient's squared length, both in lengths of M:
    mean, standard error, exact.
    """
    N, batches = CONTROL["rollouts"], CONTROL["batches"]
    sampler = make_policy(seed)
    examples = [Example(prompt, "") for prompt in prompts()]
    drawn = sampler.rollout(examples, N * batches)
    place = {row: i for i, row in enumerate(responses())}
    gradients = dict.fromkeys(CONTROL["methods"], 0.0)
    target = 0.0
    for i, (prompt, goal) in enumerate(zip(prompts(), TARGETS)):
        probabilities, scores = enumerated(sampler, prompt)
        right = right_ones(probabilities, goal, 100 * seed + i)
        outcomes = torch.tensor([place[tuple(drawn.response(i, j))] for j in range(N * batches)])
        outcomes = outcomes.view(batches, N)
        rewards = right[outcomes].double()
        target = target + spread(probabilities[right], scores[right])[0]
        for name in gradients:
            weights = torch.zeros(batches, len(right), dtype=torch.float64)
            weights.scatter_add_(1, outcomes, ADVANTAGES[name](rewards) / N)
            gradients[name] = gradients[name] + weights @ scores  # (batches, parameters)
    return [compared(name, gradient, target, policy) for name, gradient in gradients.items()]


def compared(name: str, gradients, target, policy: dict) -> dict:
    """A method's sampled moments beside the exact ones."""
    size = target.norm()
    values = {"signal": gradients @ target / size**2, "square": (gradients / size).square().sum(1)}
    w, trace = moments(name, {}, CONTROL["rollouts"], **policy)
    exact = batch(w, trace, policy["p"], policy["gram"])
    expected = {
        "signal": exact["length"] * exact["cosine"],
        "square": exact["length"] ** 2 + exact["noise"] ** 2,
    }
    result = {"method": name}
    for key, sample in values.items():
        se = sample.std() / len(sample) ** 0.5
        result[key] = rounded([sample.mean(), se, expected[key]])
    return result


def main(file: str):
    began = time.monotonic()
    exact = [facts(seed) for seed in SEEDS]
    policies = [tensors(policy) for policy in exact]
    rows = [row(method, *rule, N, policies) for method, rule in METHODS.items() for N in ROLLOUTS]
    orders = [
        row("maxrl_order", "maxrl_order", {"order": T}, N, policies)
        for N, some in ORDERS.items()
        for T in some
    ]
    result = {
        "command": f"python results/gradients/oracle.py --json {file}",
        "policies": [{key: rounded(values) for key, values in policy.items()} for policy in exact],
        "rows": rows,
        "orders": orders,
        "noisier": noisier_rows(policies),
        "control": control(0, policies[0]),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - began),
    }
    Path(file).write_text(json.dumps(result) + "\n")
    print(f"wrote {file} in {result['seconds']} s")


def rounded(values):
    """Nine significant digits."""
    if isinstance(values, list):
        return [rounded(value) for value in values]
    return float(f"{values:.9g}")


if __name__ == "__main__":
    main(sys.argv[-1])
