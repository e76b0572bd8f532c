"""eval.py and sample.py through their front doors."""

import contextlib
import datetime
import io
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import tqdm
from tokenizers import Regex, pre_tokenizers

from maxrl import checkpoint
from maxrl.config import Config
from maxrl.evaluation import judge_samples
from maxrl.io import chat_template, files
from maxrl.io.files import read_json
from maxrl.io.tokenizer import Tokenizer
from maxrl.metrics import pass_at_k
from maxrl.parallel import distributed
from maxrl.policy import SequencePolicy
from maxrl.run import setup, table
from maxrl.sampling.sampler import noise
from maxrl.tasks import load_task
from maxrl.tasks.maze import VOCABULARY, Maze
from tests.helpers import tiny
from tests.helpers.runs import passed, refused
from tests.helpers.tables import put

FEW = ("--samples", 8, "--k", "1,4,8", "--prompts", 10, "--precision", "float32")
UP = (*FEW, "--task", "tests.helpers.tiny:Up", "--max-response", 6)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A second checkpoint whose logits were set by hand: UP is rarer than with `dice`."""
    path = tmp_path_factory.mktemp("dice") / "other"
    tokenizer = Tokenizer.from_vocabulary(VOCABULARY)
    checkpoint.save(path, tiny.dice(UP=0.2, LEFT=0.5, DONE=0.3), tokenizer, [2, 7])
    return path


@pytest.fixture
def evaluate(shell):
    """evaluate(words) -> what eval.py prints, and its results."""

    def run(*words):
        file = Path("out.json")
        file.unlink(missing_ok=True)
        said = passed(shell("eval.py", *words, "--json", file))
        return said, read_json(file)

    return run


def throws(indices, samples: int, chance: float, seed: int = 0) -> list[int]:
    """How many of the samples begin with UP where that has this chance.

    DONE and its like come before UP in the vocabulary, LEFT after it.
    """
    first = noise(seed, 0, indices, samples, 6)[:, :, 0]
    done = 0.25 if chance == 0.5 else 0.3
    return ((first >= done) & (first < done + chance)).sum(1).tolist()


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


def test_seeds_share_a_row(dice, other, evaluate):
    """A name given twice is averaged per prompt: the standard error is over prompts alone."""
    rows = (f"two={dice}", f"two={other}", f"one={dice}")
    said, results = evaluate(*rows, *UP, "--against", "two", "--seed", 1)
    first, second, third = (row["counts"] for row in results["checkpoints"])
    assert first == third == throws(range(10), 8, 0.5, seed=1)
    assert second != first
    assert cell((pass_at_k(8, first, 1) + pass_at_k(8, second, 1)) / 2) in said
    # Its row, and the head of the differences.
    assert len(re.findall(r"^two (?: *\d|minus)", said, re.M)) == 2


JUDGES = """
calls = []
def judge(prompts, completions):
    calls.append(1)
    return [None if len(calls) == 1 and i == 17 else 1.0 for i in range(len(prompts))]
def nobody(completions):
    return [None] * len(completions)
def up(completions):
    return [float(text[:2] == 'UP') for text in completions]
def half(completions):
    return [0.5] * len(completions)
"""


@pytest.fixture
def judges(in_a_directory_of_its_own):
    Path("judges.py").write_text(JUDGES)


def test_a_prompt_without_a_verdict_leaves_all_rows(judges, dice, other, evaluate, shell):
    """It is neither right nor wrong, of no row, so that these stay paired; and it is said."""
    ask = (f"base={dice}", f"other={other}", *UP, "--reward")
    said, results = evaluate(*ask, "judges.py:judge")
    assert "1 without a verdict left out" in said
    assert results["no_verdict"] == [2]
    assert [row["counts"] for row in results["checkpoints"]] == [[8] * 9] * 2
    none = shell("eval.py", *ask, "judges.py:nobody")
    refused(none, "no prompt has a verdict on all of its samples")


def test_the_mean_of_every_reward_function(judges, dice, evaluate):
    """Over the rollouts that pass@k is of."""
    two = ("--reward", "judges.py:up,judges.py:half", "--reward-weights", "1,0")
    said, results = evaluate(dice, *UP, *two)
    (row,) = results["checkpoints"]
    assert row["rewards/up/mean"] == pytest.approx(sum(row["counts"]) / 80)
    assert row["rewards/half/mean"] == 0.5
    assert f"up {sum(row['counts']) / 80:.3f}, half" in said


PARTIAL = """
def up(completions):
    return [REWARD if text[:2] == 'UP' else 0.0 for text in completions]
