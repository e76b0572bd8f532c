"""What a GPU would be asked to do (fake_cuda.py), without one; skipped without a compiler."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    environment = os.environ | {
        "TORCH_EXTENSIONS_DIR": str(tmp_path_factory.mktemp("guard")),
        "MAX_JOBS": "1",
    }
    program = [sys.executable, "-m", "tests.learning.fake_cuda"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    if "skip" in found:
        pytest.skip(found["skip"])
    return found


@pytest.mark.parametrize("kind", ["one length", "ragged"])
@pytest.mark.parametrize("family", ["qwen2", "llama", "qwen3"])
@pytest.mark.parametrize(
    "call, copies", [("encode", []), ("step", []), ("micro-batch", ["_to_copy"])]
)
def test_all_is_on_the_device_in_bfloat16_and_nothing_waits(seen, family, kind, call, copies):
    """Products and what attention gets; of attention's own products those of a step are ours. A
    micro-batch brings the lengths of its prompts, once for all layers; and for ragged ones a mask,
    which fake_cuda.py made.
    """
    row = seen[f"{family}, {kind}"][call]
    assert row["devices"] == ["cuda:0"]
    assert row["products"] == ["torch.bfloat16"]
    assert row["copies"] == copies
    if call == "step":
        assert row["batched"] == ["torch.bfloat16"]
