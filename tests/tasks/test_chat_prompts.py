"""Texts before a model with a chat template, and what rewards get of messages: said early."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers.processors import TemplateProcessing

from maxrl.learning.config import Config
from maxrl.models.tokenizer import Tokenizer
from maxrl.run import banner
from maxrl.run.build import policy_from
from maxrl.run.setup import (
    check_learned,
    check_repeated,
    check_shared,
    check_templates,
    choose_rewards,
    load,
    load_splits,
)
from maxrl.system.errors import UsageError
from maxrl.tasks import load_task
from maxrl.tasks.base import Example
from tests.helpers.chats import sums, tiny_chat  # noqa: F401
from tests.helpers.tables import put

transformers = pytest.importorskip("transformers")
SYSTEM = {"role": "system", "content": "Add."}


class Prompted(list):
    """A task with this prompt alone."""

    vocabulary = ()
    equally_long = False

    def __init__(self, prompt):
        super().__init__([Example(prompt, "")])


class Sums(list):
    vocabulary = classes = ()
    digest = ""


def user(content):
    return {"role": "user", "content": content}


@pytest.fixture
def prompts(tiny_chat, in_a_directory_of_its_own):  # noqa: F811
    """prompts(rows, options) -> the task, as a run with the small chat model loads it."""

    def made(rows, **options):
        put(Path("mine.jsonl"), rows)
        options = {"train": "mine.jsonl"} | options
        return load(Config(task="prompts", task_options=options, init=tiny_chat), "train")

    return made


def test_texts_are_said(prompts):
    """Once for the data, also if only one of the prompts is a text."""
    for rows in (sums(chat=False), [*sums()[:3], sums(chat=False)[0]]):
        with pytest.warns(UserWarning, match="chat template.*--task.chat true"):
            prompts(rows)


def test_messages_for_a_model_without_a_template_are_said():
    """They are read as texts: --task.chat true does nothing then."""
    words = Tokenizer.from_vocabulary(("a", "<bos>"))
    for prompt, count in (([user("a")], 1), ("a", 0)):
        task = Prompted(prompt)
        for name, said in (("prompts", count), ("gsm8k", 0)):
            assert len([*check_templates(Config(task=name), task, words)]) == said


def test_words_that_a_model_lacks_are_said():
    """As by a model of mazes before questions: it would be trained on unknown tokens."""
    words = Tokenizer.from_vocabulary(("<unk>", "a"))
    said = [*check_templates(Config(task="prompts"), Prompted("a b"), words)]
    assert len(said) == 1 and "lacks words of a b" in said[0]
    assert not [*check_templates(Config(task="prompts"), Prompted("a a"), words)]


@pytest.mark.parametrize("template", [None, "{{ messages[0].content }}"])
def test_a_token_that_texts_begin_with_elsewhere_is_said(template):
    """Also of a model with a template, if its prompts are to stay texts."""
    words = Tokenizer.from_vocabulary(("a", "<bos>"))
    words.backend.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", words.id("<bos>"))]
    )
    words.config |= {} if template is None else {"chat_template": template}
    cfg = Config(task="prompts", task_options={"chat": False})
    (said,) = check_templates(cfg, Prompted("a"), words)
    assert "<bos>" in said


def test_a_template_in_the_prompts_is_said(tiny_chat, in_a_directory_of_its_own):  # noqa: F811
    """Texts that have gone through it would go through it twice."""
    shutil.copytree(tiny_chat, "chat")
    tokenizer = transformers.AutoTokenizer.from_pretrained("chat")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<user>"]})
    tokenizer.save_pretrained("chat")
    put(Path("mine.jsonl"), [{"prompt": "<user> 0 + 0 = <assistant>", "answer": "0"}])
    options = {"train": "mine.jsonl", "chat": True}
    with pytest.warns(UserWarning, match="<user>.*--task.chat false"):
        load(Config(task="prompts", task_options=options, init="chat"), "train")


@pytest.mark.filterwarnings("error")
def test_a_turn_without_an_end_is_said_of_messages_alone(prompts, tiny_chat, monkeypatch):  # noqa: F811
    """A text has no turns, whatever the template of a base model does."""
    monkeypatch.setattr(Tokenizer, "unstopped", lambda *_: "<end>")
    start = Config(task="prompts", init=tiny_chat), None, None, torch.device("cpu")
    policy_from(start[0], prompts(sums(chat=False), chat=False), *start[1:])
    with pytest.warns(UserWarning, match=f"{tiny_chat}: .*<end>"):
        policy_from(start[0], prompts(sums()), *start[1:])


def test_a_template_that_begins_the_thought_is_said():
    """format_reward would look for <think> in vain."""
    words = Tokenizer.from_vocabulary(("a", "<think>"))
    for end, reward, count in (
        ("<think>", "format_reward", 1),
        ("<think>", "accuracy_reward", 0),
        ("a", "format_reward", 0),
    ):
        words.config["chat_template"] = "{{ messages[0].content }} " + end
        cfg = Config(task="prompts", reward=(reward,))
        assert len([*check_templates(cfg, Prompted([user("a")]), words)]) == count


def test_a_role_that_the_template_leaves_out_is_said(tiny_chat, in_a_directory_of_its_own):  # noqa: F811
    """Every prompt would be the same text, without its question."""
    shutil.copytree(tiny_chat, "chat")
    told = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}="
    Path("chat/chat_template.jinja").write_text(told)
    for roles, said in ((("human",), "human"), (("developer", "user"), "developer")):
        rows = [{"prompt": [{"role": r, "content": f"{i} + 1"} for i, r in enumerate(roles)]}]
        put(Path("mine.jsonl"), rows)
        with pytest.warns(UserWarning, match=f"leaves out messages of the role {said}"):
            load(Config(task="prompts", task_options={"train": "mine.jsonl"}, init="chat"), "train")


def test_prompts_of_two_splits_are_said(tiny_chat, in_a_directory_of_its_own, recwarn):  # noqa: F811
    """But not if one file is named for both; of a split that is evaluated, if the training prompts
    are there; and prompts that one split has twice."""
    put(Path("a.jsonl"), sums()[:6])
    put(Path("b.jsonl"), sums()[4:8])
    for other, count in (("b.jsonl", 1), ("a.jsonl", 0)):
        options = {"train": "a.jsonl", "validation": other}
        load_splits(Config(task="prompts", task_options=options, init=tiny_chat, eval_every=1))
        said = [str(one.message) for one in recwarn.list if "training prompts" in str(one.message)]
        assert len(said) == count
        recwarn.clear()
        assert all("2 of 4" in text for text in said)
    for train, count in (("a.jsonl", 1), ("gone.jsonl", 0)):
        cfg = Config(task="prompts", task_options={"train": train, "test": "b.jsonl"})
        check_learned(cfg, load_task("prompts", "test", test="b.jsonl"), "test")
        said = [str(one.message) for one in recwarn.list]
        assert [text.split(" are ")[0] for text in said] == ["2 of 4 test prompts"] * count
        recwarn.clear()
    # Prompts that a program makes may repeat, and its training split may be far away.
    made = Sums([{"prompt": "0 + 0 =", "answer": "0"}] * 4)
    check_repeated(made)
    check_shared(made, made)
    check_learned(cfg, made, "test")
    assert not recwarn.list
    put(Path("a.jsonl"), sums()[:6] + sums()[:5])
    options = {"train": "a.jsonl", "validation": "b.jsonl"}
    with pytest.warns(UserWarning, match="5 of 11 training prompts repeat"):
        load(Config(task="prompts", task_options=options, init=tiny_chat), "train")


@pytest.mark.filterwarnings("error")
def test_what_is_meant_is_not_said(prompts):
    prompts(sums())
    assert prompts(sums(chat=False), chat=False)[0].prompt == "0 + 0 ="
    for options in ({"chat": True}, {"system": "+ ="}, {"chat": True, "system": "+ ="}):
        prompts(sums(chat=False), **options)


def test_the_options_make_messages(prompts):
    """They are those that somebody would write, and the tokens are the template's."""
    by_hand = prompts([{"prompt": [SYSTEM, user("1 + 2 =")]}, {"prompt": [SYSTEM, user("3")]}])
    made = prompts([{"prompt": "1 + 2 ="}, {"prompt": [user("3")]}], system="Add.")
    assert [example.prompt for example in made] == [example.prompt for example in by_hand]
    assert made.lengths == by_hand.lengths
    asked = prompts([{"question": "1 + 2 =", "answer": 3}], chat=True)[0]
    assert asked.prompt == [user("1 + 2 =")]
    assert (asked.answer, asked.columns["answer"]) == ("3", 3)


