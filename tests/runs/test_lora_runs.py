"""Runs that train an adapter: eval.py and sample.py load it, a resumed one is the same."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from maxrl.models import checkpoint, hub_files, lora
from maxrl.run.recipes import read_record
from maxrl.system.files import read_json
from tests.helpers.evaluated import FEW
from tests.helpers.logits import TOKENS, close, logits
from tests.helpers.runs import killed, passed, refused, timeless
from tests.helpers.trained import TOKENIZER

SIZES = ("--prompts", 4, "--rollouts", 4, "--steps", 2)
RL = ("tiny", *SIZES, "--lora-rank", 3, "--lora-alpha", 5, "--lr", 0.02)


@pytest.fixture
def trained(warm, shell):
    """trained(words): a run of an adapter in ./rl, or where the words say."""

    def run(*words):
        passed(shell("train.py", *RL, "--init", warm, "--out", "rl", *words))

    return run


def test_train_writes_an_adapter_that_eval_and_sample_load(trained, warm, shell):
    """Only A and B are trained and saved, and the base is named by its own directory."""
    trained("--lora-projections", "q_proj,down_proj")
    found = checkpoint.find("rl")
    files = {file.name for file in found.iterdir()}
    assert "adapter_config.json" in files
    assert not files & {"config.json", "model.safetensors"}
    config = read_json(found / "adapter_config.json")
    assert config["base_model_name_or_path"] == str(checkpoint.find(warm).resolve())
    assert AutoTokenizer.from_pretrained(found).get_vocab() == TOKENIZER.backend.get_vocab()
    assert config["r"] == 3
    assert config["lora_alpha"] == 5
    assert config["target_modules"] == ["q_proj", "down_proj"]
    tensors = load_file(found / "adapter_model.safetensors")
    assert len(tensors) == 2 * 2 * 2
    assert all(tensor.any() for tensor in tensors.values())
    state = {name.rsplit(".", 1)[0] for name in load_file(found / "optimizer.safetensors")}
    assert state == {name.removeprefix(lora.PEFT_PREFIX) for name in tensors}
    for command in ("eval.py rl --prompts 4 --samples 4 --k 1", "sample.py rl"):
        passed(shell(*command.split()))


def test_a_merged_run_is_a_plain_model(trained, warm, shell):
    """With the logits of the adapter's model, in transformers too, and the recipe, of a run without
    an adapter; nothing is replaced."""
    trained("--eval-temperature", 0.5)
    passed(shell("maxrl/run/merge.py", "rl", "merged"))
    known = read_record("merged")
    assert (known["lora_rank"], known["eval_temperature"]) == (0, 0.5)
    assert "temperature 0.5" in passed(shell("eval.py", "merged", *FEW))
    assert not lora.has_lora(checkpoint.load("merged").model)
    close(logits(checkpoint.load("merged").model), logits(checkpoint.load("rl").model))
    theirs = AutoModelForCausalLM.from_pretrained("merged")
    with torch.no_grad():
        close(theirs(TOKENS).logits, logits(checkpoint.load("rl").model))
    before = {file: file.read_bytes() for file in Path("merged").iterdir()}
    refused(shell("maxrl/run/merge.py", "rl", "merged"), "merged exists")
    refused(shell("maxrl/run/merge.py", warm, "other"), "has no adapter")
    refused(shell("maxrl/run/merge.py", "nowhere", "other"), "neither a checkpoint")
    assert before == {file: file.read_bytes() for file in Path("merged").iterdir()}
    assert not Path("other").exists()


def test_a_resumed_run_is_the_same_bit_for_bit(trained, warm, shell):
    longer = ("--steps", 4, "--save-every", 2)
    trained(*longer, "--out", "whole")
    with killed(at=4):
        trained(*longer)
    trained(*longer, "--resume")
    assert timeless("rl") == timeless("whole")
    for file in ("adapter_model.safetensors", "optimizer.safetensors"):
        expected = (checkpoint.find("whole") / file).read_bytes()
        assert (checkpoint.find("rl") / file).read_bytes() == expected
    again = ("train.py", *RL, "--init", warm, "--out", "rl", "--resume")
    refused(shell(*again, "--lora-rank", 4), "lora_rank = 3, not 4")
    refused(shell(*again, "--lora-projections", "q_proj"), "lora_projections")


def test_an_adapter_as_init(trained, shell):
    """Without --lora-rank all of the merged model is trained; a second adapter is refused."""
    trained()
    merged = ("tiny", *SIZES, "--lr", 0, "--weight-decay", 0, "--init", "rl", "--out", "second")
    passed(shell("train.py", *merged))
    with torch.no_grad():
        close(*(logits(checkpoint.load(name).model) for name in ("rl", "second")))
    found = checkpoint.find("second")
    assert (found / "config.json").exists()
    # Adam has two moments and a step of each.
    state = load_file(found / "optimizer.safetensors")
    assert len(state) == 3 * len(load_file(found / "model.safetensors"))
    refused(shell("train.py", *RL, "--init", "rl", "--out", "third"), "a LoRA adapter already")


def test_the_base_is_gone_or_damaged(trained, warm, shell):
    shutil.copytree(checkpoint.find(warm), "base")
    trained("--init", "base")
    commands = (
        ("train.py", *RL, "--init", "base", "--out", "rl", "--resume"),
        ("sample.py", "rl"),
        ("eval.py", "rl", "--prompts", 4),
    )
    file = Path("base/model.safetensors")
    *content, last = file.read_bytes()
    file.write_bytes(bytes([*content, last ^ 1]))
    for command in commands:
        refused(shell(*command), "base/model.safetensors is damaged")
    Path("base").rename("elsewhere")
    for command in commands:
        refused(shell(*command), "whose base model is not there", "put it back")


def test_the_base_is_another_one(trained, warm, shell):
    """Made again at the same path: one tensor of the weights, the tokenizer or a size."""
    shutil.copytree(checkpoint.find(warm), "base")
    Path("base/checksums.json").unlink()
    trained("--init", "base")
    tensors = load_file("base/model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] *= -1
    save_file(tensors, "other")
    weights = Path("base/model.safetensors").read_bytes()
    changes = {
        "model.safetensors": (weights, Path("other").read_bytes()),
        "tokenizer.json": (b'"UP"', b'"PU"'),
        "config.json": (b"10000.0", b"20000.0"),
    }
    longer = ("train.py", *RL, "--init", "base", "--out", "rl", "--resume", "--steps", 4)
    for name, (old, new) in changes.items():
        path = Path("base", name)
        before = path.read_bytes()
        after = before.replace(old, new)
        assert after != before
        path.write_bytes(after)
        for command in (longer, ("sample.py", "rl"), ("eval.py", "rl", "--prompts", 4)):
            refused(shell(*command), "base")
        path.write_bytes(before)
    passed(shell(*longer))


@pytest.mark.parametrize(
    "reference, adapted", [("model", False), ("model", True), ("adapter", False)]
)
def test_the_reference_is_another_one(trained, warm, shell, reference, adapted):
    """The model that --beta compares with, made again at the same path, with checksums that hold:
    the penalty would pull towards another model. An adapter as reference is its own weights too."""
    shutil.copytree(checkpoint.find(warm), "base")
    name = "model.safetensors"
    if reference == "adapter":
        trained("--out", "base-run")
        shutil.rmtree("base")
        shutil.copytree(checkpoint.find("base-run"), "base")
        name = "adapter_model.safetensors"
    Path("base/checksums.json").unlink()
    rank = ("--lora-rank", 3) if adapted else ()
    run = ("train.py", "tiny", *SIZES, "--init", "base", "--beta", 0.5, *rank, "--out", "run")
    passed(shell(*run))
    path = Path("base", name)
    before = path.read_bytes()
    tensors = load_file(path)
    tensors[max(tensors)] *= -1
    save_file(tensors, path)
    refused(shell(*run, "--resume", "--steps", 4), "changed", "put it back")
    path.write_bytes(before)
    passed(shell(*run, "--resume", "--steps", 4))


def test_a_digest_is_of_the_whole_file(tmp_path):
    """Of a file of 200 KiB, as of a large one, it has the first and the last byte."""
    file = tmp_path / "weights"
    content = bytearray(200 * 2**10)

    def known():
        file.write_bytes(content)
        return hub_files.digest([file], "")

    seen = [known()]
    for place in (0, len(content) - 1, len(content) // 2):
        content[place] ^= 1
        seen.append(known())
    content.append(0)
    seen.append(known())
    assert len({*seen, hub_files.digest([file], "other")}) == 6
