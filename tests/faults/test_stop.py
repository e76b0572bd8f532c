"""How a run ends: at its pass rate, at its last step, or before it begins."""

import json
import shutil
from pathlib import Path

import pytest
from runs import metrics, refused
from safetensors.torch import load_file, save_file

from maxrl import checkpoint

EVALUATED = (
    "--eval-k",
    "1,4",
    "--eval-samples",
    4,
    "--eval-prompts",
    8,
    "--out",
    "run",
    "--eval-every",
)


def test_a_run_stops_at_its_pass_rate_and_stays_stopped(dice, shell):
    """A model that is right half of the time is rewarded until it is nearly always right."""
    task = ("--init", dice, "--task", "tiny:Up", "--max-response", 6, "--lr", 0.002)
    run = ("train.py", "tiny", *task, *EVALUATED, 2, "--stop-at-pass", 0.9)
    code, said = shell(*run)
    assert code == 0 and "pass@1 reached --stop-at-pass 0.9" in said
    rows = metrics("run")
    passes = [row["eval/pass@1"] for row in rows if "eval/pass@1" in row]
    assert 2 < len(rows) < 60 and passes[-1] >= 0.9 and max(passes[:-1]) < 0.9
    assert Path("run/latest").read_text().strip() == f"step-{len(rows):06d}"
    code, said = shell(*run, "--resume", "auto")
    assert code == 0 and f"resumes after step {len(rows)}\n" in said
    assert metrics("run") == rows


def test_a_pass_rate_that_was_not_reached(shell):
    """It is said, and the run can be resumed with more steps."""
    run = ("train.py", "tiny_sft", *EVALUATED, 10, "--stop-at-pass", 0.999)
    code, said = shell(*run, "--steps", 10)
    assert code == 0 and "did not reach --stop-at-pass 0.999" in said
    assert shell(*run, "--steps", 12, "--resume", "yes")[0] == 0
    assert len(metrics("run")) == 12


def test_metrics_of_another_run_are_not_overwritten(shell):
    Path("run").mkdir()
    Path("run/metrics.jsonl").write_text("mine\n")
    refused(shell("train.py", "tiny_sft", "--steps", 1, "--out", "run"), "already holds a run")
    assert Path("run/metrics.jsonl").read_text() == "mine\n"


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("--stop-at-pass 7", "--stop-at-pass 7.0 must be at most 1"),
        ("--stop-at-pass 0.5", "needs --eval-every"),
        ("--betas 1.0,0.9", "two numbers in [0, 1), not 1.0,0.9"),
        ("--seed 99999999999", "--seed 99999999999 must be at most"),
        ("--device tpu", "--device tpu is not one of auto, cpu, cuda"),
        ("--task nosuch:Thing", "cannot be imported"),
        ("--task maxrl.tasks.maze:Thing", "has no function or class Thing"),
    ],
)
def test_refusals(shell, arguments, words):
    refused(shell("train.py", "tiny_sft", *arguments.split()), words)
    assert not Path("runs").exists()


def test_a_file_as_run_directory(shell):
    Path("run").write_text("mine")
    refused(shell("train.py", "tiny_sft", "--out", "run"), "File exists")
    assert Path("run").read_text() == "mine"


def test_foreign_weights(warm, shell):
    """A model with fewer words than the tokenizer."""
    found = checkpoint.find(warm)
    shutil.copytree(found, "small")
    Path("small/checksums.json").unlink()
    config = json.loads(Path("small/config.json").read_text())
    Path("small/config.json").write_text(json.dumps(config | {"vocab_size": 20}))
    weights = load_file("small/model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:20].contiguous()
    save_file(weights, "small/model.safetensors")
    words = "the tokenizer has ids up to 31, the model's vocab_size is 20"
    refused(shell("train.py", "tiny", "--out", "run", "--init", "small"), words)
