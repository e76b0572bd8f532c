"""eval.py through its front door."""

import contextlib
import io
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from maxrl.analysis import plots
from maxrl.analysis.metrics import pass_at_k
from maxrl.learning.policy import SequencePolicy
from maxrl.models import checkpoint
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.tokenizer import Tokenizer
from maxrl.run import evaluation
from maxrl.system import files
from maxrl.system.errors import UsageError
from maxrl.system.files import read_json
from maxrl.system.sandbox import Died, TooSlow
from maxrl.tasks.maze import VOCABULARY, Maze
from tests.helpers import tiny
from tests.helpers.evaluated import FEW, JUDGES, UP, throws
from tests.helpers.judged import Faulty
from tests.helpers.runs import passed, refused
from tests.helpers.tables import each


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A second checkpoint whose logits were set by hand: UP is rarer than with `dice`."""
    path = tmp_path_factory.mktemp("dice") / "other"
    tokenizer = Tokenizer.from_vocabulary(VOCABULARY)
    checkpoint.save(path, Checkpoint(tiny.dice(UP=0.2, LEFT=0.5, DONE=0.3), tokenizer, [2, 7]))
    return path


# It judges the first call of eval.py alone, which has all samples of a row.
NEVER = """
def never(completions):
    calls.append(1)
    return [1.0 if len(calls) == 1 else None] * len(completions)
"""


def cell(values, form=".3f") -> str:
    return f"{values.mean():{form}} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"


def test_table_and_json(dice, other, evaluate):
    """The table's numbers follow from the counts in the file, these from noise and logits alone."""
    asked = ("--split", "validation", "--plot", "out.png")
    said, results = evaluate(f"base={dice}", f"other={other}", *UP, *asked)
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    assert results["samples"] == 8
    assert results["prompts"] == 10
    assert results["split"] == "validation"
    assert results["task"] == "tests.helpers.tiny:Up"
    assert "eval.py base=" in results["command"]
    counts = {row["name"]: row["counts"] for row in results["checkpoints"]}
    assert counts == {"base": throws(range(10), 8, 0.5), "other": throws(range(10), 8, 0.2)}
    assert 0 < sum(counts["other"]) < sum(counts["base"]) < 80
    assert "took too long" not in said
    for name, row in counts.items():
        for k in (1, 4, 8):
            numbers = re.escape(cell(pass_at_k(8, row, k)))
            assert re.search(rf"^{name} .*{numbers}", said, re.M)
    difference = pass_at_k(8, counts["other"], 1) - pass_at_k(8, counts["base"], 1)
    assert cell(difference, "+.3f") in said, "paired over prompts"
    curve = results["pass@k"]["base"]
    assert curve["k"] == [1, 2, 4, 8]
    assert curve["mean"][2] == pytest.approx(pass_at_k(8, counts["base"], 4).mean(), abs=1e-12)


def test_seeds_share_a_row(dice, other, evaluate):
    """A name given twice is averaged, and its error is the 95 % t interval over seeds; a name given
    once is paired with each.
    """
    rows = (f"two={dice}", f"two={other}", f"one={dice}")
    said, results = evaluate(*rows, *UP, "--against", "two", "--seed", 1)
    first, second, third = (row["counts"] for row in results["checkpoints"])
    assert first == third == throws(range(10), 8, 0.5, seed=1)
    assert second != first
    means = np.array([pass_at_k(8, counts, 1).mean() for counts in (first, second)])
    half = 12.706 * means.std(ddof=1) / 2**0.5  # Student's t with one degree of freedom
    assert f"{means.mean():.3f} ± {half:.3f}" in said
    assert f"{(means - means[0]).mean():+.3f} ± {half:.3f}" in said
    assert cell(pass_at_k(8, third, 1)) in said
    # Its row, and the head of the differences.
    assert len(re.findall(r"^two (?: *\d|minus)", said, re.M)) == 2


def test_one_checkpoint_is_one_seed(dice, other, shell, evaluate):
    """Twice it would have an interval of width 0; two names may share it."""
    refused(shell("eval.py", f"two={dice}", f"two={dice}", f"b={other}", *UP), "twice as two")
    said, _ = evaluate(f"a={dice}", f"b={dice}", *UP)
    assert "+0.000 ± 0.000" in said


