"""Everything that a run can be told: one frozen dataclass, and `--field value` on the command line."""

import dataclasses
import difflib
import importlib
import importlib.util
import itertools
import math
import sys
import textwrap
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

# What LoRA can be added to; models/lora.py reads it here.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TRACKERS = ("tensorboard", "wandb")  # logger.py has them


class UsageError(Exception):
    """A mistake in what the user asked for; its message is one sentence for the console, said once."""

    code = 2  # of the process that ends with it

    def __init__(self, sentence: str, code: int = code):
        super().__init__(sentence)
        self.code = code


class RunError(UsageError):
    """What went wrong on one rank of a run; that rank says it."""


def option(default, sentence: str):
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"help": sentence})
    return field(default=default, metadata={"help": sentence})


@dataclass(frozen=True)
class Config:
    """A run. Recipes fill it in, `train.py RECIPE --field value` overrides it, RUN/recipe.json records it."""

    # what is learned
    task: str = option("maze", "Task by name (maxrl.tasks.TASKS), package.module:Class or FILE.py:Class.")
    task_options: dict = option({}, "What the task's constructor takes; --task.size 9 sets one of them.")
    model: dict = option({}, "config.json of a model trained from scratch; not read when init is given.")
    init: str = option("", "Checkpoint or run directory to start from.")
    lora_rank: int = option(0, "Trains a LoRA adapter of this rank beside the frozen model of --init (0: the model itself).")
    lora_alpha: float = option(32.0, "What the adapter adds is scaled by lora_alpha / lora_rank.")
    lora_projections: tuple[str, ...] = option(PROJECTIONS, "Which projections of every layer have an adapter.")
    lora_merge: bool = option(False, "Checkpoints hold the merged model, and the adapter in lora/; otherwise the adapter.")
    # the estimator
    estimator: str = option("maxrl", "By name, or FILE.py:FUNCTION; supervised trains on the reference answers.")
    estimator_options: dict = option({}, "What the estimator takes; --estimator.order 4 sets one of them.")
    estimator_defaults: dict = option({}, "By estimator: the options that it has in this recipe when it is chosen.")
    aggregation: str = option("token", "One divisor per step: sequence (Algorithm 1), token (Appendix F) or constant.")
    reward: tuple[str, ...] = option((), "Reward functions for the task's verdict, package.module:f or FILE.py:f; repeatable.")
    reward_weights: tuple[float, ...] = option((), "What each reward function counts in their sum (1 each).")
    reward_errors: str = option("stop", "stop: a reward function that fails ends the run; drop: its groups are left out.")
    reward_timeout: float = option(0.0, "Seconds that one call of a reward function may take (0: no limit).")
    allow_fractional: bool = option(False, "MaxRL on rewards in [0, 1]: what is said of its order is then gone.")
    max_prompt: int = option(0, "Longest prompt in tokens; longer ones are left out and counted (0: all must fit).")
    prompts: int = option(32, "P, prompts per step over all ranks.")
    rollouts: int = option(128, "N, rollouts per prompt.")
    max_response: int = option(180, "Longest response in tokens, the end token included.")
    zero_reward_at_limit: bool = option(False, "Reward 0 for a response that was cut by the length limit.")
    minibatches: int = option(1, "Updates per pass over a batch of rollouts, each on an equal share of its prompts.")
    passes: int = option(1, "Passes over a batch of rollouts; more than one update brings in the importance ratio.")
    clip: tuple[float, ...] = option((0.2, 0.2), "The ratio is clipped to [1 - first, 1 + second]; one update has ratio 1.")
    beta: float = option(0.0, "KL penalty (k3) to the frozen model of --init.")
    entropy_bonus: float = option(0.0, "Weight of the response tokens' entropy, divided as the loss is: with token their mean.")
    temperature: float = option(1.0, "Sampling temperature in training; must be 1.")
    top_k: int = option(0, "Must be 0 in training.")
    top_p: float = option(1.0, "Must be 1 in training.")
    # the optimizer
    optimizer: str = option("adamw", "adamw or sgd.")
    steps: int = option(1000, "Optimizer steps, one per batch of rollouts.")
    epochs: float = option(0.0, "When above 0, sets steps to that many passes over the task's prompts.")
    lr: float = option(1e-4, "Learning rate after the warm-up.")
    schedule: str = option("constant", "constant or cosine (to 0 after the last step), after warmup_steps of linear increase.")
    decay_ratio: float = option(1.0, "Of --schedule cosine: the share of the steps, the last ones, over which the rate falls.")
    warmup_steps: int = option(0, "Steps of linear increase of the learning rate.")
    warmup_epochs: float = option(0.0, "When above 0, sets warmup_steps to that many passes over the task's prompts.")
    betas: tuple[float, ...] = option((0.9, 0.999), "Adam's two decay rates.")
    momentum: float = option(0.9, "SGD's momentum, without Nesterov.")
    weight_decay: float = option(0.01, "AdamW's decoupled weight decay or SGD's L2 term, on all parameters.")
    max_grad_norm: float = option(1.0, "The gradient is scaled down to this norm where it is longer.")
    # the machine
    seed: int = option(0, "Fixes initial weights, order of prompts and rollouts.")
    device: str = option("auto", "cpu, cuda, or auto: cuda where there is one.")
    precision: str = option("auto", "Forward in bfloat16 or float32; auto: bfloat16 on CUDA and on CPUs with AMX.")
    micro_batch_tokens: int = option(32768, "Padded tokens of one training forward; changes memory, not the gradient.")
    wave_rows: int = option(4096, "Rollouts sampled at once, in whole groups; changes memory, not the rollouts.")
    kv_memory_gb: float = option(0.0, "When above 0, sets wave_rows: what fits so many GiB of keys and values, whole groups.")
    shard: bool = option(False, "Divides weights, gradients and Adam state over the ranks (fully_shard); otherwise DDP.")
    gradient_checkpointing: bool = option(False, "Makes each layer again in the backward: less memory, a third more work.")
    workers: int = option(0, "Processes that make batches ahead of time (0: none); images need some.")
    deterministic: bool = option(False, "Only CUDA kernels that give the same bits every time: slower.")
    sync_batch_norm: bool = option(False, "Batch-norm over the images of all ranks (CUDA only); otherwise per rank.")
    # evaluation and files
    eval_every: int = option(0, "Steps between evaluations on the validation split (0: none).")
    eval_from: int = option(0, "No evaluation before so many steps.")
    eval_prompts: int = option(64, "Validation prompts.")
    eval_samples: int = option(64, "Rollouts per validation prompt; 0 for a classifier, whose pass@k is exact.")
    eval_temperature: float = option(1.0, "Sampling temperature of these evaluations, and eval.py's own for this checkpoint.")
    eval_top_p: float = option(1.0, "Their top-p, and eval.py's: the smallest set of this probability (1: all tokens).")
    eval_k: tuple[int, ...] = option((1, 8, 64), "The k of pass@k.")
    stop_at_pass: float = option(0.0, "Stop after the evaluation whose pass@1 reaches this, if above 0.")
    save_every: int = option(0, "Steps between checkpoints (0: only at the end).")
    save_every_minutes: float = option(0.0, "Minutes between checkpoints, beside save_every (0: none by the clock).")
    keep: int = option(0, "Checkpoints that stay, the newest ones (0: all).")
    max_skipped: int = option(5, "End after so many steps in a row whose gradient was not finite; their updates are left out.")
    out: str = option("", "Run directory (default runs/RECIPE-ESTIMATOR, or runs/RECIPE for a supervised one).")
    track: tuple[str, ...] = option((), "Where metrics go beside metrics.jsonl: tensorboard, wandb or both, with a comma.")
    resume: str = option("no", "yes: go on from the newest checkpoint in out; auto: the same, or start; no: out must be new.")

    def __post_init__(self):
        for name in ("prompts", "rollouts", "max_response", "micro_batch_tokens", "wave_rows", "max_grad_norm",
                     "minibatches", "passes", "max_skipped"):
            if not getattr(self, name) > 0:
                raise UsageError(f"--{dashed(name)} {getattr(self, name)} must be above 0")
        for name in ("steps", "epochs", "lr", "warmup_steps", "warmup_epochs", "weight_decay", "eval_every", "eval_from",
                     "save_every", "eval_prompts", "max_prompt", "reward_timeout", "eval_samples", "seed", "workers", "beta",
                     "kv_memory_gb", "lora_rank", "save_every_minutes", "keep"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"--{dashed(name)} {getattr(self, name)} must not be negative")
        for f in dataclasses.fields(self):
            if isinstance(value := getattr(self, f.name), float) and not math.isfinite(value):
                raise UsageError(f"--{dashed(f.name)} {value} must be finite")
        if self.seed >= 2**31:
            raise UsageError(f"--seed {self.seed} is too large: it must be below 2**31")
        if (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0):
            raise UsageError("training samples from the distribution that it scores, temperature 1 without top-k or "
                             f"top-p; with temperature {self.temperature}, top-k {self.top_k}, top-p {self.top_p} the "
                             "estimators are biased (evaluations have --eval-temperature and --eval-top-p)")
        if not (self.eval_temperature >= 0 and 0 < self.eval_top_p <= 1):
            raise UsageError(f"--eval-temperature {self.eval_temperature} --eval-top-p {self.eval_top_p} is no distribution: "
                             "the temperature must not be negative (0: greedy), top-p lies in (0, 1]")
        for name, values in {"optimizer": ("adamw", "sgd"), "schedule": ("constant", "cosine"),
                             "aggregation": ("sequence", "token", "constant"), "device": ("auto", "cpu", "cuda"),
                             "precision": ("auto", "float32", "bfloat16"), "resume": ("no", "yes", "auto"),
                             "reward_errors": ("stop", "drop")}.items():
            if getattr(self, name) not in values:
                raise UsageError(f"--{dashed(name)} {getattr(self, name)} is not one of {', '.join(values)}")
        for name in self.track:
            if name not in TRACKERS:
                raise UsageError(f"--track {name!r} is not one of {', '.join(TRACKERS)}")
        if not 0 <= self.stop_at_pass <= 1:
            raise UsageError(f"--stop-at-pass {self.stop_at_pass} is no pass rate: it lies in [0, 1]")
        if self.stop_at_pass and not (self.eval_every and 1 in self.eval_k):
            raise UsageError(f"--stop-at-pass {self.stop_at_pass} needs --eval-every above 0 and 1 among --eval-k")
        if len(self.clip) != 2 or not all(c > 0 for c in self.clip) or self.clip[0] > 1:
            raise UsageError(f"--clip takes two numbers above 0, the first at most 1, not {','.join(map(str, self.clip))}")
        if self.prompts % self.minibatches:
            raise UsageError(f"--minibatches {self.minibatches} must divide --prompts {self.prompts}")
        if self.beta and not self.init:
            raise UsageError(f"--beta {self.beta} needs --init, the model that it keeps near to")
        self.check_lora()
        if self.estimator == "supervised" and (self.minibatches > 1 or self.passes > 1 or self.beta or self.entropy_bonus):
            raise UsageError("--estimator supervised takes none of --minibatches, --passes, --beta and --entropy-bonus")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"--betas takes two numbers in [0, 1), not {','.join(map(str, self.betas))}")
        if not 0 < self.decay_ratio <= 1:
            raise UsageError(f"--decay-ratio {self.decay_ratio} must lie in (0, 1]")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"--momentum {self.momentum} must lie in [0, 1)")
        if self.eval_every and self.eval_prompts < 1:
            raise UsageError(f"--eval-prompts {self.eval_prompts} must be above 0 where --eval-every is")
        if self.eval_every and min(self.eval_k) < 1:
            raise UsageError(f"--eval-k {min(self.eval_k)} must be at least 1")
        if self.eval_every and 0 < self.eval_samples < max(self.eval_k):
            raise UsageError(f"--eval-k {max(self.eval_k)} needs at least as many --eval-samples, not {self.eval_samples}")

    def check_lora(self):
        if self.lora_rank and not self.init:
            raise UsageError(f"--lora-rank {self.lora_rank} needs --init, the model that it is added to")
        for name in ("lora_alpha", "lora_projections", "lora_merge"):
            if not self.lora_rank and getattr(self, name) != getattr(Config, name):
                raise UsageError(f"--{dashed(name)} means nothing without --lora-rank")
        if self.lora_alpha <= 0:
            raise UsageError(f"--lora-alpha {self.lora_alpha} must be above 0")
        for name in self.lora_projections:
            if name not in PROJECTIONS:
                raise UsageError(f"--lora-projections {name!r} is not one of {', '.join(PROJECTIONS)}")

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)


