"""Runs that train an adapter: eval.py and sample.py load it, a resumed one is the same."""

import json
import shutil
from pathlib import Path

import peft
import pytest
import tiny
import torch
from logits import TOKENS, close, logits
from runs import die, metrics, refused, timeless
from safetensors.torch import load_file

from maxrl import checkpoint
from maxrl.models import lora
from maxrl.policy import SequencePolicy

SIZES = ("--prompts", 4, "--rollouts", 4, "--steps", 2)
RL = ("tiny", *SIZES, "--lora-rank", 3, "--lora-alpha", 5, "--lr", 0.02)


def test_train_writes_an_adapter_that_eval_and_sample_load(warm, shell):
    """Only A and B are trained and saved, and the base is named by its own directory."""
    code, said = shell(
        "train.py", *RL, "--init", warm, "--out", "rl", "--lora-projections", "q_proj,down_proj"
    )
    assert code == 0, said
    found = checkpoint.find("rl")
    assert {f.name for f in found.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "recipe.json",
        "optimizer.safetensors",
        "state.json",
        "metrics.jsonl",
        "checksums.json",
    }
    config = json.loads((found / "adapter_config.json").read_text())
    assert (
        config["base_model_name_or_path"] == str(checkpoint.find(warm).resolve())
        and config["r"] == 3
    )
    assert config["lora_alpha"] == 5 and config["target_modules"] == ["q_proj", "down_proj"]
    tensors = load_file(found / "adapter_model.safetensors")
    assert len(tensors) == 2 * 2 * 2 and all(t.any() for t in tensors.values())
    trained = {name.rsplit(".", 1)[0] for name in load_file(found / "optimizer.safetensors")}
    assert trained == {name.removeprefix(lora.PEFT_PREFIX) for name in tensors}
    with torch.no_grad():
        theirs = peft.AutoPeftModelForCausalLM.from_pretrained(found).eval()
        close(logits(checkpoint.load_model("rl")[0]), theirs(TOKENS).logits)
    for script, *options in (
        ["eval.py", "rl", "--prompts", 4, "--samples", 4, "--k", 1],
        ["sample.py", "rl"],
    ):
        code, said = shell(script, *options)
        assert code == 0, said


def test_resume_bit_for_bit(warm, shell, monkeypatch):
    """A resumed run equals the uninterrupted one."""
    run = (*RL, "--init", warm, "--steps", 4, "--save-every", 2)
    assert shell("train.py", *run, "--out", "whole")[0] == 0
    with monkeypatch.context() as patch, pytest.raises(tiny.Killed):
        patch.setattr(SequencePolicy, "backward", die(4))
        shell("train.py", *run, "--out", "cut")
    code, said = shell("train.py", *run, "--out", "cut", "--resume")
    assert code == 0 and timeless("cut") == timeless("whole") and len(metrics("cut")) == 4, said
    for file in ("adapter_model.safetensors", "optimizer.safetensors"):
        expected = (checkpoint.find("whole") / file).read_bytes()
        assert (checkpoint.find("cut") / file).read_bytes() == expected


def test_a_resumed_run_has_the_same_adapter(warm, shell):
    run = (*RL, "--init", warm, "--out", "rl")
    assert shell("train.py", *run)[0] == 0
    refused(shell("train.py", *run, "--resume", "--lora-rank", 4), "lora_rank = 3, not 4")
    refused(shell("train.py", *run, "--resume", "--lora-projections", "q_proj"), "lora_projections")


def test_an_adapter_as_init(warm, shell):
    """Without --lora-rank all of the merged model is trained; a second adapter is refused."""
    assert shell("train.py", *RL, "--init", warm, "--out", "first")[0] == 0
    code, said = shell(
        "train.py", *RL[:7], "--lr", 0, "--weight-decay", 0, "--init", "first", "--out", "second"
    )
    assert code == 0, said
    with torch.no_grad():
        close(*(logits(checkpoint.load_model(name)[0]) for name in ("first", "second")))
    assert (checkpoint.find("second") / "config.json").exists()
    assert len(load_file(checkpoint.find("second") / "optimizer.safetensors")) == 3 * len(
        load_file(checkpoint.find("second") / "model.safetensors")
    )
    refused(shell("train.py", *RL, "--init", "first", "--out", "third"), "a LoRA adapter already")


def test_the_base_is_gone_or_damaged(warm, shell):
    shutil.copytree(checkpoint.find(warm), "base")
    assert shell("train.py", *RL, "--init", "base", "--out", "rl")[0] == 0
    commands = (
        ["train.py", *RL, "--init", "base", "--out", "rl", "--resume"],
        ["sample.py", "rl"],
        ["eval.py", "rl", "--prompts", 4],
    )
    file = Path("base/model.safetensors")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for command in commands:
        refused(shell(*command), "base/model.safetensors is damaged")
    Path("base").rename("elsewhere")
    for command in commands:
        refused(shell(*command), "its base model is not there", "base_model_name_or_path")
