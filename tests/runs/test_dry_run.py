"""--dry-run plans what is measured."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from maxrl.learning.config import Config
from maxrl.models.hub_files import on_hub
from maxrl.run import dry_run
from maxrl.run.recipes import RECIPES, maze17
from maxrl.system.errors import UsageError
from tests.helpers import tiny
from tests.helpers.published import PUBLISHED
from tests.helpers.runs import passed
from tests.helpers.tables import each

POLARIS = Config(
    init="Qwen/Qwen3-4B-Base",
    task="math",
    prompts=256,
    rollouts=16,
    max_response=4096,
    micro_batch_tokens=8192,
    kv_memory_gb=20,
    steps=25,
)
P = 4_022_468_096  # parameters


@pytest.fixture(autouse=True)
def hub(monkeypatch, tmp_path_factory):
    """The hub has the published models, of which a plan fetches config.json alone; and `polaris`
    is a recipe."""

    def download(name, files):
        if name.split("/")[1] not in PUBLISHED:
            raise FileNotFoundError(f"{name} could not be fetched")
        folder = tmp_path_factory.mktemp("hub")
        (folder / files).write_text(json.dumps(PUBLISHED[name.split("/")[1]][0]))
        return folder

    monkeypatch.setattr(dry_run, "download", download)
    monkeypatch.setitem(RECIPES, "polaris", lambda: POLARIS)


def test_where_a_model_is_found(recorded):
    # The one that the recipe starts from is not made yet.
    assert dry_run.parameters(dry_run.shape(maze17())) == 3_944_704
    for init in (recorded.path, recorded.path / "step-000002"):
        assert dry_run.shape(replace(maze17(), init=str(init))).config.hidden_size == 48
    for init, why in (("some/model", "could not be fetched"), ("runs/none/yet", "are not known")):
        with pytest.raises(UsageError, match=why):
            dry_run.shape(replace(POLARIS, init=init))


def test_plan_of_qwen3_4b_on_32_gpus():
    """Numbers by hand: 36 layers x 2 x 8 heads x 128 in bfloat16."""
    token = 147_456
    plan = dry_run.plan(POLARIS, 32)
    assert plan["always"] == {
        "weights": 4 * P,
        "gradients": 4 * P,
        "optimizer state": 8 * P,
        "reference model": 0,
    }
    assert plan["sampling"] == {
        "weights in bfloat16": 2 * P,
        "keys and values of prompts": 8 * 256 * token,
        "noise and results of 128 rows": 128 * 4096 * 24,
        "their keys, values and logits": 20 * 2**30,
    }
    training = plan["training"]
    assert training["weights in bfloat16"] == 2 * P
    assert training["logits of a chunk"] == 2**27 * 20
    assert dry_run.peak(plan) == 16 * P + sum(training.values())
    row = 4096 * token + 151_936 * 20
    for changes, size in (
        ({"kv_memory_gb": 200}, 128 * row),
        ({"kv_memory_gb": 0.01}, row),
        ({"kv_memory_gb": 0, "wave_rows": 32}, 32 * row),
    ):
        sampling = dry_run.plan(replace(POLARIS, **changes), 32)["sampling"]
        assert sampling["their keys, values and logits"] == size
    assert sampling["keys and values of prompts"] == 2 * 256 * token


def test_plan_of_a_sharded_model():
    """Divided over all GPUs; the embedding table and two layers are whole."""
    cfg = replace(POLARIS, beta=0.1, shard=True)
    table = 151_936 * 2560
    layer = (P - table - 2560) // 36
    plan = dry_run.plan(cfg, 8)
    assert list(plan["always"].values()) == [P // 2, P // 2, P, 4 * P]
    assert plan["training"]["reference in bfloat16"] == 2 * P
    # lm_head is tied; its bfloat16 copy is counted in 2 P.
    assert plan["sampling"]["embeddings in float32"] == 4 * table
    assert plan["training"]["two layers and what is in none"] == 8 * (table + 2560 + 2 * layer)
    full = dry_run.plan(replace(cfg, precision="float32"), 8)
    assert full["sampling"]["weights, gathered"] == 4 * P
    assert "weights, gathered" not in full["training"]


SMALL = dict(prompts=8, rollouts=1, max_response=10, micro_batch_tokens=10**6)


def test_other_plans():
    # Whole groups; one row; no more than there are.
    waves = dry_run.plan(replace(POLARIS, wave_rows=100, kv_memory_gb=0), 8)
    assert "noise and results of 96 rows" in waves["sampling"]
    for changes, tokens in (({"micro_batch_tokens": 100}, "4,352"), (SMALL, "266")):
        training = dry_run.plan(replace(POLARIS, **changes), 8)["training"]
        assert f"activations of {tokens} tokens" in training
    supervised = dry_run.plan(replace(POLARIS, estimator="supervised", rollouts=1), 8)
    assert list(supervised["sampling"]) == ["weights in bfloat16"]
    scratch = dry_run.plan(replace(POLARIS, **SMALL, init="", model=tiny.SIZES), 8)
    assert scratch["training"]["logits of a chunk"] == 266 * 32 * 20
    sgd = dry_run.plan(replace(POLARIS, optimizer="sgd"), 1)["always"]
    assert sgd["optimizer state"] == sgd["gradients"]


def test_lora_needs_gradients_and_adam_for_its_own_parameters_only():
    attention = 2560 + 4096 + 2 * (2560 + 1024) + 4096 + 2560
    own = 16 * 36 * (attention + 2 * (2560 + 9728) + 9728 + 2560)
    assert dry_run.plan(replace(POLARIS, lora_rank=16), 1)["always"] == {
        "weights": 4 * (P + own),
        "gradients": 4 * own,
        "optimizer state": 8 * own,
        "reference model": 0,
    }


PRINTED = """
--gpus 32 | polaris: 4,022,468,096 parameters, forward in bfloat16
--gpus 32 | each of 32 GPUs, with 8 prompts
--gpus 32 | always: optimizer state 29.97
--gpus 32 --shard true | always: optimizer state 3.75
--gpus 32 | for prompts of 256 tokens and responses of 2048
--beta 0.1 | always: reference model 14.98
--kv-memory-gb 1 --gradient-checkpointing | keys, values and logits 1.00
"""


@each("options, words", PRINTED)
def test_what_is_printed(shell, options, words):
    said = passed(shell("train.py", "--dry-run", "polaris", *options.split()))
    assert words in re.sub(" +", " ", said)
    # What is 0 is left out.
    assert ("reference model" in said) == ("--beta" in options)


def test_dry_run_runs_no_code(shell):
    Path("own.py").write_text("raise SystemExit('it was run')")
    own = "--task own.py:x --estimator own.py:x --reward own.py:x"
    passed(shell("train.py", "maze17", "--dry-run", *own.split()))


def test_every_recipe_has_a_plan():
    """On one GPU, without data or weights: a tenth of 141 GB stays free, or of the 80 GB that its
    docstring names. Large recipes do not keep every checkpoint."""
    planned = []
    for name, recipe in RECIPES.items():
        cfg = recipe()
        assert cfg.keep or not cfg.save_every or name == "prompts"
        if cfg.task != "images" and (cfg.model or on_hub(cfg.init)):
            peak = dry_run.peak(dry_run.plan(cfg)) / 2**30
            about = recipe.__doc__ or ""
            small = "One GPU of 80 GB" in about
            assert not small or f"80 GB ({peak:.0f} GiB)" in about
            assert peak < 0.9 * (79 if small else 140)
            planned.append(name)
    assert len(planned) > 8