def test_options_that_contradict(prompts):
    own = [{"prompt": [SYSTEM, user("1")]}]
    for rows, options in (
        (sums(), {"system": "x", "chat": False}),
        (sums(), {"chat": "yes"}),
        (own, {"system": "Another."}),
    ):
        with pytest.raises(UsageError):
            prompts(rows, **options)
    assert prompts(own, chat=True)[0].prompt == own[0]["prompt"]


@pytest.mark.parametrize("turns", [1, 3])
def test_prompts_that_end_with_an_answer(prompts, turns):
    """Rows of supervised training have the answer in the messages."""
    said = [user("1 + 1 ="), {"role": "assistant", "content": "2"}] * turns
    with pytest.raises(UsageError, match="example 1 .*ends with an answer"):
        prompts([sums()[0], {"prompt": said}])
    assert prompts([{"prompt": said[:-1]}])[0].prompt == said[:-1]


def opened(cfg, task, validations=0):
    """The lines that a run begins with."""
    run = SimpleNamespace(cfg=cfg, task=task, validations=validations)
    run.recipe, run.examples, run.resumed = "prompts", len(task), None
    policy = SimpleNamespace(model=torch.nn.Linear(1, 1), autocast=None, device="cpu")
    return banner.opening(run, policy)


def told(task, *reward):
    """What the opening of a run says of the rewards."""
    lines = opened(Config(task="prompts", reward=reward), task)
    (said,) = [line for line in lines if "rewards" in line]
    return said


