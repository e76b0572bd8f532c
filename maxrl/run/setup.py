"""What the scripts work with: splits of a task, the judge of its rollouts, policy, optimizer."""

import contextlib
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import compress
from pathlib import Path
from typing import cast

import torch

from maxrl.advantages import ADVANTAGES
from maxrl.advantages.registry import RewardError, check_sizes, find
from maxrl.learning.config import LANGUAGE, Config
from maxrl.learning.policy import SequencePolicy
from maxrl.learning.rounds import Responses
from maxrl.models import chat_template, checkpoint, from_config, hub_files
from maxrl.models.lora import add_lora, merge
from maxrl.models.tokenizer import Tokenizer
from maxrl.run.build import Learner, make_policy
from maxrl.run.cli import say
from maxrl.run.recipes import RECIPES
from maxrl.run.trackers import check_trackers
from maxrl.sampling.cuda import CudaGraph
from maxrl.sampling.prompts import check_prompts
from maxrl.system import distributed
from maxrl.system.arguments import dashed, typed
from maxrl.system.errors import UsageError, refusing
from maxrl.system.files import read_json
from maxrl.tasks import load_task
from maxrl.tasks.base import FilteredTask, NoSplit, Task, prompt_lengths
from maxrl.tasks.ready import check_references
from maxrl.tasks.rewards import Judge, Rewards, Verdicts, probe


# ------------------------------------------------- for all scripts ------------------------------
def choose_rewards(
    cfg: Config,
    task: Task,
    validation: Task | None = None,
    functions: Sequence[Callable | str] = (),
    name: str = "train",
) -> Judge:
    """Return the judge of a task, and as its `validation` that of the evaluations.

    functions  reward functions, by default those that cfg.reward names
    name       of the split that `task` is

    The user's reward functions judge, if there are any, or else the task itself, as always for a
    classifier. With zero_reward_at_limit a response that is cut gets 0.
    """
    if task.classes:
        return Judge(task.rewards, None)
    judge = None
    for label, split in (("validation", validation), (name, task)):
        if split is None:
            continue
        # Each split has its own statistics: those of a step follow an evaluation.
        if cfg.reward or cfg.reward_weights:
            verdicts = Rewards(
                functions or cfg.reward,
                cfg.reward_weights,
                cfg.reward_errors,
                cfg.reward_timeout,
                cfg.out,
                cfg.no_verdict,
            )
        else:
            verdicts = Verdicts(split, cfg.reward_errors, cfg.out)
        # A function of weight 0 may lack what it compares with.
        judging = [*compress(verdicts.functions.values(), verdicts.weights)]
        learned = cfg.supervised and split is task
        with refusing("", ValueError):
            check_references(split, label, [] if learned else judging)
        judge = Judge(verdicts, verdicts, judge, cfg.zero_reward_at_limit)
    assert judge is not None
    return judge


# -------------------------------------------------- for train.py --------------------------------
def load_splits(cfg: Config) -> tuple[Task, Task | None]:
    """Return the training split, and the validation split if there are evaluations."""
    fix_date(cfg.out)
    return load(cfg, "train"), load(cfg, "validation") if cfg.eval_every else None


def fix_date(*folders: str | Path):
    """Let chat templates print the latest date on which a run in `folders` began, or else today's.

    A resumed run then has the prompts of an uninterrupted one, and so has its evaluation.
    """
    dates = []
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            date = read_json(Path(folder) / "recipe.json")["date"]
            # A damaged one raises.
            datetime.fromisoformat(date)
            dates.append(date)
    date = max(dates, default=datetime.now().isoformat())
    chat_template.date = distributed.from_main(date)


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
        if not len(task):
            raise UsageError(
                f"no {split} prompts are left of task {cfg.task}: the data is empty, or all are "
                "longer than --max-prompt"
            )
        return task


def new_tokenizer(task: Task) -> Tokenizer:
    """Return the tokenizer of a model from scratch."""
    if task.tokenizer:
        return Tokenizer.load(task.tokenizer)
    if not task.vocabulary:
        raise ValueError(
            "a model from scratch needs the task's vocabulary or tokenizer: give it one, or name a "
            "checkpoint or a hub id with --init"
        )
    return Tokenizer.from_vocabulary(task.vocabulary)


