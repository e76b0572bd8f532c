"""Reward functions: how they are called and added up, and what happens to those that fail or
hang."""

import asyncio
import json
import math
import signal
import subprocess
import sys
import textwrap
import time
import warnings

import numpy as np
import pytest
import tiny
import torch
from conftest import ROOT
from judged import judged

from maxrl.advantages import ADVANTAGES
from maxrl.config import Config
from maxrl.errors import UsageError
from maxrl.io.user_code import imported
from maxrl.metrics import group_means, group_sums
from maxrl.parallel import distributed
from maxrl.rewards.functions import Rewards
from maxrl.rollouts import with_verdict
from maxrl.run import setup
from maxrl.tasks import Example, load_task

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
PROMPTS = ["p0", "p1"]
TEXTS = [["a", "bb", "ccc"], ["dddd", "", "f"]]
COLUMNS = {"answer": ["x", "y"], "prompt": PROMPTS, "level": [1, None]}


def length(completions, **columns):
    return [float(len(c)) for c in completions]


def right(prompts, completions, answer):
    return [float(p == "p0" and a == "x") for p, c, a in zip(prompts, completions, answer)]


def test_one_function_is_called_as_trl_does():
    seen = []

    def look(prompts, completions, completion_ids, **columns):
        seen.append((prompts, completions, completion_ids, columns))
        return [1.0] * len(prompts)

    ids = [[[1], [2, 2], [3, 3, 3]], [[4], [], [5]]]
    rewards, _ = judged(Rewards([look]), PROMPTS, TEXTS, COLUMNS, ids)
    assert rewards.shape == (2, 3) and rewards.dtype == torch.float32
    prompts, completions, completion_ids, columns = seen[0]
    assert prompts == ["p0"] * 3 + ["p1"] * 3 and completions == ["a", "bb", "ccc", "dddd", "", "f"]
    assert completion_ids == [[1], [2, 2], [3, 3, 3], [4], [], [5]]
    assert columns == {"answer": ["x"] * 3 + ["y"] * 3, "level": [1] * 3 + [None] * 3}


def test_a_function_that_writes_into_what_it_gets_spoils_nothing():
    """Neither for the next function nor for the data, whose columns come again with the prompt."""

    def spoil(prompts, completions, completion_ids, tests, about):
        counts = [float(len(t)) for t in tests]
        prompts[0][0]["content"] += "!"
        assert prompts[1][0]["content"] == "hi"
        for values in (prompts, completions, completion_ids, tests, about):
            for value in values:
                if isinstance(value, list | dict):
                    value.clear()
            values.clear()
        return counts

    def judge(prompts, completions, completion_ids, tests, about):
        assert prompts[0] == chat and about == [{"a": [1]}] * 3 + [None] * 3
        assert completions[1] == [{"role": "assistant", "content": "bb"}]
        assert completion_ids == [[7]] * 6
        return [float(len(t)) for t in tests]

    chat = [{"role": "user", "content": "hi"}]
    columns = {"tests": [[{"in": 1}, {"in": 2}], [{"in": 3}]], "about": [{"a": [1]}, None]}
    both = Rewards([spoil, judge])
    for _ in range(2):
        rewards, _ = judged(both, [chat, "p1"], TEXTS, columns, [[[7]] * 3] * 2)
        assert rewards.tolist() == [[4, 4, 4], [2, 2, 2]]


def test_weighted_sum_and_statistics_by_hand():
    rewards, stats = judged(Rewards([length, right], [0.5, -2.0]), PROMPTS, TEXTS, COLUMNS)
    assert rewards.tolist() == [[-1.5, -1.0, -0.5], [2.0, 0.0, 0.5]]
    lengths = np.array([1, 2, 3, 4, 0, 1])
    assert stats["rewards/length/mean"] == pytest.approx(lengths.mean())
    assert stats["rewards/length/std"] == pytest.approx(lengths.std(ddof=1))
    assert stats["rewards/right/mean"] == 0.5
    assert stats["rewards/groups_left_out"] == 0 and stats["rewards/failed_calls"] == 0


