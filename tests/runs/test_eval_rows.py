"""Several rows of eval.py and sample.py: one judge, one date, one length for all."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from tokenizers import Regex, pre_tokenizers

from maxrl.learning.config import Config
from maxrl.learning.policy import SequencePolicy
from maxrl.models import checkpoint
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.tokenizer import Tokenizer
from maxrl.run.command_line import override
from maxrl.run.evaluation_options import check_row, judging_fields
from maxrl.system.arguments import runs_named
from maxrl.system.errors import UsageError
from maxrl.system.files import read_json
from maxrl.tasks.maze import VOCABULARY
from tests.helpers import tiny
from tests.helpers.chats import sums, tiny_chat  # noqa: F401
from tests.helpers.evaluated import FEW, UP
from tests.helpers.runs import passed, refused
from tests.helpers.tables import each, put

WORDS = Tokenizer.from_vocabulary(VOCABULARY)


def save(name, config, tokenizer=WORDS, **options):
    """A checkpoint of the dice, with a recipe that says this; of None without one."""
    options = {"task": "tests.helpers.tiny:Up"} | options | (config or {})
    recipe = {"recipe": {"config": Config(**options).to_dict()}}
    known = {} if config is None else recipe
    checkpoint.save(name, Checkpoint(tiny.dice(UP=0.5, DONE=0.5), tokenizer, [2, 7]), **known)


@pytest.mark.parametrize(
    "rows, options, length", [("69", (), 9), ("96", (), 9), ("69", ("--max-response", 4), 4)]
)
def test_responses_may_be_as_long_as_the_longest_of_all_rows(evaluate, rows, options, length):
    """Whichever row is the first; an option decides for all."""
    for name in "69":
        save(name, {}, max_response=int(name))
    _, results = evaluate(*rows, *FEW, "--task", "tests.helpers.tiny:Up", *options)
    assert results["max_response"] == length


@pytest.mark.parametrize("rows", ["ab", "ba"])
def test_a_row_without_a_recipe_has_no_say(evaluate, rows):
    """As of a base that the others began from: it is asked and judged as they were."""
    save("a", None)
    save("b", {}, eval_temperature=0.5, max_response=6)
    _, results = evaluate(*rows, *FEW, "--task", "tests.helpers.tiny:Up")
    assert (results["temperature"], results["max_response"]) == (0.5, 6)


# What recipes say.
SAY = {
    "plain": {},
    "cut": {"zero_reward_at_limit": True},
    "other": {"task": "maze", "zero_reward_at_limit": True},
    "one": {"reward": ["judges.py:up"]},
    "both": {"reward": ["judges.py:up", "judges.py:half"]},
}
# A warm-up, which no reward judges, has no say beside a run.
SAY["warm"] = {"estimator": "supervised", "rollouts": 1}
SAY["uneven"] = SAY["both"] | {"reward_weights": [1, 0]}
# The recipes of two rows, options, and what is used or which option is asked for. A row without a
# recipe or of another task has no say, nor has one about the weights of other functions; no row
# decides for the other.
ROWS = """
cut none | | {"zero_reward_at_limit": true}
cut cut | | {"zero_reward_at_limit": true}
cut warm | | {"zero_reward_at_limit": true}
uneven warm | --reward judges.py:up,judges.py:half | {"reward_weights": [1, 0]}
warm warm | | {"zero_reward_at_limit": false}
cut plain | --zero-reward-at-limit true | {"zero_reward_at_limit": true}
cut plain | --zero-reward-at-limit false | {"zero_reward_at_limit": false}
other plain | | {"zero_reward_at_limit": false}
one uneven | --reward judges.py:up | {"reward_weights": []}
one uneven | --reward judges.py:up,judges.py:half | {"reward_weights": [1, 0]}
both none | --reward judges.py:up,judges.py:half | {"reward_weights": []}
one uneven | --reward judges.py:half,judges.py:up --reward-weights 2,1 | {"reward_weights": [2, 1]}
uneven both | --reward judges.py:up,judges.py:half --reward-weights 0,1 | {"reward_weights": [0, 1]}
cut plain | | --zero-reward-at-limit
one both | | --reward
one plain | | --reward
uneven both | --reward judges.py:up,judges.py:half | --reward-weights
uneven none | --reward judges.py:half,judges.py:up | --reward-weights
"""


@pytest.mark.parametrize("turned", [False, True])
@each("recipes, options, expected", ROWS)
def test_one_judge_for_all_rows(judges, shell, recipes, options, expected, turned):
    """Whichever is the first: half of the responses of one token are cut."""
    for name, recipe in zip("ab", recipes.split()):
        save(name, SAY.get(recipe), max_response=1)
    ask = (*"ab"[:: -1 if turned else 1], *UP, "--max-response", 1, "--json", "out.json")
    result = shell("eval.py", *ask, *options.split())
    if expected.startswith("--"):
        refused(result, expected + " ")
        return
    said = passed(result)
    results = read_json("out.json")
    expected = json.loads(expected)
    assert expected.items() <= results.items()
    assert results["checkpoints"][0]["counts"] == results["checkpoints"][1]["counts"]
    assert ("cut" in said) == results["zero_reward_at_limit"]
    shares = [sum(row["clipped"]) / results["prompts"] for row in results["checkpoints"]]
    assert f"a: {shares[0]:.0%} of responses have no end within --max-response 1" in said
    assert 0.2 < shares[0] == shares[1] < 0.8
    # UP is right, and the only one that is cut.
    if "zero_reward_at_limit" in expected:
        assert any(results["checkpoints"][0]["counts"]) != results["zero_reward_at_limit"]


def test_the_options_of_a_task_are_those_of_all_rows():
    """Wherever the data are; a warm-up has no say, and what differs has to be given."""
    one, other = (
        {"size": 13, "directory": "a"},
        {"size": 13, "directory": "b", "reward": "progress"},
    )
    maze = [Config(task="maze", task_options=options) for options in (one, other)]
    warm = Config(task="maze", task_options={"size": 9}, estimator="supervised", rollouts=(1,))
    for recipes in ([warm, maze[0]], [maze[0], warm], [maze[0], Config(task="gsm8k")]):
        assert judging_fields("maze", {}, recipes)["task_options"] == one
    for recipes in (maze, maze[::-1]):
        with pytest.raises(UsageError, match="--task.reward"):
            judging_fields("maze", {}, recipes)
        given = {"task.reward": "goal"}
        assert judging_fields("maze", given, recipes)["task_options"] in (one, other)
    assert "task_options" not in judging_fields("countdown", {}, maze)
    # The default may be said, and an option of several words may be written in two ways.
    said = [Config(task="maze", task_options=options) for options in ({}, {"size": 17})]
    assert judging_fields("maze", {}, said)["task_options"] == {}
    own = [Config(task="mine:Own", task_options={"max_moves": moves}) for moves in (5, 6)]
    for name in ("task.max-moves", "task.max_moves"):
        assert judging_fields("mine:Own", {name: "5"}, own)


def test_paths_that_end_alike_are_rows_of_their_own():
    paths = ["maxrl/step-000100", "grpo/step-000100"]
    assert runs_named(paths) == [(path, path) for path in paths]
    assert runs_named([f"m={paths[0]}", paths[1]]) == [("m", paths[0]), ("step-000100", paths[1])]
    assert runs_named(paths[:1] * 2) == [("step-000100", paths[0])] * 2


def test_a_row_of_runs_that_differ_says_so(recwarn, in_a_directory_of_its_own):
    """In more than the seed, in how far they are, or not at all."""
    rows = {"a": {}, "b": {"seed": 1}, "c": {"seed": 1, "lr": 0.1}, "d": {"eval_every": 7}}
    rows["e"] = {"task_options": {"size": 9}}
    for name, options in rows.items():
        for step in (2, 4):
            save(f"{name}/step-{step:06}", {"task": "maze"}, **options)
    check_row("row", [Path("a/step-000002"), Path("b/step-000002")])
    assert not recwarn.list
    for paths, words in (
        (["a/step-000002", "c/step-000002"], "--lr"),
        (["a/step-000002", "b/step-000004"], "step-000002, step-000004"),
        (["b/step-000002", "b/step-000002"], "count as seeds"),
        (["a/step-000002", "b/step-000002", "d/step-000002"], "count as seeds"),
        (["a/step-000002", "e/step-000002"], "--task.size"),
    ):
        with pytest.warns(UserWarning, match=words):
            check_row("row", list(map(Path, paths)))


@pytest.mark.filterwarnings("error")
def test_a_row_of_runs_that_are_alike_says_nothing(monkeypatch, in_a_directory_of_its_own):
    """Warm-ups that stop at a pass rate, options in another order, another rank."""
    for seed, sizes in enumerate(({"size": 9, "directory": "x"}, {"directory": "x", "size": 9})):
        recipe = {"task": "maze", "task_options": sizes, "seed": seed, "eval_every": 1}
        recipe |= {"stop_at_pass": 0.1}
        save(f"warm{seed}/step-{seed:06}", recipe)
    check_row("row", [Path("warm0/step-000000"), Path("warm1/step-000001")])
    monkeypatch.setenv("RANK", "1")
    check_row("row", [Path("warm0/step-000000")] * 2)


def test_one_file_may_be_written_in_several_ways(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()
    known = Config(task="mine.py:Own", task_options={"count": 4}, reward=("mine.py:f", "mine.py:g"))
    known = dataclasses.replace(known, reward_weights=(1.0, 0.0))
    for way in ("./mine.py", str(tmp_path / "mine.py")):
        given = {"reward": (f"{way}:f", f"{way}:g")}
        found = judging_fields(f"{way}:Own", given, [known])
        assert found["task_options"] == {"count": 4} and found["reward_weights"] == (1.0, 0.0)
        assert override(known, {"task": f"{way}:Own"}).task_options == {"count": 4}
    assert override(known, {"task": "other.py:Own"}).task_options == {}
    with pytest.raises(UsageError, match="--reward-weights"):
        override(known, {"reward": ("mine.py:g", "mine.py:f")})


def test_every_row_is_tried_before_any_sampling(dice, shell, monkeypatch):
    """A prompt may have more tokens for the second tokenizer than for the first."""
    letters = Tokenizer.from_vocabulary((*"<>UPLEFTbos ", "<unk>"))
    letters.backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    checkpoint.save("letters", Checkpoint(tiny.model(max_position_embeddings=16), letters, [12]))
    monkeypatch.setattr(SequencePolicy, "rollout", None)
    refused(shell("eval.py", dice, "letters", *UP), "letters: ", "the model's 16 positions")


def test_every_row_has_a_chat_template_or_says_so(tiny_chat, judges, shell):  # noqa: F811
    """What a further row does with the prompts is said, once for rows that are alike."""
    for name in ("plain", "chat", "again"):
        shutil.copytree(tiny_chat, name)
    for file in Path("plain").glob("*.jinja"):
        file.unlink()
    put(Path("mine.jsonl"), sums(chat=False))
    asked = ("--task", "prompts", "--task.test", "mine.jsonl", "--reward", "judges.py:up")
    few = ("--samples", 2, "--k", 1, "--prompts", 2, "--max-response", 2)
    said = passed(shell("eval.py", "plain", "chat", "again", *asked, *few))
    told = [line for line in said.splitlines() if "--task.chat true" in line]
    assert len(told) == 1 and "chat: " in told[0]
    Path("again/tokenizer.json").write_text("{}")
    refused(shell("eval.py", "plain", "again", *asked, *few), "again: ", "is no tokenizer")


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