def check(cfg: Config, task: Task, world: int) -> Config:
    """Refuse what could not run, before any work; return the recipe with epochs as steps."""
    if cfg.prompts % world:
        raise UsageError(f"--prompts {cfg.prompts} must divide by the {world} ranks")
    local = cfg.prompts // world
    if local % cfg.minibatches:
        raise UsageError(
            f"--minibatches {cfg.minibatches} must divide the {local} prompts of a rank"
        )
    if ":" in cfg.estimator:
        # An estimator of the user's own, FILE.py:NAME.
        with refusing(f"--estimator {cfg.estimator}: ", KeyError, TypeError, ValueError):
            ADVANTAGES[cfg.estimator] = find(cfg.estimator)
    check_estimation(cfg)
    classifier = bool(task.classes)
    if classifier and len(cfg.rollouts) > 1:
        raise UsageError(f"--rollouts {typed(cfg.rollouts)}: a classifier has no rounds; use N")
    if classifier and cfg.optimizer == "muon":
        raise UsageError("--optimizer muon trains matrices, which a classifier's filters are not")
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
    total = float(sum(cfg.reward_weights or [1] * len(cfg.reward)))
    rewards = torch.full((1, max(cfg.rollouts)), total)
    try:
        ADVANTAGES[cfg.estimator](rewards, **estimator_options(cfg))
    except RewardError as error:
        if distributed.rank() == 0:
            said = f"a response that satisfies all reward functions would end the run: {error}"
            warnings.warn(said, stacklevel=2)
    check_trackers(cfg.track)
    if not (cfg.reward or task.classes or cfg.supervised and not cfg.eval_every):
        # A missing package or reward function is named before any work.
        probe(task, cfg.reward_errors)
    if cfg.epochs:
        cfg = replace(cfg, steps=math.ceil(cfg.epochs * len(task) / cfg.prompts))
    if cfg.beta and Path(cfg.init).exists():
        # The reference stays this checkpoint where --init is a run that goes on.
        cfg = replace(cfg, init=str(checkpoint.find(cfg.init)))
    return cfg


def check_estimation(cfg: Config):
    """Refuse an estimator that cannot be, without weights, data or user code."""
    if cfg.supervised and cfg.rollouts != (1,):
        raise UsageError(
            "--estimator supervised has one answer per prompt, not --rollouts "
            f"{typed(cfg.rollouts)}; use --rollouts 1"
        )
    options = estimator_options(cfg)
    # An estimator of the user's may not have been imported yet.
    if ":" not in cfg.estimator or cfg.estimator in ADVANTAGES:
        with refusing(f"--estimator {cfg.estimator}: ", KeyError, TypeError, ValueError):
            rule = ADVANTAGES[cfg.estimator]
            check_sizes(rule, cfg.rollouts, options)
            rule(torch.zeros(1, max(cfg.rollouts)), **options)
            # A run that began with it goes on.
            if (
                cfg.allow_fractional
                and cfg.resume == "no"
                and ("allow_fractional" not in rule.known or options.get(rule.count))
            ):
                raise ValueError("--allow-fractional changes nothing here: leave it out")
    fixed = options.keys() & {"order", "k", "mean_log_probs"}
    if cfg.no_verdict == "rollout" and fixed:
        raise UsageError(
            "--no-verdict rollout changes N from group to group, which "
            f"{cfg.estimator} with {', '.join(fixed)} does not take; use --no-verdict group"
        )


def policy_options(cfg: Config, task: Task, device: torch.device) -> dict:
    """Return what build.make_policy takes of a recipe for a task."""
    autocast = distributed.use_bfloat16(cfg.precision, device)
    options: dict = {"seed": cfg.seed, "workers": cfg.workers, "autocast": autocast}
    if not task.classes:
        # The fields that a SequencePolicy has by the same names.
        taken = inspect.signature(SequencePolicy).parameters.keys() - {"model", "seed"}
        options |= {name: value for name, value in vars(cfg).items() if name in taken}
        options["max_tokens"] = cfg.max_response
    return options


def start_policy(
    cfg: Config, task: Task, validation: Task | None, intact: Path | None, device: torch.device
) -> Learner:
    """Return the policy from a checkpoint, from --init, or new.

    intact  a checkpoint that has been compared with its checksums, as when a run is resumed
    """
    torch.manual_seed(cfg.seed)
    # What sampling with a former model has kept would stay beside the new one.
    CudaGraph.newest = None
    options = policy_options(cfg, task, device)
    try:
        with refusing(f"{cfg.init or 'the model'}: ", ValueError):
            model, tokenizer, stop = start_model(cfg, task, intact)
            if cfg.beta:
                # Without a checkpoint, the model itself has been read from there.
                reference, *_ = checkpoint.load_model(cfg.init, intact=intact is None)
                options["reference"] = reference.to(device)
            policy = make_policy(model, tokenizer, stop, task, device, **options)
            for split in (task, validation):
                if split is not None and tokenizer is not None:
                    # Several checkpoints that are evaluated may have several tokenizers.
                    if isinstance(split, FilteredTask) and split.init == cfg.init:
                        lengths = split.lengths
                    else:
                        lengths = prompt_lengths(split, tokenizer)
                    check_prompts(model, map(range, lengths), cfg.max_response)
            return policy
    except FileNotFoundError as error:
        name = Path(cfg.init).name
        make = f", or make this one with the recipe {name}" if name in RECIPES else ""
        raise UsageError(f"{error}: name another with --init{make}") from None


