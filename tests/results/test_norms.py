"""Gradient norms against pass rates: by enumeration, by their ratios, and as a command
(results/gradients/norms.py)."""

import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from maxrl.advantages import ADVANTAGES
from maxrl.learning.classifier import ClassifierPolicy, Draws
from maxrl.models import checkpoint, from_config
from maxrl.models.checkpoint import Checkpoint
from maxrl.system.files import read_json
from maxrl.tasks.base import Example, Task
from maxrl.tasks.images import ImageBatch, Images
from maxrl.tasks.maze import VOCABULARY
from results.gradients.norms import ESTIMATORS, gradient_norms
from tests.helpers import tiny
from tests.helpers.runs import passed

N = 12  # rollouts of a language model
PROGRAM = "results/gradients/norms.py"
# GRPO's divisor is N here.
RULES = {name: ADVANTAGES[name] for name in ("maxrl", "reinforce_mean", "rloo")}
RULES["grpo"] = partial(ADVANTAGES["grpo"], ddof=0)
same = torch.testing.assert_close


class Pictures(Task):
    """Random images of 2x2 pixels, whose labels go round."""

    def __init__(self, classes, count=12, dtype=torch.float64):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(count, 3, 2, 2, generator=generator).to(dtype)
        self.classes = tuple("abcd"[:classes])
        self.labels = torch.arange(count) % classes

    def __len__(self):
        return len(self.labels)

    def batch(self, indices, seeds=None):
        return ImageBatch(self.images[indices], self.labels[indices])


def classifier(task, scale=1.0, middle=None):
    """Two layers of the images' type; `scale` makes pass rates spread."""
    classes = len(task.classes)
    torch.manual_seed(classes)
    last = nn.Linear(5, classes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), middle or nn.Tanh(), last)
    model.config = SimpleNamespace(num_labels=classes)
    nn.init.normal_(last.weight, std=scale)
    return ClassifierPolicy(model.to(task.images.dtype), task.classes)


def expected(policy, examples, rollouts, rule):
    """The norm of the expected gradient: all outcomes through rule and backward, weighted by their
    probabilities."""
    m = policy.logits(examples.images).detach().softmax(-1)[0]
    total = 0
    for outcome in itertools.product(range(len(policy.classes)), repeat=rollouts):
        drawn = torch.tensor([outcome])
        advantages = rule((drawn == examples.labels[:, None]).double())
        draws = Draws(drawn, policy.logits(examples.images), examples.labels, policy.classes)
        total = total + m[drawn].prod() * tiny.gradient(policy, draws, advantages)
    return total.norm()


@pytest.mark.parametrize("rollouts", [2, 3])
def test_a_classifiers_norms_are_those_of_the_expected_gradient(rollouts):
    task = Pictures(3, count=6)
    policy = classifier(task, scale=0.5)
    rates, norms = gradient_norms(policy, task, len(task), list(RULES), rollouts)
    assert list(norms) == list(RULES)
    for i in range(len(task)):
        examples = task.batch([i])
        p = policy.logits(examples.images).detach().softmax(-1)[0, examples.labels[0]]
        assert abs(rates[i] - p) < 1e-12
        assert 0.01 < p < 0.99
        for name, rule in RULES.items():
            wanted = expected(policy, examples, rollouts, rule)
            assert tiny.distance(norms[name][i], wanted) < 1e-6, (name, i)


