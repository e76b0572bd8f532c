"""Shared by tests."""

import os
import subprocess
import sys

import pytest


def torchrun(script, *arguments, code=0):
    """Two ranks; what they said. Ranks that wait for each other in vain are ended after two minutes."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = subprocess.Popen([*command, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env=environment)  # fmt: skip
    try:
        said = started.communicate(timeout=300)[0]
    except subprocess.TimeoutExpired:
        started.terminate()  # not kill: torchrun ends its ranks first
        pytest.fail("the ranks hang: " + started.communicate()[0])
    assert (started.returncode == 0) == (code == 0), said
    return said
