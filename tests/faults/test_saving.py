"""What a run saves and resumes from: checkpoints, metrics, data; and infinite gradients."""

import itertools
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from runs import SHORT, at_call, metrics, refused, timeless, weights

from data.maze import prepare
from maxrl import MaxRLConfig, MaxRLTrainer, checkpoint
from maxrl.errors import UsageError
from maxrl.io import files
from maxrl.models.lora import has_lora
from maxrl.policy import SequencePolicy
from maxrl.run import directory


@pytest.fixture
def run(warm):
    """Five steps that save after every second."""
    return ("train.py", *SHORT, "--init", warm, "--save-every", 2)


def test_other_data_is_refused(run, shell, tmp_path):
    """Another number of examples, or other ones of the same name."""
    few = tmp_path / "few"
    counts = "--size 7 --validation 4 --test 4 --workers 1 --overwrite --out"
    own = (*run, "--out", "run", "--task.directory", few)
    for options, code in (("50", 0), ("40", 2), ("50 --seed 1", 2), ("50", 0)):
        prepare.main([*counts.split(), str(few), "--train", *options.split()])
        found, said = shell(*own, "--resume", "auto")
        assert found == code and (not code or "other data of the same name" in said), said


def flip(path, place=-1):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_damaged_weights_are_not_evaluated_or_built_on(run, shell):
    """safetensors alone would read them. What only resuming needs may be damaged."""
    shell(*run, "--out", "run")
    shutil.copytree("run", "good")
    flip(Path("run/step-000005/optimizer.safetensors"))
    ask = ("--samples", 1, "--k", 1, "--prompts", 1)
    assert shell("eval.py", "run", *ask)[0] == 0
    flip(Path("run/step-000005/model.safetensors"))
    for command in (
        ("eval.py", "run", *ask),
        # Before the work on the other one would be lost.
        ("eval.py", "good", "run", *ask),
        ("sample.py", "run"),
        ("train.py", *SHORT, "--init", "run", "--out", "new"),
    ):
        refused(
            shell(*command),
            "run/step-000005/model.safetensors is damaged",
            "remove run/step-000005/checksums.json",
        )
    Path("run/step-000005/checksums.json").unlink()
    assert shell("eval.py", "run", *ask)[0] == 0


def test_no_checkpoint_is_intact(run, shell):
    """Then no new run takes their place, and nothing is renamed."""
    shell(*run, "--out", "run")
    for step in (2, 4, 5):
        Path(f"run/step-00000{step}/checksums.json").unlink()
    before = sorted(Path("run").rglob("*"))
    none = "run holds no intact checkpoint (run/step-000005/checksums.json is missing)"
    for resume, words in (("yes", none), ("auto", none), ("no", "already holds a run")):
        refused(shell(*run, "--out", "run", "--resume", resume), words)
        assert sorted(Path("run").rglob("*")) == before


def test_the_newest_checkpoint_counts_not_what_latest_says(run, shell):
    shell(*run, "--out", "run")
    for text in ("step-000002\n", "../../elsewhere", ""):
        Path("run/latest").write_text(text)
        assert shell(*run, "--out", "run", "--resume", "yes")[0] == 0
        assert Path("run/latest").read_text() == "step-000005\n" and len(metrics("run")) == 5


def test_metrics_come_back_from_the_checkpoint(run, shell):
    """Whatever became of metrics.jsonl, a resumed run has every line once and in order."""
    shell(*run, "--out", "run")
    file = Path("run/metrics.jsonl")
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    for left in (b"", lines[0] + lines[1][:20], b"".join(lines[::-1]), b"\0\xff\n" + whole):
        file.write_bytes(left)
        assert shell(*run, "--out", "run", "--resume", "auto")[0] == 0
        assert file.read_bytes() == whole
    file.unlink()
    assert shell(*run, "--out", "run", "--resume", "auto")[0] == 0
    assert file.read_bytes() == whole


def test_the_directory_may_be_moved_during_a_run(run, shell, monkeypatch):
    """The next checkpoint is complete, with all metrics, and a resumed run has the file again."""
    with monkeypatch.context() as patch:
        patch.setattr(SequencePolicy, "backward", at_call(4, lambda _: os.rename("run", "moved")))
        assert shell(*run, "--out", "run")[0] == 0
    assert not files.first_problem("run/step-000005")
    assert shell(*run, "--out", "run", "--resume", "yes")[0] == 0 and len(metrics("run")) == 5


def saved(run):
    return sorted(path.name for path in Path(run).glob("step-*"))


def test_keep(run, shell):
    """The newest checkpoints stay; also if a killed run could not remove the others any more."""
    run = (*run, "--save-every", 1)
    assert shell(*run, "--out", "run", "--keep", 2)[0] == 0
    assert saved("run") == ["step-000004", "step-000005"]
    assert shell(*run, "--out", "all")[0] == 0 and len(saved("all")) == 5
    assert shell(*run, "--out", "all", "--resume", "auto", "--keep", 3)[0] == 0
    assert len(saved("all")) == 3
    # A copy that somebody has made is none of them.
    shutil.copytree("all/step-000005", "all/step-000005-backup1")
    assert shell(*run, "--out", "all", "--resume", "auto", "--keep", 1)[0] == 0
    assert {"step-000005", "step-000005-backup1"} == {p.name for p in Path("all").glob("step*")}


