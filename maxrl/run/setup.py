"""What the scripts work with: a task's splits, who judges its rollouts, the policy, the optimizer."""

import copy
import inspect
import math
import sys
from dataclasses import replace
from pathlib import Path

import torch

from maxrl import checkpoint
from maxrl.advantages import ADVANTAGES
from maxrl.build import make_policy
from maxrl.config import CLASSIFIERS, SEQUENCES, Config, fields_of
from maxrl.errors import UsageError
from maxrl.io.arguments import dashed
from maxrl.io.tokenizer import Tokenizer
from maxrl.models import from_config
from maxrl.models.lora import add_lora, merge
from maxrl.parallel import distributed
from maxrl.policy import SequencePolicy
from maxrl.recipes import RECIPES
from maxrl.registry import check_sizes
from maxrl.rewards.functions import Rewards, Verdicts, probe
from maxrl.run.cli import say, started
from maxrl.run.trackers import check_trackers
from maxrl.sampling.prompts import check_prompts
from maxrl.tasks import TASKS, load_task, refuse_unknown
from maxrl.tasks.base import NoSplit, Task, Within, example_of, finished_only

MOST = 10**8  # examples of a split


# ------------------------------------------------------ of all scripts ----------------------------------------------
def within(task: Task, split: str, tokenizer, limit: int) -> Task:
    """The task without the prompts that are longer than `limit` tokens, which are counted aloud."""
    task = Within(task, tokenizer, limit)
    if task.left_out and distributed.rank() == 0:
        say(f"{split}: {task.left_out_words}")
    return task


def load_checked(path):
    """Model, tokenizer and stop tokens of a checkpoint that is what its checksums say."""
    checkpoint.check_intact(path)
    return checkpoint.load_model(path)


def choose_rewards(cfg, *tasks: Task | None) -> Rewards | None:
    """Who judges the training split: the user's reward functions, if there are any, or the task itself; nobody judges a
    classifier's draws. Each task's rewards() become the judge's, 0 for a response that is cut with zero_reward_at_limit."""
    own = None
    if cfg.reward:
        own = Rewards(
            cfg.reward,
            cfg.reward_weights,
            cfg.reward_errors,
            cfg.reward_timeout,
            cfg.out,
            cfg.no_verdict,
            cfg.max_response,
        )
    judges = []
    for task in tasks:
        if task is not None and not task.classes:
            # One each: statistics are those since they were asked for, and an evaluation comes before that.
            judge = copy.copy(own) or Verdicts(task, cfg.reward_errors, cfg.out)
            task.rewards = finished_only(judge.judge) if cfg.zero_reward_at_limit else judge.judge
            judges.append(judge)
    return judges[0] if judges else None


def build_policy(cfg, model, tokenizer, stop, task, device, **options):
    """The policy with the options of a Config, or of eval.py and sample.py, that it takes by their names."""
    if not task.classes:
        taken = inspect.signature(SequencePolicy).parameters.keys() - {"model", "seed"}
        options |= {name: value for name, value in vars(cfg).items() if name in taken} | {
            "max_tokens": cfg.max_response
        }
    autocast = distributed.use_bfloat16(cfg.precision, device)
    return make_policy(
        model,
        tokenizer,
        stop,
        task,
        device,
        seed=cfg.seed,
        workers=cfg.workers,
        autocast=autocast,
        **options,
    )


# -------------------------------------------------------- of train.py -----------------------------------------------
def load_splits(cfg: Config) -> tuple[Task, Task | None]:
    """The training split, and the validation split if there are evaluations."""
    return load(cfg, "train"), load(cfg, "validation") if cfg.eval_every else None


def load(cfg: Config, split: str) -> Task:
    """A split of the task, without the prompts that are longer than max_prompt."""
    try:
        task = load_task(cfg.task, split, **cfg.task_options)
        if len(task) > MOST:
            raise UsageError(
                f"the {split} split of task {cfg.task} says that it has {len(task):,} examples: at most {MOST:,} "
                "can be shuffled"
            )
        if not (cfg.init or cfg.model and (task.classes or task.tokenizer or task.vocabulary)):
            raise UsageError(
                f"the recipe has no model for task {cfg.task}: name a checkpoint or a hub id with --init"
            )
        # A generated vocabulary has a million prompts, of one length.
        if task.classes or (task.vocabulary and not cfg.max_prompt):
            return task
        tokenizer = checkpoint.load_tokenizer(cfg.init) if cfg.init else new_tokenizer(task)
        return within(task, split, tokenizer, cfg.max_prompt or sys.maxsize)
    except (ValueError, FileNotFoundError) as error:
        raise UsageError(str(error)) from None


def new_tokenizer(task: Task) -> Tokenizer | None:
    """The tokenizer of a model from scratch; a classifier has none."""
    if task.classes:
        return None
    return (
        Tokenizer.load(task.tokenizer)
        if task.tokenizer
        else Tokenizer.from_vocabulary(task.vocabulary)
    )


