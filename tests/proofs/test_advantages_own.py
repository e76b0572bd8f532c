"""Estimators of the user's own: what they weigh, what is refused, and their options."""

import importlib
from pathlib import Path

import pytest
import torch

from maxrl.advantages import ADVANTAGES, estimator, weight
from maxrl.advantages.formulas import maxrl_weight
from maxrl.advantages.registry import own
from maxrl.system import user_code
from maxrl.system.errors import UsageError
from tests.helpers.outcomes import PASS_RATES, all_outcomes, every_count, expected_gradient
from tests.helpers.tensors import close, normal

SOME = every_count(4)[[2, 1, 0]].float()


def root(rewards, power=0.5):
    mean = rewards.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, (rewards - mean) / mean**power, 0.0)


def table(N):
    """A rule of (r_i, K) with random numbers for every K."""
    numbers = normal(2, N + 1, seed=N)

    def mine(rewards):
        K = rewards.sum(dim=1, keepdim=True).long()
        return numbers[rewards.long(), K]

    return mine


@pytest.mark.parametrize(
    "wrong", [{"takes": "Binary"}, {"thresholds": "all"}, {"thresholds": True}, {"takes": None}]
)
def test_what_no_estimator_takes_is_refused(wrong):
    """Else its rewards would not be checked."""
    with pytest.raises(ValueError, match="@estimator got"):
        estimator(**{"takes": "binary"} | wrong)


@pytest.mark.parametrize("N", range(1, 9))
def test_any_rule_of_a_reward_and_its_group_has_its_exact_weight(N):
    """All 2^N outcomes; by function, and by name once it is registered."""
    rewards = all_outcomes(N)
    rule = table(N)
    expected = expected_gradient(rewards, rule(rewards), PASS_RATES)
    ADVANTAGES["mine.py:table"] = own("mine.py:table", rule)
    for one in (rule, "mine.py:table", ADVANTAGES["mine.py:table"]):
        close(weight(one, PASS_RATES, rollouts=N), expected, 1e-10)


def test_options_and_known_cases():
    for N in (2, 5, 16):
        for power, name in ((1, "maxrl"), (0, "reinforce_mean")):
            found = weight(root, PASS_RATES, rollouts=N, power=power)
            close(found, weight(name, PASS_RATES, rollouts=N))
    in_float32 = weight(lambda rewards: root(rewards.float()), PASS_RATES, rollouts=64)
    close(in_float32, weight(root, PASS_RATES, rollouts=64), 1e-5)


def test_a_file_and_a_name(in_a_directory_of_its_own):
    Path("mine.py").write_text("def double(rewards):\n    return 2 * rewards\n")
    assert weight("mine.py:double", 0.3, rollouts=8) == pytest.approx(2)
    assert "mine.py:double" not in ADVANTAGES
    with pytest.raises(UsageError, match="no function or class duoble"):
        weight("mine.py:duoble", 0.3, rollouts=8)


@pytest.mark.parametrize("declared", [False, True])
def test_a_rule_may_write_into_its_rewards(declared):
    """These stay as they were, and so they do where advantages are written into."""

    def centred(rewards):
        rewards -= rewards.mean(dim=1, keepdim=True)
        return rewards

    rule = estimator(takes="any", registry={})(centred) if declared else own("centred", centred)
    rewards = SOME.clone()
    close(rule(rewards), SOME - SOME.mean(1, keepdim=True))
    for name in ("reinforce", "maxrl", "tailrl"):
        one = rewards[:, :1]
        ADVANTAGES[name](one).mul_(5)
    assert torch.equal(rewards, SOME)


def test_a_function_called_as_ours_replaces_none():
    ours = ADVANTAGES["maxrl"]

    def maxrl(rewards):
        return rewards

    assert weight(maxrl, 0.1, rollouts=8) == pytest.approx(1)
    assert ADVANTAGES["maxrl"] is ours


def test_the_limit_is_known_where_it_is_declared():
    """Otherwise it is not known, which is not to say that the gradient is no multiple of grad p."""
    with pytest.raises(ValueError, match="^root has no limit that is known here; use rollouts=N$"):
        weight(root, 0.5)
    ADVANTAGES["mine.py:root"] = own("mine.py:root", root)
    with pytest.raises(ValueError, match="^mine.py:root has no limit that is known here"):
        weight("mine.py:root", 0.5, order=2)
    declared = estimator(takes="binary", limit=maxrl_weight)(table(4))
    assert weight(declared, 0.25) == 4
    assert weight("mine", 0.25) == 4
    assert weight("mine", 0.25, order=2) == pytest.approx(1.75)


def other_half(rewards):
    """The baseline of each half of a group is the mean of the other half."""
    halves = rewards.view(len(rewards), 2, -1)
    return (halves - halves.mean(2, keepdim=True).flip(1)).flatten(1)


