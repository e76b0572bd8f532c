"""What a run saves and resumes from: checkpoints, metrics, data; and infinite gradients."""

import errno
import itertools
import os
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from data.maze import prepare
from maxrl import MaxRLConfig, MaxRLTrainer
from maxrl.learning.policy import SequencePolicy
from maxrl.models import checkpoint
from maxrl.models.lora import has_lora
from maxrl.run import directory
from maxrl.system import files
from maxrl.system.errors import UsageError
from tests.helpers import tiny
from tests.helpers.runs import SHORT, at_call, metrics, passed, refused


@pytest.fixture
def made(recorded, in_a_directory_of_its_own):
    """The command that resumes ./run, a copy of the recorded run."""
    shutil.copytree(recorded.path, "run")
    return recorded.command


def test_other_data_is_refused(run, shell, tmp_path):
    """Another number of examples, or other ones of the same name."""
    few = tmp_path / "few"
    own = (*run, "--out", "run", "--steps", 2, "--task.directory", few, "--resume", "auto")
    options = "--size 7 --validation 4 --test 4 --workers 1 --overwrite"

    def make(count, seed):
        made = f"{options} --train {count} --seed {seed}"
        prepare.main([*made.split(), "--out", str(few)])
        return shell(*own)

    passed(make(50, 0))
    for other in ((40, 0), (50, 1)):
        refused(make(*other), "other data of the same name")
    passed(make(50, 0))


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_damaged_weights_are_not_evaluated_or_built_on(made, recorded, shell):
    """safetensors alone would read them. What only resuming needs may be damaged."""
    newest = Path("run/step-000005")
    flip(newest / "optimizer.safetensors")
    ask = ("--samples", 1, "--k", 1, "--prompts", 1)
    passed(shell("eval.py", "run", *ask))
    flip(newest / "model.safetensors")
    for command in (
        ("eval.py", "run", *ask),
        # Before the work on the other one would be lost.
        ("eval.py", recorded.path, "run", *ask),
        ("sample.py", "run"),
        ("train.py", *SHORT, "--init", "run", "--out", "new"),
    ):
        remedy = f"remove {newest}/checksums.json"
        refused(shell(*command), f"{newest}/model.safetensors is damaged", remedy)
    (newest / "checksums.json").unlink()
    passed(shell("eval.py", "run", *ask))


def test_no_checkpoint_is_intact(made, shell):
    """Then no new run takes their place, and nothing is renamed."""
    for file in Path("run").glob("*/checksums.json"):
        file.unlink()
    before = sorted(Path("run").rglob("*"))
    none = "run holds no intact checkpoint (run/step-000005/checksums.json is missing)"
    for resume, words in (("yes", none), ("auto", none), ("no", "already holds a run")):
        refused(shell(*made, "--resume", resume), words)
        assert sorted(Path("run").rglob("*")) == before


@pytest.mark.parametrize("text", ["step-000002\n", "../../elsewhere", ""])
def test_the_newest_checkpoint_counts_not_what_latest_says(made, shell, text):
    Path("run/latest").write_text(text)
    passed(shell(*made))
    assert Path("run/latest").read_text() == "step-000005\n"
    assert len(metrics("run")) == 5


@pytest.mark.parametrize("left", ["nothing", "half a line", "another order", "noise", "no file"])
def test_metrics_come_back_from_the_checkpoint(made, shell, left):
    """Whatever became of metrics.jsonl, a resumed run has every line once and in order."""
    file = Path("run/metrics.jsonl")
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    spoilt = {
        "nothing": b"",
        "half a line": lines[0] + lines[1][:20],
        "another order": b"".join(lines[::-1]),
        "noise": b"\0\xff\n" + whole,
    }
    file.unlink()
    if left in spoilt:
        file.write_bytes(spoilt[left])
    passed(shell(*made))
    assert file.read_bytes() == whole


ODD = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "a link to itself": lambda path: os.symlink(os.path.basename(path), path),
    "an endless device": lambda path: os.symlink("/dev/zero", path),
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(path),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["samples.jsonl", "metrics.jsonl", "recipe.json"])
def test_what_a_report_reads_is_a_file(made, shell, name, odd):
    file = Path("run", name)
    file.unlink()
    ODD[odd](str(file))
    refused(shell("maxrl/analysis/report.py", "run"), name)
    if name == "metrics.jsonl":
        refused(shell("maxrl/analysis/plots.py", "run", "--out", "curves.png"), name)


def test_what_gets_its_name_is_on_the_disk(tmp_path, monkeypatch):
    """A power failure takes what is not flushed: of a checkpoint or a file, it is before the
    rename, and that is at the end."""
    done = []

    def flushed(descriptor):
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def renamed(source, target):
        done.append("renamed")

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "replace", renamed)
    new = tmp_path / "new"
    new.mkdir()
    (new / "weights").write_text("1")
    files.publish(new, tmp_path / "step-000001")
    assert sorted(done[:2]) == ["checksums.json", "weights"]
    assert done[2:] == ["new", "renamed", tmp_path.name]
    done.clear()
    files.write_text(tmp_path / "latest", "step-000001")
    assert done == ["latest.incomplete", "renamed", tmp_path.name]