"""


@pytest.mark.parametrize(
    "reward, weights, shown",
    [
        ("0.5", "", True),
        ("0.25", "", True),
        ("-1.0", "", True),
        ("3.0", "", True),
        ("1.0", "--reward-weights 0.5", True),
        ("0.5", "--reward-weights 2", False),
        ("1.0", "", False),
    ],
)
def test_rewards_that_are_not_0_or_1(dice, evaluate, shell, reward, weights, shown):
    """Their mean is shown, since pass@1 counts a reward of 1 alone, and sample.py shows each."""
    Path("rewards.py").write_text(PARTIAL.replace("REWARD", reward))
    ask = (*UP, "--reward", "rewards.py:up", *weights.split())
    said, results = evaluate(dice, *ask)
    each = float(reward) * float(weights.split()[-1] if weights else 1)
    mean = each * sum(throws(range(10), 8, 0.5)) / 80
    (row,) = results["checkpoints"]
    assert row["reward"] == pytest.approx(mean)
    assert (f"reward {mean:.3f}" in said) == shown
    look = ("--samples", 8, "--prompts", 3, "--max-response", 6, "--task", "tests.helpers.tiny:Up")
    said = passed(shell("sample.py", dice, *look, *ask[len(UP) :]))
    assert (f"reward {each:g}\n" in said) == shown
    both = passed(shell("sample.py", dice, dice, *look, *ask[len(UP) :]))
    assert ("reward" in both) == shown


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


def test_the_bar_ends_when_all_is_done(dice, evaluate, monkeypatch):
    """On two ranks the first one has half of the prompts."""
    bars = set()

    class Bar(tqdm.tqdm):
        def close(self):
            bars.add((self.n, self.total))
            super().close()

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "setup", lambda device: (0, 2, torch.device("cpu")))
    evaluate(dice, *UP, "--prompts", 9)
    assert bars == {(5, 5)}


@pytest.mark.parametrize(
    "rows, options, length", [("69", (), 9), ("96", (), 9), ("69", ("--max-response", 4), 4)]
)
def test_responses_may_be_as_long_as_the_longest_of_all_rows(evaluate, rows, options, length):
    """Whichever row is the first; an option decides for all."""
    tokenizer = Tokenizer.from_vocabulary(VOCABULARY)
    for name in "69":
        recipe = {"config": Config(task="tests.helpers.tiny:Up", max_response=int(name)).to_dict()}
        checkpoint.save(name, tiny.dice(UP=0.5, DONE=0.5), tokenizer, [2, 7], recipe=recipe)
    _, results = evaluate(*rows, *FEW, "--task", "tests.helpers.tiny:Up", *options)
    assert results["max_response"] == length


TRUE = {"zero_reward_at_limit": True}
ONE = {"reward": ["judges.py:up"]}
BOTH = {"reward": ["judges.py:up", "judges.py:half"]}
OTHER = {"task": "maze", "zero_reward_at_limit": True}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "recipes, options, expected",
    [
        # What all recipes say, in either order; a row without a recipe or of another task has no
        # say, nor has one about the weights of other functions.
        ([TRUE, None], "", TRUE),
        ([TRUE, TRUE], "", TRUE),
        ([TRUE, {}], "--zero-reward-at-limit true", TRUE),
        ([TRUE, {}], "--zero-reward-at-limit false", {"zero_reward_at_limit": False}),
        ([OTHER, {}], "", {"zero_reward_at_limit": False}),
        ([ONE, BOTH | {"reward_weights": [1, 0]}], "--reward judges.py:up", {"reward_weights": []}),
        ([BOTH, None], "--reward judges.py:up,judges.py:half", {"reward_weights": []}),
        (
            [BOTH | {"reward_weights": [1, 0]}, BOTH],
            "--reward judges.py:up,judges.py:half --reward-weights 0,1",
            {"reward_weights": [0, 1]},
        ),
        # No row decides for the other.
        ([TRUE, {}], "", "--zero-reward-at-limit"),
        ([ONE, BOTH], "", "--reward"),
        ([ONE, {}], "", "--reward"),
        (
            [BOTH | {"reward_weights": [1, 0]}, BOTH],
            "--reward judges.py:up,judges.py:half",
            "--reward-weights",
        ),
    ],
)
def test_one_judge_for_all_rows(judges, shell, recipes, options, expected, turned):
    """Whichever is the first: half of the responses of one token are cut."""
    names = ["a", "b"]
    for name, recipe in zip(names, recipes):
        config = {"task": "tests.helpers.tiny:Up", "max_response": 1} | (recipe or {})
        known = {} if recipe is None else {"recipe": {"config": Config(**config).to_dict()}}
        tokenizer = Tokenizer.from_vocabulary(VOCABULARY)
        checkpoint.save(name, tiny.dice(UP=0.5, DONE=0.5), tokenizer, [2, 7], **known)
    rows = names[::-1] if turned else names
    ask = (*rows, *UP, "--max-response", 1, "--json", "out.json", *options.split())
    if isinstance(expected, str):
        refused(shell("eval.py", *ask), expected + " ")
        return
    said = passed(shell("eval.py", *ask))
    results = read_json("out.json")
    assert {name: results[name] for name in expected} == expected
    assert results["checkpoints"][0]["counts"] == results["checkpoints"][1]["counts"]
    assert ("cut" in said) == results["zero_reward_at_limit"]
    # UP is right, and the only one that is cut.
    if "zero_reward_at_limit" in expected:
        assert any(results["checkpoints"][0]["counts"]) != results["zero_reward_at_limit"]


OLD = "2024-07-26T01:02:03"
LATER = "2025-01-02T00:00:00"


@pytest.mark.parametrize("script", ["eval.py", "sample.py"])
@pytest.mark.parametrize(
    "dates, printed",
    [
        ([OLD], OLD),
        ([OLD, LATER], LATER),
        ([LATER, OLD], LATER),
        ([None, OLD], OLD),
        ([OLD, 5, "yesterday", {}], OLD),
        ([None, None], None),
    ],
)
def test_templates_print_one_date(dates, printed, script, shell, monkeypatch):
    """That of the run, the latest of several, or else of the day on which the program began: the
    clock goes on by a day whenever somebody looks at it."""
    seen = []
    encode = Tokenizer.encode

    def noted(self, text):
        seen.append(text)
        return encode(self, text)

    class Clock(datetime.datetime):
        today = datetime.datetime(2020, 1, 1)

        @classmethod
        def now(cls):
            cls.today += datetime.timedelta(1)
            return cls.today

    monkeypatch.setattr(Tokenizer, "encode", noted)
    for module in (setup, chat_template):
        monkeypatch.setattr(module, "datetime", Clock)
    words = Tokenizer.from_vocabulary(VOCABULARY)
    words.config["chat_template"] = "{{ strftime_now('%FT%T') }} {{ messages[0].content }}"
    put(Path("mine.jsonl"), [{"prompt": [{"role": "user", "content": "UP"}]}] * 4)
    Path("judges.py").write_text(JUDGES)
    for place, date in enumerate(dates):
        recipe = {"config": Config(task="prompts").to_dict(), "date": date}
        known = {} if date is None else {"recipe": recipe}
        checkpoint.save(f"row{place}", tiny.dice(UP=0.5, DONE=0.5), words, [2, 7], **known)
    rows = [f"row{place}" for place in range(len(dates))]
    task = "--task prompts --task.test mine.jsonl --split test --reward judges.py:up"
    few = f"{task} --max-response 6 --samples 2 --prompts 2"
    json = ("--json", "out.json") if script == "eval.py" else ()
    passed(shell(script, *rows, *few.split(), *json))
    (text,) = set(seen)
    assert text.split()[0] == (printed or "2020-01-02T00:00:00")
    if json:
        assert text.startswith(read_json("out.json")["date"])


def test_every_row_is_tried_before_any_sampling(dice, shell, monkeypatch):
    """A prompt may have more tokens for the second tokenizer than for the first."""
    letters = Tokenizer.from_vocabulary((*"<>UPLEFTbos ", "<unk>"))
    letters.backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    checkpoint.save("letters", tiny.model(max_position_embeddings=16), letters, [12])
    monkeypatch.setattr(SequencePolicy, "rollout", None)
    refused(shell("eval.py", dice, "letters", *UP), "letters: ", "the model's 16 positions")


def test_checkpoints_that_do_not_fit(warm, mazes, shell):
    """A directory without a recipe needs --task; a vocabulary that is not the task's is named."""
    shutil.copytree(checkpoint.find(warm), "bare")
    for name in ("recipe.json", "checksums.json"):
        Path("bare", name).unlink()
    refused(shell("eval.py", "bare"), "--task")
    task = ("--task", "maze", "--task.size", 7, "--task.directory", mazes, "--max-response", 20)
    passed(shell("eval.py", "bare", *FEW, *task))
    file = Path("bare/tokenizer.json")
    file.write_text(file.read_text().replace('"DONE"', '"READY"'))
    refused(shell("eval.py", "bare", *FEW, *task), "no token 'DONE'")


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
    sampled.clear()
    norms = "--samples 4 --prompts 2 --json norms.json"
    passed(shell("results/gradients/norms.py", "rl", *norms.split()))
    assert set(sampled) == {(1, 1, 0)}