def test_a_prompt_without_a_verdict_leaves_all_rows(judges, dice, other, evaluate, shell):
    """It is neither right nor wrong, of no row, so that these stay paired; and it is said."""
    ask = (f"base={dice}", f"other={other}", *UP, "--reward")
    said, results = evaluate(*ask, "judges.py:judge")
    assert "1 without a verdict left out" in said
    assert results["no_verdict"] == [2]
    assert [row["counts"] for row in results["checkpoints"]] == [[8] * 9] * 2
    none = shell("eval.py", *ask, "judges.py:nobody")
    refused(none, "no prompt has a verdict on all of its samples")


def test_the_mean_rewards_of_other_prompts_say_so(judges, dice, evaluate):
    """The table leaves out a prompt on which the function that counts has no verdict; the one that
    is only logged has judged it."""
    ask = (*UP, "--reward", "judges.py:up,judges.py:FUNCTION", "--reward-weights", "0,1")
    ups = sum(throws(range(10), 8, 0.5)) / 80
    for function in ("judge", "half"):
        said, results = evaluate(dice, *(str(word).replace("FUNCTION", function) for word in ask))
        assert results["no_verdict"] == ([2] if function == "judge" else [])
        (line,) = [line for line in said.splitlines() if f"up {ups:.3f}" in line]
        assert ("where each has a verdict" in line) == (function == "judge")


def test_a_row_without_any_verdict_fails_alone(judges, dice, other, shell):
    rewards = ("--reward", "judges.py:never", "--json", "j.json")
    Path("judges.py").write_text(JUDGES + NEVER)
    result = shell("eval.py", f"a={dice}", f"b={other}", *UP, *rewards)
    refused(result, "no prompt has a verdict")
    assert f"b ({other}) failed" in result[1]
    assert [row["name"] for row in read_json("j.json")["checkpoints"]] == ["a"]


def test_one_prompt_has_no_standard_error(dice, evaluate, other):
    """Nor has one prompt's difference. It is no number in the file, and not `nan` on the screen."""
    said, results = evaluate(f"a={dice}", f"b={other}", *UP, "--prompts", 1)
    assert "nan" not in said
    a, b = (row["counts"][0] / 8 for row in results["checkpoints"])
    assert f"{a:.3f}" in said
    assert f"{b - a:+.3f}" in said
    assert results["pass@k"]["a"]["se"] == [None] * 4


def test_the_mean_of_every_reward_function(judges, dice, evaluate):
    """Over the rollouts that pass@k is of."""
    two = ("--reward", "judges.py:up,judges.py:half", "--reward-weights", "1,0")
    said, results = evaluate(dice, *UP, *two)
    (row,) = results["checkpoints"]
    assert row["rewards/up/mean"] == pytest.approx(sum(row["counts"]) / 80)
    assert row["rewards/half/mean"] == 0.5
    assert f"up {sum(row['counts']) / 80:.3f}, half" in said


def test_what_guesses_solve(warm, mazes, evaluate):
    """A row, a curve and the rates of the task; none where a reward function judges."""
    task = ("--task.size", 7, "--task.directory", mazes)
    said, results = evaluate(warm, *FEW, *task)
    whole = Maze("test", 7, mazes)
    rates = np.array([whole.guess(whole[i]) for i in range(10)])
    np.testing.assert_allclose(results["guess"], rates)
    row = next(line for line in said.splitlines() if line.startswith("guess"))
    for k in (1, 4, 8):
        assert cell(1 - (1 - rates) ** k) in row
    curve = results["pass@k"]["guess"]
    np.testing.assert_allclose(curve["mean"], [np.mean(1 - (1 - rates) ** k) for k in curve["k"]])


PARTIAL = """
from tests.helpers.tiny import Up

class Half(Up):
    # Half a reward for UP alone, and 1 for UP UP.
    def verify(self, response, example):
        return response.startswith("UP") / 2 + response.startswith("UP UP") / 2

    def guess(self, example):
        return {0.0: 0.5, 0.5: 0.3, 1.0: 0.2}
"""


