"""Reward functions: how they are called and added up, and what happens to those that fail or
hang."""

import asyncio
import copy
import json
import math
import signal
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maxrl.learning.config import Config
from maxrl.run.setup import check_total
from maxrl.system import distributed, user_code
from maxrl.system.errors import UsageError
from maxrl.tasks import Example
from maxrl.tasks.rewards import Rewards
from tests.helpers import tiny
from tests.helpers.judged import judged
from tests.helpers.tables import each

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
PROMPTS = ["p0", "p1"]
TEXTS = [["a", "bb", "ccc"], ["dddd", "", "f"]]
FLAT = ["a", "bb", "ccc", "dddd", "", "f"]
COLUMNS = {"answer": ["x", "y"], "prompt": PROMPTS, "level": [1, None]}
CHAT = [{"role": "user", "content": "hi"}]


def length(completions, **columns):
    return [float(len(c)) for c in completions]


def right(prompts, completions, answer):
    return [float(p == "p0" and a == "x") for p, c, a in zip(prompts, completions, answer)]


def rewarded(functions, weights=(), columns=None, **options):
    """Rewards of TEXTS and their statistics."""
    return judged(Rewards(functions, weights, **options), PROMPTS, TEXTS, columns)


def left_out(stats):
    """How many rollouts, groups and calls have no verdict."""
    names = ("rollouts_left_out", "groups_left_out", "failed_calls")
    return tuple(stats[f"rewards/{name}"] for name in names)


def test_one_function_is_called_as_trl_does():
    """For all rollouts of a policy, prompt by prompt, with None where an example lacks a column."""
    rollouts = tiny.rollouts((3, 2), N=2)
    columns = {"answer": "x", "prompt": "its own reading", "level": 1}
    examples = [Example("p0", "", columns), Example("p1", "", {"answer": "y"})]
    seen = []

    def look(completion_ids, **others):
        seen.append(others | {"completion_ids": completion_ids})
        return [0.0, 1.0, 2.0, 3.0]

    rewards = Rewards([look])(examples, rollouts)
    assert rewards.tolist() == [[0, 1], [2, 3]]
    assert rewards.dtype == torch.float32
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    (given,) = seen
    assert given == {
        "prompts": ["p0", "p0", "p1", "p1"],
        "completions": [rollouts.completion(i, j) for i, j in places],
        "completion_ids": [rollouts.response(i, j) for i, j in places],
        "answer": ["x", "x", "y", "y"],
        "level": [1, 1, None, None],
    }


def test_a_function_that_writes_into_what_it_gets_spoils_nothing():
    """Neither for the next function nor for the data, whose columns come again with the prompt."""
    seen = []

    def look(**given):
        seen.append(copy.deepcopy(given))
        return [1.0, 1.0]

    def spoil(**given):
        for values in given.values():
            values[0].clear()
            assert values[1], "a rollout has a copy of its own"
            values.clear()
        return [1.0, 1.0]

    judge = Rewards([look, spoil, look])
    tests = [{"in": 1}, {"in": 2}]
    for _ in range(2):
        judged(judge, [CHAT], [["a", "b"]], {"tests": [tests]}, [[[7], [8]]])
    assert seen == [seen[0]] * 4
    assert seen[0]["prompts"] == [CHAT, CHAT]
    assert seen[0]["completions"][1] == [{"role": "assistant", "content": "b"}]


def test_weighted_sum_and_statistics_by_hand():
    """Of functions of one name all but the first get a name of their own."""
    functions = [length, right, length, length]
    rewards, stats = rewarded(functions, [0.5, -2.0, 1.0, 0.0], COLUMNS)
    assert rewards.tolist() == [[-0.5, 1.0, 2.5], [6.0, 0.0, 1.5]]
    for name in ("length", "length_2", "length_3"):
        assert stats[f"rewards/{name}/mean"] == pytest.approx(11 / 6)
    assert stats["rewards/right/mean"] == 0.5


def test_a_function_called_as_the_metric_of_disagreement():
    """It keeps its name, and the share of rollouts on which the functions disagree has another."""

    def disagreement(completions):
        return [1.0] * 6

    _, stats = rewarded([right, disagreement], (), COLUMNS)
    assert stats["rewards/disagreement/mean"] == 1
    assert stats["rewards/disagreement_2/mean"] == 0.5
    assert rewarded([right, right], (), COLUMNS)[1]["rewards/disagreement/mean"] == 0
    assert rewarded([disagreement])[1].keys() & {"rewards/disagreement_2/mean"} == set()