def dashed(name: str) -> str:
    return name.replace("_", "-")


def with_overrides(config: Config, arguments: list[str]) -> Config:
    """`config` with `--field value` or `--field=value` pairs applied; raises UsageError for what it cannot read.

    `--task.size 9` and `--estimator.order 4` reach into task_options and estimator_options.
    """
    types, changes = typing.get_type_hints(Config), {}
    refuse_blanks(arguments, {dashed(name): str for name, kind in types.items() if typing.get_origin(kind) is tuple})
    pairs = split_arguments(arguments)
    for key, text in pairs:
        name, dot, inner = key.replace("-", "_").partition(".")
        if inner and name in ("task", "estimator"):
            options = changes.setdefault(f"{name}_options", dict(getattr(config, f"{name}_options")))
            options[inner] = guess(text)
        elif dot or name not in types or types[name] is dict:
            names = [dashed(n) for n in types if types[n] is not dict] + ["task.OPTION", "estimator.OPTION"]
            near = difflib.get_close_matches(dashed(key), names, n=3, cutoff=0.4)
            raise UsageError(f"--{key} is not an option" + (f"; did you mean --{' or --'.join(near)}?" if near else "") +
                             " (train.py RECIPE --help lists all)")
        elif name == "reward":  # may be given several times
            changes[name] = (*changes.get(name, ()), *parse(types[name], key, text))
        else:
            changes[name] = parse(types[name], key, text)
    for name in ("task", "estimator"):  # another task or estimator does not take the recipe's options
        if changes.get(name, getattr(config, name)) != getattr(config, name):
            given = {k.partition(".")[2] for k, _ in pairs if k.startswith(f"{name}.")}
            changes[f"{name}_options"] = {k: v for k, v in changes.get(f"{name}_options", {}).items() if k in given}
    for number, passes in (("steps", "epochs"), ("warmup_steps", "warmup_epochs")):
        if number in changes and changes.setdefault(passes, 0.0):  # instead of the recipe's
            raise UsageError(f"--{dashed(number)} and --{dashed(passes)} say the same thing twice: leave one out")
    chosen = changes.get("estimator", config.estimator)
    if chosen != config.estimator:
        changes["estimator_options"] = config.estimator_defaults.get(chosen, {}) | changes["estimator_options"]
        if chosen == "supervised":
            changes.setdefault("rollouts", 1)  # it has one answer per prompt
    return dataclasses.replace(config, **changes)


