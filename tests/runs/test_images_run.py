"""Runs of classifiers: the two objectives, an epoch of ImageNet resumed, and what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from data.imagenet import prepare as imagenet
from maxrl.learning.classifier import ClassifierPolicy
from maxrl.models import checkpoint, from_config
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.resnet import ResNet, ResNetConfig
from maxrl.run.recipes import RECIPES
from maxrl.system.arguments import typed
from maxrl.system.files import read_json
from maxrl.tasks.images import Images
from tests.helpers.command_lines import with_overrides
from tests.helpers.pictures import jpegs
from tests.helpers.runs import column, killed, metrics, passed, refused, same_runs
from tests.helpers.tables import each


def test_cross_entropy_equals_a_plain_loop(recipe, shell, set_of_glyphs):
    """`--estimator supervised` is SGD on F.cross_entropy with a cosine, written here without
    anything of the loop's.
    """
    run = ("train.py", "glyphs", "--estimator", "supervised", "--steps", 6, "--out", "ours")
    passed(shell(*run))
    task = Images("train", set_of_glyphs, 12, augment=False)
    torch.manual_seed(0)
    model = from_config(recipe.model | {"num_labels": 12}).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1.0, momentum=0.9, weight_decay=1e-4, nesterov=False
    )
    order = np.random.default_rng([1, 0, 0, 3]).permutation(600)
    for step in range(6):
        lr = 0.1 * ((step + 1) / 4 if step < 4 else (1 + math.cos(math.pi * (step - 4) / 2)) / 2)
        optimizer.param_groups[0]["lr"] = lr
        examples = task.batch(order[step * 32 : step * 32 + 32])
        loss = F.cross_entropy(model(examples.images), examples.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert metrics("ours")[step]["loss"] == pytest.approx(loss.item(), rel=1e-4)
    for name, tensor in load_file(checkpoint.find("ours") / "model.safetensors").items():
        torch.testing.assert_close(tensor, model.state_dict()[name], atol=2e-5, rtol=1e-4)


def test_two_objectives_through_the_front_doors(recipe, shell):
    """The same initial weights and the same images for both; for their limit see
    test_the_limit_of_many_rollouts.
    """
    for name in ("supervised", "maxrl"):
        passed(shell("train.py", "glyphs", "--estimator", name, "--steps", 2, "--out", name))
    exact = metrics("supervised")[0]
    drawn = metrics("maxrl")[0]
    assert exact["pass_rate"] == drawn["pass_rate"]
    assert exact["reward"] == 1
    asked = "--k 1,2 --json out.json --plot out.png"
    said = passed(shell("eval.py", "supervised", "maxrl", *asked.split()))
    assert "60 images, exact" in said
    assert "top-1" in said
    assert Path("out.png").exists()
    results = read_json("out.json")
    for row in results["checkpoints"]:
        p = np.array(row["pass_rates"])
        assert len(p) == 60
        curve = results["pass@k"][row["name"]]
        assert curve["k"] == [1, 2, 4, 8]
        expected = [np.mean(1 - (1 - p) ** k) for k in curve["k"]]
        assert curve["mean"] == pytest.approx(expected, abs=1e-5)
    said = passed(shell("sample.py", "maxrl", "--prompts", 2, "--samples", 8))
    for words in ("of 8 rollouts are right", "glyph", "right:"):
        assert words in said


# A recipe, --estimator, its options and the number of rollouts.
ESTIMATORS = """
imagenet | grpo | {"ddof": 0} | 1024
imagenet | grpo --estimator.ddof 1 | {"ddof": 1} | 1024
imagenet | rloo | {} | 1024
imagenet | supervised | {} | 1
maze17 | grpo | {} | 128
"""


@each("name, words, options, rollouts", ESTIMATORS)
def test_estimators_get_the_recipes_options(name, words, options, rollouts):
    """GRPO divides by N in the image recipes, as the paper's Appendix D says, unless told
    otherwise; by N - 1 elsewhere.
    """
    cfg = with_overrides(RECIPES[name](), ["--estimator", *words.split()])
    assert cfg.estimator_options == json.loads(options)
    assert cfg.rollouts == (int(rollouts),)


def test_steps_replace_the_recipes_epochs():
    """`--steps 100` on a recipe that counts in epochs was once ignored."""
    changed = with_overrides(RECIPES["imagenet"](), ["--steps", "100"])
    assert changed.steps == 100
    assert changed.epochs == 0


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """What `data.imagenet.prepare` makes of 3 + 2 upright JPEGs in each of 4 class folders."""
    folder = tmp_path_factory.mktemp("jpegs")
    out = tmp_path_factory.mktemp("shards")
    jpegs(folder, ("ant", "bee", "cat", "dog"), {"train": 3, "val": 2}, (90, 120))
    imagenet.main(["--source", str(folder), "--out", str(out), "--size", "72", "--workers", "1"])
    return out


def test_an_epoch_of_imagenet_interrupted_and_resumed(shards, shell, monkeypatch):
    """The recipe on 12 JPEGs, with fewer layers: random crops by a worker. The resumed run, whose
    augmentation is made by no worker at all, ends with the same bytes: what is random in an image
    is a function of (seed, step, place)."""
    full = RECIPES["imagenet"]()
    small = replace(full, model=full.model | {"depths": (1, 1, 1, 1)})
    monkeypatch.setitem(RECIPES, "imagenet", lambda: small)
    sizes = "--task.size 32 --epochs 1 --prompts 4 --rollouts 16 --precision float32"
    due = "--eval-every 3 --save-every 2 --out"
    run = ("train.py", "imagenet", "--task.directory", shards, *sizes.split(), *due.split())
    passed(shell(*run, "whole", "--workers", 1))
    assert len(metrics("whole")) == 3
    assert {"eval/pass@1", "eval/pass@128", "eval/top1"} <= set(metrics("whole")[-1])
    with killed(3, ClassifierPolicy):
        shell(*run, "cut", "--workers", 1)
    passed(shell(*run, "cut", "--workers", 0, "--resume", "auto"))
    same_runs("cut", "whole")
    config = read_json(checkpoint.find("cut") / "config.json")
    assert config["num_labels"] == 4
    none = shell("eval.py", "cut", "--k", "1,2")
    refused(none, "no test split", "--split train or validation")
    said = passed(shell("eval.py", "cut", "--split", "validation", "--k", "1,2"))
    assert "8 images, exact" in said


# No verdict on the images of a few classes, then on none of a whole step.
UNSURE = """
import torch
from maxrl.tasks.images import Images