def test_none():
    """None from one function leaves its term out; from all of them for a rollout, its group."""

    def some(completions):
        return [None, 1, 1, 1, 1, None]

    def others(completions):
        return [2.0, None, 2, None, None, None]

    rewards, stats = judged(Rewards([some, others], [1, 10]), PROMPTS, TEXTS)
    assert rewards[0].tolist() == [20, 1, 21] and rewards[1].isnan().all()
    assert stats["rewards/groups_left_out"] == 1 and stats["rewards/failed_calls"] == 0
    assert stats["rewards/some/mean"] == 1 and stats["rewards/others/mean"] == 2
    rewards, stats = judged(Rewards([lambda completions: [None] * 6]), PROMPTS, TEXTS)
    assert rewards.isnan().all() and math.isnan(stats["rewards/<lambda>/mean"])


def test_what_no_verdict_leaves_out():
    """Two verdicts of three, one of three, and all of them."""

    def some(completions):
        return [1, None, 0, None, 1, None, 1, 0, 0]

    prompts, texts = ["a", "b", "c"], [["x"] * 3] * 3
    rewards, stats = judged(Rewards([some], no_verdict="rollout"), prompts, texts)
    assert rewards.isnan().tolist() == [[False, True, False], [True] * 3, [False] * 3]
    assert stats["rewards/rollouts_left_out"] == 4 and stats["rewards/groups_left_out"] == 1
    A = ADVANTAGES["maxrl"](rewards[[0, 2]], allow_missing=True)
    torch.testing.assert_close(A, torch.tensor([[1.5, 0, -1.5], [2, -1, -1]]))
    rewards, stats = judged(Rewards([some]), prompts, texts)
    assert rewards.isnan().tolist() == [[True] * 3, [True] * 3, [False] * 3]
    assert stats["rewards/rollouts_left_out"] == 6 and stats["rewards/groups_left_out"] == 2
    one = Rewards([lambda completions: [1, None]], no_verdict="rollout")
    rewards, _ = judged(one, ["a", "b"], [["x"], ["y"]])  # of one rollout each
    assert rewards[0].item() == 1 and rewards[1].isnan()
    with pytest.raises(ValueError, match="a reward of nan but takes"):
        ADVANTAGES["maxrl"](torch.tensor([[1.0, math.nan]]))


def test_a_step_without_the_groups_that_have_no_verdict():
    class Chosen:
        def select(self, kept):
            return kept.tolist()

    rewards = torch.tensor([[1.0, 0], [math.nan, math.nan], [0, 0]])
    kept, left = with_verdict(Chosen(), rewards)
    assert kept == [True, False, True] and left.tolist() == [[1, 0], [0, 0]]


def test_metrics_without_some_rollouts():
    """The mean reward and its deviation are those of the rollouts with a verdict, shares those of
    the prompts."""
    nan = math.nan
    rewards = torch.tensor([[1, nan, nan, 1], [0, 0, nan, 0], [0, 1, 0, nan]], dtype=torch.float64)
    means = group_means(group_sums(rewards))
    known = rewards[~rewards.isnan()]
    assert means["reward"] == pytest.approx(known.mean().item())
    assert means["reward_std"] == pytest.approx(known.std().item())
    shares = [means[f"frac_reward_{name}"] for name in ("zero_mean", "one_mean", "zero_std")]
    assert shares == pytest.approx([1 / 3, 1 / 3, 2 / 3])


async def later(completions):
    return [1.0] * len(completions)


class Judge:
    def __call__(self, completions):
        return np.arange(6.0)


@pytest.mark.parametrize(
    "function",
    [
        Judge(),
        later,
        lambda completions: torch.arange(6),
        lambda completions: (True, False, 1, np.float32(0.5), torch.tensor(2.0), np.bool_(True)),
    ],
)
def test_what_counts_as_numbers(function):
    rewards, _ = judged(Rewards([function]), PROMPTS, TEXTS)
    assert rewards.isfinite().all()


def raises(completions):
    raise KeyError("boom\nsecond line")


# What a function does, and what is said of it.
WRONG = {
    "raised KeyError: 'boom": raises,
    "raised SystemExit: bye": lambda completions: sys.exit("bye"),
    "returned 5 rewards for 6 completions": lambda completions: [1.0] * 5,
    "returned NoneType instead of a list": lambda completions: None,
    "returned float instead of a list": lambda completions: 1.0,
    "returned nan for completion 5": lambda completions: [1.0] * 5 + [math.nan],
    "returned inf for completion 1": lambda completions: [1.0, math.inf] + [1.0] * 4,
    "returned 1e+300 for completion 0": lambda completions: [1e300] * 6,
    "returned '1.0' for completion 0": lambda completions: ["1.0"] * 6,
    "raised TypeError: float() argument must be": lambda completions: np.ones((6, 1)),
}


