"""How a run ends: at its pass rate, at its last step, or before it begins."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from maxrl import checkpoint
from maxrl.io.files import read_json
from tests.helpers.runs import metrics, passed, refused

EVALUATED = "--eval-k 1,4 --eval-samples 4 --eval-prompts 8 --out run --eval-every"


def test_a_run_stops_at_its_pass_rate_and_stays_stopped(dice, shell):
    """A model that is right half of the time is rewarded until it is nearly always right."""
    task = ("--init", dice, "--task", "tests.helpers.tiny:Up", "--max-response", 6, "--lr", 0.002)
    run = ("train.py", "tiny", *task, *EVALUATED.split(), 2, "--stop-at-pass", 0.9)
    said = passed(shell(*run))
    assert "pass@1 reached --stop-at-pass 0.9" in said
    rows = metrics("run")
    *before, last = [row["eval/pass@1"] for row in rows if "eval/pass@1" in row]
    assert 2 < len(rows) < 60
    assert max(before) < 0.9 <= last
    assert Path("run/latest").read_text() == f"step-{len(rows):06d}\n"
    said = passed(shell(*run, "--resume", "auto"))
    assert f"resumes after step {len(rows)}\n" in said
    assert metrics("run") == rows


def test_a_pass_rate_that_was_not_reached(shell):
    """It is said, and the run can be resumed with more steps."""
    run = ("train.py", "tiny_sft", *EVALUATED.split(), 10, "--stop-at-pass", 0.999)
    said = passed(shell(*run, "--steps", 10))
    assert "did not reach --stop-at-pass 0.999" in said
    passed(shell(*run, "--steps", 12, "--resume", "yes"))
    assert len(metrics("run")) == 12


@pytest.mark.parametrize(
    "name, words", [("run/metrics.jsonl", "already holds a run"), ("run", "File exists")]
)
def test_what_is_there_is_not_overwritten(shell, name, words):
    """Metrics of another run, and a file in place of the directory."""
    file = Path(name)
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine\n")
    refused(shell("train.py", "tiny_sft", "--steps", 1, "--out", "run"), words)
    assert file.read_text() == "mine\n"


def test_foreign_weights(warm, shell):
    """A model with fewer words than the tokenizer."""
    small = shutil.copytree(checkpoint.find(warm), Path("small"))
    (small / "checksums.json").unlink()
    config = read_json(small / "config.json")
    (small / "config.json").write_text(json.dumps(config | {"vocab_size": 20}))
    weights = load_file(small / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:20].contiguous()
    save_file(weights, small / "model.safetensors")
    words = "the tokenizer has ids up to 31, the model's vocab_size is 20"
    refused(shell("train.py", "tiny", "--out", "run", "--init", "small"), words)
