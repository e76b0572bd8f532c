"""One function per experiment. Each number has its source: a place in the paper (arXiv 2602.02710), "code" for what only the
published repository (github.com/tajwarfahim/maxrl, c0698eb) has, or "ours" for what neither states.

What a recipe leaves out has the default of maxrl/config.py. For the optimizer, AdamW with betas .9 and .999, weight decay .01
and gradients clipped at 1, these are the defaults of verl, on which the published code ran: the paper does not state them. The
loss of a language model is a mean over the tokens of the whole batch (App. F; code in the warm-up).
"""

import difflib
from dataclasses import replace
from pathlib import Path

from maxrl import checkpoint
from maxrl.config import Config, misfit
from maxrl.errors import FAULTS, UsageError
from maxrl.io.user_code import imported
from maxrl.tasks import TASKS

SMALL = dict(  # what the models from scratch have in common
    model_type="qwen2",
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)


def maze17_sft() -> Config:
    """Supervised warm-up on 17x17 mazes: teaches the format, leaves a pass rate above 0 (paper: pass@1 1.2 %)."""
    return Config(
        task="maze",
        task_options={"size": 17},  # Sec. 6.2
        model=SMALL
        | dict(  # E.1.2; 3,944,704 parameters
            vocab_size=32,
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=4,
            max_position_embeddings=512,
            rope_theta=1e6,
            initializer_range=1 / 16,
        ),  # ours, 1/sqrt(256): with code's .02 walls are not read by step 1,500
        estimator="supervised",
        prompts=32,
        rollouts=1,
        lr=5e-4,  # E.1.3
        steps=4000,
        stop_at_pass=0.012,  # E.1.3 has 1,500 steps; ours end where the paper's base stands (Figure 17)
        eval_every=25,
        eval_from=1000,
        eval_prompts=256,
        eval_samples=32,
        eval_k=(1, 32),  # ours
        save_every=250,
        keep=1,  # ours
        max_response=180,  # code
        betas=(0.9, 0.95),  # code, with the default's weight decay and clipping
        schedule="constant",  # code: a cosine over 10 epochs of which 1,500 steps are the flat start
    )


def maze17() -> Config:
    """17x17 mazes, the default setting of E.1.3, from the warm-up in runs/maze17_sft."""
    sft = maze17_sft()
    return Config(
        task="maze",
        task_options=sft.task_options,
        model=sft.model,
        init="runs/maze17_sft",
        estimator="maxrl",
        prompts=32,
        rollouts=128,
        steps=20_000,
        lr=1e-4,  # E.1.3
        max_response=180,  # code
        micro_batch_tokens=65536,  # ours
        eval_every=500,
        eval_prompts=256,
        eval_samples=256,
        eval_k=(1, 32, 128, 256),  # Figure 17's k; samples ours
        save_every=1000,
        keep=2,  # ours
    )


def maze9_laptop_sft() -> Config:
    """Warm-up of the laptop demo, 9x9 mazes and 308,448 parameters: a reduced scale, every number is ours."""
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
            initializer_range=0.1,
        ),  # 1/sqrt(96); with the .02 of wide models RL hardly learns (results/maze9_laptop)
        estimator="supervised",
        prompts=32,
        rollouts=1,
        steps=400,
        lr=1e-3,
        max_response=48,
        eval_every=10,
        stop_at_pass=0.015,  # a weak base, as the paper's is with .012; about 100 steps
        betas=(0.9, 0.95),
        precision="float32",  # as in all laptop recipes: their results then do not depend on what a CPU multiplies in bfloat16
    )


def maze9_laptop() -> Config:
    """The laptop demo: MaxRL, GRPO and RLOO on 9x9 mazes in minutes on two cores. Every number is ours."""
    sft = maze9_laptop_sft()
    return Config(
        task="maze",
        task_options=sft.task_options,
        model=sft.model,
        init="runs/maze9_laptop_sft",
        estimator="maxrl",
        prompts=16,
        rollouts=32,
        steps=400,
        max_response=48,
        lr=1e-4,  # one rate for all methods, the paper's
        schedule="cosine",
        decay_ratio=0.5,  # so that the last step is no lottery
        precision="float32",
        micro_batch_tokens=4096,
        wave_rows=2048,
        eval_every=80,
    )


