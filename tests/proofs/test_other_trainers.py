"""The lines for other trainers, taken from the page, in stand-ins of the trainers that call them.

A stand-in has the signature of the source that it names, and what happens there to the advantages.
"""

import asyncio
import enum
import re
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maxrl.advantages import ADVANTAGES, by_group
from tests import ROOT
from tests.repository import pages

PAGE = (ROOT / "maxrl/run/other_trainers.md").read_text()
VERDICTS = [0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 1]
REWARDS = {"maxrl": VERDICTS, "tailrl": [0.3, 1, -0.5, 0, 0.3, 2, 0, 0.7, 0, 1, 0.25]}
# Groups of 4, 3, 2, 1 and 1 rollouts, in no order; a padding row is a group of its own.
IDS = ["a", "b", "a", "c", "a", "b", "pad0", "c", "b", "a", "pad1"]
rules = pytest.mark.parametrize("rule", REWARDS)


def blocks(title: str = "") -> list[str]:
    """The blocks of code of a section, or those before the first."""
    text = PAGE.split(f"\n## {title}\n")[-1] if title else PAGE
    return pages.blocks(text.split("\n## ")[0])


def file(rule: str, *lines: str, **names):
    """The names of the user's file: the common lines with this rule, and those of a trainer."""
    (common,) = (code for code in blocks() if "RULE =" in code)
    space = dict(names)
    exec(common.replace('RULE = "maxrl"', f'RULE = "{rule}"'), space)
    assert space["RULE"] == rule
    for code in lines:
        exec(code, space)
    return space


def pretend(monkeypatch, module: str, **contents):
    """Make a module importable that has these contents alone."""
    names = module.split(".")
    for n in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:n]), SimpleNamespace())
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**contents))


def alone(rule: str, rewards=None, ids=IDS) -> list[float]:
    """ADVANTAGES[rule] of each group by itself."""
    values = torch.tensor(REWARDS[rule] if rewards is None else rewards, dtype=torch.float32)
    expected = torch.zeros(len(ids))
    for i in set(ids):
        rows = torch.tensor([other == i for other in ids])
        expected[rows] = ADVANTAGES[rule](values[rows][None])[0]
    assert expected.any()
    return expected.tolist()


def tokens(rewards, lengths):
    """Rewards (B, L) on the last token of each row, and the mask (B, L) of the row's tokens."""
    last = torch.tensor(lengths)[:, None]
    places = torch.arange(max(lengths))
    return torch.where(places == last - 1, torch.tensor(rewards)[:, None], 0), places < last


class Verl:
    """verl/trainer/ppo/core_algos.py and ray_trainer.py (compute_advantage), verl 0.9.1; the first
    also at 018f23b."""

    module = "verl.trainer.ppo.core_algos"

    def __init__(self):
        self.registry = {"grpo": None}

    def register_adv_est(self, name):
        def decorator(function):
            if self.registry.get(name, function) != function:
                raise ValueError(f"{name} is registered")
            self.registry[name] = function
            return function

        return decorator

    def contents(self):
        return {"register_adv_est": self.register_adv_est}

    def advantages(self, rewards, mask, ids):
        given = {"token_level_rewards": rewards, "response_mask": mask.long(), "config": {}}
        result = self.registry["of_groups"](**given, index=np.array(ids, dtype=object))
        advantages, returns = result
        assert torch.equal(advantages, returns)
        return advantages


class SkyRL:
    """skyrl/backends/skyrl_train/utils/ppo_utils.py and skyrl/train/trainer.py, SkyRL 0.3.0; the
    first also at 03d74ca."""

    module = "skyrl.backends.skyrl_train.utils.ppo_utils"

    def __init__(self):
        self.registry = dict.fromkeys(("gae", "grpo", "rloo", "reinforce++", "maxrl"))

    def register(self, name, func):
        if name in self.registry:
            raise ValueError(f"{name} is registered")
        self.registry[name] = func

    def contents(self):
        return {"AdvantageEstimatorRegistry": self}

    def advantages(self, rewards, mask, ids):
        given = {"token_level_rewards": rewards, "response_mask": mask.long(), "index": ids}
        more = {"values": None, "grpo_norm_by_std": True, "gamma": 1.0, "lambd": 1.0, "config": {}}
        advantages, returns = self.registry["of_groups"](**given, **more)
        assert torch.equal(advantages, returns)
        return advantages