@pytest.mark.parametrize("said", WRONG)
def test_a_call_that_fails(said, tmp_path):
    """ "stop" ends the run with a sentence and the batch; "drop" counts it and leaves the groups
    out."""

    def failing(completions, answer):
        return WRONG[said](completions)

    stopping = Rewards([length, failing], directory=tmp_path)
    with pytest.raises(UsageError) as caught:
        judged(stopping, PROMPTS, TEXTS, COLUMNS)
    sentence = str(caught.value)
    file = tmp_path / "reward_error_failing_rank0.jsonl"
    assert f"the reward function failing {said}" in sentence and "\n" not in sentence
    assert str(file) in sentence
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["completions"] for row in rows] == ["a", "bb", "ccc", "dddd", "", "f"]
    assert rows[5]["prompts"] == "p1" and rows[5]["answer"] == "y"
    assert said[:12] in rows[0]["error"]

    dropping = Rewards([length, failing], errors="drop", directory=tmp_path / "drop")
    for _ in range(2):
        with pytest.warns(UserWarning, match="left out"):
            rewards, stats = judged(dropping, PROMPTS, TEXTS, COLUMNS)
    assert rewards.isnan().all() and stats["rewards/length/mean"] == pytest.approx(11 / 6)
    assert stats["rewards/groups_left_out"] == 2 and stats["rewards/failed_calls"] == 1
    assert len(list((tmp_path / "drop").iterdir())) == 1


@pytest.mark.parametrize("prompt", ["hi", [{"role": "user", "content": "hi"}]])
def test_a_function_of_texts_learns_of_messages(prompt):
    with pytest.raises(UsageError) as caught:
        judged(Rewards([raises]), [prompt] * 2, TEXTS)
    assert ('["content"]' in str(caught.value)) == isinstance(prompt, list)


def test_columns_that_are_not_there():
    with pytest.raises(UsageError, match="right: .*'answer'; .*completions, prompts"):
        judged(Rewards([right]), PROMPTS, TEXTS)

    def others(completions, answer, **columns):
        return right(completions, answer)

    with pytest.raises(UsageError, match="others: .*'answer'; .*completions, prompts"):
        judged(Rewards([others], errors="drop"), PROMPTS, TEXTS)
    with pytest.raises(UsageError, match="the data has 5, "):
        judged(Rewards([length]), PROMPTS, TEXTS, {5: [1, 2]})
    with pytest.raises(UsageError, match="max"):
        judged(Rewards([max]), PROMPTS, TEXTS)

    def optional(completions, answer=None):
        return [answer is None] * 6

    assert judged(Rewards([optional]), PROMPTS, TEXTS)[0].sum() == 6
    assert judged(Rewards([optional]), PROMPTS, TEXTS, COLUMNS)[0].sum() == 0


IN_C = """
    from judged import judged
    from maxrl.rewards.functions import Rewards

    def in_c(completions):  # keeps Python's lock: no other thread runs
        sum(range(10**13))

    judged(Rewards([in_c], timeout=0.3), ["p"], [["a", "b"]])
"""


def test_the_watchdog_ends_code_in_c():
    """With its stack; test_reward_faults.py has a function that sleeps."""
    command = [sys.executable, "-c", textwrap.dedent(IN_C)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "in in_c" in done.stderr and "most recent call first" in done.stderr


def test_the_watchdog_lets_others_pass(tmp_path):
    """Its timer is not left behind by calls that return or raise."""
    ends = Rewards([length], timeout=0.5)  # many times what they take on a busy machine
    fails = Rewards([raises], timeout=0.5, errors="drop", directory=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for judge in [ends] * 20 + [fails]:
            judged(judge, PROMPTS, TEXTS)
    time.sleep(0.7)


def test_a_function_in_a_notebook():
    """An event loop runs already."""

    async def cell():
        return judged(Rewards([later]), PROMPTS, TEXTS)[0]

    assert asyncio.run(cell()).isfinite().all()


def test_a_coroutine_may_set_signals():
    """math-verify's time-outs do, which need the main thread."""

    async def timed(completions):
        signal.signal(signal.SIGALRM, signal.signal(signal.SIGALRM, signal.SIG_IGN))
        return [1.0] * len(completions)

    assert judged(Rewards([timed]), PROMPTS, TEXTS)[0].isfinite().all()


def test_a_function_that_turns_autograd_off():
    def off(completions):
        torch.set_grad_enabled(False)
        return [1.0] * len(completions)

    judged(Rewards([off]), PROMPTS, TEXTS)
    try:
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"functions": [5]}, "5"),
        ({"functions": [[length]]}, "length"),
        ({"functions": [Judge]}, "Judge"),
        ({"functions": []}, "at least one"),
        ({"weights": [1, 2]}, "1 reward functions and 2 weights"),
        ({"weights": [math.nan]}, "finite"),
    ],
)
def test_refused_settings(options, words):
    with pytest.raises(UsageError, match=words):
        Rewards(**{"functions": [length]} | options)


