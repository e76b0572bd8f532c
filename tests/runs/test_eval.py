"""eval.py and sample.py through their front doors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import tqdm
from runs import SHORT, refused
from tokenizers import Regex, pre_tokenizers

from maxrl import checkpoint
from maxrl.config import Config
from maxrl.evaluation import judge_samples
from maxrl.io import files
from maxrl.io.tokenizer import Tokenizer
from maxrl.metrics import pass_at_k
from maxrl.parallel import distributed
from maxrl.policy import SequencePolicy
from maxrl.recipes import RECIPES
from maxrl.run import table
from maxrl.sampling.sampler import noise
from maxrl.tasks import load_task
from maxrl.tasks.maze import VOCABULARY

FEW = ("--samples", 8, "--k", "1,4,8", "--prompts", 10, "--precision", "float32")
UP = ("--task", "tiny:Up", "--max-response", 6)


JUDGES = """
calls = []
def judge(prompts, completions):
    calls.append(1)
    return [None if len(calls) == 1 and i == 17 else 1.0 for i in range(len(prompts))]
def nobody(completions):
    return [None] * len(completions)
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A second checkpoint whose logits were set by hand: UP is rarer than with `dice`."""
    path = tmp_path_factory.mktemp("dice") / "other"
    tokenizer = Tokenizer.from_vocabulary(VOCABULARY)
    checkpoint.save(path, tiny.dice(UP=0.2, LEFT=0.5, DONE=0.3), tokenizer, [2, 7])
    return path


def throws(indices, samples: int, chance: float, seed: int = 0) -> list[int]:
    """How many of the samples begin with UP where that has this chance.

    DONE and its like come before UP in the vocabulary, LEFT after it.
    """
    first = noise(seed, 0, indices, samples, 6)[:, :, 0]
    done = 0.25 if chance == 0.5 else 0.3
    return ((first >= done) & (first < done + chance)).sum(1).tolist()


def written(name="out.json"):
    return json.loads(Path(name).read_text())


def cell(values, form=".3f") -> str:
    return f"{values.mean():{form}} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"


def test_table_and_json(dice, other, shell):
    """The table's numbers follow from the counts in the file, these from noise and logits alone."""
    options = (*FEW, *UP, "--json", "out.json", "--split", "validation")
    code, said = shell("eval.py", f"base={dice}", f"other={other}", *options)
    assert code == 0, said
    results = written()
    assert (results["samples"], results["prompts"], results["split"]) == (8, 10, "validation")
    assert results["task"] == "tiny:Up" and "eval.py base=" in results["command"]
    counts = {row["name"]: row["counts"] for row in results["checkpoints"]}
    assert list(counts.values()) == [throws(range(10), 8, 0.5), throws(range(10), 8, 0.2)]
    assert 0 < sum(counts["other"]) < sum(counts["base"]) < 80
    for name, row in counts.items():
        for k in (1, 4, 8):
            numbers = re.escape(cell(pass_at_k(8, row, k)))
            assert re.search(rf"^{name} .*{numbers}", said, re.M)
    difference = pass_at_k(8, counts["other"], 1) - pass_at_k(8, counts["base"], 1)
    assert cell(difference, "+.3f") in said, "paired over prompts"
    curve = results["pass@k"]["base"]
    assert curve["k"] == [1, 2, 4, 8]
    assert curve["mean"][2] == pytest.approx(pass_at_k(8, counts["base"], 4).mean(), abs=1e-12)


def test_seeds_share_a_row(dice, other, shell):
    """A name given twice is averaged per prompt: the standard error is over prompts alone."""
    options = (*FEW, *UP, "--json", "out.json", "--against", "two")
    code, said = shell("eval.py", f"two={dice}", f"two={other}", f"one={dice}", *options)
    assert code == 0, said
    counts = [row["counts"] for row in written()["checkpoints"]]
    assert counts[0] == counts[2] != counts[1] and len(counts) == 3
    assert cell((pass_at_k(8, counts[0], 1) + pass_at_k(8, counts[1], 1)) / 2) in said
    assert len(re.findall("^two ", said, re.M)) == 2  # its row, and the head of the differences


