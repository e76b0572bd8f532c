"""train.py as a command: it learns, it resumes bit for bit, and it refuses in one sentence."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import train
from data.maze import prepare
from maxrl.advantages import ADVANTAGES
from maxrl.learning.prompt_order import Plan, batch_indices, shuffle
from maxrl.models import checkpoint, from_config
from maxrl.run import setup
from maxrl.run.recipes import RECIPES
from maxrl.sampling.sampler import noise
from maxrl.system import distributed
from maxrl.system.errors import UsageError
from maxrl.system.files import read_json
from maxrl.tasks import load_task
from tests.helpers.runs import SHORT, column, killed, metrics, passed, refused, weights
from tests.helpers.wholeness import differences


def test_warm_up_learns(warm):
    """The loss falls far below that of random moves; for reinforcement see faults/test_stop.py."""
    losses = column(warm, "loss")
    assert len(losses) == 150
    assert losses[0] > math.log(4) > 2 * np.mean(losses[-10:])


def test_the_metrics_of_a_run(recorded):
    """They are finite; the learning rate is that of a cosine after two steps of warm-up."""
    rows = metrics(recorded.path)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    evaluated = {"eval/pass@1", "eval/pass@4", "eval/groups_left_out", "eval/reward"}
    for row in rows:
        assert evaluated & set(row) == (evaluated if row["step"] in (1, 3) else set())
        assert all(math.isfinite(value) for value in row.values())
        assert row["sampling/logprob_abs_diff/max"] < 1e-4
    assert [row["lr"] for row in rows] == pytest.approx([3.5e-4, 7e-4, 7e-4, 5.25e-4, 1.75e-4])


def test_the_run_directory(recorded):
    """The recipe with its command, the metrics, and checkpoints that load."""
    recipe = read_json(recorded.path / "recipe.json")
    assert "train.py tiny --prompts 4" in recipe["command"]
    assert recipe["command"].endswith(f"--init {recorded.command[-1]}")
    assert recipe["config"]["estimator_options"] == {"order": 3}
    files = {file.name for file in recorded.path.iterdir()}
    files -= {"step-000002", "step-000004", "step-000005"}
    assert files == {"recipe.json", "metrics.jsonl", "samples.jsonl", "tensorboard", "latest"}
    assert (recorded.path / "latest").read_text() == "step-000005\n"
    assert checkpoint.load(recorded.path).stop_tokens == [2, 7]


def test_what_a_run_shows_does_not_change_it(recorded, shell):
    """Without samples and evaluations it has the same weights; on a CPU --deterministic changes
    nothing either."""
    try:
        bare = "--show-every 0 --eval-every 0 --deterministic true"
        passed(shell(*recorded.command, *bare.split()))
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not Path("run/samples.jsonl").exists()
    assert weights("run") == weights(recorded.path)


@pytest.mark.parametrize("at", [2, 4, 5])
def test_interrupted_and_resumed_equals_uninterrupted(recorded, shell, at):
    """Every file of the directory, but for times: weights, Adam's state, metrics, samples.

    Killed before the first checkpoint, a run starts again; killed after one, it repeats the steps
    since, whose lines leave metrics.jsonl and samples.jsonl, as half a line does.
    """
    shutil.copytree(recorded.path, "whole", ignore=shutil.ignore_patterns("tensorboard"))
    with killed(at):
        shell(*recorded.command)
    assert len(metrics("run")) == at - 1
    with open("run/samples.jsonl", "a") as file:
        file.write('{"step": 7, "roll')
    # Twice: the second time, the run is over.
    for _ in range(2):
        passed(shell(*recorded.command))
        shutil.rmtree("run/tensorboard", ignore_errors=True)
        assert differences(Path("whole"), Path("run")) == []


def test_another_precision_is_said(warm, shell, monkeypatch):
    """--precision auto chooses one by the hardware, on which a run may be resumed."""
    chosen = [False]
    monkeypatch.setattr(distributed, "use_bfloat16", lambda *_: chosen[0])
    few = "--steps 3 --save-every 2 --out rl --resume auto"
    run = ("train.py", *SHORT, "--init", warm, *few.split())
    with killed(at=3):
        shell(*run, "--precision", "auto")
    chosen[0] = True
    said = passed(shell(*run, "--precision", "auto"))
    assert "was trained in another precision than bfloat16" in said
    assert "another precision" not in passed(shell(*run, "--precision", "auto"))


def test_an_existing_run_is_never_overwritten(recorded, shell):
    """Nor resumed as another run; without a checkpoint it is the same."""
    shutil.copytree(recorded.path, "run")
    again = shell(*recorded.command, "--resume", "no")
    refused(again, "run already holds a run", "--resume auto", "--out DIR")
    began = read_json("run/recipe.json")["command"]
    for change, words in (
        (("--lr", 0.5), "lr = 0.0007, not 0.5"),
        (("--seed", 1), "seed = 0, not 1"),
        # Five steps of a cosine resumed to ten would not be the run of ten steps at once.
        (("--steps", 10), "steps = 5, not 10"),
    ):
        refused(shell(*recorded.command, *change), "was started with " + words, began)
    assert differences(recorded.path, Path("run")) == []
    for folder in Path("run").glob("step-*"):
        shutil.rmtree(folder)
    refused(shell(*recorded.command, "--lr", 0.5), "lr = 0.0007, not 0.5")
    assert metrics("run") == metrics(recorded.path)


def test_prompts_must_divide_by_the_ranks(warm):
    cfg = RECIPES["tiny"]()
    for ranks in (3, 32):
        with pytest.raises(UsageError, match=f"--prompts 16 must divide by the {ranks} ranks"):
            setup.resolved(cfg, range(96), ranks)


def test_an_empty_validation_split_is_refused_first(shell, tmp_path):
    """Not at the first evaluation, 500 steps later."""
    out = tmp_path / "5x5"
    counts = "--size 5 --train 2 --test 1 --validation 0 --workers 1"
    prepare.main([*counts.split(), "--out", str(out)])
    options = ("--task.size", 5, "--task.directory", out, "--out", "rl", "--steps", 1)
    none = shell("train.py", "tiny", *options, "--eval-every", 1)
    refused(none, "no validation prompts are left", "empty")
    assert not Path("rl").exists()
    passed(shell("train.py", "tiny", *options))


def test_help(shell):
    said = passed(shell("train.py", "--help"))
    assert all(f"  {name} " in said for name in RECIPES)
    said = passed(shell("train.py", "maze17", "--help"))
    assert "--micro-batch-tokens" in said
    assert "20000" in said
    passed(shell("train.py"))


def test_epochs(monkeypatch):
    """Two passes over 96 prompts by 20 are 9.6 steps: ten, so that every prompt is seen twice."""
    cfg = replace(RECIPES["tiny"](), prompts=20, epochs=2.0)
    task = load_task("maze", "train", **cfg.task_options)
    assert len(task) == 96
    assert setup.resolved(cfg, task, 1).steps == 10
    assert setup.resolved(replace(cfg, epochs=0.0), task, 1).steps == 60
    # In floating point 1.1 * 100 / 10 is above 11.
    monkeypatch.setattr(type(task), "__len__", lambda self: 100)
    assert setup.resolved(replace(cfg, epochs=1.1, prompts=10), task, 1).steps == 11


@pytest.mark.parametrize("size, prompts", [(96, 16), (10, 4), (7, 3), (3, 8)])
def test_every_epoch_is_a_permutation(size, prompts):
    """No prompt is lost at the end of an epoch, also if batches do not divide it."""
    steps = [batch_indices(size, prompts, step, seed=5) for step in range(5 * size)]
    stream = np.concatenate(steps)
    epochs = stream[: len(stream) // size * size].reshape(-1, size)
    assert (np.sort(epochs, 1) == np.arange(size)).all()
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert tuple(epochs[0]) != tuple(range(size))
    assert (batch_indices(size, prompts, 3, 5) == steps[3]).all()
    assert any((batch_indices(size, prompts, step, 6) != steps[step]).any() for step in range(5))


def test_random_streams_do_not_collide(monkeypatch):
    """numpy pads seeds with zeros, so seeds must differ by more than zeros at their end."""
    seeds = []
    make = np.random.default_rng

    def noted(seed):
        seeds.append(tuple(seed))
        return make(seed)

    monkeypatch.setattr(np.random, "default_rng", noted)
    cfg = replace(RECIPES["tiny"](), minibatches=2, passes=2, seed=0)
    shuffle.cache_clear()
    for step in range(6):
        _, augmentation = Plan(cfg, 8)[step]
        seeds += map(tuple, augmentation)
        noise(cfg.seed, step, range(4), 2, 3)
        list(train.minibatches(cfg, 4, step))
    assert {len(seed) for seed in seeds} == {3, 4, 5}
    filled = [(*seed, 0, 0)[:5] for seed in seeds]
    assert len(set(filled)) == len(filled)


def test_rl_has_another_order_than_the_warm_up_before_it():
    """From scratch, all estimators see the same prompts."""

    def first(**fields):
        return Plan(replace(RECIPES["tiny"](), **fields), 96)[0][0]

    warm_up = first(estimator="supervised", rollouts=1)
    tuned = first(estimator="supervised", rollouts=1, init="m")
    assert first(init="m") not in (warm_up, tuned)
    assert first(init="m") == first(init="other", estimator="grpo")
    assert first() == warm_up
    # Also where every seed begins with the warm-up of one.
    firsts = [first(seed=seed, init=init) for seed in range(3) for init in ("", "m")]
    assert len(set(map(tuple, firsts))) == 6


def test_ranks_divide_a_batch_and_its_seeds(monkeypatch):
    cfg = RECIPES["tiny"]()
    indices, seeds = Plan(cfg, 96)[7]
    monkeypatch.setattr(distributed, "world_size", lambda: 4)
    for rank in range(4):
        monkeypatch.setattr(distributed, "rank", lambda: rank)  # noqa: B023
        assert Plan(cfg, 96)[7] == (indices[rank::4], seeds[rank::4])


def test_learning_rate():
    """A cosine to 0 over the last decay_ratio of the steps; the schedules are those of transformers
    in test_trl_options.py.
    """
    fields = {"schedule": "cosine", "decay_ratio": 0.5}
    cfg = replace(RECIPES["tiny"](), lr=2.0, warmup_steps=4, steps=14, **fields)
    half = [train.learning_rate(cfg, step) for step in range(15)]
    assert half[3:8] == [2.0] * 5
    assert half[9] + half[12] == pytest.approx(2)
    assert half[14] == pytest.approx(0)


def test_a_step_without_a_verdict_has_means():
    """Of no token: what is a mean over tokens is 0."""
    updates = [{"kl": 0.0, "clip_ratio/low_mean": 0.0, "tokens": 0.0, "loss": 0.0}] * 2
    assert set(train.means(RECIPES["tiny"](), "tokens", updates).values()) == {0}


PARAMETERS = {
    "maze17_sft": 3_944_704,
    "maze17": 3_944_704,
    "maze9_laptop_sft": 308_448,
    "maze9_laptop": 308_448,
    "imagenet": 25_557_032,
    "gsm8k_laptop_sft": 657_024,
    "gsm8k_laptop": 657_024,
    "countdown_laptop_sft": 605_824,
    "countdown_laptop": 605_824,
}


@pytest.mark.parametrize("name", [n for n in RECIPES if not n.startswith("tiny")])
def test_recipes(name):
    """Each constructs, has the size it says, and an estimator that accepts it."""
    cfg = RECIPES[name]()
    classes = {"imagenet": {"num_labels": 1000}}.get(name, {})
    if cfg.model:  # else a checkpoint's
        model = from_config(cfg.model | classes)
        assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    ADVANTAGES[cfg.estimator](torch.zeros(2, sum(cfg.rollouts)), **cfg.estimator_options)
    if cfg.task == "maze":
        size = cfg.task_options["size"]
        assert size * (size + 1) + 4 + cfg.max_response <= cfg.model["max_position_embeddings"]