def test_how_many_prompts_an_evaluation_has_is_said():
    """Those of a sorted file are not all alike; nothing is said where nothing is evaluated."""
    for every, count, expected in ((20, 300, "the first 64 of 300"), (20, 9, "9"), (0, 300, None)):
        lines = opened(Config(task="prompts", eval_every=every), Prompted("a"), count)
        said = [line.split(maxsplit=1)[1] for line in lines if line.startswith("  checks")]
        assert said == ([f"{expected} validation prompts every 20 steps"] if expected else [])


def test_what_a_reward_for_messages_gets_is_said_before_the_first_step(prompts):
    chats, texts = prompts(sums()), prompts(sums(chat=False), chat=False)
    for reward in (["mine.py:own"], [], ["accuracy_reward", "mine.py:own"]):
        assert "c[0]['content']" in told(chats, *reward)
        assert "c[0]" not in told(texts, *reward)
    # The functions that are known by name read both.
    assert "c[0]" not in told(chats, "accuracy_reward")


def test_a_missing_column_is_said_before_the_first_call(prompts):
    """One that some rows lack is there, and so are those that are not of the data."""
    rows = [{"prompt": [user("1")]}, {"prompt": [user("2")], "late": 1}]

    def wants(late, prompts, completions, completion_ids, optional=1):
        raise AssertionError

    choose_rewards(Config(reward=("x",)), prompts(rows), functions=[wants])
    with pytest.raises(UsageError, match="late"):
        choose_rewards(Config(reward=("x",)), prompts(rows[:1]), functions=[wants])


@pytest.mark.parametrize(
    "task, option, near", [("prompts", "valid", "validation"), ("prompts", "sytem", "system"),
                           ("maze", "sise", "size"), ("gsm8k", "system", "arguments are")]
)  # fmt: skip
def test_options_that_a_task_does_not_have(task, option, near):
    with pytest.raises(UsageError, match=f"task {task} takes no option '{option}'; .*{near}"):
        load_task(task, "train", **{option: "x"})
