"""The short form of `make torture`."""

from tests.helpers.started import python

TWICE = """
import pathlib, random, tempfile
from tests.faults import torture
from maxrl.models import checkpoint
with tempfile.TemporaryDirectory() as work:
    work = pathlib.Path(work)
    torture.prepare(work, ["sft"])
    kills, failures = torture.torture(work, ["sft"], 4, random.Random(0))
    assert sum(kills.values()) >= 4 and not failures, failures
    checkpoint.load_optimizer = lambda *arguments: None
    scenario = torture.SCENARIOS["sft"]
    last = [n for n, write in enumerate(scenario.writes[0], 1) if "step-000008" in write]
    kills = iter([torture.Kill("write", 0, last[0])])
    broken = torture.trial("sft", torture.new(work / "sft" / "broken"), kills)[1]
print(broken)
"""


def test_killed_and_resumed_is_the_uninterrupted_run(tmp_path):
    """Four kills at random moments and before writes change nothing: weights, optimizer, metrics.

    The comparison is not blind: without Adam's state, the first step after a checkpoint differs.
    """
    ended = python("-c", TWICE, cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "grad_norm is" in ended.stdout and "optimizer.safetensors differs" in ended.stdout
    assert not list(tmp_path.iterdir()), "something was left behind"