def test_partial_credit(dice, other, evaluate):
    """best@k has columns beside pass@k of a reward of 1, differences, a panel, and guesses."""
    Path("half.py").write_text(PARTIAL)
    task = ("--task", "half.py:Half", "--max-response", 6, "--plot", "out.png")
    said, results = evaluate(f"base={dice}", f"other={other}", *FEW, *task)
    first = throws(range(10), 8, 0.5)
    base, _ = results["checkpoints"]
    # Of 8 samples the best is 0 where none begins with UP.
    best = np.array(base["best"]["8"])
    counts = np.array(base["counts"])
    np.testing.assert_array_equal(
        best, np.where(counts > 0, 1, np.where(np.array(first) > 0, 0.5, 0))
    )
    assert base["reward"] == pytest.approx((sum(first) + sum(counts)) / 160)
    assert np.mean(base["best"]["1"]) == pytest.approx(base["reward"])
    lines = said.splitlines()
    heading = next(line for line in lines if "pass@1" in line)
    assert heading.split() == ["pass@1", "pass@4", "pass@8", "best@1", "best@4", "best@8"]
    rows = [line for line in lines if line.startswith("base ")]
    assert rows[0].rstrip().endswith(cell(best))
    other_best = np.array(results["checkpoints"][1]["best"]["8"])
    assert rows[1].rstrip().endswith(cell(other_best - best, "+.3f"))
    # The best of k of a guess: 1 unless all k are below, .5 unless all are 0.
    wanted = 1 - 0.8**8 + (0.8**8 - 0.5**8) / 2
    guess = next(line for line in lines if line.startswith("guess"))
    assert guess.rstrip().endswith(f"{wanted:.3f} ± 0.000")
    assert results["best@k"]["guess"]["mean"][3] == pytest.approx(wanted)


@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_what_is_there_is_not_replaced(option, dice, shell):
    Path("out.png").write_text("mine")
    refused(shell("eval.py", dice, *UP, option, "out.png"), "out.png exists")
    assert Path("out.png").read_text() == "mine"


def test_the_ks_that_fit_the_samples(dice, evaluate):
    """pass@64 is a default, which nobody has asked for."""
    task = ("--task", "tests.helpers.tiny:Up", "--max-response", 6)
    said, _ = evaluate(dice, *task, "--samples", 16, "--prompts", 2)
    assert "pass@8" in said
    assert "pass@64" not in said


def test_a_checkpoint_is_hashed_once(dice, other, evaluate, monkeypatch):
    """Before any sampling; the second is loaded twice, to see first that it can be."""
    seen = []
    checksum = files.checksum
    monkeypatch.setattr(files, "checksum", lambda file: seen.append(Path(file)) or checksum(file))
    evaluate(f"a={dice}", f"b={other}", *UP)
    assert [file.parent for file in seen if file.suffix == ".safetensors"] == [dice, other]


@pytest.fixture
def sampled(monkeypatch):
    """The temperatures, top-p and top-k with which something is sampled."""
    found = []
    rollout = SequencePolicy.rollout

    def spy(self, *arguments, **options):
        usual = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
        found.append(tuple(options.get(name, value) for name, value in usual.items()))
        return rollout(self, *arguments, **options)

    monkeypatch.setattr(SequencePolicy, "rollout", spy)
    return found


def test_evaluations_sample_as_their_recipe_says(warm, sampled, evaluate, shell):
    """eval_temperature and eval_top_p apply to evaluations, not to training, and in eval.py too."""
    few = "--prompts 4 --rollouts 4 --steps 1 --eval-every 1 --eval-prompts 3 --out rl"
    own = "--eval-temperature 0.6 --eval-top-p 0.5"
    passed(shell("train.py", "tiny", "--init", warm, *few.split(), *own.split()))
    assert sampled == [(1, 1, 0), (0.6, 0.5, 0)]
    for options, used, words in (
        ((), (0.6, 0.5, 0), "temperature 0.6, top-p 0.5"),
        (("--temperature", 0, "--top-k", 3), (0, 0.5, 3), "temperature 0, top-k 3, top-p 0.5"),
        (("--top-p", 1), (0.6, 1, 0), "the first 10 of 24 prompts x 8 samples, temperature 0.6 ("),
    ):
        sampled.clear()
        said, results = evaluate("rl", *FEW, *options)
        assert words in said
        assert set(sampled) == {used}
        assert results["top_p"] == used[1]