def test_the_directory_may_be_moved_during_a_run(run, shell, monkeypatch):
    """The next checkpoint is complete, with all metrics, and a resumed run has the file again."""
    with monkeypatch.context() as patch:
        patch.setattr(SequencePolicy, "backward", at_call(4, lambda _: os.rename("run", "moved")))
        passed(shell(*run, "--out", "run"))
    assert not files.first_problem("run/step-000005")
    passed(shell(*run, "--out", "run", "--resume", "yes"))
    assert len(metrics("run")) == 5


def saved():
    return sorted(path.name for path in Path("run").glob("step-*"))


def test_keep(run, shell):
    """The newest checkpoints stay; also if a killed run could not remove the others any more."""
    run = (*run, "--save-every", 1, "--out", "run", "--resume", "auto")
    passed(shell(*run, "--steps", 3))
    assert saved() == ["step-000001", "step-000002", "step-000003"]
    passed(shell(*run, "--steps", 3, "--keep", 2))
    assert saved() == ["step-000002", "step-000003"]
    passed(shell(*run, "--keep", 2))
    assert saved() == ["step-000004", "step-000005"]
    # A copy that somebody has made is none of them.
    shutil.copytree("run/step-000005", "run/step-000005-backup1")
    passed(shell(*run, "--keep", 1))
    assert saved() == ["step-000005", "step-000005-backup1"]


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
    assert saved() == ["step-000002", "step-000004", "step-000005"]


def test_a_file_system_that_can_do_less(run, shell, monkeypatch):
    """Nobody changes modes on it or flushes a directory."""
    fsync = os.fsync

    def refused_modes(*paths):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def refused_folders(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(files.shutil, "copymode", refused_modes)
    monkeypatch.setattr(os, "fsync", refused_folders)
    passed(shell(*run, "--steps", 3, "--out", "run", "--save-every", 1, "--keep", 1))
    assert saved() == ["step-000003"]


def spoil(policy):
    next(policy.model.parameters()).grad.fill_(float("nan"))


def test_an_update_that_is_not_finite_is_left_out(run, shell, monkeypatch):
    """Weights and Adam's state stay as they were, and the run goes on."""
    monkeypatch.setattr(SequencePolicy, "backward", at_call(2, spoil))
    said = passed(shell(*run, "--steps", 3, "--out", "run", "--save-every", 1))
    assert "the gradient of step 1 is not finite" in said
    rows = metrics("run")
    assert [row["skipped_updates"] for row in rows] == [0, 1, 0]
    assert rows[1]["grad_norm"] is None
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, two, three = (Path(f"run/step-00000{i}", name).read_bytes() for i in (1, 2, 3))
        assert one == two != three


def test_a_step_with_one_update_left_out_has_learned(run, shell, monkeypatch):
    """Such steps do not end a run, however many there are in a row."""
    backward = SequencePolicy.backward
    calls = []

    def spoiled(self, *arguments):
        calls.append(1)
        totals = backward(self, *arguments)
        if len(calls) % 2 == 0:
            spoil(self)
        return totals

    monkeypatch.setattr(SequencePolicy, "backward", spoiled)
    shell(*run, "--steps", 3, "--out", "run", "--minibatches", 2, "--max-skipped", 2)
    assert [row["skipped_updates"] for row in metrics("run")] == [0.5] * 3


def test_the_count_of_such_steps_in_a_row_is_resumed(run, shell, monkeypatch):
    """Two before a checkpoint and one after it are three in a row; a loss counts as well."""
    backward = SequencePolicy.backward

    def infinite(self, *arguments):
        totals = backward(self, *arguments)
        totals.sum("loss", float("inf"))
        return totals

    monkeypatch.setattr(SequencePolicy, "backward", infinite)
    run = (*run, "--out", "run", "--max-skipped", 3)
    passed(shell(*run, "--steps", 2))
    refused(shell(*run, "--resume", "auto"), "3 steps in a row, up to step 2")
    assert len(metrics("run")) == 2


@pytest.fixture
def kinds(dice, in_a_directory_of_its_own):
    """A trainer of an adapter, and one of a whole model."""
    lora = SimpleNamespace(r=4, lora_alpha=8)
    args = MaxRLConfig("out", max_completion_length=6, bf16=False, use_cpu=True)
    rows = [{"prompt": "UP"}]

    def nothing(completions):
        return [0.0] * len(completions)

    return [MaxRLTrainer(str(dice), nothing, args, rows, peft_config=kind) for kind in (lora, None)]


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
        assert has_lora(checkpoint.load(folder).model) == (trainer is kinds[0])
        assert checkpoint.load_tokenizer(folder).chat_template is None
        assert Path("config.json").read_text() == "theirs"
        assert not list(folder.glob("tmp*"))
        assert (folder / "notes.txt").read_text() == "mine"
    for name in ("config.json", "config.json/model"):
        with pytest.raises(UsageError, match=name):
            trainer.save_model(name)


@pytest.mark.parametrize("number", range(4))
def test_save_model_that_is_killed(kinds, monkeypatch, number):
    """The folder holds the old model, or is refused."""
    kinds[0].save_model("saved")
    replace = os.replace
    calls = itertools.count()

    def killed(source, target):
        if Path(target).parent == Path("saved") and next(calls) == number:
            raise tiny.Killed
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(tiny.Killed):
        kinds[1].save_model("saved")
    if number == 0:
        assert has_lora(checkpoint.load("saved").model)
    else:
        with pytest.raises((ValueError, FileNotFoundError)):
            checkpoint.load("saved")