BATCH_WIDE = {
    "mean": lambda rewards: rewards - rewards.mean(),
    "deviation": lambda rewards: (rewards - rewards.mean(1, keepdim=True)) / (rewards.std() + 1e-6),
    "solved": lambda rewards: rewards / (rewards.sum(1) > 0).float().mean().clamp(min=0.1),
    "groups": lambda rewards: rewards * len(rewards),
    "neighbour": lambda rewards: rewards - rewards.mean(1, keepdim=True).roll(1, 0),
}
OF_THE_ORDER = {
    "place": lambda rewards: rewards * torch.arange(1, rewards.shape[1] + 1),
    "first success": lambda rewards: rewards * (rewards.cumsum(1) == 1),
    "first rollout": lambda rewards: rewards - rewards[:, :1],
    "other half": other_half,
    "noise": lambda rewards: rewards + torch.rand_like(rewards),
}


@pytest.mark.parametrize(
    "name, N",
    [(name, N) for name in BATCH_WIDE for N in (2, 3, 8, 64)]
    + [(name, N) for name in OF_THE_ORDER for N in (4, 8, 64)],
)
def test_what_depends_on_more_than_the_reward_and_its_group_is_refused(name, N):
    """A wrong number would be silent: of a batch-wide rule there is no w(p), and a rule of places
    has other advantages for the groups that are asked here than on average."""
    rule = (BATCH_WIDE | OF_THE_ORDER)[name]
    with pytest.raises(ValueError, match="depend on more than r_i and K"):
        weight(rule, 0.3, rollouts=N)


@pytest.mark.parametrize(
    "rule, said",
    [
        (lambda rewards: rewards.div_(rewards.mean(1, keepdim=True)), r"not \[nan.* rewards \[0.0"),
        (lambda rewards: {}["nothing"], "raised KeyError: 'nothing'"),
        (lambda rewards: rewards.numpy(), "not ndarray"),
        (lambda rewards: rewards[:, :1], r"shape \(P, N\), not Tensor \(5, 1\)"),
    ],
)
def test_a_rule_that_fails_says_so(rule, said):
    with pytest.raises(ValueError, match=said):
        weight(rule, 0.5, rollouts=4)


# -------------------------------------------- options ---------------------------------------------
def test_options_of_ones_own_mean_what_they_mean_there():
    """They were once checked as ours are, and rewards were binary as soon as there was an order."""
    given = []

    def mine(rewards, order="up", k=0.5, ddof=-3, mean_log_probs=None):
        given.append((order, k, ddof, mean_log_probs))
        return rewards

    options = {"order": "down", "k": 2.5, "ddof": 7, "mean_log_probs": 0}
    assert torch.equal(own("mine", mine)(SOME / 3, **options), SOME / 3)
    weight(mine, 0.5, rollouts=4, **options)
    assert set(given) == {tuple(options.values())}
    weight(mine, 0.5, rollouts=4)
    assert given[-1] == ("up", 0.5, -3, None)


def test_options_without_names_are_none():
    def mine(rewards, **options):
        return rewards

    assert torch.equal(own("mine", mine)(SOME), SOME)
    with pytest.raises(TypeError, match="power"):
        own("mine", mine)(SOME, power=2)


def test_a_count_is_checked_where_it_is_declared():
    @estimator(takes="any", count="depth")
    def mine(rewards, depth=None, order=0):
        return rewards

    assert torch.equal(mine(SOME / 2, order=9), SOME / 2)
    assert torch.equal(mine(SOME, depth=4), SOME)
    for depth, rewards, said in (
        (5, SOME, "depth=5 but needs an int, 1 <= depth <= N = 4"),
        (2.0, SOME, "an int"),
        (2, SOME / 2, "{0, 1}"),
    ):
        with pytest.raises(ValueError, match=said):
            mine(rewards, depth=depth)


@pytest.mark.parametrize("name", BATCH_WIDE)
def test_without_a_missing_verdict_a_batch_stays_one(name):
    """--no-verdict rollout once called an estimator group by group: a deviation of the batch became
    one of each group."""
    rule = own("mine", BATCH_WIDE[name])
    assert torch.equal(rule(SOME, allow_missing=True), rule(SOME))


def test_a_name_that_is_taken():
    """A formula of one's own does not take the place of a built-in one in the whole process."""
    before = ADVANTAGES["grpo"]
    with pytest.raises(ValueError, match="grpo already"):

        @estimator(takes="any")
        def grpo(rewards):
            return rewards

    assert ADVANTAGES["grpo"] is before


def test_one_file_under_two_names(tmp_path, monkeypatch):
    """A program imports it, and --estimator FILE.py:NAME runs it again."""
    text = "from maxrl.advantages import estimator\n@estimator(takes='any')\ndef twin(rewards):\n"
    (tmp_path / "of_two_names.py").write_text(f"{text}    return rewards\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        importlib.import_module("of_two_names")
        found = user_code.import_object(f"{tmp_path}/of_two_names.py:twin", "--estimator")
        assert ADVANTAGES["twin"] is found
    finally:
        ADVANTAGES.pop("twin", None)
