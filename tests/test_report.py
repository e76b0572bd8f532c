"""What the model writes, and the report on it: samples.jsonl holds what was sampled, and changes nothing."""

import json
import math
import types
from pathlib import Path

import pytest
import tiny
import torch
from test_train import SHORT, die, metrics, timeless, weights

from maxrl.config import Config
from maxrl.policy import SequencePolicy
from maxrl.run import samples as written
from maxrl.tasks.maze import ID, verify

EVALUATED = ("--eval-every", 2, "--eval-prompts", 4)


def samples(run) -> list[dict]:
    return [json.loads(line) for line in (Path(run) / "samples.jsonl").read_text().splitlines()]


def test_samples_are_what_was_sampled_and_change_nothing(dice, shell):
    """Of every step, and of none: the same weights and metrics. What a line says of the rewards is what the metrics say."""
    run = (*SHORT, "--init", dice, "--task", "tiny:Up", "--save-every", 2)
    assert shell("train.py", *run, "--out", "without")[0] == 0
    assert not Path("without/samples.jsonl").exists()
    code, said = shell("train.py", *run, "--show-every", 1, "--out", "with")
    assert code == 0, said
    assert timeless("with") == timeless("without") and weights("with") == weights("without")
    lines = samples("with")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    for line, row in zip(lines, metrics("with")):
        N = line["rollouts"]
        successes = {int(k): n for k, n in line["successes"].items()}
        assert sum(k * n for k, n in successes.items()) / N / sum(successes.values()) == pytest.approx(row["reward"])
        assert successes.get(0, 0) / sum(successes.values()) == pytest.approx(row["frac_reward_zero_mean"])
        assert len(line["prompts"]) == 2
        for prompt in line["prompts"]:
            assert prompt["prompt"].startswith("<bos> UP LEFT")
            rewards = [response["reward"] for response in prompt["responses"]]
            assert rewards == ([1, 0] if 0 < prompt["right"] < N else [float(prompt["right"] == N)])
            for response in prompt["responses"]:
                assert response["reward"] == response["response"].startswith("UP")
                assert len(response["response"].split()) == response["length"]
                assert response["read"] is response["drawn"] is None


def test_when_samples_are_due(warm, shell):
    run = (*SHORT, "--init", warm, *EVALUATED)
    assert shell("train.py", *run, "--out", "evaluated")[0] == 0
    assert [line["step"] for line in samples("evaluated")] == [1, 3]
    assert shell("train.py", *run, "--show-every", 3, "--out", "both")[0] == 0
    assert [line["step"] for line in samples("both")] == [0, 1, 3]
    drawn = [response for line in samples("both") for prompt in line["prompts"] for response in prompt["responses"]]
    for response in drawn:
        assert response["drawn"].startswith("##############\n##S ")
        assert response["drawn"].splitlines()[-1].startswith("right: " if response["reward"] else "wrong: ")
    prompt = samples("both")[0]["prompts"][0]
    assert [verify(prompt["prompt"], response["response"]) for response in prompt["responses"]] == [
        response["reward"] for response in prompt["responses"]]  # fmt: skip
    code, said = shell("train.py", "tiny_sft", "--steps", 2, "--out", "sft", "--eval-every", 1, "--eval-prompts", 4,
                       "--eval-samples", 4, "--eval-k", 1)  # fmt: skip
    assert code == 0 and not Path("sft/samples.jsonl").exists(), said


@pytest.mark.parametrize("at", [1, 2, 4, 5])
def test_a_resumed_run_has_every_line_once(warm, shell, monkeypatch, at):
    """Killed between a line and the checkpoint after it, and with half a line at the end: byte for byte the whole run's."""
    run = (*SHORT, "--init", warm, "--save-every", 2, "--show-every", 1)
    assert shell("train.py", *run, "--out", "whole")[0] == 0
    with monkeypatch.context() as patch, pytest.raises(tiny.Killed):
        patch.setattr(SequencePolicy, "backward", die(at))
        shell("train.py", *run, "--out", "cut")
    assert len(samples("cut")) == at
    with open("cut/samples.jsonl", "a") as file:
        file.write('{"step": 7, "roll')
    code, said = shell("train.py", *run, "--out", "cut", "--resume", "auto")
    assert code == 0, said
    assert Path("cut/samples.jsonl").read_bytes() == Path("whole/samples.jsonl").read_bytes()


def test_samples_of_somebody_else_are_not_overwritten(warm, shell):
    Path("run").mkdir()
    Path("run/samples.jsonl").write_text("mine\n")
    code, said = shell("train.py", *SHORT, "--init", warm, "--out", "run")
    assert code == 2 and "already holds a run" in said and Path("run/samples.jsonl").read_text() == "mine\n"


class Reads(tiny.Up):
    """Reads the first word, and fails over what does not begin with UP; its pictures fail for all."""

    def final(self, response):
        assert response.startswith("UP")
        return "UP"

    def show(self, response, example, colour):
        raise OSError("no picture")


def test_what_the_verifier_reads(tmp_path):
    """Of a task whose code fails nothing is read or drawn, and the run goes on. A group without a verdict is no failure."""
    task = Reads("train")
    rollouts = tiny.rollouts()
    rollouts.lengths[0] = 4
    rollouts.tokens[0, 0, 0] = ID["UP"]
    rollouts.tokens[0, 1, 0] = ID["LEFT"]
    rewards = torch.tensor([[1.0, 0, 1, 1], [math.nan] * 4, [0, 0, 0, 0], [0.5, 0, -2, 0]])
    run = types.SimpleNamespace(task=task, cfg=Config(show_every=1), main=True, path=tmp_path / "gone")
    written.write(run, 4, [task[i] for i in range(4)], rollouts, rewards)
    (line,) = samples(run.path)
    assert line["step"] == 4 and line["rollouts"] == 4 and line["successes"] == {"0": 2, "3": 1}
    first, second = line["prompts"]
    assert [(r["reward"], r["read"], r["drawn"]) for r in first["responses"]] == [(1, "UP", None), (0, None, None)]
    assert [r["reward"] for r in second["responses"]] == [0.5, -2] and (first["right"], second["right"]) == (3, 0)
    written.write(run, 5, [task[0]] * 4, rollouts, torch.full((4, 4), math.nan))
    assert samples(run.path)[1]["successes"] == {} and samples(run.path)[1]["prompts"][0]["responses"][0]["reward"] is None
