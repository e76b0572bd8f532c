"""Recipes of a reduced scale, which run on a laptop in minutes; every number in them is ours.

paper.py has the recipes of the paper.
"""

from collections.abc import Callable
from dataclasses import replace

from maxrl.learning.config import Config

# What the models from scratch have in common.
SMALL = dict(
    model_type="qwen2",
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)
# RL of the models that a laptop trains from scratch.
LAPTOP_RL: dict = dict(
    prompts=16,
    rollouts=(32,),
    schedule="cosine",
    decay_ratio=0.5,  # a falling rate, so that the last steps do not fluctuate
    micro_batch_tokens=4096,
    wave_rows=2048,
)


def after(warm_up: Callable[[], Config], **options) -> Config:
    """Return the recipe of RL from a warm-up: its options, but for those of supervised training."""
    own: dict = dict(
        init=f"runs/{warm_up.__name__}",
        estimator="maxrl",
        schedule="constant",
        warmup_steps=0,
        betas=Config.betas,
        eval_from=0,
        stop_at_pass=0.0,
    )
    return replace(warm_up(), **own | options)


def maze9_laptop_sft() -> Config:
    """Warm-up of the laptop demo: 9x9 mazes, 308,448 parameters; every number is ours."""
    return Config(
        task="maze",
        task_options={"size": 9},
        model=SMALL
        | dict(
            vocab_size=32,
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            max_position_embeddings=256,
            rope_theta=1e6,
            # 1/sqrt(96); with the .02 of wide models RL hardly learns (0cdf633).
            initializer_range=0.1,
        ),
        estimator="supervised",
        prompts=32,
        rollouts=(1,),
        steps=400,
        lr=1e-3,
        max_response=48,
        eval_every=10,
        stop_at_pass=0.015,  # a weak base, like the paper's .012; about 100 steps
        betas=(0.9, 0.95),
        # As in all laptop recipes: results do not depend on a CPU's support of bfloat16.
        precision="float32",
    )


def maze9_laptop() -> Config:
    """The laptop demo: MaxRL, GRPO and RLOO on 9x9 mazes in minutes on two cores; all ours."""
    return after(
        maze9_laptop_sft,
        **LAPTOP_RL,
        steps=400,
        lr=1e-4,  # one rate for all methods, the paper's
        eval_every=80,
    )


def gsm8k_laptop_sft() -> Config:
    """Warm-up of GSM8K on a laptop: generated problems, a model from scratch; all ours."""
    return replace(
        maze9_laptop_sft(),
        task="gsm8k",
        task_options={"directory": "word_problems"},
        # 657,024 parameters.
        model=SMALL
        | dict(
            vocab_size=512,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=3,
            max_position_embeddings=128,
            rope_theta=1e4,
            initializer_range=0.09,  # 1/sqrt(128)
        ),
        prompts=64,
        steps=1500,
        lr=2e-3,
        warmup_steps=50,
        eval_every=25,
        eval_samples=32,
        eval_k=(1, 8, 32),
        stop_at_pass=0.15,
        micro_batch_tokens=4096,
    )


def gsm8k_laptop() -> Config:
    """GSM8K on two cores in minutes: MaxRL on generated word problems; every number is ours."""
    return after(
        gsm8k_laptop_sft,
        prompts=32,
        rollouts=(16,),
        steps=160,
        lr=3e-4,
        wave_rows=2048,
        eval_every=40,
    )


def countdown_laptop_sft() -> Config:
    """Warm-up on Countdown with four numbers, a model from scratch, three minutes; all ours."""
    return replace(
        maze9_laptop_sft(),
        task="countdown",
        task_options={},
        # 605,824 parameters.
        model=gsm8k_laptop_sft().model | dict(vocab_size=112, max_position_embeddings=64),
        prompts=128,
        steps=2000,
        lr=2e-3,
        warmup_steps=50,
        max_response=16,
        eval_every=50,
        stop_at_pass=0.05,  # about 1,000 steps; a guess has nearly as much
        micro_batch_tokens=8192,
    )


def countdown_laptop() -> Config:
    """Countdown with four numbers, MaxRL or GRPO in minutes on two cores; every number is ours."""
    return after(countdown_laptop_sft, **LAPTOP_RL, steps=400, lr=3e-4, eval_every=100)
