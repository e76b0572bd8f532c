"""Gradient norms against pass rates: by enumeration, by their ratios, and as a command
(results/gradients/norms.py)."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from maxrl import checkpoint
from maxrl.advantages import ADVANTAGES
from maxrl.classifier import ClassifierPolicy, Draws
from maxrl.io.files import write_json
from maxrl.io.tokenizer import Tokenizer
from maxrl.models.resnet import ResNet, ResNetConfig
from maxrl.tasks.base import Example, Task
from maxrl.tasks.images import ImageBatch, write_shard
from maxrl.tasks.maze import VOCABULARY
from results.gradients.norms import ESTIMATORS, gradient_norms


class Pictures(Task):
    """Random images of 2x2 pixels with random labels."""

    def __init__(self, classes, count=6):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (count, 3, 2, 2), generator=generator, dtype=torch.uint8)
        self.classes, self.labels = tuple("abcdefgh"[:classes]), torch.arange(count) % classes

    def __len__(self):
        return len(self.labels)

    def batch(self, indices, seeds=None):
        return ImageBatch(self.images[list(indices)], self.labels[list(indices)])


class Model(nn.Module):
    """Two layers in float64; `scale` makes its pass rates spread, `norm` puts batch-norm between
    them."""

    def __init__(self, classes, scale=1.0, norm=False):
        super().__init__()
        torch.manual_seed(classes)
        self.config, self.scale = SimpleNamespace(num_labels=classes), scale
        middle = nn.BatchNorm1d(5) if norm else nn.Tanh()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(12, 5), middle, nn.Linear(5, classes)
        ).double()

    def forward(self, images):
        return self.layers(images.to(self.layers[1].weight) / 128 - 1) * self.scale


def classifier(task, **options):
    return ClassifierPolicy(Model(len(task.classes), **options), task.classes)


def gradient(policy, examples, drawn, advantages):
    """What the loop would add to .grad for these draws (1, N), as one vector."""
    policy.model.zero_grad(set_to_none=True)
    draws = Draws(drawn, policy.logits(examples.images), examples.labels, policy.classes)
    policy.backward(draws, advantages)
    return torch.cat([p.grad.flatten() for p in policy.model.parameters()])


def expected(policy, examples, N, rule):
    """The expected gradient: all C^N outcomes through rule and backward, weighted by their
    probabilities."""
    m = policy.logits(examples.images).detach().softmax(-1)[0]
    total, chance = 0, 0
    for outcome in itertools.product(range(len(policy.classes)), repeat=N):
        drawn = torch.tensor([outcome])
        probability = m[drawn].prod().item()
        rewards = (drawn == examples.labels[:, None]).double()
        total, chance = (
            total + probability * gradient(policy, examples, drawn, rule(rewards)),
            chance + probability,
        )
    assert abs(chance - 1) < 1e-12
    return total


@pytest.mark.parametrize("N", [2, 3])
def test_a_classifiers_norms_are_those_of_the_expected_gradient(N):
    """And MaxRL's is not that of order N, GRPO's not with the divisor N - 1: what is off by a
    factor shows."""
    task, names = Pictures(3), ("maxrl", "grpo", "reinforce_mean", "rloo", "supervised")
    policy = classifier(task, scale=3.0)
    rates, norms = gradient_norms(policy, task, len(task), names, N)
    assert rates.dtype == norms["maxrl"].dtype == torch.float64 and list(norms) == list(names)
    for i in range(len(task)):
        examples = task.batch([i])
        p = policy.logits(examples.images).detach().softmax(-1)[0, examples.labels[0]]
        assert abs(rates[i] - p) < 1e-12 and 0.01 < p < 0.99
        for name in ("maxrl", "grpo", "reinforce_mean", "rloo"):
            rule = ADVANTAGES[name]
            wanted = expected(policy, examples, N, lambda r: rule(r, **ESTIMATORS.get(name, {})))
            assert tiny.distance(norms[name][i], wanted.norm()) < 1e-6, (name, i)
        answer = gradient(
            policy, examples, examples.labels[:, None], torch.ones(1, 1)
        )  # the demonstration
        assert tiny.distance(norms["supervised"][i], answer.norm()) < 1e-6
        order_n = expected(policy, examples, N, ADVANTAGES["maxrl_success"]).norm()
        unbiased = expected(policy, examples, N, lambda r: ADVANTAGES["grpo"](r, ddof=1)).norm()
        assert (
            norms["maxrl"][i] < order_n * 0.9999 and tiny.distance(norms["grpo"][i], unbiased) > 0.1
        )


def test_the_limit_of_many_rollouts():
    """MaxRL is supervised learning (Theorem 1): 1/p of reinforcement's gradient. GRPO is
    1/sqrt(p(1-p)) of it."""
    task = Pictures(4, count=40)
    policy = classifier(task, scale=12.0)
    p, norms = gradient_norms(policy, task, 40, list(ESTIMATORS))
    assert (
        p.min() < 0.01
        and p.max() > 0.9
        and list(norms) == ["supervised", "maxrl", "grpo", "reinforce_mean"]
    )
    torch.testing.assert_close(norms["maxrl"], norms["supervised"], rtol=1e-12, atol=0)
    torch.testing.assert_close(norms["maxrl"] / norms["reinforce_mean"], 1 / p, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        norms["grpo"] / norms["reinforce_mean"], (p * (1 - p)).rsqrt(), rtol=1e-9, atol=0
    )
    for i in (0, 7, 21):  # the absolute size: grad p, whatever backward() thinks of it
        policy.model.zero_grad()
        examples = task.batch([i])
        policy.model(examples.images).softmax(-1)[0, examples.labels[0]].backward()
        grad_p = torch.cat([q.grad.flatten() for q in policy.model.parameters()])
        assert tiny.distance(norms["reinforce_mean"][i], grad_p.norm()) < 1e-9


@pytest.mark.parametrize("rollouts", [None, 2, 128])
def test_certain_and_hopeless_images(rollouts):
    """Pass rates that float64 rounds to 0 and 1, where GRPO's weight is infinite: its norm goes to
    0, without a NaN."""
    task = Pictures(3, count=12)
    for scale in (50.0, 1e3, 1e5):
        p, norms = gradient_norms(
            classifier(task, scale=scale), task, 12, list(ESTIMATORS), rollouts
        )
        values = torch.stack([*norms.values()])
        assert values.isfinite().all() and ((p >= 0) & (p <= 1)).all()
    assert p.min() < 1e-200 and p.max() > 1 - 1e-15
    hopeless, certain = p < 1e-200, p > 1 - 1e-15
    assert (norms["supervised"][hopeless] > 1e4).all() and (
        norms["reinforce_mean"][hopeless] < 1e-200
    ).all()
    assert (norms["grpo"][hopeless | certain] < 1e-100).all()
    assert rollouts or torch.allclose(norms["maxrl"][hopeless], norms["supervised"][hopeless])


def test_a_float32_classifier():
    """What is nearly certain keeps its size: p in float32 is 1 from 1 - 6e-8 on, and GRPO's norm
    would be 0 or huge."""
    task, policies = Pictures(3, count=12), [classifier(Pictures(3), scale=160.0) for _ in range(2)]
    policies[1].model.float()
    (p, exact), (_, norms) = (
        gradient_norms(policy, task, 12, ["grpo", "maxrl"]) for policy in policies
    )
    assert ((p > 1 - 1e-8) & (p < 1 - 1e-12)).any()
    for name in norms:
        torch.testing.assert_close(norms[name], exact[name], rtol=1e-3, atol=0)


def test_it_looks_without_touching():
    """In eval mode, so that an image's norm is its own; batch-norm's statistics, weights and .grad
    are as they were."""
    task = Pictures(3)
    policy = classifier(task, norm=True)
    policy.model.train()
    for q in policy.model.parameters():
        q.grad = torch.ones_like(q)  # left over from a step: must not be added to
    before, seen = {name: t.clone() for name, t in policy.model.state_dict().items()}, []
    rates, norms = gradient_norms(policy, task, 4, ["maxrl"], progress=seen.append)
    assert all(torch.equal(t, before[name]) for name, t in policy.model.state_dict().items())
    assert (
        all(q.grad is None for q in policy.model.parameters())
        and seen == [1] * 4
        and rates.shape == (4,)
    )
    assert torch.equal(
        norms["maxrl"], gradient_norms(policy, task, 4, ["supervised"])[1]["supervised"]
    )


class Words(Task):
    """Prompts of words; a response is right where it begins with one of the prompt's lucky words.
    The first prompt has none, in the second all are lucky, then ever more."""

    vocabulary = VOCABULARY

    def __init__(self, split="test", count=10):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        share = {0: 0, 1: 32}.get(i, 3 * i)
        lucky = [VOCABULARY[(11 * j + i) % 32] for j in range(share)]
        return Example(
            " ".join(VOCABULARY[4 + (i + j) % 12] for j in range(3 + i % 4)), "UP", {"lucky": lucky}
        )

    def verify(self, response, example):
        return float(
            bool(response.split())
            and response.split()[0] in example.columns["lucky"]
            or (len(example.columns["lucky"]) == 32)
        )


N = 12


@pytest.fixture(scope="module")
def sampled():
    """A transformer's pass rates and norms on Words, with options that Figure 6 does not use
    too."""
    names = ("maxrl", "grpo", "reinforce_mean", "rloo", "reinforce", "maxrl_centered")
    policy = tiny.policy(tiny.model())
    rates, norms = gradient_norms(policy, Words(), 10, names, N)
    assert all(q.grad is None for q in policy.model.parameters())
    return rates, norms


def test_ratios_of_a_language_model(sampled):
    """What Figure 6 shows to five digits: p(MaxRL) = REINFORCE, and GRPO's divisor is N. With N - 1
    it is 4 % off here, and RLOO as the baseline 9 %."""
    p, norms = sampled
    K = (p * N).round()
    assert (abs(p * N - K) < 1e-5).all() and K[0] == 0 and K[1] == N and len(set(K.tolist())) > 4
    some = (K > 0) & (K < N)
    assert some.sum() >= 6
    p, norms = K[some] / N, {name: values[some] for name, values in norms.items()}
    assert (norms["reinforce_mean"] > 1e-3).all()
    torch.testing.assert_close(norms["maxrl"] / norms["reinforce_mean"], 1 / p, rtol=1e-5, atol=0)
    ratio = norms["grpo"] / norms["reinforce_mean"] * (p * (1 - p)).sqrt()
    torch.testing.assert_close(ratio, torch.ones_like(p), rtol=2e-5, atol=0)
    assert 1 - ((N - 1) / N) ** 0.5 > 0.04, "GRPO with ddof=1 would be this much smaller"
    torch.testing.assert_close(
        norms["rloo"], norms["reinforce_mean"] * N / (N - 1), rtol=1e-5, atol=0
    )


def test_groups_without_a_difference_have_no_gradient(sampled):
    """Exactly 0 for K = 0 and K = N, as the points of Figure 6; REINFORCE without a baseline would
    push on at K = N, Eq. (10) at K = 0."""
    rates, norms = sampled
    assert rates[:2].tolist() == [0, 1]
    assert not any(norms[name][:2].any() for name in ("maxrl", "grpo", "reinforce_mean", "rloo"))
    assert norms["reinforce"][0] == 0 < norms["reinforce"][1]
    assert norms["maxrl_centered"][1] == 0 < norms["maxrl_centered"][0]


def test_the_norms_are_those_of_backward(sampled):
    """The same rollouts for every estimator, each prompt its own; (1/N) sum A grad log m over that
    prompt alone."""
    policy, task, (rates, norms) = tiny.policy(tiny.model()), Words(), sampled
    for i in (2, 5, 9):
        assert 0 < rates[i] < 1
        rollouts = policy.rollout([task[i]], N, indices=[i])
        rewards = task.rewards([task[i]], rollouts).double()
        assert abs(rewards.mean() - rates[i]) < 1e-7
        for name, options in (("maxrl", {}), ("grpo", {"ddof": 0})):
            wanted = tiny.gradient(policy, rollouts, ADVANTAGES[name](rewards, **options)).norm()
            assert tiny.distance(norms[name][i], wanted) < 1e-9
        wrong = tiny.gradient(policy, rollouts, ADVANTAGES["grpo"](rewards)).norm()
        assert tiny.distance(norms["grpo"][i], wrong) > 0.03


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A classifier of 9 pictures of 8x8, whose batch-norm has seen something, and a language model
    for Words."""
    folder = tmp_path_factory.mktemp("norms")
    rng = np.random.default_rng(0)
    (folder / "set").mkdir()
    write_shard(folder / "set", "test", 0, [(rng.bytes(8 * 8 * 3), i % 3) for i in range(9)])
    info = {"classes": ["a", "b", "c"], "encoding": "raw", "shape": [8, 8, 3]}
    write_json(folder / "set" / "info.json", info | {"counts": {"test": 9}})
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(num_labels=3, block="basic", depths=(1,), width=8, stem="small"))
    model(torch.randint(256, (64, 3, 8, 8), dtype=torch.uint8))
    options = {"directory": str(folder / "set"), "size": 8}
    checkpoint.save(
        folder / "images", model, recipe={"config": {"task": "images", "task_options": options}}
    )
    checkpoint.save(
        folder / "words",
        tiny.model(torch.float32),
        Tokenizer.from_vocabulary(VOCABULARY),
        [2, 7],
        recipe={"config": {"task": "test_gradients:Words", "task_options": {}, "max_response": 12}},
    )
    return folder