def check(cfg: Config, task: Task, world: int, validation: Task | None = None) -> Config:
    """Refuse before any work what could not run; turns epochs into steps."""
    if len(task) == 0:
        raise UsageError(f"the training split of task {cfg.task} is empty")
    if validation is not None and len(validation) == 0:
        raise UsageError(
            f"the validation split of task {cfg.task} is empty: evaluate never, with --eval-every 0"
        )
    if cfg.prompts % world:
        below = cfg.prompts // world * world
        nearest = [str(n) for n in (below, below + world) if n]
        raise UsageError(
            f"--prompts {cfg.prompts} must divide by the {world} ranks; use {' or '.join(nearest)}"
        )
    if cfg.prompts // world % cfg.minibatches:
        raise UsageError(
            f"--minibatches {cfg.minibatches} must divide the {cfg.prompts // world} prompts of a rank"
        )
    check_names(cfg)
    check_kind(cfg, bool(task.classes))
    if cfg.sync_batch_norm and (world == 1 or cfg.device == "cpu" or not torch.cuda.is_available()):
        raise UsageError("--sync-batch-norm true needs several ranks on CUDA")
    check_trackers(cfg.track)
    if not (cfg.reward or task.classes or cfg.estimator == "supervised"):
        probe(
            task, cfg.reward_errors
        )  # a package or reward functions that are missing are named before any work
    if cfg.shard and world == 1:
        raise UsageError(
            "--shard true divides a model over ranks and here is one: start more by torchrun, or leave it out"
        )
    per_epoch = len(task) / cfg.prompts
    if cfg.epochs:
        cfg = replace(cfg, steps=math.ceil(cfg.epochs * per_epoch))
    if cfg.warmup_epochs:
        cfg = replace(cfg, warmup_steps=round(cfg.warmup_epochs * per_epoch))
    return cfg


def check_names(cfg: Config):
    """Refuse an estimator, a task or rewards that cannot be, without weights, data or the user's code."""
    if cfg.estimator == "supervised" and cfg.rollouts != 1:
        given = ",".join(map(str, cfg.rounds))
        raise UsageError(
            f"--estimator supervised has one answer per prompt, not --rollouts {given}; use --rollouts 1"
        )
    options = estimator_options(cfg)
    if (
        ":" not in cfg.estimator or cfg.estimator in ADVANTAGES
    ):  # else it is code that was not imported
        check_estimator("--estimator", cfg.estimator, cfg.rounds, options)
    fixed = options.keys() & {"order", "k", "mean_log_probs"}
    if cfg.no_verdict == "rollout" and fixed:
        raise UsageError(
            f"--no-verdict rollout changes N from group to group, which {cfg.estimator} with {', '.join(fixed)} "
            "does not take; use --no-verdict group"
        )
    if cfg.task in TASKS:
        known = inspect.signature(TASKS[cfg.task]).parameters.keys() - {"split"}
        refuse_unknown(cfg.task, cfg.task_options, sorted(known))
    elif ":" not in cfg.task:
        load_task(cfg.task, "train")  # which says what names there are
    if cfg.reward or cfg.reward_weights:
        # A function of the user's is not imported here: another one stands in its place.
        Rewards(
            [print if ":" in name else name for name in cfg.reward],
            cfg.reward_weights,
            timeout=cfg.reward_timeout,
        )


def check_estimator(option: str, name: str, sizes: tuple[int, ...], options: dict):
    """UsageError where there is none of that name, or not with these options, or not in rounds of these sizes."""
    try:
        rule = ADVANTAGES[name]
        check_sizes(rule, sizes, options)
        rule(torch.zeros(1, max(sizes)), **options)
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(f"{option} {name}: {error.args[0]}") from None


def check_kind(cfg: Config, classifier: bool):
    """Refuse what only the other kind of policy has: it is never ignored."""
    kind = "a classifier" if classifier else "a language model"
    for name in fields_of(SEQUENCES if classifier else CLASSIFIERS):
        if (value := getattr(cfg, name)) != getattr(Config, name):
            raise UsageError(f"--{dashed(name)} {value} means nothing to {kind}: leave it out")
    if cfg.eval_every and classifier != (cfg.eval_samples == 0):
        instead = (
            "its pass@k is exact, use 0" if classifier else "use at least the largest --eval-k"
        )
        raise UsageError(f"--eval-samples {cfg.eval_samples} does not fit {kind}: {instead}")