def test_the_same_noise_every_time_and_another_by_seed(dice, shell):
    for i, seed in enumerate((0, 0, 1)):
        options = (*FEW, *UP, "--seed", seed, "--json", f"{i}.json")
        assert shell("eval.py", f"a={dice}", *options)[0] == 0
        counts = written(f"{i}.json")["checkpoints"][0]["counts"]
        assert counts == throws(range(10), 8, 0.5, seed)


def test_a_prompt_without_a_verdict_leaves_all_rows(dice, other, shell):
    """It is neither right nor wrong, of no row, so that these stay paired; and it is said."""
    Path("judges.py").write_text(JUDGES)
    ask = ("eval.py", f"base={dice}", f"other={other}", *FEW, *UP, "--reward")
    code, said = shell(*ask, "judges.py:judge", "--json", "out.json")
    results = json.loads(Path("out.json").read_text())
    assert code == 0 and "1 without a verdict left out" in said and results["no_verdict"] == [2], (
        said
    )
    assert [row["counts"] for row in results["checkpoints"]] == [[8] * 9] * 2
    refused(shell(*ask, "judges.py:nobody"), "no prompt has a verdict on all of its samples")


def test_the_mean_of_every_reward_function(dice, shell):
    """Over the rollouts that pass@k is of."""
    functions = "def up(completions):\n    return [float(c[:2] == 'UP') for c in completions]\n"
    functions += "def half(completions):\n    return [0.5] * len(completions)\n"
    Path("two.py").write_text(functions)
    ask = ("eval.py", f"base={dice}", *FEW, *UP, "--json", "out.json")
    code, said = shell(*ask, "--reward", "two.py:up,two.py:half", "--reward-weights", "1,0")
    assert code == 0, said
    (row,) = written()["checkpoints"]
    assert row["rewards/up/mean"] == pytest.approx(sum(row["counts"]) / 80)
    assert row["rewards/half/mean"] == 0.5 and f"up {sum(row['counts']) / 80:.3f}, half" in said


def test_sampling_options(warm, shell):
    """Greedily all samples of a prompt are one, so that pass@8 = pass@1."""
    shell("eval.py", f"a={warm}", *FEW, "--temperature", 0, "--json", "out.json")
    assert set(written()["checkpoints"][0]["counts"]) <= {0, 8}
    cut = ("--top-p", 0.9, "--top-k", 3, "--json", "cut.json")
    code, said = shell("eval.py", f"a={warm}", *FEW, *cut)
    assert code == 0 and "top-k 3, top-p 0.9" in said and written("cut.json")["top_p"] == 0.9
    refused(shell("eval.py", f"a={warm}", *FEW, "--json", "out.json"), "out.json exists")


def test_plot(dice, other, shell):
    ask = ("eval.py", f"maxrl-$x^$={dice}", f"grpo={other}", *FEW, *UP, "--plot", "out.png")
    code, said = shell(*ask)
    assert code == 0 and Path("out.png").read_bytes().startswith(b"\x89PNG"), said
    Path("out.png").write_text("mine")
    refused(shell(*ask), "out.png exists")
    assert Path("out.png").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("--samples 8 --k 16", ["pass@16 needs at least as many samples"]),
        ("--samples 8 --k 1 8", ["8 is not an option"]),
        ("--samples 8 --k 0", ["--k 0 must be at least 1"]),
        ("--samples 0 --k 1", ["at least 1"]),
        ("--samples 2147483648", ["--samples 2147483648 must be at most"]),
        ("--top-p 0", ["--top-p 0"]),
        ("--temperature -1", ["--temperature -1"]),
        ("--against nobody", ["--against nobody is not one of the rows warm"]),
        ("--json no/where.json", ["mkdir -p no"]),
        ("--plot curve", ["curve is no figure: use a name that ends in .png"]),
        ("--samples 8 --nonsense 3", ["--nonsense is not an option"]),
        ("--task maze --task.size 6", ["odd number"]),
        ("--task.directory nowhere", ["python -m data.maze.prepare"]),
        ("--max-response 1000", ["1000 exceed the model's 128 positions"]),
    ],
)
def test_refusals(warm, shell, arguments, words):
    refused(shell("eval.py", f"warm={warm}", *arguments.split()), *words)


