"""One function per experiment, which returns the options of a run.

Each number has its source in a comment, at its line or at the head or the end of its group: a place
in the paper (arXiv 2602.02710), "code" for what only the published repository has
(github.com/tajwarfahim/maxrl, c0698eb), or "ours" for what neither states.

A recipe that leaves an option out has the default of maxrl/learning/config.py. For the optimizer,
AdamW with betas .9 and .999, weight decay .01 and gradients clipped at 1, these are the defaults of
verl, on which the published code ran: the paper does not state them. The loss of a language model
is a mean over the tokens of the whole batch (App. F; code in the warm-up).
"""

from dataclasses import replace

from maxrl.learning.config import Config
from maxrl.run.recipes.laptop import SMALL, after


def maze17_sft() -> Config:
    """Supervised warm-up on 17x17 mazes, up to a pass rate above 0 (paper: pass@1 1.2 %)."""
    return Config(
        task="maze",
        task_options={"size": 17},  # Sec. 6.2
        # E.1.2; 3,944,704 parameters.
        model=SMALL
        | dict(
            vocab_size=32,
            hidden_size=256,
            intermediate_size=1024,
            num_hidden_layers=4,
            max_position_embeddings=512,
            rope_theta=1e6,
            # ours, 1/sqrt(256): with code's .02 a model does not read walls by step 1,500
            initializer_range=1 / 16,
        ),
        estimator="supervised",
        prompts=32,
        rollouts=(1,),
        lr=5e-4,  # E.1.3
        steps=4000,
        # E.1.3 has 1,500 steps; ours end at the pass@1 of the paper's base model (Figure 17).
        stop_at_pass=0.012,
        eval_every=25,
        eval_from=1000,
        eval_prompts=256,
        eval_samples=32,
        eval_k=(1, 32),  # ours
        save_every=250,
        keep=1,  # ours
        max_response=180,  # code
        betas=(0.9, 0.95),  # code, with the default's weight decay and clipping
        schedule="constant",  # code: a cosine over 10 epochs, flat over the first 1,500 steps
    )


def maze17() -> Config:
    """17x17 mazes, the default setting of E.1.3, from the warm-up in runs/maze17_sft."""
    return after(
        maze17_sft,
        prompts=32,
        rollouts=(128,),
        steps=20_000,
        lr=1e-4,  # E.1.3
        micro_batch_tokens=65536,  # ours
        eval_every=500,
        eval_prompts=256,
        eval_samples=256,
        eval_k=(1, 32, 128, 256),  # Figure 17's k; samples ours
        save_every=1000,
        keep=2,  # ours
    )


def imagenet() -> Config:
    """ResNet-50 on ImageNet (Sec. 6.1, D.2); --estimator supervised is exact maximum likelihood."""
    return Config(
        task="images",
        task_options={"directory": "imagenet/256", "size": 224},  # D.2; centre crop: code
        model=dict(model_type="torchvision_resnet", block="bottleneck", depths=(3, 4, 6, 3)),
        estimator="maxrl",
        aggregation="sequence",  # D.1: mean over images and rollouts
        estimator_defaults={"grpo": {"ddof": 0}},  # D.1: std with divisor N
        prompts=256,
        rollouts=(1024,),  # D.2; also 16 and 128, Figure 2
        optimizer="sgd",
        momentum=0.9,
        lr=0.1,
        epochs=20,  # D.2
        schedule="cosine",
        warmup_steps=5005,  # D.2: one epoch of ImageNet at 256 prompts; code: 2
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


def gsm8k_smollm2() -> Config:
    """SmolLM2-360M-Instruct on GSM8K, Table 5, on 8 GPUs with torchrun.

    One GPU of 80 GB (53 GiB) computes the same with more micro-batches a step: the memory does not
    depend on the number of GPUs.
    """
    return Config(
        task="gsm8k",
        init="HuggingFaceTB/SmolLM2-360M-Instruct",  # Table 5
        estimator="maxrl",
        prompts=256,
        rollouts=(128,),
        steps=1500,
        lr=1e-5,  # Table 5
        max_prompt=512,
        max_response=2048,  # Table 5
        zero_reward_at_limit=True,  # code
        micro_batch_tokens=32768,
        kv_memory_gb=40.0,  # ours: 53 GiB of 80 by --dry-run
        eval_every=29,
        eval_prompts=1319,
        eval_samples=16,
        eval_k=(1, 16),  # an epoch is 29 batches; samples ours
        eval_temperature=0.6,
        eval_top_p=0.95,  # Table 5
        save_every=145,
        keep=2,  # ours: five epochs
    )


def gsm8k_smollm2_135m_sft() -> Config:
    """Warm-up of gsm8k_smollm2_135m, on GSM8K's own short solutions that end in a box.

    All ours but for the temperature and top-p of evaluations.

    data/README.md says how to make the model: 135M parameters, from 4-bit weights.
    """
    return Config(
        task="gsm8k",
        init="data/smollm2/135m-instruct",
        estimator="supervised",
        prompts=32,
        rollouts=(1,),
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
    """Table 5 on two CPU cores: SmolLM2-135M, small batches, short responses, MaxRL in rounds."""
    return after(
        gsm8k_smollm2_135m_sft,
        estimator="maxrl_rare",  # Table 5 has Algorithm 1
        prompts=8,
        rollouts=(4, 4, 8),
        steps=60,
        lr=1e-5,  # ours but for the rate: Table 5 has 256 x 128 and 1,500
        zero_reward_at_limit=True,  # code
    )


def polaris_qwen3_1_7b() -> Config:
    """Qwen3-1.7B-Base on POLARIS-53K, Table 6, on 32 GPUs with torchrun.

    One GPU of 80 GB (66 GiB) computes the same with more micro-batches a step.
    """
    return Config(
        task="math",
        task_options={"train": "polaris", "validation": "math500"},
        init="Qwen/Qwen3-1.7B-Base",  # Table 6
        estimator="maxrl",
        prompts=256,
        rollouts=(16,),
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
    """Qwen3-4B-Base on POLARIS-53K, Table 6, otherwise as polaris_qwen3_1_7b."""
    return replace(polaris_qwen3_1_7b(), init="Qwen/Qwen3-4B-Base")


def prompts() -> Config:
    """Your own data: --task.train FILE.jsonl --reward FILE.py:FUNCTION --init MODEL."""
    return Config(
        task="prompts",
        estimator="maxrl",
        prompts=32,
        rollouts=(16,),
        steps=500,
        lr=1e-6,
        max_prompt=1024,
        max_response=1024,
        micro_batch_tokens=8192,
        kv_memory_gb=12.0,
        save_every=100,
        show_every=20,
    )  # all ours: a place to start from