# None from one function leaves its term out, from all of them the rollout's group: rows three and
# four have two verdicts of three, one of three, all of them. One rollout by itself is compared with
# nothing. A function of weight 0 is only looked at, and gives no verdict.
NONE = """
group 1,10 | ?11? 2?2? | 20 1, ? ? | 2 1
group | ?? | ?, ? | 2 2
group | 1?0?1?100 | ? ? ?, ? ? ?, 1 0 0 | 6 2
rollout | 1?0?1?100 | 1 ? 0, ? ? ?, 1 0 0 | 4 1
rollout | 1? | 1, ? | 1 1
group 1,0 | 1? 00 | 1, ? | 1 1
"""


@each("settings, said, rewards, missing", NONE)
def test_none(settings, said, rewards, missing):
    """Each function says its letters, where ? is None; the rewards of each group, and how many
    rollouts and groups are left out."""

    def saying(letters):
        return lambda completions: [None if letter == "?" else int(letter) for letter in letters]

    no_verdict, *weights = settings.replace(",", " ").split()
    functions = [saying(letters) for letters in said.split()]
    groups = [group.replace("?", "nan").split() for group in rewards.split(",")]
    expected = torch.tensor([[*map(float, group)] for group in groups])
    texts = [["x"] * len(group) for group in groups]
    judge = Rewards(functions, [*map(float, weights)], no_verdict=no_verdict)
    found, stats = judged(judge, ["p"] * len(texts), texts)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert left_out(stats) == (*map(int, missing.split()), 0)
    known = [value for value in functions[0](None) if value is not None]
    mean = sum(known) / len(known) if known else math.nan
    assert stats["rewards/<lambda>/mean"] == pytest.approx(mean, nan_ok=True)


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
    assert rewarded([function])[0].isfinite().all()


def raises(completions):
    raise KeyError("boom\nsecond line")


async def cancelled(completions):
    """As an HTTP client that gives up."""
    request = asyncio.ensure_future(asyncio.sleep(60))
    request.cancel()
    await request


def cancelled_by_hand(completions):
    raise asyncio.CancelledError("by a limit")


async def several(completions):
    raise BaseExceptionGroup("tasks", [SystemExit("one"), asyncio.CancelledError()])


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
    "returned b'1' for completion 0": lambda completions: [b"1"] * 6,
    "returned 1j for completion 0": lambda completions: [1j] * 6,
    "returned [1.0] for completion 0": lambda completions: np.ones((6, 1)),
    "returned {} for completion 5": lambda completions: [True] * 5 + [{}],
    "raised CancelledError": cancelled,
    "raised CancelledError: by a limit": cancelled_by_hand,
    "raised BaseExceptionGroup": several,
}


@pytest.mark.parametrize("said", WRONG)
def test_a_call_that_fails_stops_the_run(said, tmp_path):
    """With one sentence, and the batch in a file."""

    def failing(completions, answer):
        return WRONG[said](completions)

    with pytest.raises(UsageError) as caught:
        rewarded([length, failing], (), COLUMNS, directory=tmp_path)
    file = tmp_path / "reward_error_failing_rank0.jsonl"
    assert f"the reward function failing {said}" in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["completions"] for row in rows] == FLAT
    assert [row["prompts"] for row in rows] == ["p0"] * 3 + ["p1"] * 3
    assert rows[5]["answer"] == "y"
    assert said[:12] in rows[0]["error"]


@pytest.mark.parametrize(
    "prompt, function", [("hi", raises), (CHAT, raises), (CHAT, lambda **_: 1.0)]
)
def test_a_function_of_texts_learns_of_messages(prompt, function):
    """If it raises; one that returns no list has another fault."""
    with pytest.raises(UsageError) as caught:
        judged(Rewards([function]), [prompt] * 2, TEXTS)
    assert ('["content"]' in str(caught.value)) == (prompt == CHAT and function is raises)