def test_which_test_set_and_what_its_verifier_lost(warm, evaluate, monkeypatch):
    """GSM8K has two test sets; a comparison that took too long made an answer wrong."""
    Path("words").mkdir()
    Path("words/test.jsonl").write_text('{"problem": "UP", "answer": "5"}\n' * 3)
    Path("words/info.json").write_text('{"test": "GSM8K-Platinum"}')
    counts = {"rewards/verifier_timeouts": 2.0, "rewards/verifier_failures": 1.0}
    monkeypatch.setattr("maxrl.rewards.functions.take_counts", lambda: dict(counts))
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


def test_sample(warm, mazes, shell):
    """It shows rollouts of the noise that eval.py uses, without escapes if there is no terminal;
    with --both only prompts that have right and wrong ones."""
    ask = ("sample.py", warm, "--prompts", 24, "--samples", 8)
    said = passed(shell(*ask))
    assert not {"\x1b", "\r"} & {*said}
    policy = tiny.policy(checkpoint.load_model(warm)[0], max_tokens=20)
    task = load_task("maze", "validation", size=7, directory=str(mazes))
    counts = judge_samples(policy, task, range(24), 8)[0].tolist()
    shown = re.findall(r"prompt (\d+): (\d) of 8 rollouts are right", said)
    assert [(int(i), int(count)) for i, count in shown] == list(enumerate(counts))
    # What the model has learned differs from machine to machine.
    assert ("right:" in said) == any(counts)
    mixed = [i for i, count in enumerate(counts) if 0 < count < 8]
    both = passed(shell(*ask, "--both"))
    assert [int(i) for i in re.findall(r"prompt (\d+):", both)] == mixed
    none = passed(shell(*ask, "--samples", 1, "--both"))
    assert "no prompt has right and wrong rollouts" in none


