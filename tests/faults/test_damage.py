"""Damaged checkpoints: each one is recognised, and the run resumes from the one before."""

import random
import shutil
from pathlib import Path

import pytest
import torch
from runs import timeless, weights
from trained import TOKENIZER, trained
from wholeness import damages, unnoticed, unsound

from maxrl import checkpoint
from maxrl.models.lora import add_lora

RUN = ("tiny_sft", "--steps", 4, "--save-every", 2)


@pytest.mark.parametrize("adapted", [False, True])
def test_every_damage_is_recognised(tmp_path, adapted):
    """Every file cut at 20 places, gone, or with one of 100 bits flipped."""
    model, optimizer = trained()
    if adapted:
        optimizer = torch.optim.AdamW(add_lora(model, 2, 4.0, base="base").parameters())
    checkpoint.save(
        tmp_path / "a",
        model,
        TOKENIZER,
        [7, 2],
        recipe={"recipe": "x"},
        optimizer=optimizer,
        state={"step": 2},
    )
    assert checkpoint.first_problem(tmp_path / "a") == ""
    tried, missed = unnoticed(tmp_path / "a", random.Random(0))
    print(f"{tried} damages, {len(missed)} not recognised")
    assert tried == 121 * (6 if adapted else 10) and missed == []


def test_what_is_added_later_is_no_damage(tmp_path):
    """An adapter's README or a converted copy beside the weights."""
    model, optimizer = trained()
    checkpoint.save(tmp_path / "a", model, TOKENIZER, [7, 2])
    (tmp_path / "a" / "README.md").write_text("mine")
    assert checkpoint.first_problem(tmp_path / "a") == ""


def test_the_run_resumes_from_the_checkpoint_before(shell):
    """Whatever file of the newest one is damaged, the run says so and ends with the same bits."""
    assert shell("train.py", *RUN, "--out", "whole")[0] == 0
    rng = random.Random(1)
    for file in sorted(Path("whole/step-000004").iterdir()):
        shutil.copytree("whole", "run")
        bad = Path("run/step-000004", file.name)
        what, left = rng.choice([*damages(bad.read_bytes(), rng, flips=20), ("taken away", None)])
        bad.unlink() if left is None else bad.write_bytes(left)
        # It was damaged before, too.
        Path("run/step-000004.damaged/old").mkdir(parents=True)
        code, said = shell("train.py", *RUN, "--out", "run", "--resume", "auto")
        assert code == 0 and "resuming from step-000002" in said, (file, what, said)
        # Damaged checksums may name any file.
        assert file.name in said or file.name == "checksums.json"
        shutil.rmtree("run/step-000004.damaged")
        assert unsound(Path("run")) == [], (file, what)
        assert timeless("run") == timeless("whole") and weights("run") == weights("whole"), file
        shutil.rmtree("run")