def registered(trainer, rule, monkeypatch, **options):
    """The trainer, after the user's file was imported."""
    pretend(monkeypatch, trainer.module, **trainer.contents())
    function, *lines = blocks("verl and SkyRL")
    (line,) = (code for code in lines if trainer.module in code)
    space = file(rule, function, line)
    space["OPTIONS"] |= options
    return trainer


@rules
@pytest.mark.parametrize("trainer", [Verl, SkyRL])
def test_verl_and_skyrl(trainer, rule, monkeypatch):
    """Also rows that fill up a batch, which are groups of one."""
    token_rewards, mask = tokens(REWARDS[rule], [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1])
    found = registered(trainer(), rule, monkeypatch).advantages(token_rewards, mask, IDS)
    assert torch.equal(found, torch.tensor(alone(rule))[:, None] * mask)


@pytest.mark.parametrize("trainer", [Verl, SkyRL])
def test_a_reward_on_a_token_of_the_environment(trainer, monkeypatch):
    """A rollout that ends in what a tool said has its reward there, where the mask is 0; with the
    mask in the sum this group had no success."""
    rewards = torch.tensor([[0.0, 0, 1], [0, 0, 0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    found = registered(trainer(), "maxrl", monkeypatch).advantages(rewards, mask, ["a", "a"])
    assert found.tolist() == [[1, 1, 0], [-1, -1, -1]]


def test_the_steps_of_skyrl(monkeypatch):
    """Of a rollout in steps it hands over the last one, its uids in an array and the mask as ones,
    and multiplies by the mask itself."""
    trainer = registered(SkyRL(), "maxrl", monkeypatch)
    rewards = torch.tensor([[0.0, 1], [0, 0]])
    found = trainer.advantages(rewards, torch.ones(2, 2), np.array(["a", "a"]))
    assert found.tolist() == [[1, 1], [-1, -1]]


def test_an_order_needs_as_many_rows(monkeypatch):
    """A padding row is refused by name, and without one the option arrives."""
    trainer = registered(Verl(), "maxrl_order", monkeypatch, order=2)
    rewards, mask = tokens([1.0, 0, 0], [2, 2, 1])
    with pytest.raises(ValueError, match="order=2"):
        trainer.advantages(rewards, mask, ["a", "a", "pad"])
    found = trainer.advantages(rewards, mask, ["a"] * 3)[:, 0]
    assert torch.equal(found, ADVANTAGES["maxrl_order"](torch.tensor([[1.0, 0, 0]]), order=2)[0])


@dataclass
class Rollout:
    """A trace of src/prime_rl/orchestrator/types.py, which was read at no named commit."""

    reward: float
    agent_name: str = "solver"
    advantage: float | None = None

    def assign_advantages(self, values):
        assert isinstance(values, float)
        self.advantage = values


class Algorithm:
    """src/prime_rl/orchestrator/algo/base.py at 0d6738f, which awaits score_group."""

    async def finalize_group(self, rollouts):
        await self.score_group(rollouts)


def assert_single_trainable_agent(group):
    """The same file."""
    if len({rollout.agent_name for rollout in group}) > 1:
        raise ValueError("several agents")


def prime_rl(rule, group):
    """The advantages that MaxRLAlgorithm gives after the lines at the end of its file."""
    algorithm = type("MaxRLAlgorithm", (Algorithm,), {"score_group": None})
    names = {"MaxRLAlgorithm": algorithm}
    names["assert_single_trainable_agent"] = assert_single_trainable_agent
    (lines,) = blocks("prime-rl")
    file(rule, lines, **names)
    asyncio.run(algorithm().finalize_group(group))
    return [rollout.advantage for rollout in group]


@rules
def test_prime_rl(rule):
    """One group, and one rollout alone, whose advantage there is 0, and here its reward."""
    rewards = REWARDS[rule][:5]
    assert prime_rl(rule, [Rollout(r) for r in rewards]) == alone(rule, rewards, "aaaaa")
    assert prime_rl(rule, [Rollout(1.0)]) == [1]
    with pytest.raises(ValueError, match="several agents"):
        prime_rl(rule, [Rollout(1.0), Rollout(0.0, "judge")])


@dataclass
class Sample:
    """slime/utils/types.py at 0d234f3, miles/utils/types.py at 002ce70."""

    group_index: int | None
    reward: float | dict

    def get_reward_value(self, args):
        return self.reward if not args.reward_key else self.reward[args.reward_key]


def grpo_of_slime(args, samples, function):
    """slime/ray/rollout.py at a51f071, miles/ray/rollout/train_data_conversion.py at 01c59ee, and
    slime/backends/megatron_utils/loss.py at 00c2d6d: the second list is put on every token."""
    raw, rewards = function(args, samples)
    assert len(raw) == len(rewards) == len(samples)
    values = torch.tensor(rewards, dtype=torch.float32)
    return raw, [torch.ones(2) * value for value in values]


@rules
@pytest.mark.parametrize("key", [None, "score"])
def test_slime_and_miles(rule, key):
    """Groups of several sizes, and rewards with several parts, one of which is chosen."""
    rewards = REWARDS[rule]
    index = [sorted(set(IDS)).index(i) for i in IDS]
    given = [r if key is None else {"score": r, "format": 7} for r in rewards]
    samples = [Sample(i, r) for i, r in zip(index, given, strict=True)]
    (lines,) = blocks("slime and miles")
    function = file(rule, lines)["post_process"]
    raw, advantages = grpo_of_slime(SimpleNamespace(reward_key=key), samples, function)
    assert raw == rewards
    assert [row.tolist() for row in advantages] == [[a, a] for a in alone(rule)]
    with pytest.raises(ValueError, match="group_ids"):
        grpo_of_slime(SimpleNamespace(reward_key=None), [Sample(None, 1.0)] * 2, function)


class Estimator(enum.StrEnum):
    """rLLMAdvantageEstimator of rllm/trainer/algorithms/config.py at 08d884b."""

    GRPO = "grpo"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value):
        return cls.OTHER


@rules
@pytest.mark.parametrize("name", ["other", "of_groups"])
def test_rllm(rule, name, monkeypatch):
    """rllm/trainer/algorithms/advantage.py at 18c8622. A name of one's own is "other" there, so a
    function under that name would not be found."""
    registry = {}

    def register(name):
        return lambda function: registry.setdefault(name, function)

    module = "rllm.trainer.algorithms.advantage"
    pretend(monkeypatch, module, register_rllm_adv_estimator=register)
    file(rule, *blocks("rLLM"))
    rewards = [np.array([1, 0, 0]), np.array([0, 1]), np.array([1])]
    if rule == "tailrl":
        rewards[0] = np.array([0.3, 1, -0.5])
    config = SimpleNamespace(estimator=Estimator(name))
    found, _ = registry[config.estimator](
        rewards=rewards, algorithm_config=config, traj_groups=[None] * 3
    )
    for group, advantages in zip(rewards, found, strict=True):
        expected = ADVANTAGES[rule](torch.from_numpy(group)[None])[0].tolist()
        assert [float(advantage) for advantage in advantages] == expected


def test_the_printed_advantages():
    printed = re.findall(r"(?m)^(by_group\(.*\)) +# (.*)$", PAGE)
    assert len(printed) == 2
    for call, advantages in printed:
        found = eval(call, {"by_group": by_group}).tolist()
        assert found == pytest.approx(eval(advantages))
