"""What the scripts work with: the splits of a task, the judge of its rollouts, and the recipe."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import cast

import torch

from maxrl.advantages import ADVANTAGES
from maxrl.advantages.options import check_estimation, estimator_options
from maxrl.advantages.registry import RewardError, find
from maxrl.learning.config import LANGUAGE, Config
from maxrl.models import checkpoint
from maxrl.models.hub_files import on_hub
from maxrl.models.tokenizer import Tokenizer
from maxrl.run.build import new_tokenizer
from maxrl.run.cli import say, warn
from maxrl.run.trackers import check_trackers
from maxrl.system import distributed
from maxrl.system.arguments import dashed, typed
from maxrl.system.errors import UsageError, refusing
from maxrl.tasks.base import FilteredTask, Task, example_of
from maxrl.tasks.ready import check_references
from maxrl.tasks.registry import load_task
from maxrl.tasks.rewards import Judge, Rewards, Verdicts, probe


def choose_judges(
    cfg: Config,
    task: Task,
    validation: Task | None,
    functions: Sequence[Callable | str] = (),
) -> tuple[Judge, Judge | None]:
    """Return the judge of a run's training prompts, and that of its evaluations, if there are any.

    functions  reward functions, by default those that cfg.reward names
    """
    eval_judge = None
    if validation is not None:
        eval_judge = choose_rewards(cfg, validation, "validation", functions)
    return choose_rewards(cfg, task, "train", functions), eval_judge


def choose_rewards(
    cfg: Config, task: Task, split: str = "train", functions: Sequence[Callable | str] = ()
) -> Judge:
    """Return the judge of a split of the task, after a look at its references.

    functions  reward functions, by default those that cfg.reward names

    The user's reward functions judge, if there are any, or else the task itself, as always for a
    classifier. With zero_reward_at_limit a response that is cut gets 0. UsageError if no reference
    can be read.
    """
    if task.classes:
        return Judge(task)
    judge: Judge
    if cfg.reward or cfg.reward_weights:
        judge = rewards = Rewards(
            functions or cfg.reward,
            cfg.reward_weights,
            cfg.reward_errors,
            cfg.reward_timeout,
            cfg.out,
            cfg.no_verdict,
        )
        rewards.bind(task)
        # A function of weight 0 may lack what it compares with.
        judging = [*compress(rewards.functions.values(), rewards.weights)]
    else:
        judge = Verdicts(task, cfg.reward_errors, cfg.reward_timeout, cfg.out)
        judging = [task.rewards]
    # Where references are learned, nothing has to read them.
    learned = cfg.supervised and split == "train"
    with refusing("", ValueError):
        check_references(task, split, [] if learned else judging)
    judge.finished_only = cfg.zero_reward_at_limit
    return judge


def load_splits(cfg: Config) -> tuple[Task, Task | None]:
    """Return the training split, and the validation split if there are evaluations."""
    task = load(cfg, "train")
    if not cfg.eval_every:
        return task, None
    validation = load(cfg, "validation")
    check_shared(task, validation)
    return task, validation


def load(cfg: Config, split: str) -> Task:
    """Return a split of the task, without the prompts that are longer than max_prompt.

    Raises UsageError if none is left.
    """
    with refusing("", ValueError, FileNotFoundError):
        task = load_task(cfg.task, split, **cfg.task_options)
        if not (cfg.init or cfg.model):
            raise UsageError(
                f"the recipe has no model for task {cfg.task}: name a checkpoint or a hub id with"
                " --init"
            )
        # A generated vocabulary has a million prompts, of one length.
        if not task.classes and (cfg.max_prompt or not task.vocabulary):
            tokenizer = checkpoint.load_tokenizer(cfg.init) if cfg.init else new_tokenizer(task)
            shorter = FilteredTask(task, tokenizer, cfg.max_prompt or sys.maxsize, cfg.init)
            if shorter.left_out and distributed.rank() == 0:
                say(
                    f"{split}: left out {shorter.left_out} of {len(task)} prompts, longer than "
                    f"--max-prompt {cfg.max_prompt} tokens"
                )
            task = cast(Task, shorter)
            if distributed.rank() == 0:
                for said in check_templates(cfg, task, tokenizer):
                    warn(f"{split}: {said}")
        if not len(task):
            raise UsageError(
                f"no {split} prompts are left of task {cfg.task}: the data is empty, or all are "
                "longer than --max-prompt"
            )
        if split == "train":
            check_repeated(task)
        return task


def check_templates(cfg: Config, task: Task, tokenizer: Tokenizer) -> Iterator[str]:
    """Say which prompts the model cannot read, which do not get its chat template, and which have
    it already."""
    if task.vocabulary:
        return
    # Where all have as many tokens there may be a million of them, all made alike.
    count = min(len(task), 1) if task.equally_long else len(task)
    prompts = [example_of(task, i).prompt for i in range(count)]
    for prompt in prompts[:100]:
        if "<unk>" in tokenizer.decode(tokenizer.encode_prompt(prompt)):
            yield f"this model's vocabulary lacks words of {prompt!s:.80}: blanks separate words"
            break
    templated = tokenizer.chat_template and cfg.task_options.get("chat") is not False
    added = tokenizer.backend.encode("").ids
    plain = [] if templated else prompts[:1]
    if added and any(tokenizer.encode_prompt(prompt)[:1] != added[:1] for prompt in plain):
        yield (
            f"this tokenizer adds {tokenizer.decode(added)!r} to texts, but prompts do not get "
            "it: write it into them, or let chat_template.jinja write it"
        )
    if not tokenizer.chat_template:
        # Other tasks are made for models without a template, too.
        if cfg.task == "prompts" and any(isinstance(prompt, list) for prompt in prompts):
            yield (
                "this model has no chat template: of a message of the user it gets the text alone"
            )
        return
    chats = [prompt for prompt in prompts if isinstance(prompt, list)]
    # A base model may be meant to go on with a text.
    if cfg.task_options.get("chat") is None and len(chats) < count:
        yield (
            "prompts that are texts do not get the chat template of this model: write messages, or "
            "use --task.chat true (false if texts are meant)"
        )
    unread = unread_roles(chats, tokenizer)
    if unread:
        yield (
            "this model's chat template leaves out messages of the role "
            f"{' and '.join(unread)}: it may know them as user or system"
        )
    begun = any(tokenizer.render(prompt).rstrip().endswith("<think>") for prompt in chats[:1])
    if begun and "format_reward" in cfg.reward:
        yield (
            "this model's chat template begins the answer with <think>, which format_reward looks "
            "for in the response: it gives 0 to all, so name one of your own, --reward FILE.py:NAME"
        )
    told = [message["content"] for prompt in chats for message in prompt]
    for mark in tokenizer.template_tokens():
        if any(mark in text for text in told):
            yield (
                f"messages contain {mark}, which this model's chat template writes: give prompts "
                "that the template has already been applied to as texts, with --task.chat false if "
                "the task is prompts"
            )
            return


def unread_roles(chats: Sequence[list[dict]], tokenizer: Tokenizer) -> list[str]:
    """Return the roles whose first message does not appear in its rendered prompt."""
    # Templates may shorten earlier answers, as by what was thought, and quote what tools say.
    seen = {"assistant", "tool"}
    unread = []
    for prompt in chats:
        for message in prompt:
            role = message["role"]
            if role in seen:
                continue
            seen.add(role)
            if message["content"].strip() not in tokenizer.render(prompt):
                unread.append(role)
    return unread


def check_learned(cfg: Config, task: Task, split: str) -> None:
    """check_shared() for a split that is evaluated, where the training prompts are at hand."""
    remote = on_hub(str(cfg.task_options.get("train", "")))
    if is_generated(task) or distributed.rank() or remote:
        return
    with contextlib.suppress(UsageError, ValueError, OSError):
        check_shared(load_task(cfg.task, "train", **cfg.task_options), task, split)


def check_shared(task: Task, asked: Task, split: str = "validation") -> None:
    """Warn of prompts of a split that are training prompts as well, unless both are one file."""
    if is_generated(task) or distributed.rank() or task.digest == asked.digest != "":
        return
    prompts = prompts_of(asked)
    shared = len(prompts & prompts_of(task))
    if shared:
        warn(
            f"{shared} of {len(prompts)} {split} prompts are training prompts, too: pass@k of "
            "these says what was learned by heart"
        )


def check_repeated(task: Task) -> None:
    """Warn if many training prompts are there twice."""
    if is_generated(task) or distributed.rank():
        return
    again = len(task) - len(prompts_of(task))
    if again > len(task) / 10:
        warn(
            f"{again} of {len(task)} training prompts repeat others, as where a folder has a set "
            "twice in different words: name one file with --task.train"
        )


def is_generated(task: Task) -> bool:
    """Whether a task has maybe a million prompts that a program makes, or images."""
    return bool(task.vocabulary or task.classes or not task.digest)


def prompts_of(task: Task) -> set[str]:
    """Return the different prompts of a task."""
    return {str(task[i].prompt) for i in range(len(task))}


def total_reward(cfg: Config) -> float:
    """Return the reward of a response to which all reward functions give 1."""
    # Rounded as a reward is: .7 + .2 + .1 is below 1 in double precision.
    return torch.tensor(float(sum(cfg.reward_weights or [1] * len(cfg.reward)))).item()


def check_total(cfg: Config):
    """Warn if a response with a 1 of all reward functions is no success."""
    total = total_reward(cfg)
    if cfg.reward and total != 1:
        warn(
            f"where all reward functions give 1 the reward is {total:g}, but pass@k and unsolved "
            "count rewards of exactly 1: let --reward-weights add up to 1, or read best@k and the "
            "means of the functions"
        )


def resolved(cfg: Config, task: Task, world: int) -> Config:
    """Return the recipe as it runs: epochs as steps, and the reference of a KL penalty.

    Raises UsageError for what could not run, before any work.
    """
    if cfg.prompts % world:
        raise UsageError(f"--prompts {cfg.prompts} must divide by the {world} ranks")
    local = cfg.prompts // world
    if local % cfg.minibatches:
        raise UsageError(
            f"--minibatches {cfg.minibatches} must divide the {local} prompts of a rank"
        )
    if ":" in cfg.estimator:
        # An estimator of the user's own, FILE.py:NAME, which may have changed in a notebook.
        ADVANTAGES.pop(cfg.estimator, None)
        with refusing(f"--estimator {cfg.estimator}: ", KeyError, TypeError, ValueError):
            ADVANTAGES[cfg.estimator] = find(cfg.estimator)
    check_estimation(cfg)
    classifier = bool(task.classes)
    if classifier and len(cfg.rollouts) > 1:
        raise UsageError(f"--rollouts {typed(cfg.rollouts)}: a classifier has no rounds; use N")
    if classifier and cfg.optimizer == "muon":
        raise UsageError("--optimizer muon trains matrices, which a classifier's filters are not")
    if classifier and cfg.aggregation == "constant":
        raise UsageError("--aggregation constant is of responses: use sequence for a classifier")
    # So that no option is silently ignored.
    for name in sorted(LANGUAGE) if classifier else ():
        value = getattr(cfg, name)
        if value != getattr(Config, name):
            raise UsageError(
                f"--{dashed(name)} {value} means nothing to a classifier: leave it out"
            )
    if cfg.eval_every and classifier != (cfg.eval_samples == 0):
        raise UsageError(
            f"--eval-samples {cfg.eval_samples}: it is 0 for a classifier, whose pass@k is exact, "
            "and at least the largest --eval-k for a language model"
        )
    # Found out now, and not by the first response that satisfies several functions.
    rewards = torch.full((1, max(cfg.rollouts)), total_reward(cfg))
    try:
        ADVANTAGES[cfg.estimator](rewards, **estimator_options(cfg))
    except RewardError as error:
        warn(f"a response that satisfies all reward functions would end the run: {error}")
    else:
        check_total(cfg)
    check_trackers(cfg.track)
    if not (cfg.reward or task.classes or cfg.supervised and not cfg.eval_every):
        # A missing package or reward function is named before any work.
        probe(task, cfg.reward_errors)
    if cfg.epochs:
        # 1.1 epochs of 100 prompts, 10 a step, are 11 steps.
        steps = round(cfg.epochs * len(task) / cfg.prompts, 9)
        cfg = replace(cfg, steps=math.ceil(steps))
    if cfg.beta and Path(cfg.init).exists():
        # The reference stays this checkpoint where --init is a run that goes on.
        cfg = replace(cfg, init=str(checkpoint.find(cfg.init)))
    return cfg