def imagenet() -> Config:
    """ResNet-50 on ImageNet against exact maximum likelihood: --estimator supervised is cross-entropy (Sec. 6.1, D.2)."""
    return Config(
        task="images",
        task_options={"directory": "imagenet/256", "size": 224},  # D.2; centre crop: code
        model=dict(model_type="torchvision_resnet", block="bottleneck", depths=(3, 4, 6, 3)),
        estimator="maxrl",
        aggregation="sequence",  # D.1: mean over images and rollouts
        estimator_defaults={"grpo": {"ddof": 0}},  # D.1: std with divisor N
        prompts=256,
        rollouts=1024,  # D.2; also 16 and 128, Figure 2
        optimizer="sgd",
        momentum=0.9,
        lr=0.1,
        epochs=20,  # D.2
        schedule="cosine",
        warmup_epochs=1,  # D.2; code: 2
        weight_decay=1e-4,
        max_grad_norm=1e5,  # code
        precision="auto",  # not stated; code: float32
        workers=8,  # per GPU; ours
        eval_every=1000,
        eval_prompts=50_000,
        eval_samples=0,
        eval_k=(1, 128),  # Figure 2
        save_every=5000,
        keep=2,  # ours
    )


def images_laptop() -> Config:
    """Figure 2 on a laptop: 200 classes of drawn glyphs and a small ResNet, a reduced scale; every number is ours."""
    return Config(
        task="images",
        task_options={"directory": "glyphs/200x32", "size": 32, "augment": False},
        model=dict(model_type="torchvision_resnet", block="basic", depths=(1, 1, 1), width=16),
        estimator="maxrl",
        aggregation="sequence",
        estimator_defaults={"grpo": {"ddof": 0}},  # D.1
        prompts=256,
        rollouts=1024,
        steps=400,  # 3.4 passes over 30,000 images
        optimizer="sgd",
        schedule="cosine",
        warmup_steps=20,
        weight_decay=1e-4,
        max_grad_norm=1e5,
        lr=1.0,  # the best of five for cross-entropy, and one for all methods (results/images_laptop)
        precision="float32",
        eval_every=20,
        eval_prompts=2000,
        eval_samples=0,
        eval_k=(1, 25),  # k: an eighth of the classes, as 128 of 1,000
    )


def gsm8k_smollm2() -> Config:
    """SmolLM2-360M-Instruct on GSM8K, Table 5: 256 prompts x 128 rollouts, 1,500 steps; on 8 GPUs with torchrun.

    One GPU of 80 GB (51 GiB) computes the same with more micro-batches a step: what is in memory at once does not depend on
    the number of GPUs.
    """
    return Config(
        task="gsm8k",
        init="HuggingFaceTB/SmolLM2-360M-Instruct",  # Table 5
        estimator="maxrl",
        prompts=256,
        rollouts=128,
        steps=1500,
        lr=1e-5,  # Table 5
        max_prompt=512,
        max_response=2048,  # Table 5
        zero_reward_at_limit=True,  # code
        micro_batch_tokens=32768,
        kv_memory_gb=40.0,  # ours: 51 GiB of 80 by --dry-run
        eval_every=29,
        eval_prompts=1319,
        eval_samples=16,
        eval_k=(1, 16),  # an epoch is 29 batches; samples ours
        eval_temperature=0.6,
        eval_top_p=0.95,  # Table 5
        save_every=145,
        keep=2,  # ours: five epochs
    )


def gsm8k_smollm2_24gb() -> Config:
    """GSM8K on one GPU of 24 GB: a LoRA adapter of SmolLM2-360M-Instruct, smaller batches; all ours, and untried.

    It needs 14.5 GiB by --dry-run: more --prompts or --rollouts take more time and hardly more memory.
    """
    return replace(
        gsm8k_smollm2(),
        lora_rank=16,
        lora_alpha=32.0,
        lr=1e-4,
        prompts=32,
        rollouts=32,
        steps=500,
        max_response=1024,
        micro_batch_tokens=8192,
        kv_memory_gb=12.0,
        eval_every=50,
        eval_prompts=256,
        save_every=50,
    )


def gsm8k_smollm2_135m_sft() -> Config:
    """Warm-up of gsm8k_smollm2_135m on GSM8K's own solutions, which teaches short ones that end in a box; all ours.

    The model is `python -m data.smollm2.prepare`'s: 135M parameters, 4-bit at origin.
    """
    return Config(
        task="gsm8k",
        init="data/smollm2/135m-instruct",
        estimator="supervised",
        prompts=32,
        rollouts=1,
        steps=50,
        lr=1e-4,
        schedule="cosine",
        warmup_steps=5,
        max_prompt=192,
        max_response=192,
        micro_batch_tokens=4096,
        wave_rows=256,
        save_every_minutes=10,
        keep=1,
        eval_temperature=0.6,
        eval_top_p=0.95,  # Table 5
    )


