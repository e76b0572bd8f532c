"""Damaged checkpoints: each one is recognised, and the run resumes from the one before."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from maxrl.learning.policy import SequencePolicy
from maxrl.models import checkpoint
from maxrl.models.checkpoint import Checkpoint
from maxrl.run.build import check_fit
from maxrl.system import files
from maxrl.system.files import read_json
from tests.helpers import tiny
from tests.helpers.hostile import sentence
from tests.helpers.runs import passed, refused, same_runs
from tests.helpers.tables import each
from tests.helpers.trained import TOKENIZER, trained
from tests.helpers.wholeness import damages, unnoticed, unsound


def test_every_damage_is_recognised(tmp_path):
    """Every file cut at 20 places, gone, or with one of 100 bits flipped."""
    model, optimizer = trained()
    more = {"recipe": {"recipe": "x"}, "optimizer": optimizer, "state": {"step": 2}}
    checkpoint.save(tmp_path / "a", Checkpoint(model, TOKENIZER, [7, 2]), **more)
    assert checkpoint.first_problem(tmp_path / "a") == ""
    tried, missed = unnoticed(tmp_path / "a", random.Random(0))
    assert tried == 121 * 10
    assert missed == []


def test_what_is_added_later_is_no_damage(tmp_path):
    """An adapter's README or a converted copy beside the weights."""
    model, optimizer = trained()
    checkpoint.save(tmp_path / "a", Checkpoint(model, TOKENIZER, [7, 2]))
    (tmp_path / "a" / "README.md").write_text("mine")
    assert checkpoint.first_problem(tmp_path / "a") == ""


def edit(path, name, key, value):
    """Change a key of a JSON file."""
    file = path / name
    content = read_json(file) if file.exists() else {}
    file.write_text(json.dumps(content | {key: value}))


def pipe(path, name):
    """A file that can be opened, and never read to its end."""
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)


def folder(path, name):
    (path / name).unlink()
    (path / name).mkdir()


def token(path, number):
    """Let the last token have another number."""
    words = read_json(path / "tokenizer.json")["model"]
    words["vocab"][max(words["vocab"], key=words["vocab"].get)] = number
    edit(path, "tokenizer.json", "model", words)


def adapter(path, base):
    (path / "config.json").rename(path / "adapter_config.json")
    edit(path, "adapter_config.json", "base_model_name_or_path", base)


def elsewhere(path, latest):
    (path / "config.json").unlink()
    (path / "latest").write_text(latest)


def listed(path, name):
    """The checksums name another file."""
    (path / checkpoint.CHECKSUMS).write_text(files.json_text({name: ""}))


def text(path, name, part, times):
    (path / name).write_text(part * times)


LONG = "b" * 300


# What is done, and to what.
HOSTILE = """
edit "tokenizer_config.json", "eos_token", {}
edit "tokenizer_config.json", "chat_template", [1]
edit "tokenizer_config.json", "chat_template", [{"name": "default"}]
edit "generation_config.json", "eos_token_id", "x"
edit "generation_config.json", "eos_token_id", ["a"]
token 1000000
folder "model.safetensors"
adapter "a"
adapter "LONG"
adapter "LONG/b"
elsewhere "LONG"
listed "../../../../../../../../../../dev/zero"
text "added_tokens.json", "[", 100000
text "added_tokens.json", "x", 1
text "added_tokens.json", "7", 1
text "added_tokens.json", "[[1]]", 1
text "special_tokens_map.json", "{\\"a\\":", 100000
text "tokenizer_config.json", "[", 100000
text "generation_config.json", "[", 100000
text "config.json", "{\\"a\\":", 100000
text "tokenizer.json", "[", 100000
pipe "model.safetensors"
pipe "generation_config.json"
pipe "tokenizer.json"
pipe "vocab.json"
"""


def done(line, path):
    name, given = line.split(maxsplit=1)
    globals()[name](path, *json.loads(f"[{given}]"))


@each("line", HOSTILE.replace("LONG", LONG))
def test_a_hostile_checkpoint_is_refused(line, tmp_path, monkeypatch):
    """In one sentence, whatever waits or is of another kind in it."""
    monkeypatch.chdir(tmp_path)
    path = Path("a")
    model, _ = trained()
    checkpoint.save(path, Checkpoint(model, TOKENIZER, [7, 2]))
    (path / checkpoint.CHECKSUMS).unlink()
    done(line, path)

    def use():
        whole = checkpoint.load(path)
        check_fit(whole, tiny.Up(""))
        return SequencePolicy(whole, max_tokens=2)

    assert sentence(LONG, use, ValueError, FileNotFoundError) is None


def tensor(path, change):
    """Take Adam's first tensor away, rename it or cut it to a number."""
    file = path / "optimizer.safetensors"
    found = load_file(file)
    name = min(found)
    value = found.pop(name)
    if change == "rename":
        found[f"x.{name}"] = value
    if change == "cut":
        found[name] = value.flatten()[:1].clone()
    save_file(found, file)


def gone(path, name):
    (path / name).unlink()


STATES = """
edit "state.json", "step", "a"
edit "state.json", "skipped", []
edit "recipe.json", "data", [1]
edit "recipe.json", "data", null
gone "metrics.jsonl"
tensor "remove"
tensor "rename"
tensor "cut"
"""


@each("line", STATES)
def test_a_wrong_state_is_refused(line, shell, recorded):
    """The checksums are right, and one sentence says that the run does not go on."""
    shutil.copytree(recorded.path, "run", ignore=shutil.ignore_patterns("step-00000[24]"))
    path = Path("run/step-000005")
    done(line, path)
    (path / checkpoint.CHECKSUMS).unlink()
    path.rename("new")
    files.publish(Path("new"), path)
    refused(shell(*recorded.command), "run")


def test_the_run_resumes_from_the_checkpoint_before(recorded, shell):
    """Whatever file of the newest one is damaged, the run says so and ends with the same bits."""
    rng = random.Random(1)
    for name in ("model.safetensors", "optimizer.safetensors", "checksums.json"):
        shutil.copytree(recorded.path, "run")
        bad = Path("run/step-000005", name)
        what, left = rng.choice([*damages(bad.read_bytes(), rng, flips=20)])
        bad.write_bytes(left)
        # It was damaged before, too.
        Path("run/step-000005.damaged/old").mkdir(parents=True)
        said = passed(shell(*recorded.command))
        assert "resuming from step-000004" in said, (name, what)
        # Damaged checksums may name any file.
        assert name in said or name == "checksums.json"
        shutil.rmtree("run/step-000005.damaged")
        assert unsound(Path("run")) == [], (name, what)
        same_runs("run", recorded.path)
        shutil.rmtree("run")


def test_a_checkpoint_without_a_tokenizer_of_today(tmp_path):
    """It has tokenizer.model alone, or nothing: what makes the missing file is said."""
    model, _ = trained()
    checkpoint.save(tmp_path / "a", Checkpoint(model, TOKENIZER, [7, 2]))
    for name in (checkpoint.CHECKSUMS, "tokenizer.json"):
        (tmp_path / "a" / name).unlink()
    for load in (checkpoint.load, checkpoint.load_tokenizer):
        with pytest.raises(FileNotFoundError, match="tokenizer.json is missing.*save_pretrained"):
            load(tmp_path / "a")
