"""What no estimator takes, each refused by one sentence."""

import ast
import builtins
import math

import pytest
import torch

from maxrl.advantages import ADVANTAGES, weight
from tests.helpers.outcomes import NEEDS_GROUP, any_options
from tests.helpers.tables import cells, each
from tests.helpers.tensors import F64

ONES = torch.ones(2, 4, dtype=F64)
# An estimator, the reward of eight rollouts, options, and words of the sentence.
VALUES = """
maxrl | .5 | {} | 0.5 | {0, 1} | rloo or grpo | thresholds=True
maxrl | -1 | {} | -1 | {0, 1} | rloo or grpo
maxrl | .9999999 | {} | 0.9999999
maxrl | 1.000000000001 | {} | 1.000000000001
maxrl | 2 | {} | a reward of 2 | weight 0 | one that returns 1
maxrl_success | -.5 | {"thresholds": True} | -0.5 | [0, inf) | rloo or grpo
maxrl_success | inf | {"thresholds": True} | inf | [0, inf)
maxrl_centered | 1.5 | {} | 1.5 | {0, 1}
maxrl_success | .5 | {} | 0.5 | thresholds=True
maxrl_success | .5 | {"order": 2} | 0.5 | {0, 1}
maxrl_order | .5 | {"order": 2} | 0.5 | {0, 1}
pkpo | .5 | {"k": 2} | 0.5 | {0, 1}
maxrl_order | 1 | {"order": 5} | order=5 | N = 4
maxrl_order | 1 | {"order": 0} | order=0 | 1 <= order
maxrl_success | 1 | {"order": -1} | order=-1
maxrl_order | 1 | {"order": 2.0} | 2.0 | int
maxrl_order | 1 | {"order": True} | True | int
pkpo | 1 | {"k": 5} | k=5 | N = 4
grpo | 1 | {"ddof": 2} | ddof=2 | divisor N - 1
"""
OPTIONS = """
maxrl_centered | 1 | {"thresholds": True} | thresholds | no option
rloo | 1 | {"thresholds": True} | thresholds | no option
maxrl | 1 | {"thresholds": "no"} | 'no' | True or False
maxrl_order | 1 | {"order": 2, "thresholds": 1} | 1 | True or False
maxrl_order | 1 | {} | needs order=
maxrl_order | 1 | {"order": None} | needs order=
pkpo | 1 | {} | needs k=
differential_smoothing | 1 | {} | needs mean_log_probs=
maxrl | 1 | {"order": 3} | order | maxrl_order
maxrl_order | 1 | {"ordr": 3} | ordr | order
rloo | 1 | {"ddof": 0} | ddof
"""


def table(text):
    return [
        (name, ONES * float(value), ast.literal_eval(options), *words)
        for name, value, options, *words in cells(text)
    ]


REWARDS = [*table(VALUES), ("maxrl", [[1, 0]], {}, "list", "torch.tensor")]
for name in sorted(NEEDS_GROUP):
    REWARDS += [(name, ONES[:, :1], {}, "at least 2 rollouts per prompt", "N = 1")]
for name in ADVANTAGES:
    for value in ("nan", "inf", "-inf"):
        rewards = torch.tensor([[0, float(value)]])
        REWARDS += [(name, rewards, any_options(name, 1, rewards), value, "finite")]
for name in ("maxrl", "maxrl_order", "grpo", "supervised"):
    for shape in ((4,), (0, 4), (4, 0), (2, 2, 2), ()):
        REWARDS += [(name, torch.zeros(shape), any_options(name), str(shape), "(P, N)")]


@pytest.mark.parametrize(
    "error, given",
    [(ValueError, row) for row in REWARDS] + [(TypeError, row) for row in table(OPTIONS)],
)
def test_refusals(error, given):
    """One sentence: the estimator, the value, what to use instead."""
    name, rewards, options, *words = given
    with pytest.raises(error) as caught:
        ADVANTAGES[name](rewards, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in (name, ";", *words):
        assert word in message


@pytest.mark.parametrize("p", [-0.1, 1.5, math.nan, [0.5, 2.0]])
def test_what_is_no_pass_rate(p):
    with pytest.raises(ValueError, match="a pass rate is in"):
        weight("maxrl", p)


# Options with a wrong value, and wrong options.
WEIGHTS = """
maxrl | {"rollouts": 0} | ValueError
maxrl | {"order": 0} | ValueError
maxrl | {"order": 1.5} | ValueError
maxrl | {"rollouts": (2, 2)} | ValueError
maxrl_order | {"order": 5, "rollouts": 4} | ValueError
maxrl_rare | {"order": 3, "rollouts": (2, 2)} | ValueError
rloo | {"rollouts": 1} | ValueError
rloo | {"order": 1} | TypeError
maxrl_order | {} | TypeError
maxrl | {"order": 3, "rollouts": 4} | TypeError
maxrl | {"ddof": 1} | TypeError
"""


@each("name, options, error", WEIGHTS)
def test_weights_that_are_refused(name, options, error):
    with pytest.raises(getattr(builtins, error), match=name):
        weight(name, 0.5, **ast.literal_eval(options))