def gsm8k_smollm2_135m() -> Config:
    """Table 5 on two CPU cores: SmolLM2-135M after its warm-up, a small batch and short responses, MaxRL in rounds."""
    sft = gsm8k_smollm2_135m_sft()
    return Config(
        task="gsm8k",
        init="runs/gsm8k_smollm2_135m_sft",
        estimator="maxrl_rare",  # Table 5 has Algorithm 1
        prompts=8,
        rollouts=(4, 4, 8),
        steps=60,
        lr=1e-5,  # ours but for the rate: Table 5 has 256 x 128 and 1,500
        max_prompt=sft.max_prompt,
        max_response=sft.max_response,
        zero_reward_at_limit=True,  # code
        micro_batch_tokens=4096,
        wave_rows=256,
        save_every_minutes=10,
        keep=1,  # ours
        eval_temperature=0.6,
        eval_top_p=0.95,  # Table 5
    )


def polaris_qwen3_1_7b() -> Config:
    """Qwen3-1.7B-Base on POLARIS-53K, Table 6: 256 prompts x 16 rollouts, 1,000 steps; on 32 GPUs with torchrun.

    On one GPU of 80 GB (66 GiB) the objective and the batch are the same, with more micro-batches a step."""
    return Config(
        task="math",
        task_options={"train": "polaris", "validation": "math500"},
        init="Qwen/Qwen3-1.7B-Base",  # Table 6
        estimator="maxrl",
        prompts=256,
        rollouts=16,
        steps=1000,
        lr=1e-6,  # Table 6
        max_prompt=1024,
        max_response=4096,  # Table 6
        micro_batch_tokens=8192,
        kv_memory_gb=30.0,  # ours: 66 GiB of 80 by --dry-run
        max_grad_norm=0.3,  # code
        eval_every=50,
        eval_prompts=500,
        eval_samples=32,
        eval_k=(1, 32),  # E.3: 32 samples a problem; the rest ours
        eval_temperature=0.6,
        eval_top_p=0.95,  # Table 6, E.3
        save_every=50,
        keep=2,  # ours
    )


def polaris_qwen3_4b() -> Config:
    """Qwen3-4B-Base on POLARIS-53K, Table 6: as polaris_qwen3_1_7b."""
    return replace(polaris_qwen3_1_7b(), init="Qwen/Qwen3-4B-Base")


def polaris_qwen3_4b_1gpu() -> Config:
    """polaris_qwen3_4b on one GPU of 141 GB (122 GiB): the same objective and batch, layers made again in the backward.

    80 GB with a tenth left free, 71 GiB, do not hold it whatever these options are: weights, gradients and Adam are 60 GiB,
    beside them bfloat16 weights with one group's keys and values, 17 (--dry-run).
    """
    return replace(
        polaris_qwen3_4b(), gradient_checkpointing=True, micro_batch_tokens=32768, kv_memory_gb=45.0
    )


def prompts() -> Config:
    """A data set and reward functions of your own: --task.train FILE.jsonl --reward FILE.py:FUNCTION --init MODEL."""
    return Config(
        task="prompts",
        estimator="maxrl",
        prompts=32,
        rollouts=16,
        steps=500,
        lr=1e-6,
        max_prompt=1024,
        max_response=1024,
        micro_batch_tokens=8192,
        kv_memory_gb=12.0,
        save_every=100,
        show_every=20,
    )  # all ours: a place to start from


def gsm8k_laptop_sft() -> Config:
    """Warm-up of the GSM8K path on a laptop: generated word problems, a model from scratch; every number is ours."""
    return Config(
        task="gsm8k",
        task_options={"directory": "word_problems"},
        model=SMALL
        | dict(  # 657,024 parameters
            vocab_size=512,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=3,
            max_position_embeddings=128,
            rope_theta=1e4,
            initializer_range=0.09,
        ),  # 1/sqrt(128)
        estimator="supervised",
        prompts=64,
        rollouts=1,
        steps=1500,
        lr=2e-3,
        warmup_steps=50,
        max_response=48,
        eval_every=25,
        eval_samples=32,
        eval_k=(1, 8, 32),
        stop_at_pass=0.15,
        micro_batch_tokens=4096,
        betas=(0.9, 0.95),
        precision="float32",
    )


def gsm8k_laptop() -> Config:
    """The whole GSM8K path on two cores in minutes: MaxRL on generated word problems; every number is ours."""
    sft = gsm8k_laptop_sft()
    return Config(
        task="gsm8k",
        task_options=sft.task_options,
        model=sft.model,
        init="runs/gsm8k_laptop_sft",
        estimator="maxrl",
        prompts=32,
        rollouts=16,
        steps=160,
        max_response=48,
        lr=3e-4,
        precision="float32",
        micro_batch_tokens=4096,
        wave_rows=2048,
        eval_every=40,
        eval_samples=32,
        eval_k=(1, 8, 32),
    )