def start_policy(cfg: Config, task: Task, validation: Task | None, resumed: Path | None, device):
    """The policy from the checkpoint to resume from, from --init, or new."""
    torch.manual_seed(cfg.seed)
    try:
        model, tokenizer, stop = start_model(cfg, task, resumed)
        options = {}
        if cfg.beta:
            options["reference"] = checkpoint.load_model(cfg.init)[0].to(device)
        policy = build_policy(cfg, model, tokenizer, stop, task, device, **options)
        for prompts in (task, validation):
            if prompts is not None and not task.classes:
                longest = getattr(prompts, "longest", 0) or len(
                    tokenizer.encode_prompt(prompts[0].prompt)
                )
                check_prompts(model, [range(longest)], cfg.max_response)
        return policy
    except FileNotFoundError as error:
        name = Path(cfg.init).name
        fix = (
            f", or make this one: {' '.join(started('train.py'))} {name}" if name in RECIPES else ""
        )
        raise UsageError(f"{error}: name another with --init{fix}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None


def start_model(cfg: Config, task: Task, resumed: Path | None):
    """Model, tokenizer and stop tokens."""
    if resumed or cfg.init:
        model, tokenizer, stop = load_checked(resumed or cfg.init)
        if not cfg.lora_rank:
            merge(model)  # where --init is an adapter
        elif not resumed:
            add_lora(
                model,
                cfg.lora_rank,
                cfg.lora_alpha,
                cfg.lora_projections,
                checkpoint.base_name(cfg.init),
            )
    else:
        labels = {"num_labels": len(task.classes)} if task.classes else {}
        model = from_config(cfg.model | labels)
        tokenizer = new_tokenizer(task)
        stop = [tokenizer.id(tokenizer.special("eos_token"))] if task.tokenizer else []
    if cfg.sync_batch_norm:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model, tokenizer, stop


def make_optimizer(cfg: Config, model) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    if cfg.optimizer == "sgd":
        return torch.optim.SGD(
            trained, lr=cfg.lr, momentum=cfg.momentum, weight_decay=cfg.weight_decay
        )
    # One pass over the numbers without temporaries, on CPUs too.
    return torch.optim.AdamW(
        trained, lr=cfg.lr, betas=cfg.betas, weight_decay=cfg.weight_decay, fused=True
    )


def estimator_options(cfg: Config, rollouts=None) -> dict:
    """The recipe's options, and what else the estimator takes: of one group of zeros where there are no rollouts yet."""
    options = dict(cfg.estimator_options)
    # Of an unknown estimator there are none: check_estimator refuses it.
    known = getattr(ADVANTAGES.get(cfg.estimator), "known", ())
    if "mean_log_probs" in known:
        options["mean_log_probs"] = (
            rollouts.mean_log_probs() if rollouts is not None else torch.zeros(1, max(cfg.rounds))
        )
    if cfg.allow_fractional and "allow_fractional" in known:
        options["allow_fractional"] = True
    if cfg.no_verdict == "rollout" or len(cfg.rounds) > 1:
        options["allow_missing"] = True
    return options


# ------------------------------------------------- of eval.py and sample.py -----------------------------------------
def load_split(args) -> Task:
    """The split that is asked; where none is, validation, or train where nothing else was named. Sets args.split."""
    if not args.split:
        try:
            args.split = "validation"
            return load_task(args.task, args.split, **args.task_options)
        except NoSplit:
            args.split = "train"
            say("no validation prompts are named: these are prompts of the training")
    return load_task(args.task, args.split, **args.task_options)


def find_task(args, path: Path) -> Task:
    """The split that is asked, without the prompts that are longer than --max-prompt in the tokens of checkpoint `path`, and
    judged by the reward functions if there are any; sets args.max_response. UsageError where no prompt is left, where nothing
    can judge, and for an option that means nothing to the task."""
    task = load_split(args)
    if len(task) == 0:
        raise UsageError(f"the {args.split} split of task {args.task} is empty")
    if task.classes:
        if args.max_prompt or args.max_response or args.top_k or args.top_p != 1:
            raise UsageError(
                "a classifier draws classes, not tokens: leave out --max-prompt, --max-response, --top-k and --top-p"
            )
        return task
    if not args.reward:
        probe(task)  # a package or reward functions that are missing are named before any sampling
    args.max_response = args.max_response or args.own_max_response
    if not args.max_response:
        raise UsageError(f"{path} does not say how long its responses may be: set --max-response")
    if args.max_prompt:
        try:
            task = within(task, args.split, checkpoint.load_tokenizer(path), args.max_prompt)
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from None
        if len(task) == 0:
            raise UsageError(
                f"no prompt of the {args.split} split is left: raise --max-prompt {args.max_prompt}"
            )
    choose_rewards(args, task)
    return task


def load_policy(args, path: Path, task, device, indices):
    """The policy of checkpoint `path` for a task; UsageError where they do not fit each other, or where one of the prompts
    `indices` leaves no room for the response."""
    try:
        model, tokenizer, stop = load_checked(path)
        policy = build_policy(args, model, tokenizer, stop, task, device)
        if not task.classes:
            check_prompts(
                model,
                [tokenizer.encode_prompt(example_of(task, i).prompt) for i in indices],
                args.max_response,
            )
        return policy
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