def test_the_limit_of_many_rollouts():
    """MaxRL is supervised learning (Theorem 1): 1/p of reinforcement's gradient. GRPO is
    1/sqrt(p(1-p)) of it."""
    task = Pictures(4, count=40)
    p, norms = gradient_norms(classifier(task, scale=3.0), task, 40, list(ESTIMATORS))
    assert p.min() < 0.01
    assert p.max() > 0.9
    same(norms["maxrl"], norms["supervised"], rtol=1e-12, atol=0)
    same(norms["maxrl"] / norms["reinforce_mean"], 1 / p, rtol=1e-9, atol=0)
    same(norms["grpo"] / norms["reinforce_mean"], (p * (1 - p)).rsqrt(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("rollouts", [None, 2, 128])
def test_certain_and_hopeless_images(rollouts):
    """Pass rates that float64 rounds to 0 and 1, where GRPO's weight is infinite: its norm goes to
    0, without a NaN."""
    task = Pictures(3)
    for scale in (50.0, 1e3, 1e5):
        p, norms = gradient_norms(classifier(task, scale), task, 12, list(ESTIMATORS), rollouts)
        assert torch.stack([*norms.values()]).isfinite().all()
    hopeless = p < 1e-200
    certain = p > 1 - 1e-15
    assert hopeless.any() and certain.any()
    assert (norms["supervised"][hopeless] > 1e4).all()
    assert (norms["reinforce_mean"][hopeless] < 1e-200).all()
    assert (norms["grpo"][hopeless | certain] < 1e-100).all()
    assert rollouts or torch.allclose(norms["maxrl"][hopeless], norms["supervised"][hopeless])


def test_a_float32_classifier():
    """What is nearly certain keeps its size: p in float32 is 1 from 1 - 6e-8 on, and GRPO's norm
    would be 0 or huge."""
    both = []
    for dtype in (torch.float64, torch.float32):
        task = Pictures(3, dtype=dtype)
        both.append(gradient_norms(classifier(task, scale=30.0), task, 12, ["grpo", "maxrl"]))
    (p, exact), (_, norms) = both
    assert ((p > 1 - 1e-8) & (p < 1 - 1e-12)).any()
    for name in norms:
        same(norms[name], exact[name], rtol=1e-3, atol=0)


def test_it_looks_without_touching():
    """In eval mode, so that an image's norm is its own; batch-norm's statistics, weights and .grad
    are as they were."""
    task = Pictures(3)
    policy = classifier(task, middle=nn.BatchNorm1d(5))
    policy.model.train()
    for q in policy.model.parameters():
        q.grad = torch.ones_like(q)  # left over from a step: must not be added to
    before = {name: t.clone() for name, t in policy.model.state_dict().items()}
    _, norms = gradient_norms(policy, task, 4, ["maxrl"])
    same(dict(policy.model.state_dict()), before, rtol=0, atol=0)
    assert all(q.grad is None for q in policy.model.parameters())
    _, again = gradient_norms(policy, task, 4, ["supervised"])
    assert torch.equal(norms["maxrl"], again["supervised"])


class Words(Task):
    """A response is right where its first token is below the prompt's bound: at the first prompt
    none, at the second all, then ever more."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        words = [VOCABULARY[4 + (i + j) % 12] for j in range(3 + i % 4)]
        return Example(" ".join(words), "", {"bound": {0: 0, 1: 32}.get(i, 3 * i)})


def judge(examples, drawn):
    return (drawn.tokens[..., 0] < examples[0].columns["bound"]).double()


def test_a_language_models_norms_are_those_of_backward():
    """The same rollouts for every estimator, each prompt its own; (1/N) sum A grad log m over that
    prompt alone. Exactly 0 without a difference, as the points of Figure 6."""
    policy = tiny.policy()
    task = Words()
    rates, norms = gradient_norms(policy, task, len(task), list(RULES), N, judge=judge)
    assert rates[:2].tolist() == [0, 1]
    assert (rates[2:] < 1).sum() >= 6
    for i in range(len(task)):
        rollouts = policy.rollout([task[i]], N, indices=[i])
        rewards = judge([task[i]], rollouts)
        assert abs(rewards.mean() - rates[i]) < 1e-7
        for name, rule in RULES.items():
            wanted = tiny.gradient(policy, rollouts, rule(rewards)).norm()
            same(norms[name][i], wanted, rtol=1e-9, atol=0)


def written(shell, *arguments):
    """What the program writes, and the first row's pass rates and norms as arrays."""
    passed(shell(PROGRAM, *arguments, "--json", "out.json"))
    results = read_json("out.json")
    row = results["checkpoints"][0]
    norms = {name: np.array(values) for name, values in row["norms"].items()}
    return results, np.array(row["pass_rates"]), norms


def test_the_program_on_a_classifier(recipe, set_of_glyphs, shell):
    """A ResNet whose batch-norm has seen something."""
    task = Images("test", set_of_glyphs, 12, augment=False)
    torch.manual_seed(0)
    model = from_config(recipe.model | {"num_labels": 12})
    model(task.batch(range(60)).images)
    checkpoint.save("model", Checkpoint(model), recipe={"config": recipe.to_dict()})
    results, p, norms = written(shell, "model", "--prompts", 9)
    assert (results["prompts"], results["classes"]) == (9, 12)
    assert list(norms) == [*ESTIMATORS]
    examples = task.batch(range(9))
    logits = model.eval()(examples.images)
    wanted = logits.softmax(-1)[range(9), examples.labels].detach()
    np.testing.assert_allclose(p, wanted, atol=1e-6)
    # Two rollouts have order 1: w_1 = 1.
    _, few, two = written(shell, "model", "--prompts", 5, "--rollouts", 2)
    np.testing.assert_allclose(few, p[:5], rtol=1e-4)
    np.testing.assert_allclose(two["maxrl"], norms["reinforce_mean"][:5], rtol=1e-4)


def test_the_program_on_a_language_model(dice, shell):
    """Two rows of one model have the same noise; the estimators are those of Figure 6."""
    task = ("--task", "tests.helpers.tiny:Up", "--samples", N, "--prompts", 5, "--max-response", 12)
    results, _, norms = written(shell, f"a={dice}", f"b={dice}", *task)
    assert (results["prompts"], results["samples"]) == (5, N)
    assert list(norms) == ["maxrl", "grpo", "reinforce_mean"]
    one, other = results["checkpoints"]
    assert one["norms"] == other["norms"]
    assert norms["maxrl"].any()