def test_checkpoints_by_the_clock(run, shell, monkeypatch):
    """A step takes 40 seconds of a clock that is set by hand, so every second one is due."""
    now = [0.0]
    backward = SequencePolicy.backward

    def slow(self, *arguments):
        now[0] += 40
        return backward(self, *arguments)

    monkeypatch.setattr(directory.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(SequencePolicy, "backward", slow)
    shell(*run, "--out", "run", "--save-every", 0, "--save-every-minutes", 1)
    assert saved("run") == ["step-000002", "step-000004", "step-000005"]


def spoil(policy):
    next(policy.model.parameters()).grad.fill_(float("nan"))


def test_an_update_that_is_not_finite_is_left_out(run, shell, monkeypatch):
    """Weights and Adam's state stay as they were, and the run goes on."""
    with monkeypatch.context() as patch:
        patch.setattr(SequencePolicy, "backward", at_call(2, spoil))
        code, said = shell(*run, "--out", "run", "--save-every", 1)
    assert code == 0 and "the gradient of step 1 is not finite" in said
    rows = metrics("run")
    assert [row["skipped_updates"] for row in rows] == [0, 1, 0, 0, 0]
    assert rows[1]["grad_norm"] is None
    one, two, three = (Path(f"run/step-00000{i}") for i in (1, 2, 3))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (one / name).read_bytes() == (two / name).read_bytes() != (three / name).read_bytes()


def test_the_count_of_such_steps_in_a_row_is_resumed(run, shell, monkeypatch):
    """Two before a checkpoint and one after it are three in a row; a loss counts as well."""
    backward = SequencePolicy.backward

    def infinite(self, *arguments):
        return backward(self, *arguments) | {"loss": float("inf")}

    monkeypatch.setattr(SequencePolicy, "backward", infinite)
    run = (*run, "--out", "run", "--max-skipped", 3)
    assert shell(*run, "--steps", 2)[0] == 0
    code, said = shell(*run, "--resume", "auto")
    assert code == 2 and "3 steps in a row, up to step 2" in said and len(metrics("run")) == 2


def test_a_run_repeated_is_the_same_bit_for_bit(run, shell):
    """Also with --deterministic, which changes nothing on a CPU."""
    for name, options in (("one", ()), ("two", ()), ("three", ("--deterministic", "true"))):
        assert shell(*run, "--out", name, *options)[0] == 0
        assert torch.are_deterministic_algorithms_enabled() == bool(options)
    torch.use_deterministic_algorithms(False)
    assert weights("one") == weights("two") == weights("three")
    assert timeless("one") == timeless("two") == timeless("three")


@pytest.fixture
def kinds(dice, in_a_directory_of_its_own):
    """A trainer of an adapter, and one of a whole model."""
    lora = SimpleNamespace(r=4, lora_alpha=8)
    args = MaxRLConfig("out", max_completion_length=6, bf16=False, use_cpu=True)
    rows = [{"prompt": "UP"}]
    return [MaxRLTrainer(str(dice), len, args, rows, peft_config=kind) for kind in (lora, None)]


def test_save_model_takes_the_place_of_a_model(kinds):
    """Of the same kind or the other one; what a link points to stays, and so do other files."""
    folder = Path("saved")
    for trainer in (*kinds, *kinds):
        folder.mkdir(exist_ok=True)
        (folder / "notes.txt").write_text("mine")
        for name in ("config.json", "tokenizer_config.json", "chat_template.jinja"):
            Path(name).write_text("theirs")
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(Path(name).resolve())
        trainer.save_model(folder)
        assert has_lora(checkpoint.load_model(folder)[0]) == (trainer is kinds[0])
        assert checkpoint.load_tokenizer(folder).chat_template is None
        assert Path("config.json").read_text() == "theirs" and not list(folder.glob("tmp*"))
        assert (folder / "notes.txt").read_text() == "mine"
    for name in ("config.json", "config.json/model"):
        with pytest.raises(UsageError, match=name):
            trainer.save_model(name)


def test_save_model_that_is_killed(kinds, monkeypatch):
    """The folder holds the old model, or is refused."""
    replace = os.replace
    for number in range(4):
        kinds[0].save_model("saved")
        calls = itertools.count()

        def killed(source, target):
            if Path(target).parent == Path("saved") and next(calls) == number:
                raise tiny.Killed
            replace(source, target)

        with monkeypatch.context() as patch, pytest.raises(tiny.Killed):
            patch.setattr(os, "replace", killed)
            kinds[1].save_model("saved")
        if number == 0:
            assert has_lora(checkpoint.load_model("saved")[0])
        else:
            with pytest.raises((ValueError, FileNotFoundError)):
                checkpoint.load_model("saved")
