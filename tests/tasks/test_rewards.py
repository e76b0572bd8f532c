"""Reward functions: how they are called, added up, and what becomes of those that fail or hang (maxrl/rewards/functions.py)."""

import json
import math
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

from maxrl.errors import UsageError
from maxrl.io.user_code import imported
from maxrl.rewards.functions import Rewards
from maxrl.tasks import Example

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
    rewards, _ = Rewards([look])(PROMPTS, TEXTS, COLUMNS, ids)
    assert rewards.shape == (2, 3) and rewards.dtype == torch.float32
    prompts, completions, completion_ids, columns = seen[0]
    assert prompts == ["p0"] * 3 + ["p1"] * 3 and completions == ["a", "bb", "ccc", "dddd", "", "f"]
    assert completion_ids == [[1], [2, 2], [3, 3, 3], [4], [], [5]]
    assert columns == {"answer": ["x"] * 3 + ["y"] * 3, "level": [1] * 3 + [None] * 3}


def test_chat_prompts_get_messages():
    def spoil(prompts, completions):
        assert completions[1] == [{"role": "assistant", "content": "bb"}] and prompts[3] == "p1"
        prompts[0][0]["content"] = prompts[0][0]["content"] + "!"
        return [len(p[0]["content"]) if isinstance(p, list) else 0 for p in prompts]

    chat = [{"role": "user", "content": "hi"}]
    rewards, _ = Rewards([spoil])([chat, "p1"], TEXTS)
    assert chat == [{"role": "user", "content": "hi"}]
    assert rewards.tolist() == [[3, 2, 2], [0, 0, 0]]


def test_a_function_that_writes_into_what_it_gets_spoils_nothing():
    """Neither for the next function nor for the data, whose columns come again with the prompt."""

    def spoil(prompts, completions, completion_ids, tests, about):
        counts = [float(len(t)) for t in tests]
        for texts in (prompts, completions, completion_ids, tests, about):
            for text in texts:
                if isinstance(text, (list, dict)):
                    (
                        text[0] if isinstance(text, list) and isinstance(text[0], dict) else text
                    ).clear()
            texts.clear()
        return counts

    def judge(prompts, completions, completion_ids, tests, about):
        assert (
            len(prompts) == len(completions) == 6
            and prompts[0] == chat
            and about == [{"a": [1]}] * 3 + [None] * 3
        )
        assert completions[1] == [{"role": "assistant", "content": "bb"}] and completion_ids[4] == [
            7
        ]
        return [float(len(t)) for t in tests]

    chat = [{"role": "user", "content": "hi"}]
    columns = {"tests": [[{"in": 1}, {"in": 2}], [{"in": 3}]], "about": [{"a": [1]}, None]}
    both = Rewards([spoil, judge])
    for _ in range(2):
        assert both([chat, "p1"], TEXTS, columns, [[[7]] * 3] * 2)[0].tolist() == [
            [4, 4, 4],
            [2, 2, 2],
        ]


def test_weighted_sum_and_statistics_by_hand():
    rewards, stats = Rewards([length, right], [0.5, -2.0])(PROMPTS, TEXTS, COLUMNS)
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

    rewards, stats = Rewards([some, others], [1, 10])(PROMPTS, TEXTS)
    assert rewards[0].tolist() == [20, 1, 21] and rewards[1].isnan().all()
    assert stats["rewards/groups_left_out"] == 1 and stats["rewards/failed_calls"] == 0
    assert (
        stats["rewards/some/mean"] == 1
        and stats["rewards/others/mean"] == 2
        and stats["rewards/others/std"] == 0
    )
    rewards, stats = Rewards([lambda completions: [None] * 6])(PROMPTS, TEXTS)
    assert rewards.isnan().all() and math.isnan(stats["rewards/<lambda>/mean"])


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
        lambda completions: [np.int64(3)] * 6,
    ],
)
def test_what_counts_as_numbers(function):
    rewards, _ = Rewards([function])(PROMPTS, TEXTS)
    assert rewards.isfinite().all()


def raises(completions):
    raise KeyError("boom\nsecond line")


def leaves(completions):
    sys.exit("bye")


def too_few(completions):
    return [1.0] * 5


def nothing(completions):
    return None


def one_number(completions):
    return 1.0


def not_a_number(completions):
    return [1.0] * 5 + [float("nan")]