@pytest.mark.parametrize("seconds", [-1.0, math.nan, 1e10])
def test_refused_limits(seconds):
    with pytest.raises(UsageError, match="--reward-timeout"):
        Config(reward_timeout=seconds)


def test_names_of_two_alike():
    rewards = Rewards([length, length])
    assert list(rewards.functions) == ["length", "length_2"]
    stats = judged(rewards, PROMPTS, TEXTS)[1]
    assert stats["rewards/length_2/mean"] == pytest.approx(11 / 6)


def test_loading(tmp_path):
    """package.module:function, file.py:function; one sentence for whatever is wrong."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\n"
        "def good(completions):\n    return [A().x] * len(completions)\nnumber = 3\n"
    )
    assert imported("math:fsum", "--reward") is math.fsum
    assert judged(Rewards([f"{file}:good"]), PROMPTS, TEXTS)[0].sum() == 6
    broken, leaving = tmp_path / "broken.py", tmp_path / "leaving.py"
    broken.write_text("def f(:\n")
    leaving.write_text("import sys\nsys.exit(3)\n")
    for spec, words in {
        "mine": "is not written",
        f"{file}:": "is not written",
        f"{file}:number": "has no function or class number",
        f"{tmp_path}/none.py:f": "cannot be imported: FileNotFoundError",
        "no.such.module:f": "cannot be imported: ModuleNotFoundError",
        f"{broken}:f": "cannot be imported: SyntaxError",
        f"{leaving}:f": "cannot be imported: SystemExit",
    }.items():
        with pytest.raises(UsageError, match=words):
            imported(spec, "--reward")


def test_the_rollouts_of_a_policy():
    """Completions without end tokens, columns by name, None where an example lacks one."""
    rollouts = tiny.rollouts()
    examples = [Example(f"p{i}", "", {"n": i} | ({"odd": 1} if i % 2 else {})) for i in range(4)]

    def index(prompts, completions, completion_ids, n, odd):
        assert odd == [None] * 4 + [1] * 4 + [None] * 4 + [1] * 4 and len(completions) == 16
        for text, ids in zip(completions, completion_ids):
            assert len([word for word in text.split(" ") if word]) + 1 == len(ids)
        return n

    judge = Rewards([index])
    assert judge(examples, rollouts).tolist() == [[i] * 4 for i in range(4)]
    assert judge.over_ranks()["rewards/index/mean"] == 1.5


def test_the_means_of_an_evaluation(monkeypatch):
    """Over all ranks, here one more with four rollouts, and since the last time."""
    judge = Rewards([lambda completions, n: n])
    judge([Example(f"p{i}", "", {"n": i}) for i in range(4)], tiny.rollouts())
    (name,) = judge.functions
    others = {f"{name}/count": 4.0, f"{name}/sum": 34.0}

    def all_reduce(sums):
        return {key: value + others[key] for key, value in sums.items()}

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    # 0, 1, 2 and 3, four times each, add up to 24.
    assert judge.means() == {f"rewards/{name}/mean": (24 + 34) / (16 + 4)}
    assert judge.means() == {f"rewards/{name}/mean": 34 / 4}


def test_the_validation_task_keeps_its_rewards():
    """Evaluations get their judge as an argument."""
    cfg = Config(
        task=f"{ROOT}/results/texts/tasks.py:ReverseText", init="x", zero_reward_at_limit=True
    )
    task, validation = load_task(cfg.task, "train"), load_task(cfg.task, "validation")
    judge = setup.choose_rewards(cfg, task, validation)
    assert judge.validation is not None and judge.validation.verdicts is not judge.verdicts
    assert "rewards" not in vars(task) | vars(validation)