def imported(spec: str, option: str) -> Callable:
    """The user's function or class that "package.module:name" or "FILE.py:name" names; UsageError where there is none."""
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"{option} {spec} is not written package.module:name or FILE.py:name")
    try:
        if where.endswith(".py"):
            module_spec = importlib.util.spec_from_file_location(f"user_{Path(where).stem}", where)
            module = importlib.util.module_from_spec(module_spec)
            sys.modules[module_spec.name] = module  # dataclasses and pickle look there
            module_spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
    except (Exception, SystemExit) as error:  # whatever the file does when it is run
        raise UsageError(f"{option} {spec} cannot be imported: {type(error).__name__}: {error}") from None
    found = getattr(module, name, None)
    if not callable(found):
        near = difflib.get_close_matches(name, [n for n in dir(module) if callable(getattr(module, n))], n=1)
        raise UsageError(f"{option} {spec}: {where} has no function or class {name}"
                         + (f"; did you mean {near[0]}?" if near else ""))
    return found


def named(text: str) -> tuple[str, str]:
    """[NAME=]PATH as name and path. What exists is a path, whatever stands in its name; a name's own is its directory's."""
    name, equals, path = text.partition("=")
    return (name, path) if equals and not Path(text).exists() else (Path(text).name, text)


def refuse_blanks(arguments: list[str], lists: dict):
    """UsageError where one of the options `lists` is followed by several words: a list is written with commas. lists {option:
    what tells whether a word looks like another item of its list}; other words may follow, as checkpoints do."""
    for place, word in enumerate(arguments):
        if word.startswith("--") and (is_item := lists.get(word[2:].replace("_", "-"))):
            rest = list(itertools.takewhile(lambda w: not w.startswith("--"), arguments[place + 1 :]))
            values = rest[:1] + list(itertools.takewhile(lambda w: is_item(w) and not Path(w).is_dir(), rest[1:]))
            if len(values) > 1:
                raise UsageError(f"{word} {' '.join(values)}: a list is written with commas, {word} {','.join(values)}")