def subset_sum_sft() -> Config:
    """Warm-up of subset_sum, less than a minute: which of five numbers add up to a target; every number is ours."""
    maze = maze9_laptop_sft()
    return replace(
        maze,
        task="subset_sum",
        task_options={"plain": True, "numbers": 5, "largest": 10},
        model=maze.model | dict(vocab_size=64, max_position_embeddings=32),
        steps=600,
        max_response=8,
        eval_every=25,
        stop_at_pass=0.05,
    )


def subset_sum() -> Config:
    """Subset sums after the warm-up, MaxRL or GRPO in two minutes on a core (results/small_tasks); every number is ours."""
    sft = subset_sum_sft()
    return replace(
        maze9_laptop(),
        task=sft.task,
        task_options=sft.task_options,
        model=sft.model,
        init="runs/subset_sum_sft",
        steps=200,
        lr=3e-4,
        max_response=sft.max_response,
        eval_every=50,
    )


def reverse_text_sft() -> Config:
    """Warm-up of reverse_text, less than a minute: two made-up words backwards; every number is ours."""
    maze = maze9_laptop_sft()
    return replace(
        maze,
        task="reverse_text",
        task_options={"plain": True},
        model=maze.model | dict(max_position_embeddings=32),
        max_response=12,
        stop_at_pass=0.02,
    )


def reverse_text() -> Config:
    """Words backwards after the warm-up, MaxRL or GRPO in a minute on a core (results/small_tasks); every number is ours."""
    sft = reverse_text_sft()
    return replace(
        maze9_laptop(),
        task=sft.task,
        task_options=sft.task_options,
        model=sft.model,
        init="runs/reverse_text_sft",
        steps=120,
        lr=3e-4,
        max_response=sft.max_response,
        eval_every=40,
    )


RECIPES = {
    r.__name__: r
    for r in (
        maze17_sft,
        maze17,
        maze9_laptop_sft,
        maze9_laptop,
        imagenet,
        images_laptop,
        gsm8k_smollm2,
        gsm8k_smollm2_24gb,
        gsm8k_smollm2_135m_sft,
        gsm8k_smollm2_135m,
        polaris_qwen3_1_7b,
        polaris_qwen3_4b,
        polaris_qwen3_4b_1gpu,
        gsm8k_laptop_sft,
        gsm8k_laptop,
        subset_sum_sft,
        subset_sum,
        reverse_text_sft,
        reverse_text,
        prompts,
    )
}


def is_record(recipe: str) -> bool:
    """Whether a recipe is what a run has recorded, RUN/recipe.json."""
    return Path(recipe).name == "recipe.json"


def repeated(file: str) -> Config:
    """The recipe in a run's recipe.json, for a run of its own: without the directory, and from the beginning."""
    try:
        fields = checkpoint.recorded(Path(file).parent)
    except FileNotFoundError:
        raise UsageError(f"there is no file {file}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return replace(Config(**fields), out="", resume="no")


def find_recipe(name: str):
    """The function that makes the Config of a recipe of ours, of one of the user's own, FILE.py:NAME, or of a run's."""
    if is_record(name):
        cfg = repeated(name)
        return lambda: cfg
    if ":" in name:
        recipe = imported(name, "recipe")
        try:
            made = recipe()
            if not isinstance(made, Config):
                raise UsageError(
                    f"recipe {name} must be a function that returns a "
                    f"maxrl.config.Config, not {type(made).__name__}"
                )
            if wrong := misfit(made.to_dict()):
                raise UsageError(f"recipe {name} has {wrong}")
        except UsageError:
            raise
        except FAULTS as error:
            raise UsageError(f"recipe {name} raised {type(error).__name__}: {error}") from None
        return recipe
    if name not in RECIPES and name in TASKS:
        recipe = (
            "images_laptop" if name == "images" else "prompts"
        )  # a classifier's options are others
        raise UsageError(f"{name} is a task: train.py {recipe} --task {name}")
    if name not in RECIPES:
        near = difflib.get_close_matches(
            name.removesuffix("_1gpu"), RECIPES, n=1
        )  # once names of their own
        raise UsageError(
            f"no recipe is called {name!r}; "
            + (f"did you mean {near[0]}? " if near else "")
            + f"there are {', '.join(RECIPES)}, FILE.py:NAME or RUN/recipe.json"
        )
    return RECIPES[name]