def test_the_ks_that_fit_the_samples(dice, shell):
    """pass@64 is a default, which nobody has asked for."""
    code, said = shell("eval.py", dice, *UP, "--samples", 16, "--prompts", 2)
    assert code == 0 and "pass@8" in said and "pass@64" not in said, said


@pytest.mark.parametrize("world", [1, 2])
def test_the_bar_ends_when_all_is_done(dice, shell, monkeypatch, world):
    """On two ranks the first one has half of the prompts."""
    bars = []

    class Bar(tqdm.tqdm):
        def close(self):
            bars.append((self.n, self.total))
            super().close()

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    monkeypatch.setattr(distributed, "world_size", lambda: world)
    monkeypatch.setattr(distributed, "setup", lambda device: (0, world, torch.device("cpu")))
    assert shell("eval.py", dice, *UP, *FEW, "--prompts", 9)[0] == 0
    assert {*bars} == {(9, 9) if world == 1 else (5, 5)}


def test_responses_may_be_as_long_as_the_longest_of_all_rows(shell):
    """Whichever row is the first; an option decides for all."""
    model, tokenizer = tiny.dice(UP=0.5, DONE=0.5), Tokenizer.from_vocabulary(VOCABULARY)
    for length in (6, 9):
        recipe = {"config": Config(task="tiny:Up", max_response=length).to_dict()}
        checkpoint.save(str(length), model, tokenizer, [2, 7], recipe=recipe)
    for rows, options, length in (
        ("69", (), 9),
        ("96", (), 9),
        ("69", ("--max-response", 4), 4),
    ):
        out = f"{rows}{length}.json"
        ask = (*rows, *FEW, "--task", "tiny:Up", *options, "--json", out)
        assert shell("eval.py", *ask)[0] == 0 and written(out)["max_response"] == length


def test_every_row_is_tried_before_any_sampling(dice, shell, monkeypatch):
    """A prompt may have more tokens for the second tokenizer than for the first."""
    letters = Tokenizer.from_vocabulary((*"<>UPLEFTbos ", "<unk>"))
    letters.backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    checkpoint.save("letters", tiny.model(max_position_embeddings=16), letters, [12])
    monkeypatch.setattr(SequencePolicy, "rollout", None)
    refused(shell("eval.py", dice, "letters", *UP, *FEW), "letters: ", "the model's 16 positions")


def test_checkpoints_that_do_not_fit(warm, shell, tmp_path):
    """A directory without a recipe needs --task; a vocabulary that is not the task's is named."""
    refused(shell("eval.py", "nowhere"), "nowhere is neither a checkpoint")
    model, tokenizer, stop = checkpoint.load_model(warm)
    checkpoint.save("bare", model, tokenizer, stop, recipe={})
    Path("bare/recipe.json").unlink()
    refused(shell("eval.py", "bare"), "--task")
    options = (
        "--task",
        "maze",
        "--task.size",
        7,
        "--max-response",
        20,
        *FEW,
        "--task.directory",
        RECIPES["tiny"]().task_options["directory"],
    )
    code, said = shell("eval.py", "bare", *options)
    assert code == 0, said
    Path("bare/checksums.json").unlink()
    text = Path("bare/tokenizer.json").read_text()
    Path("bare/tokenizer.json").write_text(text.replace('"DONE"', '"READY"'))
    refused(shell("eval.py", "bare", *options), "no token 'DONE'")
    Path("bare/config.json").write_text(
        json.dumps(json.loads(Path("bare/config.json").read_text()) | {"hidden_act": "gelu"})
    )
    refused(shell("eval.py", "bare", *options), "hidden_act")