def test_sample_of_two_models(warm, dice, mazes, shell):
    """Next to each other stand the first rollout of each, its verdict and its count."""
    few = ("--samples", 1, "--task", "maze", "--max-response", 20)
    few += ("--task.size", 7, "--task.directory", mazes)
    drawn = []
    counts = []
    for models in ((warm,), (dice,), (warm, dice)):
        said = passed(shell("sample.py", *models, *few))
        counts.append(re.findall(r"(\d) of 1", said))
        lines = [line for line in said.splitlines() if not re.search(r"prompt|of 1", line)]
        drawn.append([line.split() for line in lines])
    left, right, both = drawn
    assert left != right
    assert both == [a + b for a, b in zip(left, right)]
    assert counts[2] == [count for pair in zip(*counts[:2]) for count in pair]


def in_samples(k, against, **counts):
    """What is said of these numbers of right samples of 8, the same for three prompts."""
    rows = [{"name": name, "counts": [n] * 3} for name, n in counts.items()]
    return table.in_samples({"checkpoints": rows, "classes": 0, "samples": 8}, k, against)


def test_how_many_samples_match():
    # pass@4 of base is 1/2, as pass@1 of mine, whose pass@4 best has at once.
    said = in_samples(4, "mine", base=1, mine=4, best=8)
    assert re.search(r"pass@4 of base in 1 .*4\).* of best in more than 4 .*1\)", said)
    # Three of 8 are right, so that 6 samples always have one. Both rows need as many.
    assert re.findall(r"\d+", in_samples(6, "other", one=3, other=3)) == ["6"] * 3


