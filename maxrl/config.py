"""Everything that a run can be told: one frozen dataclass, and `--field value` on the command line.

A field says all that there is to say of its option: default, sentence, bounds, choices, whose it is, whether a resumed run
may change it. A new option is one line here.
"""

import dataclasses
import difflib
import functools
import json
import math
import types
import typing
from dataclasses import dataclass, field

from maxrl.errors import UsageError
from maxrl.io.arguments import check_least, dashed, guess, parse, refuse_blanks, split_arguments
from maxrl.models.lora import PROJECTIONS

TRACKERS = ("tensorboard", "wandb")
FIXED = {"temperature": 1, "top_k": 0, "top_p": 1}  # of the sampling in training
SEQUENCES, CLASSIFIERS = "language models", "classifiers"


def option(default, help: str, *, above=None, least=0, choices=(), only="", free=False):
    """A field. above, least: bounds of a number, which must not be negative where nothing else is said. only: SEQUENCES or
    CLASSIFIERS, where it means nothing to the others. free: a resumed run may change it, since neither what is learned nor
    what it is learned from depends on it."""
    about = locals()
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=about)
    return field(default=default, metadata=about)


free_option = functools.partial(option, free=True)
language_option = functools.partial(option, only=SEQUENCES)
free_language_option = functools.partial(option, only=SEQUENCES, free=True)