def split_arguments(arguments: list[str]) -> list[tuple[str, str | None]]:
    """`--a 1 --b=2 --c` as [("a", "1"), ("b", "2"), ("c", None)]."""
    pairs, i = [], 0
    while i < len(arguments):
        word = arguments[i]
        if not word.startswith("--"):
            raise UsageError(f"{word!r} stands where an option was expected; options are written --name value")
        key, equals, value = word[2:].partition("=")
        i += 1
        if not equals:
            value = None
            if i < len(arguments) and not arguments[i].startswith("--"):
                value, i = arguments[i], i + 1
        pairs.append((key, value))
    return pairs


def parse(kind, key: str, text: str | None):
    """The value of `text` for a field of type `kind`; bare flags are true, and `--resume` alone is yes."""
    if text is None and (kind is bool or key == "resume"):
        return True if kind is bool else "yes"
    if text is None:
        raise UsageError(f"--{key} needs a value")
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if typing.get_origin(kind) is tuple:
            return tuple(typing.get_args(kind)[0](part) for part in text.split(","))
        if kind is int and "e" in text:  # 1e5
            return int(float(text)) if float(text).is_integer() else int(text)
        return kind(text)
    except (ValueError, KeyError):
        name = {bool: "true or false", tuple: "numbers separated by commas"}.get(typing.get_origin(kind) or kind, kind.__name__)
        raise UsageError(f"--{key} {text} cannot be read: expected {name}") from None


