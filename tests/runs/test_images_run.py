"""Runs of classifiers: the two objectives, an epoch of ImageNet resumed, and what is refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from command_lines import with_overrides
from runs import die, metrics, refused, timeless, weights
from safetensors.torch import load_file

from maxrl import checkpoint
from maxrl.classifier import ClassifierPolicy
from maxrl.errors import UsageError
from maxrl.models import from_config
from maxrl.models.resnet import ResNet, ResNetConfig
from maxrl.recipes import RECIPES
from maxrl.tasks.images import Images


def test_cross_entropy_equals_a_plain_loop(recipe, shell, set_of_glyphs):
    """`--estimator supervised` is SGD on F.cross_entropy with a cosine, written here without
    anything of the loop's.
    """
    code, said = shell(
        "train.py", "glyphs", "--estimator", "supervised", "--steps", 6, "--out", "ours"
    )
    assert code == 0, said
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
    """The same initial weights and the same images for both; for what they learn see
    test_maxrl_becomes_cross_entropy.
    """
    for name in ("supervised", "maxrl"):
        code, said = shell("train.py", "glyphs", "--estimator", name, "--steps", 2, "--out", name)
        assert code == 0, said
    first = [metrics(name)[0] for name in ("supervised", "maxrl")]
    assert first[0]["pass_rate"] == first[1]["pass_rate"]
    # 32 x 64 draws, right with the p of their image: within five standard errors, whose variance p
    # (1 - p) is at most .25
    assert (
        first[0]["reward"] == 1
        and abs(first[1]["reward"] - first[1]["pass_rate"]) < 5 * 0.5 / (32 * 64) ** 0.5
    )
    code, said = shell(
        "eval.py", "supervised", "maxrl", "--k", "1,2", "--json", "out.json", "--plot", "out.png"
    )
    assert code == 0 and "60 images, exact" in said and "top-1" in said and Path("out.png").exists()
    results = json.loads(Path("out.json").read_text())
    for row in results["checkpoints"]:
        p, curve = np.array(row["pass_rates"]), results["pass@k"][row["name"]]
        assert len(p) == 60 and curve["k"] == [1, 2, 4, 8]
        assert curve["mean"] == pytest.approx(
            [np.mean(1 - (1 - p) ** k) for k in curve["k"]], abs=1e-5
        )
    code, said = shell("sample.py", "maxrl", "--prompts", 2, "--samples", 8)
    assert code == 0 and "of 8 rollouts are right" in said and "glyph" in said
    assert "right:" in said


def test_estimators_get_the_recipes_options(recipe):
    """GRPO divides by N in the image recipes, as the paper's Appendix D says, unless told
    otherwise.
    """
    for name in ("imagenet", "images_laptop"):
        chosen = with_overrides(RECIPES[name](), ["--estimator", "grpo"])
        assert chosen.estimator_options == {"ddof": 0} and chosen.rollouts == (1024,)
        assert with_overrides(
            RECIPES[name](), ["--estimator", "grpo", "--estimator.ddof", "1"]
        ).estimator_options == {"ddof": 1}
        assert with_overrides(RECIPES[name](), ["--estimator", "rloo"]).estimator_options == {}
        assert with_overrides(RECIPES[name](), ["--estimator", "supervised"]).rollouts == (1,)
    assert with_overrides(RECIPES["maze17"](), ["--estimator", "grpo"]).estimator_options == {}, (
        "divisor N - 1"
    )


def test_steps_replace_the_recipes_epochs():
    """`--steps 100` on a recipe that counts in epochs was once ignored."""
    changed = with_overrides(RECIPES["imagenet"](), ["--steps", "100"])
    assert (changed.steps, changed.epochs) == (100, 0)
    with pytest.raises(UsageError, match="--steps and --epochs say the same thing twice"):
        with_overrides(RECIPES["imagenet"](), ["--steps", "100", "--epochs", "3"])


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    """What `data.imagenet.prepare` makes of 3 + 2 JPEGs, some of them upright, in each of 4 class
    folders.
    """
    Image = pytest.importorskip("PIL.Image")
    from data.imagenet import prepare

    folder, out, rng = *map(tmp_path_factory.mktemp, ("jpegs", "shards")), np.random.default_rng(0)
    for split, count in (("train", 3), ("val", 2)):
        for name in ("ant", "bee", "cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (7, 5 + i, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((90, 120), 2).save(
                    folder / split / name / f"{i}.JPEG"
                )
    prepare.main(["--source", str(folder), "--out", str(out), "--size", "72", "--workers", "1"])
    return out


def test_an_epoch_of_imagenet_interrupted_and_resumed(jpegs, shell, monkeypatch):
    """The recipe itself on 12 JPEGs: ResNet-50, random crops by a worker. The resumed run, whose
    augmentation is made by no worker at all, ends with the same bytes: what is random in an image
    is a function of (seed, step, place)."""
    sizes = "--task.size 32 --epochs 1 --prompts 4 --rollouts 16 --precision float32"
    due = "--eval-every 3 --save-every 2"
    run = ("imagenet", "--task.directory", jpegs, *sizes.split(), *due.split())
    code, said = shell("train.py", *run, "--workers", 1, "--out", "whole")
    assert code == 0 and len(metrics("whole")) == 3, said
    assert {"eval/pass@1", "eval/pass@128", "eval/top1"} <= set(metrics("whole")[-1])
    with monkeypatch.context() as patch, pytest.raises(tiny.Killed):
        patch.setattr(ClassifierPolicy, "backward", die(3, ClassifierPolicy))
        shell("train.py", *run, "--workers", 1, "--out", "cut")
    code, said = shell("train.py", *run, "--workers", 0, "--out", "cut", "--resume", "auto")
    assert code == 0, said
    assert weights("cut") == weights("whole") and timeless("cut") == timeless("whole")
    config = json.loads((checkpoint.find("cut") / "config.json").read_text())
    assert config["num_labels"] == 4 and config["depths"] == [3, 4, 6, 3]
    code, said = shell("eval.py", "cut", "--k", "1,2")
    refused((code, said), "no test split", "--split train or validation")
    code, said = shell("eval.py", "cut", "--split", "validation", "--k", "1,2")
    assert code == 0 and "8 images, exact" in said


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("--micro-batch-tokens 100", ["--micro-batch-tokens 100", "a classifier"]),
        ("--max-response 10", ["--max-response 10", "a classifier"]),
        ("--zero-reward-at-limit true", ["--zero-reward-at-limit"]),
        ("--eval-every 5 --eval-samples 4", ["--eval-samples 4", "exact"]),
        ("--task.directory nowhere", ["nowhere", "python -m data."]),
        ("--task.size 0", ["at least 1"]),
        ("--momentum 1.5", ["--momentum 1.5"]),
        ("--optimizer lion", ["--optimizer lion", "adamw, sgd"]),
        ("--workers -1", ["--workers -1"]),
        ("--estimator supervised --rollouts 8", ["use --rollouts 1"]),
        ("--estimator maxrl_rare --rollouts 2,4", ["--rollouts 2,4", "a classifier"]),
    ],
)
def test_refusals_come_before_any_work(recipe, shell, arguments, words):
    refused(shell("train.py", "glyphs", "--out", "no", *arguments.split()), *words)
    assert not Path("no").exists()


def test_models_and_tasks_that_do_not_fit(recipe, shell, warm, tmp_path):
    refused(shell("train.py", "glyphs", "--init", warm, "--out", "no"), "language model")
    torch.manual_seed(0)
    checkpoint.save(tmp_path / "seven", ResNet(ResNetConfig(7, "basic", (1, 1), 8)), recipe={})
    refused(
        shell("train.py", "glyphs", "--init", tmp_path / "seven", "--out", "no"), "7 classes", "12"
    )
    refused(shell("train.py", "tiny", "--init", tmp_path / "seven", "--out", "no"), "classifier")
    none = ("--eval-every", 1, "--eval-samples", 0)
    refused(shell("train.py", "tiny", "--init", warm, *none, "--out", "no"), "--eval-samples 0")
    assert not Path("no").exists()


def test_a_run_that_diverged(recipe, shell):
    """Not finite logits end training, evaluation and the study of gradients in a sentence, not in
    an index error.
    """
    code, said = shell("train.py", "glyphs", "--lr", "1e30", "--warmup-steps", 0, "--out", "no")
    assert (
        code == 2
        and "is not finite: 5 steps in a row" in said
        and "a lower --lr" in said
        and "Traceback" not in said
    )
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(12, "basic", (1, 1), 8))
    model.fc.bias.data[3] = math.nan
    checkpoint.save("bad", model, recipe={"config": recipe.to_dict()})
    refused(shell("eval.py", "bad", "--k", 1), "logits are not finite")
    told = shell("results/gradients/norms.py", "bad", "--json", "norms.json")
    refused(told, "logits are not finite")


def test_eval_refuses_what_a_classifier_does_not_do(recipe, shell):
    assert shell("train.py", "glyphs", "--steps", 1, "--out", "run")[0] == 0
    refused(shell("eval.py", "run", "--samples", 8), "exact", "--samples")
    refused(shell("eval.py", "run", "--temperature", 0.5), "exact", "--temperature")
    for option in ("--top-k=2", "--top-p=0.5", "--max-response=7", "--reward=x.py:f"):
        refused(shell("eval.py", "run", option), option.split("=")[0], "draws classes")


def test_an_update_that_is_left_out_leaves_batch_norm_as_it_was(recipe, shell, monkeypatch):
    """The forward of a bad image has moved the running averages by then: the run could not even
    evaluate any more.
    """
    rollout, calls = ClassifierPolicy.rollout, []

    def spoilt(self, examples, *arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            examples.images = examples.images.float().fill_(float("nan"))
        return rollout(self, examples, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ClassifierPolicy, "rollout", spoilt)
        code, said = shell(
            "train.py", "glyphs", "--steps", 3, "--save-every", 1, "--eval-every", 3, "--out", "run"
        )
    assert code == 0 and "is not finite: no update" in said, said
    assert [row["skipped_updates"] for row in metrics("run")] == [0, 1, 0]
    one, two, three = (Path(f"run/step-00000{i}/model.safetensors").read_bytes() for i in (1, 2, 3))
    assert one == two != three
