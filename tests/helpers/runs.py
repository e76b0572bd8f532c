"""Shared by tests."""

import json
from pathlib import Path

import pytest
import tiny

from maxrl import checkpoint
from maxrl.policy import SequencePolicy

SHORT = ("tiny", "--prompts", 4, "--rollouts", 4, "--steps", 5)


def metrics(run):
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def timeless(run):
    return [
        {k: v for k, v in row.items() if "second" not in k and "memory" not in k}
        for row in metrics(run)
    ]


def same_metrics(ours: list[dict], theirs: list[dict]):
    """Two runs agree up to rounding, and every step has a gradient."""
    assert len(ours) == len(theirs) > 0
    for a, b in zip(ours, theirs):
        assert a.keys() == b.keys() and a["grad_norm"] > 0
        for key in a:
            if not any(word in key for word in ("second", "abs_diff", "memory")):
                rel = 1e-3 if key == "grad_norm" else 1e-5
                assert a[key] == pytest.approx(b[key], rel=rel, abs=1e-5), (a["step"], key)


def weights(run):
    return (checkpoint.find(run) / "model.safetensors").read_bytes()


def refused(result, *words):
    """The script ended with code 2 and one sentence that holds these words, without a traceback."""
    code, said = result
    assert code == 2 and "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert all(str(word) in last for word in words), last


def die(at, policy=SequencePolicy):
    """A backward that is interrupted at its at-th call."""
    calls, backward = [], policy.backward

    def dying(self, *arguments):
        calls.append(1)
        if len(calls) == at:
            raise tiny.Killed
        return backward(self, *arguments)

    return dying


def at_call(number, act):
    """SequencePolicy.backward that acts at its call of this number, the first is 1."""
    calls, backward = [], SequencePolicy.backward

    def patched(self, *arguments):
        calls.append(1)
        result = backward(self, *arguments)
        if len(calls) == number:
            act(self)
        return result

    return patched
