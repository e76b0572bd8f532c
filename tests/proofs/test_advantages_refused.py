"""What no estimator takes, each refused by one sentence."""

import math

import pytest
import torch
from outcomes import NEEDS_GROUP, any_options

from maxrl.advantages import ADVANTAGES, RewardError, weight
from maxrl.registry import own

ONES, HALF = torch.ones(2, 4), torch.full((2, 4), 0.5)


@pytest.mark.parametrize(
    "name, rewards, options, error, words",
    [
        (
            "maxrl",
            HALF,
            {},
            ValueError,
            ["0.5", "{0, 1}", "rloo or grpo", "allow_fractional=True"],
        ),
        ("maxrl", -ONES, {}, ValueError, ["-1", "{0, 1}", "rloo or grpo"]),
        ("maxrl", 2 * ONES, {}, ValueError, ["a reward of 2", "weight 0", "one that returns 1"]),
        (
            "maxrl",
            -HALF,
            {"allow_fractional": True},
            ValueError,
            ["-0.5", "[0, 1]", "rloo or grpo"],
        ),
        ("maxrl_success", HALF, {}, ValueError, ["0.5", "allow_fractional=True"]),
        ("maxrl_success", HALF, {"order": 2}, ValueError, ["0.5", "{0, 1}"]),
        (
            "maxrl_success",
            HALF,
            {"order": 2, "allow_fractional": True},
            ValueError,
            ["0.5", "{0, 1}"],
        ),
        ("maxrl_centered", HALF * 3, {"allow_fractional": True}, ValueError, ["1.5", "[0, 1]"]),
        ("maxrl_order", HALF, {"order": 2}, ValueError, ["0.5", "{0, 1}"]),
        (
            "maxrl_order",
            HALF,
            {"order": 2, "allow_fractional": True},
            TypeError,
            ["allow_fractional", "order"],
        ),
        ("rloo", ONES, {"allow_fractional": True}, TypeError, ["allow_fractional", "no option"]),
        ("maxrl_order", ONES, {}, TypeError, ["needs order="]),
        ("maxrl_order", ONES, {"order": None}, TypeError, ["needs order="]),
        ("maxrl_order", ONES, {"order": 5}, ValueError, ["order=5", "N = 4"]),
        ("maxrl_order", ONES, {"order": 0}, ValueError, ["order=0", "1 <= order"]),
        ("maxrl_success", ONES, {"order": -1}, ValueError, ["order=-1"]),
        ("maxrl_order", ONES, {"order": 2.0}, ValueError, ["2.0", "int"]),
        ("maxrl_order", ONES, {"order": True}, ValueError, ["True", "int"]),
        ("pkpo", ONES, {}, TypeError, ["needs k="]),
        ("pkpo", ONES, {"k": 5}, ValueError, ["k=5", "N = 4"]),
        ("pkpo", HALF, {"k": 2}, ValueError, ["0.5", "{0, 1}"]),
        ("differential_smoothing", ONES, {}, TypeError, ["needs mean_log_probs="]),
        ("maxrl", ONES, {"order": 3}, TypeError, ["order", "no option"]),
        ("rloo", ONES, {"ddof": 0}, TypeError, ["ddof"]),
        *[
            (name, ONES[:, :1], {}, ValueError, ["at least 2 rollouts per prompt", "N = 1"])
            for name in sorted(NEEDS_GROUP)
        ],
        *[
            (
                name,
                torch.tensor([[0, value]]),
                any_options(name, 1, torch.zeros(1, 2)),
                ValueError,
                [word, "finite"],
            )
            for name in ADVANTAGES
            for value, word in ((math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf"))
        ],
        *[
            (name, torch.zeros(shape), any_options(name), ValueError, [str(shape), "(P, N)"])
            for name in ("maxrl", "maxrl_order", "grpo", "supervised")
            for shape in ((4,), (0, 4), (4, 0), (2, 2, 2), ())
        ],
        ("maxrl", [[1, 0]], {}, ValueError, ["list", "torch.tensor"]),
    ],
)
def test_refusals(name, rewards, options, error, words):
    """One sentence: the estimator, the value, what to use instead."""
    with pytest.raises(error) as caught:
        ADVANTAGES[name](rewards, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in (name, ";", *words):
        assert word in message


def test_unknown_names_and_bad_weights():
    with pytest.raises(KeyError, match="no estimator is called 'maxlr'; use reinforce"):
        ADVANTAGES["maxlr"]
    assert "maxlr" not in ADVANTAGES
    assert ADVANTAGES.get("maxlr") is None
    for p in (-0.1, 1.5, math.nan, torch.tensor([0.5, 2.0])):
        with pytest.raises(ValueError, match="a pass rate is in"):
            weight("maxrl", p)
    for name, options, error in (
        ("maxrl", {"rollouts": 0}, ValueError),
        ("maxrl", {"order": 0}, ValueError),
        ("maxrl", {"order": 1.5}, ValueError),
        ("maxrl_order", {"order": 5, "rollouts": 4}, ValueError),
        ("maxrl_rare", {"order": 4, "rollouts": (2, 2)}, ValueError),
        ("rloo", {"rollouts": 1}, ValueError),
        ("maxrl_order", {}, TypeError),
        ("rloo", {"order": 1}, TypeError),
        ("maxrl", {"order": 3, "rollouts": 4}, TypeError),
        ("maxrl", {"ddof": 1}, TypeError),
    ):
        with pytest.raises(error, match=name):
            weight(name, 0.5, **options)


def test_an_estimator_that_writes_into_its_rewards():
    """The metrics of the step are made of the same rewards."""
    rewards = torch.tensor([[1.0, 0, 0, 0]])
    rule = own("mine", lambda rewards: rewards.sub_(rewards.mean(1, keepdim=True)))
    assert rule(rewards).tolist() == [[0.75, -0.25, -0.25, -0.25]]
    assert rewards.tolist() == [[1, 0, 0, 0]]


@pytest.mark.parametrize(
    "rewards, said",
    [
        ([[0.0, 0, 0], [1, 0, 0]], r"not \[.*nan.*\] for the rewards \[0.0, 0.0, 0.0\]$"),
        ([[1.0, 0, 0], [1, 1, 1]], r"not \[.*inf.*\] for the rewards \[1.0, 0.0, 0.0\]$"),
    ],
)
def test_an_estimator_that_is_not_finite(rewards, said):
    """The message names the rewards: nearly always a group of zeros."""
    rule = own("mine", lambda rewards: rewards.mean(1, keepdim=True) / rewards)
    with pytest.raises(RewardError, match=f"mine must return finite advantages.*{said}"):
        rule(torch.tensor(rewards))
