"""From TRL's options to those of train.py: the batch, the schedule, and other forms."""

import math
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from maxrl.learning.config import TRACKERS, Config
from maxrl.run.trl.options import FIELDS, MaxRLConfig
from maxrl.system.arguments import typed
from maxrl.system.errors import UsageError

# Values that have other names in train.py.
ESTIMATORS = {"mean": "maxrl", "group": "grpo", "none": "dr_grpo", True: "grpo", False: "dr_grpo"}
AGGREGATIONS = {"dapo": "token", "bnpo": "token", "luspo": "sequence", "dr_grpo": "constant"}
SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}
WRAPPED = ("full_shard", "auto_wrap")
SHARDS: dict[Any, bool] = dict.fromkeys((None, "", (), False), False)
SHARDS |= dict.fromkeys((True, "full_shard", " ".join(WRAPPED), WRAPPED[:1], WRAPPED), True)
# Options of train.py that are read here by the name that TRL has for them.
TWICE = {
    "prompts": "per_device_train_batch_size",
    "minibatches": "steps_per_generation",
    "passes": "num_iterations",
    "steps": "max_steps",
    "epochs": "num_train_epochs",
    "max_prompt": "max_prompt_length",
    "deterministic": "full_determinism",
    "device": "use_cpu",
}
OPTIMIZERS = {"adamw_torch_fused": "adamw", "adamw_torch": "adamw", "sgd": "sgd"}