TRUSTED = (
    "--task",
    "test_gradients:Words",
)  # the task of a recipe, where it is code, is named again


def close(a, b):
    return np.allclose(a, b, rtol=1e-4)


def test_eval_of_a_classifier(checkpoints, shell):
    images = checkpoints / "images"
    code, said = shell("results/gradients/norms.py", f"a={images}", "--json", "out.json")
    assert code == 0, said
    results = json.loads(Path("out.json").read_text())
    row = results["checkpoints"][0]
    assert (results["prompts"], results["classes"], row["name"]) == (9, 3, "a") and list(
        row["norms"]
    ) == [*ESTIMATORS]
    p, norms = (
        np.array(row["pass_rates"]),
        {name: np.array(values) for name, values in row["norms"].items()},
    )
    assert p.shape == (9,) and 0.01 < p.min() < p.max() < 0.99
    assert close(norms["maxrl"], norms["supervised"]) and close(
        norms["maxrl"] * p, norms["reinforce_mean"]
    )
    model = checkpoint.load_model(images)[0].eval()
    pixels = np.fromfile(checkpoints / "set" / "test-00000.bin", np.uint8).reshape(9, 8, 8, 3)
    logits = model(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert np.allclose(logits.softmax(-1)[range(9), [0, 1, 2] * 3].detach(), p, atol=1e-6), (
        "its batch-norm statistics"
    )
    few = ("--rollouts", 2, "--prompts", 5)
    shell("results/gradients/norms.py", f"a={images}", *few, "--json", "two.json")
    row = json.loads(Path("two.json").read_text())["checkpoints"][0]
    assert close(row["pass_rates"], p[:5])
    assert close(row["norms"]["maxrl"], norms["reinforce_mean"][:5]), (
        "two rollouts have order 1: w_1 = 1"
    )


def test_eval_of_a_language_model(checkpoints, shell):
    words = checkpoints / "words"
    options = (*TRUSTED, "--samples", N, "--json", "out.json")
    code, said = shell("results/gradients/norms.py", f"b={words}", f"c={words}", *options)
    assert code == 0, said
    results = json.loads(Path("out.json").read_text())
    row, same = results["checkpoints"]
    assert (row["pass_rates"], row["norms"]) == (same["pass_rates"], same["norms"]) and results[
        "samples"
    ] == N
    assert list(row["norms"]) == ["maxrl", "grpo", "reinforce_mean"] and (
        results["prompts"],
        results["of"],
    ) == (10, 10)
    policy = tiny.policy(checkpoint.load_model(words)[0], aggregation="sequence")
    rates, norms = gradient_norms(policy, Words(), 10, ["maxrl"], N)
    assert close(rates, row["pass_rates"]) and close(norms["maxrl"], row["norms"]["maxrl"])
    assert rates[0] == 0 and 0 < rates[4] < 1