def test_a_checkpoint_is_hashed_once(dice, other, shell, monkeypatch):
    """Before any sampling; the second is loaded twice, to see first that it can be."""
    seen, checksum = [], files.checksum
    monkeypatch.setattr(files, "checksum", lambda file: seen.append(Path(file)) or checksum(file))
    options = (*UP, "--samples", 8, "--k", 1, "--prompts", 2)
    code, said = shell("eval.py", f"a={dice}", f"b={other}", *options)
    assert code == 0, said
    weights = [path.parent for path in seen if path.name == "model.safetensors"]
    assert weights == [dice, other]


def test_evaluations_sample_as_their_recipe_says(warm, shell, monkeypatch):
    """eval_temperature and eval_top_p apply to evaluations, not to training, and in eval.py too."""
    drawn, rollout = [], SequencePolicy.rollout

    def spy(self, *arguments, **options):
        drawn.append((options.get("temperature", 1.0), options.get("top_p", 1.0)))
        return rollout(self, *arguments, **options)

    monkeypatch.setattr(SequencePolicy, "rollout", spy)
    evaluated = (
        "--eval-every",
        1,
        "--eval-prompts",
        3,
        "--eval-temperature",
        0.6,
        "--eval-top-p",
        0.5,
    )
    assert (
        shell("train.py", *SHORT, "--init", warm, "--out", "rl", "--steps", 1, *evaluated)[0] == 0
    )
    assert drawn == [(1, 1), (0.6, 0.5)]
    for options, used, words in (
        ((), (0.6, 0.5), "temperature 0.6, top-p 0.5"),
        (("--temperature", 1), (1, 0.5), "temperature 1, top-p 0.5"),
        (("--top-p", 1), (0.6, 1), "the first 10 of 24 prompts x 8 samples, temperature 0.6 ("),
    ):
        del drawn[:]
        code, said = shell("eval.py", "rl", *FEW, *options)
        assert code == 0 and words in said and {*drawn} == {used}, said
    del drawn[:]
    few = ("--samples", 4, "--prompts", 2, "--json", "norms.json")
    code, said = shell("results/gradients/norms.py", "rl", *few)
    assert code == 0 and {*drawn} == {(1, 1)}, said


def test_which_test_set_and_what_its_verifier_lost(warm, shell, monkeypatch):
    """GSM8K has two test sets; a comparison that took too long made an answer wrong."""
    Path("words").mkdir()
    Path("words/test.jsonl").write_text('{"problem": "UP", "answer": "5"}\n' * 3)
    Path("words/info.json").write_text('{"test": "GSM8K-Platinum"}')
    counts = {"rewards/verifier_timeouts": 2.0, "rewards/verifier_deaths": 1.0}
    monkeypatch.setattr("maxrl.rewards.functions.take_counts", lambda: dict(counts))
    task = ("--task", "gsm8k", "--task.directory", "words", "--max-response", 5)
    code, said = shell(
        "eval.py", f"a={warm}", f"b={warm}", *FEW, *task, "--prompts", 2, "--json", "out.json"
    )
    assert (
        code == 0
        and "test (GSM8K-Platinum): the first 2 of 3 prompts x 8 samples, temperature 1 (" in said
    ), said
    assert len(re.findall(r"2 comparisons .* took too long .*, 1 of its processes died", said)) == 2
    results = json.loads(Path("out.json").read_text())
    assert (
        results["source"] == "GSM8K-Platinum"
        and counts.items() <= results["checkpoints"][0].items()
    )