@dataclass
class Arithmetic:
    """How a run is cut into batches, as TRL does it.

    A step is one batch of rollouts. It has `minibatches` x `passes` updates, and TRL counts these.
    """

    prompts: int
    minibatches: int
    passes: int
    updates: int  # of the whole run
    per_epoch: int  # updates

    @classmethod
    def of(cls, args: MaxRLConfig, world: int, examples: int) -> "Arithmetic":
        """Return that of a run on `world` ranks; UsageError if the numbers do not divide."""
        N = args.num_generations
        each = args.gradient_accumulation_steps
        passes = args.num_iterations
        rows = args.per_device_train_batch_size * world
        parts = args.steps_per_generation or each
        if N < 2 or min(each, passes, rows, parts) < 1:
            raise UsageError(
                "num_generations must be at least 2, and per_device_train_batch_size, "
                "gradient_accumulation_steps, num_iterations and steps_per_generation at least 1"
            )
        generated = rows * parts
        if generated % N:
            raise UsageError(
                f"a batch of {generated} rollouts must divide by num_generations = {N}"
            )
        prompts = generated // N
        # TRL leaves out the incomplete batch at the end of an epoch.
        per_epoch = max(1, math.ceil(examples // prompts * passes * parts / each))
        updates = args.max_steps
        if updates <= 0:
            updates = math.ceil(args.num_train_epochs * per_epoch)
        if updates <= 0:
            raise UsageError(f"num_train_epochs = {args.num_train_epochs} must be above 0")
        # Several batches of rollouts, all of one policy, make an update.
        if parts < each and each % parts == 0 and passes == 1:
            prompts *= each // parts
            parts = each
        if parts % each:
            raise UsageError(
                f"steps_per_generation = {parts} must be a multiple of gradient_accumulation_steps "
                f"= {each}, or divide it where num_iterations is 1"
            )
        if prompts % (world * parts // each):
            raise UsageError(
                f"{prompts} prompts cannot be divided into {parts // each} updates on {world} "
                "ranks: all rollouts of a prompt belong to one update and one rank here"
            )
        return cls(prompts, parts // each, passes, updates, per_epoch)

    def after(self, count: float) -> int:
        """Return the steps that `count` updates take; below 1 it is a share of the run."""
        if 0 < count < 1:
            count = math.ceil(self.updates * count)
        return math.ceil(count / (self.minibatches * self.passes))

    def every(self, strategy: str, count: float) -> int:
        """Return the steps between two evaluations or checkpoints, 0 for none."""
        known = {"no": 0, "steps": count, "epoch": self.per_epoch}
        if strategy not in known:
            raise UsageError(f"the strategy {strategy} is not here: use no, steps or epoch")
        return self.after(known[strategy])


def recipe(args: MaxRLConfig, world: int, examples: int, validation: int, **fixed: Any) -> Config:
    """Return the options as train.py has them.

    world       ranks
    examples    prompts of the training
    validation  prompts of an evaluation
    fixed       further options: the task, the model and the reward functions
    """
    reported = [args.report_to] if isinstance(args.report_to, str) else args.report_to or []
    check(args, reported)
    batch = Arithmetic.of(args, world, examples)
    steps = batch.after(batch.updates)
    samples = args.num_generations_eval or args.num_generations
    # "constant" has no warm-up in transformers, "constant_with_warmup" has one.
    warmup = args.warmup_steps or math.ceil(args.warmup_ratio * batch.updates)
    if args.lr_scheduler_type == "constant":
        warmup = 0
    evaluations = args.eval_steps or args.logging_steps
    by_epoch = args.eval_strategy == "epoch"
    # What only has another name.
    same = {
        said[2:].replace("-", "_"): getattr(args, name)
        for name, said in FIELDS.items()
        if re.fullmatch(r"--[\w-]+", said) and getattr(args, name) is not None
    }
    options: dict = dict(
        estimator=chosen(args, "scale_rewards", ESTIMATORS),
        aggregation=chosen(args, "loss_type", AGGREGATIONS),
        reward_weights=args.reward_weights or (),
        prompts=batch.prompts,
        minibatches=batch.minibatches,
        steps=steps,
        clip=(args.epsilon, args.epsilon if args.epsilon_high is None else args.epsilon_high),
        optimizer=chosen(args, "optim", OPTIMIZERS),
        # SGD has none in transformers.
        momentum=0.0,
        schedule=chosen(args, "lr_scheduler_type", SCHEDULES),
        warmup_steps=batch.after(warmup),
        betas=(args.adam_beta1, args.adam_beta2),
        # 0 stands for no clipping in TRL.
        max_grad_norm=args.max_grad_norm or 1e9,
        device="cpu" if args.use_cpu else "auto",
        precision={None: "auto", True: "bfloat16", False: "float32"}[args.bf16],
        shard=chosen(args, "fsdp", SHARDS),
        # A run that ends before it would be evaluated is evaluated at its end.
        eval_every=min(batch.every(args.eval_strategy, evaluations), steps),
        eval_from=batch.after(math.ceil(args.eval_delay * (batch.per_epoch if by_epoch else 1))),
        eval_prompts=validation,
        eval_samples=samples,
        eval_k=tuple(2**i for i in range(samples.bit_length())),
        save_every=batch.every(args.save_strategy, args.save_steps),
        show_every=batch.after(args.logging_steps) if args.log_completions else 0,
        track=tuple(name for name in reported if name != "none"),
    )
    asked = options | args.further
    if validation == 0 and asked["eval_every"]:
        raise UsageError("eval_strategy, or eval_every, needs an eval_dataset")
    if twice := args.further.keys() & {*fixed, "model", "out", "resume"}:
        raise UsageError(f"MaxRLConfig takes no {min(twice)}: it is an argument of the trainer")
    return Config(**(same | asked | fixed))


def check(args: MaxRLConfig, reported: Iterable[str]) -> None:
    """UsageError for an unknown tracker and for what would mean something else than in TRL, and a
    warning if scale_rewards asks for another method."""
    for name in reported:
        if name not in ("none", *TRACKERS):
            raise UsageError(f"report_to = {name!r} is not here: use {', '.join(TRACKERS)} or none")
    for name in args.further.keys() & TWICE:
        raise UsageError(f"{name} is called {TWICE[name]} in MaxRLConfig")
    rounds = args.further.get("rollouts", ())
    if rounds and sum(rounds) != args.num_generations:
        said = f"num_generations = {args.num_generations}"
        raise UsageError(f"rollouts = {typed(rounds)} must add up to {said}")
    if args.entropy_coef and args.loss_type not in ("dapo", "bnpo"):
        raise UsageError(
            f"entropy_coef is divided as the loss is, and loss_type = {args.loss_type!r} does "
            "not divide by tokens: use dapo"
        )
    if args.logging_steps < 0:
        raise UsageError(f"logging_steps = {args.logging_steps} must not be negative")
    if args.scale_rewards != "mean" and "estimator" not in args.further:
        asked = chosen(args, "scale_rewards", ESTIMATORS)
        said = f"scale_rewards = {args.scale_rewards!r} asks for {asked}, not MaxRL"
        warnings.warn(f"{said}: leave it out for MaxRL", stacklevel=4)


def chosen(args: MaxRLConfig, name: str, choices: dict) -> str:
    """Return what an option's value is called in train.py; UsageError if it is nothing there."""
    value = getattr(args, name)
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices if isinstance(choice, str))
        raise UsageError(f"{name} = {value!r} is not here: use {known}")
    return choices[value]