@pytest.mark.parametrize(
    "function, columns, words",
    [
        (right, {}, "right: .*'answer'; .*completions, prompts"),
        (length, {5: [1, 2]}, "the data has 5, "),
        (max, {}, "max"),
    ],
)
def test_columns_that_are_not_there(function, columns, words):
    """They are no failure of the call, which could be dropped."""
    with pytest.raises(UsageError, match=words):
        rewarded([function], (), columns, errors="drop")


def test_a_column_that_need_not_be_there():
    def optional(completions, answer=None):
        return [answer is None] * 6

    assert rewarded([optional])[0].sum() == 6
    assert rewarded([optional], (), COLUMNS)[0].sum() == 0


def test_the_watchdog_lets_others_pass(tmp_path):
    """Its timer is not left behind by calls that return or raise."""
    ends = Rewards([length], timeout=0.5)  # many times what they take on a busy machine
    fails = Rewards([raises], timeout=0.5, errors="drop", directory=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for judge in [ends] * 20 + [fails]:
            judged(judge, PROMPTS, TEXTS)
    time.sleep(0.7)


def test_a_file_that_was_edited_is_read_again(monkeypatch, tmp_path):
    """As in a notebook, where one process sees both; unchanged it is run once."""
    monkeypatch.chdir(tmp_path)
    for value in (0.0, 0.25, 1.0):
        line = f"def f(completions, **columns):\n    return [{value}] * len(completions)\n"
        Path("mine.py").write_text(line + "#" * int(8 * value))
        first = user_code.execute(Path("mine.py").resolve())
        assert user_code.execute(Path("mine.py").resolve()) is first
        assert set(rewarded(["mine.py:f"])[0].flatten().tolist()) == {value}


def test_what_a_file_sets_at_its_top_is_not_of_the_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("deep").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    text = "import os, torch\nos.chdir('deep')\ntorch.set_grad_enabled(False)\n"
    text += "torch.set_default_dtype(torch.bfloat16)\n"
    text += "def f(completions):\n    return [1.0] * len(completions)\n"
    for address in ("mine.py:f", "the_same_as_a_module:f"):
        Path(address.removesuffix(":f").removesuffix(".py") + ".py").write_text(text)
        user_code.import_object(address, "--reward")
        try:
            assert torch.is_grad_enabled()
            assert torch.get_default_dtype() == torch.float32
        finally:
            torch.set_grad_enabled(True)
            torch.set_default_dtype(torch.float32)
        assert Path.cwd() == tmp_path


def test_what_a_file_imports_is_of_the_run(monkeypatch, tmp_path):
    """So that a resumed run notices that it was changed; other files beside it are not."""
    (tmp_path / "mine_too.py").write_text("HALF = 0.5\n")
    (tmp_path / "other.py").write_text("")
    text = "import mine_too\ndef f(completions):\n    return [mine_too.HALF] * len(completions)\n"
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    address = f"{tmp_path}/mine.py:f"
    user_code.import_object(address, "--reward")
    # What is no module may answer anything.
    monkeypatch.setitem(sys.modules, "stub", SimpleNamespace(__file__=len))
    found = user_code.checksums([address])
    assert [Path(file).name for file in found] == ["mine.py", "mine_too.py"]
    (tmp_path / "mine_too.py").write_text("HALF = 0.25\n")
    again = user_code.checksums([address])
    assert [Path(file).name for file in found if found[file] != again[file]] == ["mine_too.py"]


def test_addresses_of_one_thing(monkeypatch, tmp_path):
    """However the path of a file is written, also by a link."""
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to(".")
    same = user_code.located("mine.py:f")
    for other in ("./mine.py:f", f"{tmp_path}/mine.py:f", "link/mine.py:f"):
        assert user_code.located(other) == same
    for other in ("mine.py:g", "mine:f", "maze"):
        assert user_code.located(other) != same


def test_a_failure_of_weight_0_is_only_counted(tmp_path):
    """No verdict is taken from it; one of a function that counts leaves out the whole call,
    whatever the others say."""
    for weights, known in (([1.0, 0.0], 6), ([1.0, 1.0], 0)):
        judge = Rewards([length, raises], weights, "drop", directory=tmp_path)
        with pytest.warns(UserWarning, match="raises"):
            rewards, stats = judged(judge, PROMPTS, TEXTS)
        assert rewards.isfinite().sum() == known
        assert left_out(stats) == (6 - known, (6 - known) / 3, 1)
        assert stats["rewards/length/mean"] == pytest.approx(11 / 6)


def test_a_cut_response_without_a_verdict():
    """Its reward is 0 with zero_reward_at_limit, so its group stays."""

    def never(completions):
        return [None if i in (2, 3) else 1.0 for i in range(len(completions))]

    judge = Rewards([never])
    judge.finished_only = True
    finished = [[True, False, True], [False, True, True]]
    rewards, stats = judged(judge, PROMPTS, TEXTS, finished=finished)
    assert rewards[0].isnan().all() and rewards[1].tolist() == [0, 1, 1]
    assert left_out(stats) == (3, 1, 0)


def test_a_cut_response_keeps_a_penalty():
    """Being cut must not pay, so a negative reward stays, and a positive one does not."""
    judge = Rewards([lambda completions: [1.0, -1.0, 0.5] * (len(completions) // 3)])
    judge.finished_only = True
    finished = [[False, False, True], [True, True, False]]
    rewards, _ = judged(judge, PROMPTS, TEXTS, finished=finished)
    assert rewards.tolist() == [[0, -1, 0.5], [1, -1, 0]]


def test_a_function_in_a_notebook():
    """An event loop runs already."""

    async def cell():
        return rewarded([later])[0]

    assert asyncio.run(cell()).isfinite().all()


def test_a_coroutine_may_set_signals():
    """math-verify's time-outs do, which need the main thread."""

    async def timed(completions):
        signal.signal(signal.SIGALRM, signal.signal(signal.SIGALRM, signal.SIG_IGN))
        return [1.0] * len(completions)

    assert rewarded([timed])[0].isfinite().all()


def test_a_function_that_turns_autograd_off():
    def off(completions):
        torch.set_grad_enabled(False)
        return [1.0] * len(completions)

    rewarded([off])
    try:
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"functions": [5]}, "5"),
        ({"functions": [Judge]}, "Judge"),
        ({"functions": []}, "at least one"),
        ({"weights": [math.nan]}, "finite"),
        ({"weights": [0]}, "must be finite numbers and not all 0"),
        # A misspelled choice would mean the other one.
        ({"errors": "raise"}, "raise"),
        ({"no_verdict": "groups"}, "groups"),
    ],
)
def test_refused_settings(options, words):
    with pytest.raises(UsageError, match=words):
        Rewards(**{"functions": [length]} | options)


