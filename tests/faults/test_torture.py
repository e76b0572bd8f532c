"""The short form of `make torture`: a few kills, and proof that the comparison fails where resuming is broken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from wholeness import differences, different_metrics, unsound

TWICE = """
import json, pathlib, random, tempfile, torture
from maxrl import checkpoint
with tempfile.TemporaryDirectory() as work:
    work = pathlib.Path(work)
    torture.prepare(work, ["sft"])
    sound = torture.torture(work, ["sft"], 3, 3, random.Random(0))
    checkpoint.load_optimizer = lambda *arguments: None
    hit, broken = torture.trial("sft", torture.new(work / "sft" / "broken"), iter([torture.SCENARIOS["sft"].interrupted]), 1)
print("exit codes", torture.report(sound), torture.report(sound | {"failures": broken}))
print(json.dumps([sound, broken]))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The counts of the code as it is, and what differs where Adam's state is forgotten and the last checkpoint interrupted.
    By one process of its own, which has no threads."""
    folder = tmp_path_factory.mktemp("torture")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [
                str(ROOT),
                str(ROOT / "tests"),
                str(ROOT / "tests/helpers"),
                str(ROOT / "tests/faults"),
            ]
        ),
        "TMPDIR": str(folder),
    }
    ended = subprocess.run(
        [sys.executable, "-c", TWICE], cwd=folder, env=environment, capture_output=True, text=True
    )
    said = ended.stdout.splitlines()
    assert ended.returncode == 0 and said[-2] == "exit codes 0 1", ended.stdout + ended.stderr
    assert not list(folder.iterdir()), "something was left behind"
    return json.loads(said[-1])


def test_killed_and_resumed_is_the_uninterrupted_run(results):
    """Weights, optimizer, state and metrics of a run that was killed at three random moments and in three writes."""
    sound = results[0]
    assert (
        sound["failures"] == []
        and sound["kills"] == sound["equal"] >= 6
        and sound["write steps hit"] >= 3
    )


def test_a_broken_resume_is_seen(results):
    """Without Adam's state the first step after a checkpoint is another one."""
    said = "\n".join(results[1])
    assert (
        "step 7: grad_norm is" in said
        and "model.safetensors differs" in said
        and "optimizer.safetensors differs" in said
    )


def rows(*values):
    return "".join(
        json.dumps({"step": i, "loss": v, "seconds": v, "memory/peak": v}) + "\n"
        for i, v in enumerate(values)
    )


@pytest.mark.parametrize(
    "ours, said",
    [
        (rows(1.0, 0.1 + 0.2), ["metrics.jsonl, step 1: loss is 0.30000000000000004, not 0.3"]),
        (rows(1.0), ["metrics.jsonl has 1 lines, not 2"]),
        (rows(1.0, 0.3, 0.3), ["metrics.jsonl has 3 lines, not 2"]),
        (
            rows(1.0, 0.3).replace("seconds", "minutes"),
            [
                "metrics.jsonl, line 0: other names, ['minutes', 'seconds']",
                "metrics.jsonl, line 1: other names, ['minutes', 'seconds']",
            ],
        ),
        (
            rows(1.0, 0.3)
            .replace('"seconds": 1.0', '"seconds": 7.0')
            .replace('peak": 0.3', 'peak": 9'),
            [],
        ),
    ],
)
def test_metrics_are_compared_to_the_last_digit_but_for_times(ours, said):
    assert different_metrics(rows(1.0, 0.3), ours) == said


def directory(path: Path, **files) -> Path:
    for name, text in files.items():
        file = path / name.replace("__", "/").replace("_json", ".json")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def test_files_are_compared_byte_for_byte(tmp_path):
    """What says when and how a run was started may differ, nothing else."""
    start = '{"step": 0, "earlier": [], "config": 1}'
    one = directory(
        tmp_path / "one",
        recipe_json=start,
        a="same",
        b="abc",
        c="",
        x__checksums_json='{"recipe.json": "1", "b": "2"}',
    )
    two = directory(
        tmp_path / "two",
        recipe_json='{"step": 4, "earlier": [7], "config": 1}',
        a="same",
        b="abd",
        d="",
        x__checksums_json='{"recipe.json": "3", "b": "4"}',
    )
    assert differences(one, two) == [
        "c is missing",
        "d is left over",
        "b differs from byte 2 of 3 on (3 here)",
        "x/checksums.json differs from byte 7 of 10 on (10 here)",
    ]
    (two / "recipe.json").write_text('{"step": 0, "earlier": [], "config": 2}')
    assert "recipe.json differs from byte 11 of 13 on (13 here)" in differences(one, two)
    assert differences(one, one) == []


def test_what_must_never_be_seen(tmp_path):
    directory(tmp_path, latest="step-000002\n", **{"step-000001.incomplete__a": ""})
    assert unsound(tmp_path) == ["latest names 'step-000002\\n', and no such checkpoint is there"]
    directory(tmp_path, **{"step-000002__checksums_json": '{\n  "a": "0"\n}\n'})
    assert len(unsound(tmp_path)) == 1 and "step-000002/a is missing" in unsound(tmp_path)[0]
