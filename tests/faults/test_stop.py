"""How a run ends: at its level, at its last step, at a gradient that is no number, or before it begins."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

SHORT = (
    "tiny_sft",
    "--eval-every",
    10,
    "--eval-k",
    "1,4",
    "--eval-samples",
    4,
    "--eval-prompts",
    8,
    "--out",
    "run",
)


def lines(run="run"):
    return len((Path(run) / "metrics.jsonl").read_text().splitlines())


def test_a_run_stops_at_its_level_and_stays_stopped(dice, shell):
    """The warm-up of the laptop comparison ends at a pass rate, not at a step. Here what is right half of the time is
    rewarded until it is all that is done."""
    run = (
        "tiny",
        "--init",
        dice,
        "--task",
        "tiny:Up",
        "--max-response",
        6,
        "--lr",
        0.002,
        *SHORT[3:],
        "--eval-every",
        2,
    )
    code, said = shell("train.py", *run, "--stop-at-pass", 0.9)
    assert (
        code == 0
        and ", or until pass@1 reaches 0.9" in said
        and "pass@1 has reached --stop-at-pass 0.9: wrote run" in said
    )
    stopped, rows = (
        lines(),
        [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()],
    )
    passes = [row["eval/pass@1"] for row in rows if "eval/pass@1" in row]
    assert (
        2 < stopped < 60
        and stopped % 2 == 0
        and passes[-1] >= 0.9
        and all(p < 0.9 for p in passes[:-1])
    )
    assert Path("run/latest").read_text().strip() == f"step-{stopped:06d}"
    code, said = shell("train.py", *run, "--stop-at-pass", 0.9, "--resume", "auto")
    assert code == 0 and f"run, ended after step {stopped}\n" in said, (
        "not after the recipe's last step"
    )
    assert lines() == stopped


def test_a_level_that_was_not_reached_is_said_and_more_steps_go_on(shell):
    """The first form of stop_at_pass took the end of the steps for the level: the longer run did nothing, silently."""
    code, said = shell("train.py", *SHORT, "--stop-at-pass", 0.999, "--steps", 10)
    assert code == 0 and "did not reach --stop-at-pass 0.999" in said
    assert (
        shell("train.py", *SHORT, "--stop-at-pass", 0.999, "--steps", 12, "--resume", "yes")[0] == 0
    )
    assert lines() == 12


def test_a_gradient_that_is_no_number_ends_the_run_before_the_weights_change(warm, shell):
    """It used to end with exit code 0 and a checkpoint full of NaN."""
    code, said = shell(
        "train.py", "tiny_sft", "--lr", "1e25", "--steps", 5, "--max-skipped", 3, "--out", "run"
    )
    assert (
        code == 2
        and "is not finite: 3 steps in a row, up to step 3" in said
        and not Path("run/latest").exists()
    )


@pytest.mark.parametrize("left", ["metrics.jsonl", "latest"])
def test_remains_of_a_run_are_not_written_over(shell, left):
    Path("run").mkdir()
    (Path("run") / left).write_text("")
    code, said = shell("train.py", "tiny_sft", "--steps", 1, "--out", "run")
    assert code == 2 and "already holds a run" in said and (Path("run") / left).read_text() == ""


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--stop-at-pass", "7"], "--stop-at-pass 7.0 is no pass rate"),
        (["--stop-at-pass", "0.5"], "needs --eval-every"),
        (["--betas", "1.0,0.9"], "two numbers in [0, 1), not 1.0,0.9"),
        (["--seed", "99999999999"], "--seed 99999999999 is too large"),
        (["--device", "tpu"], "--device tpu is not one of auto, cpu, cuda"),
        (["--task", "nosuch:Thing"], "cannot be imported"),
        (["--task", "maxrl.tasks.maze:Thing"], "has no function or class Thing"),
        (["--init", "nowhere"], "nowhere is neither a checkpoint"),
    ],
)
def test_refusals(shell, arguments, words):
    code, said = shell("train.py", "tiny_sft", *arguments)
    assert code == 2 and words in said and "Traceback" not in said and not Path("runs").exists()


def test_a_file_as_run_directory(shell):
    Path("run").write_text("mine")
    code, said = shell("train.py", "tiny_sft", "--out", "run")
    assert code == 2 and "is a file" in said and Path("run").read_text() == "mine"


def test_damaged_and_foreign_weights(warm, shell, tmp_path):
    """Truncated files, and a model with fewer words than the tokenizer."""
    import shutil

    from maxrl import checkpoint

    found = checkpoint.find(warm)
    shutil.copytree(found, "cut")
    whole = Path("cut/model.safetensors").read_bytes()
    Path("cut/model.safetensors").write_bytes(whole[: len(whole) // 2])
    code, said = shell("train.py", "tiny", "--init", "cut", "--out", "run")
    assert code == 2 and "model.safetensors is damaged" in said
    shutil.copytree(found, "small")
    Path("small/checksums.json").unlink()
    config = json.loads(Path("small/config.json").read_text())
    Path("small/config.json").write_text(json.dumps(config | {"vocab_size": 20}))
    weights = load_file("small/model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:20].contiguous()
    save_file(weights, "small/model.safetensors")
    code, said = shell("train.py", "tiny", "--init", "small", "--out", "run")
    assert code == 2 and "the tokenizer has 32 tokens, the model's vocab_size is 20" in said