def infinite(completions):
    return [1.0, float("inf")] + [1.0] * 4


def too_large(completions):
    return [1e300] * 6


def text(completions):
    return ["1.0"] * 6


def nested(completions):
    return np.ones((6, 1))


def no_verdict(completions):
    return [None] * 6


WRONG = {
    raises: "raised KeyError: 'boom",
    leaves: "raised SystemExit: bye",
    too_few: "returned 5 rewards for 6 completions",
    nothing: "returned NoneType instead of a list",
    one_number: "returned float instead of a list",
    not_a_number: "returned nan for completion 5",
    infinite: "returned inf for completion 1",
    too_large: "returned 1e+300 for completion 0",
    text: "returned '1.0' (str) for completion 0",
    nested: "returned '[1.0]' (list) for completion 0",
}


def test_outcomes(tmp_path):
    """The table of what becomes of wrong functions, beside a right one, under both settings."""
    print(f"\n{'function':14} {'stop':60} drop")
    for function, said in WRONG.items():
        folder = tmp_path / function.__name__
        with pytest.raises(UsageError) as caught:
            Rewards([length, function], directory=folder)(PROMPTS, TEXTS, COLUMNS)
        sentence = str(caught.value)
        assert (
            f"the reward function {function.__name__} {said}" in sentence and "\n" not in sentence
        )
        file = folder / f"reward_error_{function.__name__}_rank0.jsonl"
        assert str(file) in sentence
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert [row["completions"] for row in rows] == ["a", "bb", "ccc", "dddd", "", "f"]
        assert (
            rows[5]["prompts"] == "p1"
            and rows[5]["answer"] == "y"
            and said[:12] in rows[0]["error"]
        )

        dropping = Rewards([length, function], errors="drop", directory=folder / "drop")
        with pytest.warns(UserWarning, match="left out"):
            rewards, stats = dropping(PROMPTS, TEXTS, COLUMNS)
        assert rewards.isnan().all() and stats["rewards/length/mean"] == pytest.approx(11 / 6)
        assert (stats["rewards/groups_left_out"], stats["rewards/failed_calls"]) == (2, 1)
        with pytest.warns(UserWarning):
            dropping(PROMPTS, TEXTS, COLUMNS)
        assert len(list((folder / "drop").iterdir())) == 1
        print(
            f"{function.__name__:14} {said:60} {int(stats['rewards/groups_left_out'])} groups left out, counted"
        )
    for errors in ("stop", "drop"):
        rewards, stats = Rewards([length, no_verdict], errors=errors)(PROMPTS, TEXTS, COLUMNS)
        assert rewards.tolist() == [[1, 2, 3], [4, 0, 1]] and stats["rewards/failed_calls"] == 0
    print(f"{'no_verdict':14} {'its term is left out of the sum':60} the same")


def test_a_batch_is_never_overwritten(tmp_path):
    for _ in range(2):
        with pytest.raises(UsageError):
            Rewards([raises], directory=tmp_path)(PROMPTS, TEXTS)
    assert len(list(tmp_path.iterdir())) == 2


def test_columns_that_are_not_there():
    with pytest.raises(
        UsageError,
        match="right takes 'answer', which the data does not have; there are completions",
    ):
        Rewards([right], errors="drop")(PROMPTS, TEXTS)

    def optional(completions, answer=None):
        return [answer is None] * 6

    assert Rewards([optional])(PROMPTS, TEXTS)[0].sum() == 6
    assert Rewards([optional])(PROMPTS, TEXTS, COLUMNS)[0].sum() == 0


HANG = """
    import re, sys, time
    from maxrl.rewards.functions import Rewards

    def sleeps(completions):
        time.sleep(1000)

    def spins(completions):
        while True:
            pass

    def in_c(completions):  # keeps Python's lock: no other thread runs
        sum(range(10**13))

    rewards = Rewards([globals()[sys.argv[1]]], errors=sys.argv[2], timeout=0.3, directory=sys.argv[3])
    rewards(["p"], [["a", "b"]], {"answer": ["x"]})
    print("went on")
"""