def test_sample(warm, shell):
    """It shows rollouts of the noise that eval.py uses, without escapes if there is no terminal."""
    code, said = shell("sample.py", warm, "--prompts", 3, "--samples", 16)
    assert code == 0 and said.count("rollouts are right") == 3 and "\x1b" not in said, said
    policy = tiny.policy(checkpoint.load_model(warm)[0], max_tokens=20)
    task = load_task("maze", "validation", **RECIPES["tiny"]().task_options)
    counts = judge_samples(policy, task, range(3), 16)[0].tolist()
    assert [int(n) for n in re.findall(r"prompt \d+: (\d+) of 16", said)] == counts
    assert ("right:" in said) == any(counts)
    refused(shell("sample.py", "nowhere"), "nowhere is neither")


def test_sample_both(warm, shell):
    """--both shows the prompts that have right and wrong rollouts, and only these."""
    refused(shell("sample.py", warm, "--rollouts", 8), "--rollouts is not an option")
    options = ("--prompts", 24, "--samples", 8)
    said = shell("sample.py", warm, *options)[1]
    counts = {place: int(n) for place, n in re.findall(r"prompt (\d+): (\d+) of 8", said)}
    both = [place for place, n in counts.items() if 0 < n < 8]
    code, said = shell("sample.py", warm, *options, "--both")
    assert code == 0 and re.findall(r"prompt (\d+):", said) == both
    code, said = shell("sample.py", warm, "--prompts", 2, "--samples", 1, "--both")
    assert code == 0 and "no prompt has right and wrong rollouts" in said


def test_sample_of_two_models(warm, dice, shell):
    """Next to each other stand the first rollout of each, its verdict and its count."""
    few = ("--samples", 1, "--task", "maze", "--max-response", 20)
    few += ("--task.size", 7, "--task.directory", RECIPES["tiny"]().task_options["directory"])
    said = [shell("sample.py", *models, *few) for models in ((warm,), (dice,), (warm, dice))]
    drawn = []
    for code, text in said:
        assert code == 0, text
        rows = [line.split() for line in text.splitlines() if not re.search(r"prompt|of 1", line)]
        drawn.append(rows)
    left, right, both = drawn
    assert left != right and both == [a + b for a, b in zip(left, right)]
    counts = [re.findall(r"(\d) of 1", text) for _, text in said]
    assert counts[2] == [count for pair in zip(*counts[:2]) for count in pair]


def test_how_many_samples_match():
    """Of 8 samples `base` has 1 right on each prompt, `mine` half of them, `best` all."""
    rows = [
        {"name": name, "counts": [n] * 3} for name, n in (("base", 1), ("mine", 4), ("best", 8))
    ]
    results = {"checkpoints": rows, "classes": 0, "samples": 8}
    # pass@4 of base is 1/2, as pass@1 of mine.
    said = table.in_samples(results, 4, "mine")
    assert "of base, which needs 4, at most 1" in said and "of best, which needs 1, more" in said
    # Three of 8 are right, so that 6 samples always have one. Both rows need as many.
    rows = [{"name": name, "counts": [3] * 3} for name in ("one", "other")]
    said = table.in_samples(results | {"checkpoints": rows}, 6, "other")
    assert "of one, which needs 6, about 6" in said


def test_the_table_in_words():
    """More and fewer are differences of two paired standard errors; eight prompts, +-.01."""
    noise = np.array([0.01, -0.01] * 4)
    values = {"base": 0.1 + noise, "grpo": 0.3 + noise[::-1], "maxrl": 0.2 + noise}
    assert "more than base, fewer than grpo" in table.in_words(64, values, "maxrl")
    values = {"base": 0.4 + noise, "grpo": 0.8 + noise, "maxrl": 0.8 + noise[::-1]}
    said = table.in_words(64, values, "maxrl")
    assert "more than base, neither clearly more nor fewer than grpo" in said


@pytest.mark.parametrize("option", [("--json", "j.json"), ("--plot", "p.png")])
def test_results_that_cannot_be_written_leave_no_file(option, other, shell, monkeypatch):
    """A full disk leaves no half file, which would make eval.py refuse the same command later."""

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "flush", full)
    command = ("eval.py", other, *UP, *FEW, *option)
    refused(shell(*command), "No space left on device")
    assert not list(Path().iterdir())
