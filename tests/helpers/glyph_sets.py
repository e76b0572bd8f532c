"""A set of drawn images and a recipe for it."""

import pytest

from maxrl.learning.config import Config
from maxrl.run.recipes import RECIPES
from results.images import glyphs


@pytest.fixture(scope="module")
def set_of_glyphs(tmp_path_factory):
    """600 + 300 + 60 images of 12 glyphs, 12x12."""
    out = tmp_path_factory.mktemp("glyphs") / "12x12"
    options = "--classes 12 --size 12 --train 600 --validation 300 --test 60 --workers 1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glyphs, "NOISE", 0.05)
        patch.setattr(glyphs, "JITTER", 0.4)
        glyphs.main([*options.split(), "--out", str(out)])
    return out


@pytest.fixture
def recipe(set_of_glyphs, monkeypatch):
    """The recipe `glyphs`: a small ResNet on 12 glyphs."""

    def glyphs_recipe():
        """A recipe for tests."""
        return Config(
            task="images",
            task_options={"directory": str(set_of_glyphs), "size": 12, "augment": False},
            model=dict(model_type="torchvision_resnet", block="basic", depths=(1, 1), width=8),
            estimator="maxrl",
            aggregation="sequence",
            estimator_defaults={"grpo": {"ddof": 0}},
            prompts=32,
            rollouts=64,
            steps=40,
            optimizer="sgd",
            lr=0.1,
            schedule="cosine",
            warmup_steps=4,
            weight_decay=1e-4,
            max_grad_norm=1e5,
            precision="float32",
            eval_samples=0,
            eval_prompts=100,
            eval_k=(1, 2),
        )

    monkeypatch.setitem(RECIPES, "glyphs", glyphs_recipe)
    return glyphs_recipe()
