"""The recipe of 200 drawn classes: `python train.py results/images/recipe.py:images_laptop`."""

from maxrl.learning.config import Config


def images_laptop() -> Config:
    """Figure 2 on a laptop: 200 classes of drawn glyphs, a small ResNet; every number is ours."""
    return Config(
        task="images",
        task_options={"directory": "glyphs/200x32", "size": 32, "augment": False},
        model=dict(model_type="torchvision_resnet", block="basic", depths=(1, 1, 1), width=16),
        estimator="maxrl",
        aggregation="sequence",
        estimator_defaults={"grpo": {"ddof": 0}},  # D.1
        prompts=256,
        rollouts=(1024,),
        steps=400,  # 3.4 passes over 30,000 images
        optimizer="sgd",
        schedule="cosine",
        warmup_steps=20,
        weight_decay=1e-4,
        max_grad_norm=1e5,
        # The best of five rates for cross-entropy, used for all methods.
        lr=1.0,
        precision="float32",
        eval_every=20,
        eval_prompts=2000,
        eval_samples=0,
        eval_k=(1, 25),  # k: an eighth of the classes, as 128 of 1,000
    )
