"""--dry-run plans what is measured, and refuses what a run would refuse."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from conftest import ROOT
from published import PUBLISHED

from maxrl.config import Config
from maxrl.errors import UsageError
from maxrl.io.hub_files import on_hub
from maxrl.recipes import RECIPES, maze17
from maxrl.run import dry_run

POLARIS = Config(
    init="Qwen/Qwen3-4B-Base",
    task="math",
    prompts=256,
    rollouts=16,
    max_response=4096,
    micro_batch_tokens=8192,
)


@pytest.fixture(autouse=True)
def hub(monkeypatch, tmp_path_factory):
    """The hub has the published models, of which a plan fetches config.json alone."""

    def download(name, files):
        if name.split("/")[1] not in PUBLISHED:
            raise FileNotFoundError(f"{name} could not be fetched")
        folder = tmp_path_factory.mktemp("hub")
        (folder / files).write_text(json.dumps(PUBLISHED[name.split("/")[1]][0]))
        return folder

    monkeypatch.setattr(dry_run, "download", download)


def test_where_a_model_is_found(tmp_path, in_a_directory_of_its_own):
    assert dry_run.parameters(dry_run.shape(maze17())) == 3_944_704  # init not made yet
    run = tmp_path / "run"
    (run / "step-000001").mkdir(parents=True)
    (run / "step-000001" / "config.json").write_text(json.dumps(tiny.SIZES))
    (run / "latest").write_text("step-000001\n")
    for init in (run, run / "step-000001"):
        assert dry_run.shape(replace(maze17(), init=str(init))).config.hidden_size == 32
    for init, why in (("some/model", "could not be fetched"), ("not/there/yet", "are not known")):
        with pytest.raises(UsageError, match=why):
            dry_run.shape(replace(POLARIS, init=init))


def test_plan_of_qwen3_4b_on_32_gpus():
    """Numbers by hand: 4,022,468,096 parameters, 36 layers x 2 x 8 heads x 128 in bfloat16."""
    p = 4_022_468_096
    token = 147_456
    cfg = replace(POLARIS, kv_memory_gb=20)
    plan = dry_run.plan(cfg, 32)
    assert plan["always"] == {
        "weights": 4 * p,
        "gradients": 4 * p,
        "optimizer state": 8 * p,
        "reference model": 0,
    }
    row = 4096 * token + 151_936 * 20
    assert plan["sampling"] == {
        "weights in bfloat16": 2 * p,
        "keys and values of prompts": 8 * 256 * token,
        "noise and results of 128 rows": 128 * 4096 * 24,
        "their keys, values and logits": 20 * 2**30,
    }
    for changes, size in (
        ({"kv_memory_gb": 200}, 128 * row),
        ({"kv_memory_gb": 0.01}, row),
        ({"kv_memory_gb": 0, "wave_rows": 32}, 32 * row),
    ):
        sampling = dry_run.plan(replace(cfg, **changes), 32)["sampling"]
        assert sampling["their keys, values and logits"] == size
    assert sampling["keys and values of prompts"] == 2 * 256 * token
    training = plan["training"]
    assert training["weights in bfloat16"] == 2 * p
    assert training["logits of a chunk"] == 2**25 * 20
    assert dry_run.peak(plan) == 16 * p + sum(training.values())


def test_plan_of_a_sharded_model():
    """Divided over all GPUs; the embedding table and two layers are whole."""
    cfg, p = replace(POLARIS, beta=0.1, shard=True), 4_022_468_096
    table = 151_936 * 2560
    layer = (p - table - 2560) // 36
    plan = dry_run.plan(cfg, 8)
    assert list(plan["always"].values()) == [p // 2, p // 2, p, 4 * p]
    assert plan["training"]["reference in bfloat16"] == 2 * p
    # lm_head is tied; its bfloat16 copy is counted in 2 p.
    assert plan["sampling"]["embeddings in float32"] == 4 * table
    assert plan["training"]["two layers and what is in none"] == 8 * (table + 2560 + 2 * layer)
    full = dry_run.plan(replace(cfg, precision="float32"), 8)
    assert full["sampling"]["weights, gathered"] == 4 * p
    assert "weights, gathered" not in full["training"]


def test_plan_by_option():
    cfg = POLARIS

    def training(**changes):
        return dry_run.plan(replace(cfg, **changes), 8)["training"]

    sampling = dry_run.plan(replace(cfg, wave_rows=100), 8)["sampling"]
    assert "noise and results of 96 rows" in sampling  # whole groups
    supervised = dry_run.plan(replace(cfg, estimator="supervised", rollouts=1), 8)["sampling"]
    assert list(supervised) == ["weights in bfloat16"]
    assert "activations of 4,352 tokens" in training(micro_batch_tokens=100)  # one row
    small = dict(prompts=8, rollouts=1, max_response=10, micro_batch_tokens=10**6)
    assert "activations of 266 tokens" in training(**small)  # no more than there are
    scratch = training(**small, init="", model=tiny.SIZES)
    assert scratch["logits of a chunk"] == 266 * 32 * 20
    sgd = dry_run.plan(replace(cfg, optimizer="sgd"), 1)["always"]
    assert sgd["optimizer state"] == sgd["gradients"]
    for gpus in (0, 3):
        with pytest.raises(UsageError, match=f"--prompts 256 cannot be divided by --gpus {gpus}"):
            dry_run.plan(cfg, gpus)


def test_dry_run(shell, monkeypatch):
    """The table follows the options, --shard among them, and leaves out what is 0."""
    monkeypatch.setitem(RECIPES, "polaris", lambda: replace(POLARIS, kv_memory_gb=20))
    ask = ("train.py", "--dry-run", "polaris")
    for options, state in (((), "29.97"), (("--shard", "true"), "0.94")):
        code, said = shell(*ask, "--gpus", "32", *options)
        assert code == 0 and "reference" not in said
        for words in (
            "polaris: 4,022,468,096 parameters, forward in bfloat16",
            "each of 32 GPUs, with 8 prompts",
        ):
            assert words in said
        assert re.search(rf"always: +optimizer state +{state}\n", said)
    code, said = shell(*ask, "--kv-memory-gb", "1", "--gradient-checkpointing")
    assert code == 0 and re.search(r"sampling: their keys, values and logits +1\.00\n", said)


def test_large_recipes_do_not_keep_every_checkpoint():
    saving = {name: recipe() for name, recipe in RECIPES.items() if recipe().save_every}
    assert {name for name, cfg in saving.items() if not cfg.keep} <= {"prompts"}


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("polaris9 --dry-run", "no recipe is called 'polaris9'"),
        ("--dry-run", "no recipe is called ''"),
        ("maze17 --dry-run --gpus 3", "--prompts 32 cannot be divided by --gpus 3"),
        ("maze17 --gpus 2", "--gpus belongs to --dry-run"),
        ("images_laptop --dry-run", "estimates language models"),
        ("prompts --dry-run --estimator.ordr 4", "maxrl takes no option 'ordr'"),
        (
            "prompts --dry-run --estimator maxrl_order --estimator.order 400",
            "--estimator maxrl_order: ",
        ),
        (
            "prompts --dry-run --estimator supervised --rollouts 2",
            "use --rollouts 1",
        ),
    ],
)
def test_dry_run_refuses(shell, arguments, words):
    """What a run would refuse by its names alone is refused without data and weights."""
    code, said = shell("train.py", *arguments.split())
    assert code == 2 and words in said


def test_the_page_quotes_what_it_prints(shell):
    page = (ROOT / "maxrl" / "run" / "large_runs.md").read_text()
    code, said = shell("train.py", "--dry-run", "polaris_qwen3_4b", "--gpus", 32)
    assert code == 0 and "\n    ".join(said.strip().splitlines()[-3:]) in page


@pytest.mark.parametrize(
    "words, said",
    [
        ("--save-every 7 --keep 0", "disk: 4 of"),
        ("--save-every 7 --keep 3", "disk: 3 of"),
        ("--save-every 20 --keep 3", "disk: 2 of"),
        ("--save-every-minutes 5 --keep 0", "disk: all of"),
        ("--save-every 7 --keep 0 --epochs 1", "disk: all of"),
        ("--lora-rank 16 --init Qwen/Qwen3-4B-Base", "checkpoints of 0.39"),
        # Weights and state, and weights or state.
        ("--shard true", " 44.95 in the first"),
        ("--beta 0.1", " 29.97 GiB in every process to load, 29.97 in the first"),
    ],
)
def test_disk_and_host_memory(shell, monkeypatch, words, said):
    """Of 4,022,468,096 parameters, 14.98 GiB in float32."""
    monkeypatch.setitem(RECIPES, "polaris", lambda: replace(POLARIS, steps=25))
    given = shell("train.py", "--dry-run", "polaris", *words.split())
    assert given[0] == 0 and said in given[1], given


def test_the_smallest_gpu():
    """A tenth of it stays free."""
    for name, size in dry_run.GPUS.items():
        assert f"of {name} GB are the smallest" in dry_run.which_gpus(int(0.89 * size * 2**30))
        assert f"of {name} GB are the smallest" not in dry_run.which_gpus(int(0.91 * size * 2**30))


def test_dry_run_runs_no_code(shell):
    Path("own.py").write_text("raise SystemExit('it was run')")
    own = [word for name in ("task", "estimator", "reward") for word in (f"--{name}", "own.py:x")]
    assert shell("train.py", "maze17", "--dry-run", *own)[0] == 0


def test_every_recipe_has_a_plan(shell, tmp_path):
    """Without data, weights or a GPU, a tenth of 141 GB stays free; nothing is written."""
    for name, recipe in RECIPES.items():
        cfg = recipe()
        if "torchvision_resnet" in cfg.model.values() or not (cfg.model or on_hub(cfg.init)):
            continue
        code, said = shell("train.py", name, "--dry-run")
        assert code == 0 and f"forward in {cfg.precision}".replace("auto", "bfloat16") in said
        assert dry_run.peak(dry_run.plan(cfg)) < 0.9 * 140 * 2**30
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["gsm8k_smollm2", "polaris_qwen3_1_7b"])
def test_recipes_of_one_gpu(name):
    """The plan of one GPU is what the docstring says, and fits 80 GB."""
    peak = dry_run.peak(dry_run.plan(RECIPES[name](), 1)) / 2**30
    assert f"One GPU of 80 GB ({peak:.0f} GiB)" in RECIPES[name].__doc__
    assert peak < 0.9 * 79


def test_lora_needs_gradients_and_adam_for_its_own_parameters_only():
    cfg = RECIPES["polaris_qwen3_4b"]()
    whole, lora = (dry_run.plan(replace(cfg, lora_rank=rank), 1)["always"] for rank in (0, 16))
    attention = 2560 + 4096 + 2 * (2560 + 1024) + 4096 + 2560
    own = 16 * 36 * (attention + 2 * (2560 + 9728) + 9728 + 2560)
    assert lora["gradients"] == 4 * own and lora["optimizer state"] == 8 * own
    assert lora["weights"] == whole["weights"] + 4 * own