def holds(kind, value) -> bool:
    """Whether a JSON value is one that a field of type `kind` may have."""
    if typing.get_origin(kind) is tuple:
        return isinstance(value, list) and all(holds(typing.get_args(kind)[0], part) for part in value)
    return type(value) is kind or kind is float and type(value) is int


def guess(text: str | None):
    """An option of a task or estimator, whose types are not known here: true/false, int, float or text."""
    if text is None or text.lower() in ("true", "false"):
        return text is None or text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def describe(config: Config, lists: dict[str, list[str]], hidden: tuple[str, ...], inner: dict[str, dict]) -> str:
    """The help text: every option with its value in this recipe, as it can be typed, in groups. lists: the names that an
    option may have; hidden: fields that mean nothing to this recipe; inner: {"task": {option: value}, "estimator": ...}."""
    lines = ["--name VALUE as it is in this recipe; a list has commas, true and false are written out"]
    for f in dataclasses.fields(config):
        if f.name in GROUPS:
            lines += ["", f"{GROUPS[f.name]}:"]
        if isinstance(getattr(config, f.name), dict) or f.name in hidden:
            continue
        said = f.metadata["help"] + (f" One of {', '.join(lists[f.name])}." if f.name in lists else "")
        lines += entry(f"--{dashed(f.name)} {typed(getattr(config, f.name))}", said)
        for name, value in inner.get(f.name, {}).items():
            lines += entry(f"--{f.name}.{name} {typed(value)}", f"Option of this {f.name}.")
    lines += ["", "without training:", *entry("--dry-run", "Prints what the run asks of each GPU, by arithmetic alone."),
              *entry("--gpus 1", "With --dry-run: so many."),
              *entry("--mean-response 0", "With --dry-run: the assumed length of a response in tokens (0: half the longest).")]
    return "\n".join(lines)


GROUPS = {  # the first field of each
    "task": "what is learned", "estimator": "the estimator", "optimizer": "the optimizer", "seed": "the machine",
    "eval_every": "evaluation and files"}


def typed(value) -> str:
    """A value as the command line takes it; nothing for what is empty."""
    if isinstance(value, tuple):
        return ",".join(map(typed, value))
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def entry(option: str, sentence: str) -> list[str]:
    """An option and its sentence, in lines of at most 120 columns."""
    first, *more = textwrap.wrap(sentence, 120 - 34)
    head = [f"  {option:31} {first}"] if len(option) < 32 else [f"  {option}", " " * 34 + first]
    return head + [" " * 34 + line for line in more]
