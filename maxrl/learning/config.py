"""Everything that a run can be told: one frozen dataclass, and its options on the command line.

A field holds all there is to know about its option: default, description, bounds, choices, whether
it is for language models alone, and whether a resumed run may change it. A new option is one line
here.
"""

import dataclasses
import functools
import inspect
import json
import math
from dataclasses import dataclass, field
from typing import Any

from maxrl.models.lora import PROJECTIONS
from maxrl.system.arguments import as_type, check_least, dashed, typed
from maxrl.system.errors import UsageError

TRACKERS = ("tensorboard", "wandb")


def option(
    default: object,
    help: str,
    *,
    above: float = -math.inf,
    least: int | None = 0,
    most: float = math.inf,
    choices: tuple[str, ...] = (),
    language: bool = False,
    free: bool = False,
) -> Any:
    """Return a field of Config.

    above, least, most  bounds of a number, which by default must not be negative
    language  whether it means nothing to a classifier
    free      whether a resumed run may change it: neither what is learned nor what it is learned
              from depends on it
    """
    about = locals()
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=about)
    return field(default=default, metadata=about)


free_option = functools.partial(option, free=True)
language_option = functools.partial(option, language=True)
free_language_option = functools.partial(option, language=True, free=True)


@dataclass(frozen=True)
class Config:
    """The options of a run: a recipe sets them, --field value overrides, recipe.json records."""

    # what is learned
    task: str = option(
        "maze", "Task by name (maxrl.tasks.TASKS), package.module:Class or FILE.py:Class."
    )
    task_options: dict = option(
        {}, "Arguments of the task's constructor; --task.size 9 sets one of them."
    )
    model: dict = option({}, "config.json of a model trained from scratch; not used with init.")
    init: str = option("", "Checkpoint or run directory to start from.")
    lora_rank: int = language_option(
        0,
        "Trains a LoRA adapter of this rank and freezes the model of --init (0: no adapter).",
    )
    lora_alpha: float = language_option(
        32.0, "The adapter's output is scaled by lora_alpha / lora_rank.", above=0
    )
    lora_projections: tuple[str, ...] = language_option(
        PROJECTIONS, "Projections of every layer that have an adapter.", choices=PROJECTIONS
    )
    # the estimator
    estimator: str = option(
        "maxrl",
        "Estimator by name, or FILE.py:FUNCTION; supervised trains on the reference answers.",
    )
    estimator_options: dict = option(
        {}, "Options of the estimator; --estimator.order 4 sets one of them."
    )
    estimator_defaults: dict = option(
        {}, "For each estimator, the options that it has in this recipe."
    )
    aggregation: str = option(
        "token",
        "Divisor of the loss: sequence (Algorithm 1), token (Appendix F) or constant.",
        choices=("sequence", "token", "constant"),
    )
    reward: tuple[str, ...] = language_option(
        (),
        "Reward functions in place of the task's verdict, by name, FILE.py:f or package.module:f.",
    )
    reward_weights: tuple[float, ...] = language_option(
        (), "Weights of the reward functions in their sum (default 1).", least=None
    )
    no_verdict: str = language_option(
        "group",
        "If all reward functions return None, leave out the group (unbiased) or only the rollout "
        "(as TRL does; MaxRL's order is then lower).",
        choices=("group", "rollout"),
    )
    reward_errors: str = option(
        "stop",
        "If a reward function fails, stop the run or drop the groups of that call.",
        choices=("stop", "drop"),
    )
    reward_timeout: float = free_option(
        0.0, "Seconds that one call of a reward function may take (0: no limit).", most=1e9
    )
    thresholds: bool = option(
        False,
        "Takes rewards other than 0 and 1: the estimator at every threshold of the reward. For "
        "maxrl this is the estimator tailrl.",
    )
    max_prompt: int = language_option(
        0, "Longest prompt in tokens; longer ones are left out (0: all prompts must fit)."
    )
    prompts: int = option(32, "P, prompts per step, over all ranks.", above=0, most=10**6)
    rollouts: tuple[int, ...] = option(
        (128,),
        "N, rollouts per prompt; 8,8,16 samples rounds of that size until one has a success.",
        above=0,
        most=10**6,
    )
    max_response: int = language_option(
        180, "Longest response in tokens, including the end token.", above=0
    )
    zero_reward_at_limit: bool = language_option(
        False, "Gives reward 0 at most to a response that was cut by the length limit."
    )
    minibatches: int = language_option(
        1,
        "Updates per pass over a batch of rollouts, each on an equal share of its prompts.",
        above=0,
    )
    passes: int = language_option(
        1,
        "Passes over a batch of rollouts; several updates use the importance ratio.",
        above=0,
    )
    clip: tuple[float, ...] = language_option(
        (0.2, 0.2), "The importance ratio is clipped to [1 - first, 1 + second].", above=0
    )
    beta: float = language_option(0.0, "Weight of the KL penalty to the frozen model of --init.")
    kl: str = language_option(
        "k3",
        "KL penalty of each token: k3 has the gradient of KL(reference || model), k2 that of "
        "KL(model || reference).",
        choices=("k3", "k2"),
    )
    entropy_bonus: float = language_option(
        0.0,
        "Weight of the entropy of the response tokens, with the divisor of the loss.",
        least=None,
    )
    # the optimizer
    optimizer: str = option(
        "adamw",
        "adamw, sgd, or muon: Muon for the matrices of the layers, AdamW for the rest.",
        choices=("adamw", "sgd", "muon"),
    )
    steps: int = free_option(1000, "Optimizer steps, one per batch of rollouts.", most=10**9)
    epochs: float = free_option(
        0.0, "If above 0, sets steps to that many passes over the task's prompts."
    )
    lr: float = option(1e-4, "Learning rate after the warm-up.")
    muon_lr_scale: float = language_option(
        4.0, "Muon's learning rate (with it its weight decay) as a multiple of AdamW's.", above=0
    )
    schedule: str = option(
        "constant",
        "Learning rate after the warm-up: constant, or linear or cosine down to 0.",
        choices=("constant", "linear", "cosine"),
    )
    decay_ratio: float = option(
        1.0,
        "Share of the steps, at the end, over which --schedule decreases the rate.",
        above=0,
        most=1,
    )
    warmup_steps: int = option(0, "Steps over which the learning rate increases linearly.")
    betas: tuple[float, ...] = option((0.9, 0.999), "Adam's two decay rates.")
    momentum: float = option(0.9, "SGD's momentum, without Nesterov.")
    weight_decay: float = option(
        0.01, "Decoupled weight decay, or SGD's L2 penalty, on all parameters."
    )
    max_grad_norm: float = option(1.0, "Norm to which longer gradients are clipped.", above=0)
    # the machine
    seed: int = option(
        0,
        "Seed of the initial weights, the order of the prompts and the rollouts.",
        most=2**31 - 1,
    )
    device: str = free_option(
        "auto", "cpu, cuda, or auto: cuda if available.", choices=("auto", "cpu", "cuda")
    )
    precision: str = option(
        "auto",
        "float32, bfloat16, or auto: bfloat16 on GPUs and CPUs that multiply it themselves.",
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
        "If above 0, replaces wave_rows: a wave is halved if its keys, values and logits need more "
        "than this many GiB.",
    )
    cuda_graphs: bool = free_language_option(
        True, "Replays sampling steps as CUDA graphs; false launches every kernel by itself."
    )
    shard: bool = free_language_option(
        False,
        "Shards weights, gradients and optimizer state over a node's ranks (fully_shard, not DDP).",
    )
    gradient_checkpointing: bool = free_language_option(
        False, "Recomputes each layer in the backward pass: less memory, a third more work."
    )
    workers: int = free_option(0, "Worker processes that load batches (0: none); images need some.")
    deterministic: bool = free_option(
        False, "Uses only deterministic CUDA kernels, which are slower."
    )
    # evaluation and files
    eval_every: int = free_option(0, "Steps between evaluations on the validation split (0: none).")
    eval_from: int = free_option(0, "No evaluation before this step.")
    eval_prompts: int = free_option(64, "Validation prompts of an evaluation.")
    eval_samples: int = free_option(
        64, "Rollouts per validation prompt; 0 for a classifier, whose pass@k is exact.", most=10**6
    )
    eval_temperature: float = free_language_option(
        1.0, "Sampling temperature of these evaluations, and eval.py's default."
    )
    eval_top_p: float = free_language_option(
        1.0, "Top-p of these evaluations, and eval.py's default (1: all tokens).", above=0, most=1
    )
    eval_k: tuple[int, ...] = free_option((1, 8, 64), "Values of k in pass@k.", above=0)
    show_every: int = free_language_option(
        0, "Steps between lines of samples.jsonl (0: only at evaluations)."
    )
    stop_at_pass: float = option(
        0.0, "If above 0, training stops once an evaluation's pass@1 reaches it.", most=1
    )
    save_every: int = free_option(0, "Steps between checkpoints (0: only at the end).")
    save_every_minutes: float = free_option(
        0.0, "Minutes between checkpoints, in addition to save_every (0: off)."
    )
    keep: int = free_option(0, "How many of the newest checkpoints are kept (0: all).")
    max_skipped: int = free_option(
        5, "Training ends after this many steps in a row without a finite gradient.", above=0
    )
    out: str = free_option(
        "", "Run directory (default runs/RECIPE-ESTIMATOR, or runs/RECIPE if supervised)."
    )
    track: tuple[str, ...] = free_option(
        (),
        "Trackers in addition to metrics.jsonl: tensorboard, wandb or both.",
        choices=TRACKERS,
    )
    resume: str = free_option(
        "no",
        "yes resumes from the newest checkpoint in out, auto resumes or starts, no starts.",
        choices=("no", "yes", "auto"),
    )

    def __post_init__(self):
        for f in dataclasses.fields(self):
            # vars, because the dataclass is frozen.
            vars(self)[f.name] = valid_value(f, getattr(self, f.name))
        self.check_training()
        self.check_evaluations()

    def check_training(self):
        """Raise UsageError for values that do not fit together."""
        refuse_if(
            len(self.clip) != 2 or self.clip[0] > 1,
            f"--clip takes two numbers, the first at most 1, not {typed(self.clip)}",
        )
        refuse_if(
            len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas),
            f"--betas takes two numbers in [0, 1), not {typed(self.betas)}",
        )
        refuse_if(self.momentum >= 1, f"--momentum {self.momentum} must lie in [0, 1)")
        refuse_if(
            self.optimizer == "muon" and self.lora_rank,
            "--optimizer muon trains whole matrices, not their LoRA: leave out --lora-rank",
        )
        for name, needed, has in (
            ("beta", "--init", self.init),
            ("lora_rank", "--init", self.init),
            ("lora_alpha", "--lora-rank", self.lora_rank),
            ("lora_projections", "--lora-rank", self.lora_rank),
            ("kl", "--beta", self.beta),
            ("muon_lr_scale", "--optimizer muon", self.optimizer == "muon"),
        ):
            refuse_if(
                getattr(self, name) != getattr(Config, name) and not has,
                f"--{dashed(name)} means nothing without {needed}",
            )
        several = self.minibatches > 1 or self.passes > 1 or self.beta or self.entropy_bonus
        refuse_if(
            several and self.supervised,
            "--estimator supervised takes no --minibatches, --passes, --beta or --entropy-bonus",
        )

    def check_evaluations(self):
        """Raise UsageError for evaluations that cannot be."""
        most = max(self.eval_k, default=0)
        stop = self.stop_at_pass
        refuse_if(
            stop and not (self.eval_every and 1 in self.eval_k),
            f"--stop-at-pass {stop} needs --eval-every above 0 and 1 among --eval-k",
        )
        refuse_if(self.eval_every and not self.eval_prompts, "--eval-prompts 0 must be above 0")
        refuse_if(
            self.eval_every and 0 < self.eval_samples < most,
            f"--eval-k {most} needs at least as many --eval-samples, not {self.eval_samples}",
        )

    @property
    def supervised(self) -> bool:
        """Whether the run learns reference answers, and samples nothing."""
        return self.estimator == "supervised"

    def evaluates(self, step: int) -> bool:
        """Whether there is an evaluation after this step."""
        return (
            self.eval_every > 0 and step + 1 >= self.eval_from and (step + 1) % self.eval_every == 0
        )

    def shows(self, step: int) -> bool:
        """Whether samples.jsonl gets a line at this step; a supervised run samples nothing."""
        due = self.show_every and step % self.show_every == 0 or self.evaluates(step)
        return bool(due) and not self.supervised

    def to_dict(self) -> dict:
        """Return the fields as JSON has them, where a tuple is a list."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


# The fields that a resumed run may change.
FREE_ON_RESUME = {f.name for f in dataclasses.fields(Config) if f.metadata["free"]}
# The fields that mean nothing to a classifier.
LANGUAGE = {f.name for f in dataclasses.fields(Config) if f.metadata["language"]}


def refuse_if(wrong: object, sentence: str):
    """Raise UsageError if `wrong` is true."""
    if wrong:
        raise UsageError(sentence)


def valid_value(field: dataclasses.Field, value: object) -> object:
    """Return an option's value as its type has it.

    UsageError for a value that the option cannot have, whatever the others are.
    """
    about = field.metadata
    option = f"--{dashed(field.name)}"
    value = as_kind(option, Config.__annotations__[field.name], value)
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, int | float):
            refuse_if(item <= about["above"], f"{option} {item} must be above {about['above']}")
            check_least(field.name, item, about["least"], about["most"])
        elif about["choices"]:
            known = ", ".join(about["choices"])
            refuse_if(item not in about["choices"], f"{option} {item} is not one of {known}")
    return value


def as_kind(option: str, kind: type, value: object) -> object:
    """Return a value as an option of type `kind` has it; UsageError if it cannot have it."""
    infinite = isinstance(value, float) and not math.isfinite(value)
    refuse_if(infinite, f"{option} {value} must be finite")
    try:
        return as_type(kind, value)
    except TypeError:
        wanted = inspect.formatannotation(kind)
        raise UsageError(f"{option} cannot be {value!r:.40}: its type is {wanted}") from None