@dataclass(frozen=True)
class Config:
    """A run. Recipes fill it in, `train.py RECIPE --field value` overrides it, RUN/recipe.json records it."""

    # what is learned
    task: str = option(
        "maze", "Task by name (maxrl.tasks.TASKS), package.module:Class or FILE.py:Class."
    )
    task_options: dict = option(
        {}, "What the task's constructor takes; --task.size 9 sets one of them."
    )
    model: dict = option(
        {}, "config.json of a model trained from scratch; not read when init is given."
    )
    init: str = option("", "Checkpoint or run directory to start from.")
    lora_rank: int = language_option(
        0,
        "Trains a LoRA adapter of this rank beside the frozen model of --init (0: the model itself).",
    )
    lora_alpha: float = language_option(
        32.0, "What the adapter adds is scaled by lora_alpha / lora_rank.", above=0
    )
    lora_projections: tuple[str, ...] = language_option(
        PROJECTIONS, "Which projections of every layer have an adapter.", choices=PROJECTIONS
    )
    lora_merge: bool = free_language_option(
        False, "Checkpoints hold the merged model, and the adapter in lora/; otherwise the adapter."
    )
    # the estimator
    estimator: str = option(
        "maxrl", "By name, or FILE.py:FUNCTION; supervised trains on the reference answers."
    )
    estimator_options: dict = option(
        {}, "What the estimator takes; --estimator.order 4 sets one of them."
    )
    estimator_defaults: dict = option(
        {}, "By estimator: the options that it has in this recipe when it is chosen."
    )
    aggregation: str = option(
        "token",
        "One divisor per step: sequence (Algorithm 1), token (Appendix F) or constant.",
        choices=("sequence", "token", "constant"),
    )
    reward: tuple[str, ...] = language_option(
        (),
        "Reward functions for the task's verdict: accuracy_reward, FILE.py:f or package.module:f; repeatable.",
    )
    reward_weights: tuple[float, ...] = language_option(
        (), "What each reward function counts in their sum (1 each)."
    )
    no_verdict: str = language_option(
        "group",
        "Left out where all reward functions say None: group (unbiased), or rollout (as "
        "TRL does; MaxRL's order is then lower).",
        choices=("group", "rollout"),
    )
    reward_errors: str = option(
        "stop",
        "stop: a reward function that fails ends the run; drop: its groups are left out.",
        choices=("stop", "drop"),
    )
    reward_timeout: float = free_option(
        0.0, "Seconds that one call of a reward function may take (0: no limit)."
    )
    allow_fractional: bool = option(
        False, "MaxRL on rewards in [0, 1]: what is said of its order is then gone."
    )
    max_prompt: int = language_option(
        0, "Longest prompt in tokens; longer ones are left out and counted (0: all must fit)."
    )
    prompts: int = option(32, "P, prompts per step over all ranks.", above=0)
    rollouts: int | tuple[int, ...] = option(
        128, "N, rollouts per prompt; 8,8,16: rounds of so many until one has a success.", above=0
    )
    max_response: int = language_option(
        180, "Longest response in tokens, the end token included.", above=0
    )
    zero_reward_at_limit: bool = language_option(
        False, "Reward 0 for a response that was cut by the length limit."
    )
    minibatches: int = language_option(
        1,
        "Updates per pass over a batch of rollouts, each on an equal share of its prompts.",
        above=0,
    )
    passes: int = language_option(
        1,
        "Passes over a batch of rollouts; more than one update brings in the importance ratio.",
        above=0,
    )
    clip: tuple[float, ...] = language_option(
        (0.2, 0.2), "The ratio is clipped to [1 - first, 1 + second]; one update has ratio 1."
    )
    beta: float = language_option(0.0, "KL penalty (k3) to the frozen model of --init.")
    entropy_bonus: float = language_option(
        0.0,
        "Weight of the response tokens' entropy, divided as the loss is: with token their mean.",
        least=None,
    )
    # the optimizer
    optimizer: str = option("adamw", "adamw or sgd.", choices=("adamw", "sgd"))
    steps: int = free_option(1000, "Optimizer steps, one per batch of rollouts.")
    epochs: float = free_option(
        0.0, "When above 0, sets steps to that many passes over the task's prompts."
    )
    lr: float = option(1e-4, "Learning rate after the warm-up.")
    schedule: str = option(
        "constant",
        "constant or cosine (to 0 after the last step), after warmup_steps of linear increase.",
        choices=("constant", "cosine"),
    )
    decay_ratio: float = option(
        1.0,
        "Of --schedule cosine: the share of the steps, the last ones, over which the rate falls.",
    )
    warmup_steps: int = option(0, "Steps of linear increase of the learning rate.")
    warmup_epochs: float = option(
        0.0, "When above 0, sets warmup_steps to that many passes over the task's prompts."
    )
    betas: tuple[float, ...] = option((0.9, 0.999), "Adam's two decay rates.")
    momentum: float = option(0.9, "SGD's momentum, without Nesterov.")
    weight_decay: float = option(
        0.01, "AdamW's decoupled weight decay or SGD's L2 term, on all parameters."
    )
    max_grad_norm: float = option(
        1.0, "The gradient is scaled down to this norm where it is longer.", above=0
    )
    # the machine
    seed: int = option(0, "Fixes initial weights, order of prompts and rollouts.")
    device: str = free_option(
        "auto", "cpu, cuda, or auto: cuda where there is one.", choices=("auto", "cpu", "cuda")
    )
    precision: str = option(
        "auto",
        "Forward in bfloat16 or float32; auto: bfloat16 on CUDA and CPUs with AMX or AVX512-BF16.",
        choices=("auto", "float32", "bfloat16"),
    )
    micro_batch_tokens: int = free_language_option(
        32768, "Padded tokens of one training forward; changes memory, not the gradient.", above=0
    )
    wave_rows: int = free_language_option(
        4096,
        "Rollouts sampled at once, in whole groups; changes memory, not the rollouts.",
        above=0,
    )
    kv_memory_gb: float = free_language_option(
        0.0,
        "When above 0, instead of wave_rows: GiB of responses' keys, values and logits at which a wave is halved.",
    )
    shard: bool = free_language_option(
        False,
        "Divides weights, gradients and Adam state over the ranks (fully_shard); otherwise DDP.",
    )
    gradient_checkpointing: bool = free_language_option(
        False, "Makes each layer again in the backward: less memory, a third more work."
    )
    workers: int = free_option(
        0, "Processes that make batches ahead of time (0: none); images need some."
    )
    deterministic: bool = free_option(
        False, "Only CUDA kernels that give the same bits every time: slower."
    )
    sync_batch_norm: bool = option(
        False,
        "Batch-norm over the images of all ranks (CUDA only); otherwise per rank.",
        only=CLASSIFIERS,
    )
    # evaluation and files
    eval_every: int = free_option(0, "Steps between evaluations on the validation split (0: none).")
    eval_from: int = free_option(0, "No evaluation before so many steps.")
    eval_prompts: int = free_option(64, "Validation prompts.")
    eval_samples: int = free_option(
        64, "Rollouts per validation prompt; 0 for a classifier, whose pass@k is exact."
    )
    eval_temperature: float = free_language_option(
        1.0, "Sampling temperature of these evaluations, and eval.py's own for this checkpoint."
    )
    eval_top_p: float = free_language_option(
        1.0, "Their top-p, and eval.py's: the smallest set of this probability (1: all tokens)."
    )
    eval_k: tuple[int, ...] = free_option((1, 8, 64), "The k of pass@k.")
    show_every: int = free_language_option(
        0,
        "Steps between lines of samples.jsonl, a right and a wrong response (0: at evaluations alone).",
    )
    stop_at_pass: float = option(
        0.0, "Stop after the evaluation whose pass@1 reaches this, if above 0."
    )
    save_every: int = free_option(0, "Steps between checkpoints (0: only at the end).")
    save_every_minutes: float = free_option(
        0.0, "Minutes between checkpoints, beside save_every (0: none by the clock)."
    )
    keep: int = free_option(0, "Checkpoints that stay, the newest ones (0: all).")
    max_skipped: int = free_option(
        5,
        "End after so many steps in a row whose gradient was not finite; their updates are left out.",
        above=0,
    )
    profile: int = free_option(
        0, "Steps, after the first, of which a trace and ten lines say what takes time (0: none)."
    )
    out: str = free_option(
        "", "Run directory (default runs/RECIPE-ESTIMATOR, or runs/RECIPE for a supervised one)."
    )
    track: tuple[str, ...] = free_option(
        (),
        "Where metrics go beside metrics.jsonl: tensorboard, wandb or both, with a comma.",
        choices=TRACKERS,
    )
    resume: str = free_option(
        "no",
        "yes: go on from the newest checkpoint in out; auto: the same, or start; no: out must be new.",
        choices=("no", "yes", "auto"),
    )

    def __post_init__(self):
        for f in dataclasses.fields(self):
            check_option(f, getattr(self, f.name))
        if self.seed >= 2**31:
            raise UsageError(f"--seed {self.seed} is too large: it must be below 2**31")
        if not 0 < self.eval_top_p <= 1:
            raise UsageError(
                f"--eval-top-p {self.eval_top_p} is no distribution: top-p lies in (0, 1]"
            )
        if self.stop_at_pass > 1:
            raise UsageError(
                f"--stop-at-pass {self.stop_at_pass} is no pass rate: it lies in [0, 1]"
            )
        if self.stop_at_pass and not (self.eval_every and 1 in self.eval_k):
            raise UsageError(
                f"--stop-at-pass {self.stop_at_pass} needs --eval-every above 0 and 1 among --eval-k"
            )
        if len(self.clip) != 2 or not all(c > 0 for c in self.clip) or self.clip[0] > 1:
            raise UsageError(
                f"--clip takes two numbers above 0, the first at most 1, not {','.join(map(str, self.clip))}"
            )
        if self.prompts % self.minibatches:
            raise UsageError(
                f"--minibatches {self.minibatches} must divide --prompts {self.prompts}"
            )
        if self.beta and not self.init:
            raise UsageError(f"--beta {self.beta} needs --init, the model that it keeps near to")
        if self.lora_rank and not self.init:
            raise UsageError(
                f"--lora-rank {self.lora_rank} needs --init, the model that it is added to"
            )
        for name in ("lora_alpha", "lora_projections", "lora_merge"):
            if not self.lora_rank and getattr(self, name) != getattr(Config, name):
                raise UsageError(f"--{dashed(name)} means nothing without --lora-rank")
        if self.estimator == "supervised" and (
            self.minibatches > 1 or self.passes > 1 or self.beta or self.entropy_bonus
        ):
            raise UsageError(
                "--estimator supervised takes none of --minibatches, --passes, --beta and --entropy-bonus"
            )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(
                f"--betas takes two numbers in [0, 1), not {','.join(map(str, self.betas))}"
            )
        if not 0 < self.decay_ratio <= 1:
            raise UsageError(f"--decay-ratio {self.decay_ratio} must lie in (0, 1]")
        if self.momentum >= 1:
            raise UsageError(f"--momentum {self.momentum} must lie in [0, 1)")
        if not self.eval_every:
            return
        if not self.eval_prompts:
            raise UsageError("--eval-prompts 0 must be above 0 where --eval-every is")
        check_least("eval-k", min(self.eval_k), 1)
        if 0 < self.eval_samples < max(self.eval_k):
            raise UsageError(
                f"--eval-k {max(self.eval_k)} needs at least as many --eval-samples, not {self.eval_samples}"
            )

    @property
    def rounds(self) -> tuple[int, ...]:
        """The sizes of the rounds in which a prompt is sampled (maxrl/rounds.py): one of N rollouts, or several."""
        return (self.rollouts,) if isinstance(self.rollouts, int) else tuple(self.rollouts)

    def evaluates(self, step: int) -> bool:
        """Whether there is an evaluation after this step."""
        return (
            self.eval_every > 0 and step + 1 >= self.eval_from and (step + 1) % self.eval_every == 0
        )

    def shows(self, step: int) -> bool:
        """Whether samples.jsonl has a line of this step. A supervised run has references, and nothing to show."""
        due = self.show_every and step % self.show_every == 0 or self.evaluates(step)
        return bool(due) and self.estimator != "supervised"

    def to_dict(self) -> dict:
        """As JSON has it: a tuple is a list."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


# What a resumed run may have otherwise than the run that it resumes.
FREE_ON_RESUME = {f.name for f in dataclasses.fields(Config) if f.metadata["free"]}


def check_option(field: dataclasses.Field, value):
    """UsageError for a value that the option cannot have, whatever the others are."""
    about = field.metadata
    name = dashed(field.name)
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"--{name} {value} must be finite")
    for number in value if isinstance(value, tuple) else (value,):
        if (
            isinstance(number, int | float)
            and about["above"] is not None
            and not number > about["above"]
        ):
            raise UsageError(f"--{name} {number} must be above {about['above']}")
    if isinstance(value, int | float):
        check_least(name, value, about["least"])
    for word in value if isinstance(value, tuple) else (value,):
        if about["choices"] and word not in about["choices"]:
            said = repr(word) if isinstance(value, tuple) else word
            raise UsageError(f"--{name} {said} is not one of {', '.join(about['choices'])}")


def fields_of(kind: str) -> list[str]:
    """The options that only language models (SEQUENCES) have, or only CLASSIFIERS."""
    return [f.name for f in dataclasses.fields(Config) if f.metadata["only"] == kind]


# What TRL and the paper's code call these options.
ELSEWHERE = {
    "num_generations": "rollouts",
    "group_size": "rollouts",
    "learning_rate": "lr",
    "max_completion_length": "max-response",
    "max_prompt_length": "max-prompt",
    "reward_funcs": "reward",
    "epsilon": "clip",
    "num_iterations": "passes",
    "loss_type": "aggregation",
    "algo": "estimator",
    "adv_estimator": "estimator",
    "output_dir": "out",
}


def with_overrides(config: Config, arguments: list[str]) -> Config:
    """`config` with `--field value` or `--field=value` pairs applied; raises UsageError for what it cannot read.

    `--task.size 9` and `--estimator.order 4` reach into task_options and estimator_options.
    """
    types = typing.get_type_hints(Config)
    refuse_blanks(
        arguments,
        {dashed(name): str for name, kind in types.items() if typing.get_origin(kind) is tuple},
    )
    changes = {}
    given = {"task": {}, "estimator": {}}  # the options of these two
    for key, text in split_arguments(arguments):
        name, dot, inner = key.replace("-", "_").partition(".")
        if inner and name in given:
            given[name][inner] = guess(text)
        elif name in FIXED:
            if parse(float, key, text) != FIXED[name]:
                raise UsageError(
                    f"--{key} {text}: training samples from the distribution that it scores, with temperature 1 "
                    "and without top-k or top-p; with any other the estimators are biased (evaluations have "
                    "--eval-temperature and --eval-top-p)"
                )
        elif dot or name not in types or types[name] is dict:
            names = [dashed(n) for n in types if types[n] is not dict] + [
                "task.OPTION",
                "estimator.OPTION",
            ]
            near = (
                [ELSEWHERE[name]]
                if name in ELSEWHERE
                else difflib.get_close_matches(dashed(key), names, n=3, cutoff=0.4)
            )
            raise UsageError(
                f"--{key} is not an option"
                + (f"; did you mean --{' or --'.join(near)}?" if near else "")
                + " (train.py RECIPE --help lists all)"
            )
        else:
            value = parse(types[name], key, text)
            if name == "reward":  # may be given several times
                value = changes.get(name, ()) + value
            changes[name] = value
    for number, passes in (("steps", "epochs"), ("warmup_steps", "warmup_epochs")):
        if number in changes and changes.setdefault(passes, 0.0):  # instead of the recipe's
            raise UsageError(
                f"--{dashed(number)} and --{dashed(passes)} say the same thing twice: leave one out"
            )
    for name, options in given.items():
        usual = getattr(config, f"{name}_options")
        if changes.get(name, getattr(config, name)) != getattr(
            config, name
        ):  # another one does not take the recipe's
            usual = config.estimator_defaults.get(changes[name], {}) if name == "estimator" else {}
        changes[f"{name}_options"] = usual | options
    if changes.get("estimator") == "supervised" != config.estimator:
        changes.setdefault("rollouts", 1)  # it has one answer per prompt
    return dataclasses.replace(config, **changes)


def misfit(fields: dict) -> str:
    """The first of these fields of Config, as JSON has them, that is not of its type; "" for none."""
    for name, kind in typing.get_type_hints(Config).items():
        if name in fields and not holds(kind, fields[name]):
            return f"{name} = {repr(fields[name])[:40]}, which is no value of this field"
    return ""


def holds(kind, value) -> bool:
    """Whether a JSON value is one that a field of type `kind` may have."""
    if isinstance(kind, types.UnionType):
        return any(holds(one, value) for one in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return isinstance(value, list) and all(
            holds(typing.get_args(kind)[0], part) for part in value
        )
    return type(value) is kind or kind is float and type(value) is int
