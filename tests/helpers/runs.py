"""What several test files do with runs: read, compare, refuse and kill them."""

import contextlib
import json
from pathlib import Path
from unittest import mock

import pytest

from maxrl.learning.policy import SequencePolicy
from maxrl.models import checkpoint
from tests.helpers import tiny

SHORT = ("tiny", "--prompts", 4, "--rollouts", 4, "--steps", 5)


def metrics(run):
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def column(run, name):
    return [row[name] for row in metrics(run)]


def timeless(run):
    rows = metrics(run)
    for row in rows:
        for key in [key for key in row if "second" in key or "memory" in key]:
            del row[key]
    return rows


def same_metrics(ours: list[dict], theirs: list[dict]):
    """Two runs agree up to rounding, and every step has a gradient."""
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs):
        assert a.keys() == b.keys()
        assert a["grad_norm"] > 0
        for key in a:
            if not any(word in key for word in ("second", "abs_diff", "memory")):
                rel = 1e-3 if key == "grad_norm" else 1e-5
                assert a[key] == pytest.approx(b[key], rel=rel, abs=1e-5), (a["step"], key)


def weights(run):
    return (checkpoint.find(run) / "model.safetensors").read_bytes()


def same_runs(ours, theirs):
    """The same weights and metrics to the last bit, but for times."""
    assert weights(ours) == weights(theirs)
    assert timeless(ours) == timeless(theirs)


def passed(result) -> str:
    """What a script has said that ended with code 0."""
    code, said = result
    assert code == 0, said
    return said


def refused(result, *words):
    """The script ended with code 2 and one sentence that holds these words, without a traceback."""
    code, said = result
    assert code == 2, said
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    for word in words:
        assert str(word) in last


def at_call(number, act, policy=SequencePolicy):
    """A policy's backward that acts after its call of this number, the first is 1."""
    calls = []
    backward = policy.backward

    def patched(self, *arguments):
        calls.append(1)
        result = backward(self, *arguments)
        if len(calls) == number:
            act(self)
        return result

    return patched


@contextlib.contextmanager
def killed(at, policy=SequencePolicy):
    """The run inside is killed in its at-th backward; nothing but `finally` notices."""

    def die(_):
        raise tiny.Killed

    dying = mock.patch.object(policy, "backward", at_call(at, die, policy))
    with dying, pytest.raises(tiny.Killed):
        yield
