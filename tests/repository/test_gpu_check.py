"""gpu_check.py on a CPU: some of its items as they are, and what it does with items that fail, end their process or hang."""

import json
import sys

import gpu_check
import gpu_items
import pytest

BROKEN = """
import os, sys, time, types
class Quick(types.ModuleType):  # in the place of the items that are there, so that a process begins in no time
    def __getattr__(self, name):
        made = lambda *given: {}
        made.__name__ = name
        return made
sys.modules["gpu_items"] = sys.modules["gpu_runs"] = Quick("items")
import gpu_check
def fails(): raise ValueError("no")
def lost(): raise RuntimeError("CUDA error: an illegal memory access")
def wrong(): return {"number": 1, "wrong": ["one"]}
gpu_check.ITEMS.update(fails=fails, lost=lost, wrong=wrong, ends=lambda: os._exit(3), hangs=lambda: time.sleep(60),
                       fine=lambda: {"pid": os.getpid()}, fine2=lambda: {"pid": os.getpid()})
"""


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """check("--only", ...) -> (exit code, {item: its last line})."""

    def run(*arguments):
        out = tmp_path / "found.jsonl"
        monkeypatch.setattr(
            sys,
            "argv",
            ["gpu_check.py", "--device", "cpu", "--tiny", "--out", str(out), *arguments],
        )
        with pytest.raises(SystemExit) as end:
            gpu_check.main()
        capsys.readouterr()
        return end.value.code, gpu_check.state(out)

    return run


def test_items_as_they_are(check):
    code, found = check(
        "--only", "versions", "unseen_shapes", "synchronisations", "micro_batches", "drawing"
    )
    assert code == 0 and all(row["well"] for row in found.values()), found
    assert (
        found["versions"]["found"]["torch"]
        and len(found["unseen_shapes"]["found"]["cudnn False"]) == 5
    )


def test_nothing_stops_at_an_item_that_fails(check, monkeypatch, tmp_path):
    names = ["fails", "lost", "wrong", "fine", "ends", "hangs", "fine2"]
    monkeypatch.setattr(gpu_check, "ITEMS", gpu_check.ITEMS | dict.fromkeys(names))
    usual = gpu_check.command
    monkeypatch.setattr(
        gpu_check, "command", lambda *given: [*usual(*given)[:2], BROKEN + usual(*given)[2]]
    )
    monkeypatch.setattr(gpu_check, "ITEM_SECONDS", 5)
    code, found = check("--only", *names)
    assert (
        code == 1
        and list(found) == names
        and [name for name in names if found[name]["well"]] == ["fine", "fine2"]
    )
    assert "ValueError: no" in found["fails"]["error"] and found["wrong"]["wrong"] == ["one"]
    assert (found["ends"]["error"], found["hangs"]["error"]) == (
        "its process ended",
        "it took too long",
    )
    assert found["fine"]["found"]["pid"] != found["fine2"]["found"]["pid"]
    lines = (tmp_path / "found.jsonl").read_text().splitlines()
    code, _ = check("--only", "fails", "fine")
    added = (tmp_path / "found.jsonl").read_text().splitlines()[len(lines) :]
    assert code == 1 and {json.loads(line)["item"] for line in added} == {"fails"}, (
        "what is well is not run again"
    )


def test_every_item_says_what_it_is_for():
    assert all(
        item.__doc__ or item.__name__.startswith("decode_") for item in gpu_check.ITEMS.values()
    )
    assert gpu_items.decoding.__doc__