class Unsure(Images):
    calls = 0

    def rewards(self, examples, rollouts):
        Unsure.calls += 1
        known = (examples.labels > 5) & (Unsure.calls != 2)
        return super().rewards(examples, rollouts).where(known[:, None], torch.nan)
"""


def test_images_without_a_verdict_are_left_out(recipe, shell):
    """Of a task with rewards of its own; a step without any verdict moves nothing."""
    Path("unsure.py").write_text(UNSURE)
    options = [f"--task.{name}={typed(value)}" for name, value in recipe.task_options.items()]
    due = "--steps 3 --save-every 1 --out run"
    passed(shell("train.py", "glyphs", "--task", "unsure.py:Unsure", *options, *due.split()))
    judged, none, again = column("run", "images")
    assert 0 < judged < 32
    assert 0 < again < 32
    assert none == 0
    assert column("run", "skipped_updates") == [0, 0, 0]
    assert column("run", "reward")[1] is None
    assert column("run", "loss")[1] == 0
    one, two, three = (
        load_file(f"run/step-00000{step}/model.safetensors")["fc.weight"] for step in (1, 2, 3)
    )
    assert torch.equal(one, two)
    assert not torch.equal(two, three)


def resnet(classes: int):
    torch.manual_seed(0)
    return ResNet(ResNetConfig(classes, "basic", (1, 1), 8))


def test_models_and_tasks_that_do_not_fit(recipe, shell):
    checkpoint.save("seven", Checkpoint(resnet(7)), recipe={})
    refused(shell("train.py", "glyphs", "--init", "seven"), "7 classes", "12")
    refused(shell("train.py", "tiny", "--init", "seven"), "classifier")
    assert [path.name for path in Path().iterdir()] == ["seven"]


def test_a_run_that_diverged(recipe, shell):
    """Not finite logits end training and evaluation in a sentence, not in an index error."""
    run = ("train.py", "glyphs", "--lr", "1e30", "--warmup-steps", 0, "--out", "no")
    refused(shell(*run), "is not finite: 5 steps in a row", "a lower --lr")
    model = resnet(12)
    model.bn1.running_var.fill_(-1)  # finite, as a checkpoint has to be
    checkpoint.save("bad", Checkpoint(model), recipe={"config": recipe.to_dict()})
    refused(shell("eval.py", "bad", "--k", 1), "logits are not finite")


NOT_DONE = """
--samples 8 | exact
--temperature 0.5 | exact
--top-k 2 | draws classes
--top-p 0.5 | draws classes
--max-response 7 | draws classes
--reward x.py:f | draws classes
"""


@each("option, words", NOT_DONE)
def test_eval_refuses_what_a_classifier_does_not_do(recipe, shell, option, words):
    checkpoint.save("run", Checkpoint(resnet(12)), recipe={"config": recipe.to_dict()})
    option, value = option.split()
    refused(shell("eval.py", "run", option, value), option, words)


def test_an_update_that_is_left_out_leaves_batch_norm_as_it_was(recipe, shell, monkeypatch):
    """The forward of a bad image has moved the running averages by then: the run could not even
    evaluate any more.
    """
    rollout = ClassifierPolicy.rollout
    calls = []

    def spoilt(self, examples, *arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            examples.images = examples.images.float().fill_(float("nan"))
        return rollout(self, examples, *arguments, **options)

    monkeypatch.setattr(ClassifierPolicy, "rollout", spoilt)
    options = "--steps 3 --save-every 1 --eval-every 3 --out run"
    said = passed(shell("train.py", "glyphs", *options.split()))
    assert "is not finite: no update" in said
    assert column("run", "skipped_updates") == [0, 1, 0]
    one, two, three = (Path(f"run/step-00000{i}/model.safetensors").read_bytes() for i in (1, 2, 3))
    assert one == two != three