def start_model(cfg: Config, task: Task, intact: Path | None) -> tuple:
    """Return model, tokenizer and stop tokens, see start_policy."""
    tokenizer = None
    stop: list[int] = []
    if intact or cfg.init:
        model, tokenizer, stop = checkpoint.load_model(intact or cfg.init, intact is not None)
        if not cfg.lora_rank:
            # The checkpoint may be an adapter.
            merge(model)
        elif not intact:
            base = hub_files.base_name(cfg.init)
            add_lora(model, cfg.lora_rank, cfg.lora_alpha, cfg.lora_projections, base)
    elif task.classes:
        model = from_config(cfg.model | {"num_labels": len(task.classes)})
    else:
        model = from_config(cfg.model)
        tokenizer = new_tokenizer(task)
        stop = tokenizer.ends
    return model, tokenizer, stop


def estimator_options(cfg: Config, rollouts: Responses | None = None) -> dict:
    """Return the recipe's options of the estimator, and what it needs to know of the rollouts.

    Without rollouts that is the value for one group of zeros. An unknown estimator has no options;
    check_estimation refuses it.
    """
    options = dict(cfg.estimator_options)
    known = getattr(ADVANTAGES.get(cfg.estimator), "known", ())
    if "mean_log_probs" in known:
        options["mean_log_probs"] = torch.zeros(1, max(cfg.rollouts))
        if rollouts is not None:
            options["mean_log_probs"] = rollouts.mean_log_probs()
    if cfg.allow_fractional and "allow_fractional" in known:
        options["allow_fractional"] = True
    if cfg.no_verdict == "rollout" or len(cfg.rollouts) > 1:
        options["allow_missing"] = True
    return options


# ------------------------------------------ for eval.py and sample.py ---------------------------
@dataclass
class Asked:
    """What a script asks of a checkpoint's recipe: its Config, and how responses are drawn."""

    cfg: Config
    given: Collection[str]  # the fields of Config that the command names
    split: str
    temperature: float
    top_k: int
    top_p: float
    limited: bool  # whether cfg.max_response comes from a recipe or the command
    rows: Sequence[Path]  # all checkpoints

    def of(self, path: Path) -> Config:
        """Return the Config of another checkpoint."""
        return replace(self.cfg, init=str(path))

    def drawn(self, classifier: bool) -> dict[str, float]:
        """Return how a policy's rollout() draws."""
        if classifier:
            return {"temperature": self.temperature}
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}


def find_task(asked: Asked) -> tuple[Task, Judge]:
    """Return the split that is asked for and its judge, as they fit the checkpoint of asked.cfg.

    Without --split it is validation, or train if that is the only one named; asked.split is set.
    Raises UsageError if no prompt is left, if nothing can judge, and for options that mean nothing
    to the task.
    """
    cfg = asked.cfg
    fix_date(*asked.rows)
    split = asked.split or "validation"
    try:
        task = load(cfg, split)
    except NoSplit:
        if asked.split:
            raise
        split = "train"
        say("no validation prompts are named: these are prompts of the training")
        task = load(cfg, split)
    asked.split = split
    if task.classes:
        names = {"max_prompt", "max_response", "reward", "reward_weights", "zero_reward_at_limit"}
        if names & set(asked.given) or asked.top_k or asked.top_p != 1:
            raise UsageError(
                "a classifier draws classes, not tokens: leave out --max-prompt, --max-response, "
                "--top-k, --top-p, --reward, --reward-weights and --zero-reward-at-limit"
            )
        return task, choose_rewards(cfg, task)
    if not cfg.reward:
        # A missing package or reward function is named before any sampling.
        probe(task)
    if not asked.limited:
        raise UsageError(
            f"{cfg.init} does not say how long its responses may be: set --max-response"
        )
    return task, choose_rewards(cfg, task, name=split)