def test_which_test_set_and_what_its_verifier_lost(warm, evaluate, monkeypatch):
    """GSM8K has two test sets; a comparison that took too long made an answer wrong."""
    Path("words").mkdir()
    Path("words/test.jsonl").write_text('{"problem": "UP", "answer": "5"}\n' * 3)
    Path("words/info.json").write_text('{"test": "GSM8K-Platinum"}')
    counts = {"rewards/verifier_timeouts": 2.0, "rewards/verifier_failures": 1.0}
    monkeypatch.setattr("maxrl.tasks.rewards.POOL", Faulty([[TooSlow, TooSlow, Died]] * 2))
    task = ("--task", "gsm8k", "--task.directory", "words", "--max-response", 5)
    said, results = evaluate(f"a={warm}", f"b={warm}", *FEW, *task, "--prompts", 2)
    assert "test (GSM8K-Platinum): the first 2 of 3 prompts x 8 samples, temperature 1 (" in said
    assert len(re.findall(r"2 comparisons .* took too long .*, 1 failed otherwise", said)) == 2
    assert results["source"] == "GSM8K-Platinum"
    assert counts.items() <= results["checkpoints"][0].items()


def test_progress_in_a_file(dice, other, shell, monkeypatch):
    """Lines as those of train.py and no carriage returns: at first and every ten seconds."""
    found = []
    for pause in (1000, 0):
        monkeypatch.setattr("maxrl.run.logger.LINES", pause)
        said = passed(shell("eval.py", f"a={dice}", f"b={other}", *UP, "--samples", 512))
        assert "\r" not in said
        found.append(re.findall("(?m)^([ab]) .*[0-9]/10 .*prompt", said))
    few, many = found
    assert few == ["a", "b"]
    assert many.count("a") > 2


def opened(file, mode="w"):
    return open(file, mode, buffering=1)


def broken_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return opened(writer)


@pytest.mark.parametrize(
    "output, code",
    [
        (lambda: opened("/dev/full"), 2),
        (broken_pipe, 141),
        (lambda: opened(os.devnull, "r"), 2),
        (lambda: None, 0),
        (lambda: io.TextIOWrapper(io.BytesIO(), "ascii"), 0),
    ],
)
def test_results_are_kept_before_they_are_printed(dice, shell, monkeypatch, output, code):
    """A full disk, a reader that has gone, an output that nobody may write to or that was never
    open, one that lacks a character."""
    usual = sys.stdout, sys.stderr
    output = output()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "stderr", output and opened("/dev/full"))
    result, _ = shell("eval.py", dice, *UP, "--json", "out.json", "--plot", "out.png")
    # Left open, they would be a warning in whichever test runs when they are collected.
    for stream in (output, sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            if stream and stream not in usual:
                stream.close()
    assert result == code
    assert sum(read_json("out.json")["checkpoints"][0]["counts"]) > 0
    assert Path("out.png").exists()


@pytest.mark.parametrize("option", [("--json", "j.json"), ("--plot", "p.png")])
def test_results_that_cannot_be_written_leave_no_file(option, other, shell, monkeypatch):
    """A full disk leaves no half file, which would make eval.py refuse the same command later."""

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "flush", full)
    result = shell("eval.py", other, *UP, *option)
    refused(result, "No space left on device")
    assert not list(Path().iterdir())
    # What took hours is not lost.
    right = np.array(throws(range(10), 8, 0.2)) / 8
    assert cell(right) in result[1]


@pytest.mark.parametrize("error", [PermissionError(13, "no"), ValueError("x"), KeyError("x")])
@pytest.mark.parametrize("broken", ["files.write_text", "plots.coverage"])
def test_the_table_is_printed_whatever_happens(broken, error, other, shell, monkeypatch):
    """Where a file cannot be written, for an expected reason or another one."""

    def fail(*given):
        raise error

    module, name = broken.split(".")
    monkeypatch.setattr({"files": files, "plots": plots}[module], name, fail)
    code, said = shell("eval.py", other, *UP, "--json", "j.json", "--plot", "p.png")
    assert code
    assert cell(np.array(throws(range(10), 8, 0.2)) / 8) in said
    assert Path("j.json").exists() == (module == "plots")