def test_the_table_in_words():
    """More and fewer are differences of two paired standard errors; ten prompts, +-.01."""
    noise = np.array([0.01, -0.01] * 5)
    values = {"base": 0.1 + noise, "grpo": 0.3 + noise[::-1], "maxrl": 0.2 + noise}
    assert "more than base, fewer than grpo" in table.in_words(64, values, "maxrl")
    values = {"base": 0.4 + noise, "grpo": 0.8 + noise, "maxrl": 0.8 + noise[::-1]}
    said = table.in_words(64, values, "maxrl")
    assert "more than base, neither clearly more nor fewer than grpo" in said


@pytest.mark.parametrize(
    "base, mine, verdict",
    [
        # Equal differences, whose error is 0, of three and of nine prompts say nothing.
        ([0.25] * 3, [0.1] * 3, "neither"),
        ([0.0] * 9, [1.0] * 9, "neither"),
        ([0.5], [0.9], "neither"),
        ([0.5] * 200, [0.5] * 200, "neither"),
        ([0.0] * 10, [1.0] * 10, "solves more"),
        ([0.75] * 10, [0.5] * 9 + [0.7], "solves fewer"),
        ([0.5] * 10, [0.5] * 9 + [0.7], "neither"),
    ],
)
@pytest.mark.parametrize("k", [1, 2, 64])
def test_a_verdict_needs_prompts(base, mine, verdict, k):
    values = {"base": np.array(base), "mine": np.array(mine)}
    said = table.in_words(k, values, "mine")
    assert f"mine {verdict}" in said.replace("solves neither", "neither")
    # One try has no number, and k tries have theirs.
    assert re.findall(r"\d+", said) == ([] if k == 1 else [str(k)])


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
    output = output()
    monkeypatch.setattr(sys, "stdout", output)
    result, said = shell("eval.py", dice, *UP, "--json", "out.json", "--plot", "out.png")
    with contextlib.suppress(OSError):
        output and output.close()
    assert (result, "Traceback" in said) == (code, False), said
    assert sum(read_json("out.json")["checkpoints"][0]["counts"]) > 0
    assert Path("out.png").exists()


@pytest.mark.parametrize("option", [("--json", "j.json"), ("--plot", "p.png")])
def test_results_that_cannot_be_written_leave_no_file(option, other, shell, monkeypatch):
    """A full disk leaves no half file, which would make eval.py refuse the same command later."""

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "flush", full)
    refused(shell("eval.py", other, *UP, *option), "No space left on device")
    assert not list(Path().iterdir())