def test_the_means_of_an_evaluation(monkeypatch):
    """Over all ranks, here one more with four rollouts, and since the last time."""
    judge = Rewards([lambda completions, n: n])
    judge([Example(f"p{i}", "", {"n": i}) for i in range(4)], tiny.rollouts())
    (name,) = judge.functions
    monkeypatch.setattr(distributed, "gathered", lambda row: np.array([row, [34, 4]]))
    # 0, 1, 2 and 3, four times each, add up to 24.
    assert judge.means() == {f"rewards/{name}/mean": (24 + 34) / (16 + 4)}
    assert judge.means() == {f"rewards/{name}/mean": 34 / 4}


def test_weights_that_add_up_to_1_in_float32_are_not_warned_of(recwarn):
    """As the rewards of training are rounded."""
    for weights, count in (((0.7, 0.2, 0.1), 0), ((0.7, 0.2, 0.2), 1)):
        check_total(Config(reward=("a:a", "b:b", "c:c"), reward_weights=weights))
        assert len(recwarn.list) == count


@pytest.mark.parametrize(
    "rewards, said",
    [
        ([1.8e9, 1.8e9 + 5] * 3, True),
        ([1.0, 1 - 1e-9] * 3, True),
        ([0.7 + 0.2 + 0.1, 1.0] * 3, False),
        ([1.0, math.nan, 1.0, 0.5, 0.25, math.nan], False),
    ],
)
def test_rewards_that_float32_makes_equal_are_said(rewards, said, recwarn):
    """Such as times since 1970, of which nothing would be learned."""
    rewarded([lambda completions: [None if math.isnan(r) else r for r in rewards]])
    assert sum("float32" in str(warning.message) for warning in recwarn) == said