@pytest.mark.parametrize(
    "function, errors",
    [("sleeps", "stop"), ("sleeps", "drop"), ("spins", "drop"), ("in_c", "stop")],
)
def test_the_watchdog(function, errors, tmp_path):
    """A call over its limit ends the run with its stack, whatever the setting; code in C after one more second."""
    start = time.perf_counter()
    command = [sys.executable, "-c", textwrap.dedent(HANG), function, errors, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "went on" not in done.stdout
    assert f"in {function}" in done.stderr and "most recent call first" in done.stderr
    if function != "in_c":
        assert (
            f"the reward function {function} took longer than --reward-timeout 0.3 seconds"
            in done.stderr
        )
        rows = [json.loads(line) for line in next(tmp_path.iterdir()).read_text().splitlines()]
        assert [row["completions"] for row in rows] == ["a", "b"] and rows[0]["answer"] == "x"
    print(
        f"\n{function}, {errors}: ended after {time.perf_counter() - start:.1f} s, imports included"
    )


def test_the_watchdog_lets_others_pass():
    """Neither the timer nor faulthandler's is left behind by calls that return or raise."""
    ends = Rewards([length], timeout=0.5)  # many times what they take on a busy machine
    fails = Rewards([raises], timeout=0.5, errors="drop", directory="/nonexistent")
    for _ in range(20):
        ends(PROMPTS, TEXTS)
    fails.save = lambda *_: "nowhere"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fails(PROMPTS, TEXTS)
    time.sleep(1.7)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"functions": []}, "at least one"),
        ({"weights": [1, 2]}, "1 reward functions and 2 weights"),
        ({"weights": [math.nan]}, "finite"),
        ({"errors": "ignore"}, "stop, drop"),
        ({"timeout": -1}, "reward-timeout -1"),
        ({"timeout": math.nan}, "reward-timeout nan"),
    ],
)
def test_refused_settings(options, words):
    with pytest.raises(UsageError, match=words):
        Rewards(**{"functions": [length]} | options)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match="equally long"):
        Rewards([length])(PROMPTS, [["a"], ["b", "c"]])
    with pytest.raises(ValueError, match=r"columns \['answer'\]"):
        Rewards([length])(PROMPTS, TEXTS, {"answer": ["x"]})


def test_names_of_two_alike(tmp_path):
    rewards = Rewards([length, length])
    assert list(rewards.functions) == ["length", "length_2"]
    assert rewards(PROMPTS, TEXTS)[1]["rewards/length_2/mean"] == pytest.approx(11 / 6)


def test_loading(tmp_path):
    """package.module:function, file.py:function; one sentence for whatever is wrong."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\n"
        "def good(completions):\n    return [A().x] * len(completions)\nnumber = 3\n"
    )
    assert imported(f"{file}:good", "--reward")(["a", "b"]) == [1, 1]
    assert imported("math:fsum", "--reward") is math.fsum
    assert Rewards([f"{file}:good"])(PROMPTS, TEXTS)[0].sum() == 6
    broken, leaving = tmp_path / "broken.py", tmp_path / "leaving.py"
    broken.write_text("def f(:\n")
    leaving.write_text("import sys\nsys.exit(3)\n")
    for spec, words in {
        "mine": "is not written",
        ":f": "is not written",
        f"{file}:": "is not written",
        f"{file}:god": "has no function or class god; did you mean good",
        f"{file}:number": "has no function or class number",
        f"{tmp_path}/none.py:f": "cannot be imported: FileNotFoundError",
        "no.such.module:f": "cannot be imported: ModuleNotFoundError",
        f"{broken}:f": "cannot be imported: SyntaxError",
        f"{leaving}:f": "cannot be imported: SystemExit",
    }.items():
        with pytest.raises(UsageError, match=words):
            imported(spec, "--reward")


def test_judge_takes_a_tasks_place():
    """From examples and rollouts: completions without end tokens, columns by name, NaN where one example has none."""
    rollouts = tiny.rollouts()
    examples = [Example(f"p{i}", "", {"n": i} | ({"odd": 1} if i % 2 else {})) for i in range(4)]

    def index(prompts, completions, completion_ids, n, odd):
        assert odd == [None] * 4 + [1] * 4 + [None] * 4 + [1] * 4 and len(completions) == 16
        assert [len([w for w in c.split(" ") if w]) + 1 for c in completions] == [
            len(ids) for ids in completion_ids
        ]
        return n

    judge = Rewards([index])
    assert judge.judge(examples, rollouts).tolist() == [[i] * 4 for i in range(4)]
    assert judge.over_ranks()["rewards/index/mean"] == 1.5
