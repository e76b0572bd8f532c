"""From TRL's options to those of train.py: the batch, the schedule, and other forms."""

import math
from dataclasses import dataclass
from typing import Any

from maxrl.config import Config
from maxrl.errors import UsageError
from maxrl.trl_options import MaxRLConfig

ESTIMATORS = {"mean": "maxrl", "group": "grpo", "none": "dr_grpo"}
AGGREGATIONS = {
    "dapo": "token",
    "bnpo": "token",
    "grpo": "sequence",
    "dr_grpo": "constant",
}
SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
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
    steps: int
    updates: int  # of the whole run
    per_epoch: int  # updates

    @classmethod
    def of(cls, args: MaxRLConfig, world: int, examples: int) -> "Arithmetic":
        """Return that of a run on `world` ranks; UsageError if the numbers do not divide."""
        N = args.num_generations
        each = args.gradient_accumulation_steps
        rows = args.per_device_train_batch_size * world
        if args.generation_batch_size and args.steps_per_generation:
            raise UsageError("generation_batch_size and steps_per_generation say the same twice")
        generated = args.generation_batch_size or rows * (args.steps_per_generation or each)
        if N < 2 or generated % rows or generated % N:
            raise UsageError(
                f"a batch of {generated} rollouts must divide by num_generations = {N}, at least "
                f"2, and by per_device_train_batch_size x ranks = {rows}"
            )
        parts = generated // rows
        prompts = generated // N
        # TRL leaves out the incomplete batch at the end of an epoch.
        per_epoch = max(1, math.ceil(examples // prompts * args.num_iterations * parts / each))
        updates = args.max_steps
        if updates <= 0:
            updates = math.ceil(args.num_train_epochs * per_epoch)
        # Several batches of rollouts, all of one policy, make an update.
        if parts < each and each % parts == 0 and args.num_iterations == 1:
            prompts *= each // parts
            parts = each
        if parts % each:
            raise UsageError(
                f"steps_per_generation = {parts} must be a multiple of gradient_accumulation_steps "
                f"= {each}, or divide it where num_iterations is 1"
            )
        minibatches = parts // each
        if prompts % world or prompts // world % minibatches:
            raise UsageError(
                f"{prompts} prompts cannot be divided into {minibatches} updates on {world} ranks: "
                "all rollouts of a prompt belong to one update and one rank here"
            )
        steps = math.ceil(updates / (minibatches * args.num_iterations))
        return cls(prompts, minibatches, args.num_iterations, steps, updates, per_epoch)

    def after(self, count: float) -> int:
        """Return the steps that `count` updates take; below 1 it is a share of the run."""
        if 0 < count < 1:
            count = math.ceil(self.updates * count)
        return math.ceil(count / (self.minibatches * self.passes))

    def every(self, strategy: str, count: float) -> int:
        """Return the steps between two evaluations or checkpoints, 0 for none."""
        strategy = plain(strategy)
        if strategy not in ("no", "steps", "epoch"):
            raise UsageError(f"the strategy {strategy} is not here: use no, steps or epoch")
        return self.after({"no": 0, "steps": count, "epoch": self.per_epoch}[strategy])


def recipe(
    args: MaxRLConfig, world: int, examples: int, validation: int, fixed: dict[str, Any]
) -> Config:
    """Return the options as train.py has them.

    world       ranks
    examples    prompts of the training
    validation  prompts of an evaluation
    fixed       further fields: the task, the model and the reward functions
    """
    args.check()
    batch = Arithmetic.of(args, world, examples)
    schedule = chosen(args, "lr_scheduler_type", SCHEDULES)
    samples = args.num_generations_eval or args.num_generations
    logged = batch.after(args.logging_steps)
    # "constant" has no warm-up in transformers, "constant_with_warmup" has one.
    warmup = args.warmup_steps or args.warmup_ratio
    if plain(args.lr_scheduler_type) == "constant":
        warmup = 0
    options: dict[str, Any] = dict(
        out=args.output_dir or "trainer_output",
        estimator=chosen(args, "scale_rewards", ESTIMATORS | {True: "grpo", False: "dr_grpo"}),
        aggregation=chosen(args, "loss_type", AGGREGATIONS),
        reward_weights=tuple(args.reward_weights or ()),
        prompts=batch.prompts,
        rollouts=args.num_generations,
        minibatches=batch.minibatches,
        passes=batch.passes,
        steps=batch.steps,
        max_prompt=args.max_prompt_length or 0,
        max_response=args.max_completion_length,
        clip=(args.epsilon, args.epsilon if args.epsilon_high is None else args.epsilon_high),
        beta=args.beta,
        entropy_bonus=args.entropy_coef,
        optimizer=chosen(args, "optim", OPTIMIZERS),
        lr=args.learning_rate,
        schedule=schedule,
        warmup_steps=batch.after(warmup),
        betas=(args.adam_beta1, args.adam_beta2),
        weight_decay=args.weight_decay,
        # 0 stands for no clipping in TRL.
        max_grad_norm=args.max_grad_norm or 1e9,
        seed=args.seed,
        device="cpu" if args.use_cpu else "auto",
        precision={None: "auto", True: "bfloat16", False: "float32"}[args.bf16],
        shard=bool(args.fsdp),
        gradient_checkpointing=args.gradient_checkpointing,
        workers=args.dataloader_num_workers,
        deterministic=args.full_determinism,
        eval_every=batch.every(args.eval_strategy, args.eval_steps or args.logging_steps),
        eval_from=batch.after(args.eval_delay),
        eval_prompts=validation,
        eval_samples=samples,
        eval_k=tuple(2**i for i in range(samples.bit_length())),
        save_every=batch.every(args.save_strategy, args.save_steps),
        keep=args.save_total_limit or 0,
        show_every=logged if args.log_completions else 0,
        track=trackers(args.report_to),
    )
    return Config(**(options | fixed | args.further))


def plain(value: Any) -> Any:
    """Return the text of an enumeration of transformers; other values stay as they are."""
    return getattr(value, "value", value)


def chosen(args: MaxRLConfig, name: str, choices: dict) -> str:
    """Return what an option's value is called in train.py; UsageError if it is nothing there."""
    value = plain(getattr(args, name))
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices if isinstance(choice, str))
        raise UsageError(f"{name} = {value!r} is not here: use {known}")
    return choices[value]


def trackers(report_to: str | list[str] | None) -> tuple[str, ...]:
    """Return what --track takes."""
    names = [report_to] if isinstance(report_to, str) else report_to or []
    unknown = set(names) - {"none", "tensorboard", "wandb"}
    if unknown:
        raise UsageError(
            f"report_to {', '.join(sorted(unknown))} is not here: use tensorboard, wandb or none"
        )
    return tuple(name for name in names if name != "none")