@pytest.mark.parametrize("error", [UsageError("no room"), OSError("no room"), KeyboardInterrupt()])
def test_rows_before_one_that_fails_are_kept(error, dice, other, shell, monkeypatch):
    """In the table and in the file, and the error ends the script as it does without them."""
    usual = evaluation.judge_samples
    left = []

    def fail(*given, **options):
        if not left:
            raise error
        left.pop()
        return usual(*given, **options)

    monkeypatch.setattr(evaluation, "judge_samples", fail)
    asked = (*UP, "--json", "j.json")
    code, said = shell("eval.py", f"b={other}", *asked)
    assert code
    assert not Path("j.json").exists()
    left.append("a")
    kept, more = shell("eval.py", f"a={dice}", f"b={other}", *asked)
    assert kept == code
    assert cell(np.array(throws(range(10), 8, 0.5)) / 8) in more
    assert f"b ({other}) failed" in more
    if not isinstance(error, KeyboardInterrupt):
        assert "no room" in more and "no room" in said
    assert [row["name"] for row in read_json("j.json")["checkpoints"]] == ["a"]


GUESSES = """
import numpy
from tests.helpers.tiny import Up

class Guessed(Up):
    def __init__(self, split, limit=1, **options):
        pass
    def guess(self, example):
        return GUESS
"""


@each(
    "guess, words",
    """
1 / 0 | guess() raised ZeroDivisionError
example.columns["x"] | guess() raised KeyError
float("nan") | guess() raised ValueError
1.5 | guess() raised ValueError
-0.25 | guess() raised ValueError
"half" | guess() raised ValueError
exit() | guess() raised SystemExit
""",
)
def test_a_guess_that_fails_is_told_before_any_sampling(guess, words, dice, shell, monkeypatch):
    Path("guessed.py").write_text(GUESSES.replace("GUESS", guess))
    monkeypatch.setattr(SequencePolicy, "rollout", None)
    asked = (*FEW, "--task", "guessed.py:Guessed", "--max-response", 6)
    refused(shell("eval.py", dice, *asked), words, "guessed.py")


@pytest.mark.parametrize("limit", ["inf", "nan"])
def test_options_that_json_has_no_number_for(limit, dice, shell):
    """They stand in the file as Python's json writes and reads them."""
    Path("guessed.py").write_text(GUESSES.replace("GUESS", "numpy.float32(0.5)"))
    asked = (*FEW, "--task", "guessed.py:Guessed", "--max-response", 6, "--task.limit", limit)
    assert "0.500 ± 0.000" in passed(shell("eval.py", dice, *asked, "--json", "j.json"))
    assert str(read_json("j.json")["task_options"]["limit"]) == limit


@pytest.mark.parametrize("script", ["eval.py", "sample.py", "train.py"])
def test_a_model_that_computes_nan_has_no_score(dice, shell, script):
    """Its weights are finite, and their products are not: 0 right of 8 would be said of no model at
    all. Cold and warm; what a checkpoint's constants may not be is in test_families.py."""
    loaded = checkpoint.load(dice)
    with torch.no_grad():
        for layer in loaded.model.layers:
            layer.mlp.up_proj.weight.fill_(1e17)
            layer.mlp.gate_proj.weight.fill_(1e17)
            layer.post_attention_layernorm.weight.fill_(1e5)
    checkpoint.save("nan", loaded)
    asked = ("--task", "tests.helpers.tiny:Up", "--max-response", 6)
    if script == "train.py":
        results = [shell(script, "tiny", *asked, "--init", "nan", "--out", "run")]
    else:
        few = ("nan", *asked, "--samples", 4, "--prompts", 2)
        results = [shell(script, *few, "--temperature", t) for t in (0, 1)]
    for result in results:
        refused(result, "logits are not finite")
        assert "0.000" not in result[1]
