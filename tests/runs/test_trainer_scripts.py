"""Whole scripts around MaxRLTrainer, and those of TRL with another import."""

import contextlib
import functools
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from maxrl import MaxRLConfig, MaxRLTrainer
from maxrl.advantages import ADVANTAGES
from maxrl.models import checkpoint
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.tokenizer import Tokenizer
from tests import ROOT
from tests.helpers import tiny
from tests.helpers.chats import SHORT, digit, sums
from tests.helpers.runs import passed
from tests.helpers.started import ended, two_ranks
from tests.helpers.tables import put
from tests.repository import pages

SCRIPT = """
import sys
import torch
from maxrl import MaxRLConfig, MaxRLTrainer

def digit(completions, **columns):
    return [float(c[:1].isdigit()) for c in completions]

class Stop:
    def on_step_end(self, args, state, control, **named):
        control.should_training_stop = state.global_step == 2 and args.process_index == 1

model, out, rows = sys.argv[1:]
options = dict(
    per_device_train_batch_size=int(rows), num_generations=4, max_completion_length=6,
    learning_rate=1e-3, logging_steps=1, bf16=False, use_cpu=True,
)
args = MaxRLConfig(out, max_steps=2, **options)
with args.main_process_first():
    data = [{"prompt": f"{a} + {b} ="} for a in range(4) for b in range(4)]
trainer = MaxRLTrainer(model, digit, args, data, data[:1])
with torch.no_grad():
    trainer.evaluate()
trainer.train()
history = [e["reward"] for e in trainer.state.log_history if "reward" in e]
# A prompt for the first rank alone.
history.append(trainer.evaluate()["eval_rewards/digit/mean"])
# Gradients were averaged.
history.append(float(next(trainer.started().model.parameters()).sum()))
print("history", history, flush=True)
main = trainer.accelerator.is_main_process
# As scripts of torch have it, on one process alone.
if main:
    trainer.save_model(f"{out}-saved")
assert main == trainer.is_world_process_zero() == (args.process_index == 0) == args.should_save
trainer.accelerator.print("said once")
if args.world_size == 2:
    args = MaxRLConfig("stopped", max_steps=4, **options)
    trainer = MaxRLTrainer(model, digit, args, data, callbacks=[Stop()])
    trainer.train()
    print("steps", trainer.state.global_step, trainer.accelerator.num_processes)
"""


@pytest.fixture(scope="module")
def ranks(tiny_chat, tmp_path_factory):
    """What each of two ranks has said."""
    with contextlib.chdir(tmp_path_factory.mktemp("ranks")):
        Path("script.py").write_text(SCRIPT)
        return [passed(ended(rank)) for rank in two_ranks("script.py", tiny_chat, "two", 8)]


def test_one_rank_that_stops_stops_all(ranks):
    assert all("steps 2 2" in said for said in ranks)
    assert sum("said once" in said for said in ranks) == 1


def test_two_ranks_are_the_same_run(
    ranks, tiny_chat, monkeypatch, capfd, in_a_directory_of_its_own
):
    """The same prompts and rollouts as one process, and every rank has the log."""
    Path("script.py").write_text(SCRIPT)
    one, two = (json.loads(re.search(r"history (.*)", said)[1]) for said in ranks)
    assert one == two
    monkeypatch.setattr(sys, "argv", ["script.py", tiny_chat, "alone", "16"])
    runpy.run_path("script.py", run_name="__main__")
    (alone,) = re.findall(r"history (.*)", capfd.readouterr().out)
    # After an update, runs agree to rounding, and a rollout may differ.
    assert json.loads(alone)[0] == pytest.approx(one[0])
    assert len(json.loads(alone)) == len(one)


def blocks(name: str = "coming_from_trl") -> list[str]:
    """The examples of a page in Python."""
    return pages.blocks((ROOT / f"maxrl/run/{name}.md").read_text())


def local(code: str, model: str) -> str:
    """An example with a local model and local data in place of the hub's."""
    data = 'load_dataset("json", data_files="mine.jsonl", split="train")'
    code = code.replace("Qwen/Qwen2.5-0.5B-Instruct", model)
    return code.replace('load_dataset("trl-lib/DeepMath-103K", split="train")', data)


@pytest.mark.parametrize(
    "trainer, saved", [("maxrl", "tiny-MaxRL/step-000006"), ("trl", "tiny-GRPO/checkpoint-6")]
)
def test_the_quick_start_of_trl(tiny_chat, in_a_directory_of_its_own, monkeypatch, trainer, saved):
    """As printed, and with one line changed back."""
    for package in ("trl", "datasets", "math_verify"):
        pytest.importorskip(package)
    from trl.trainer import grpo_trainer

    rows = [row | {"solution": f"${row['solution']}$"} for row in sums()[:2]]
    put(Path("mine.jsonl"), rows)
    code = local(blocks()[0], tiny_chat)
    if trainer == "trl":
        line = "from maxrl import MaxRLTrainer"
        assert line in code
        code = code.replace(line, "from trl import GRPOTrainer as MaxRLTrainer")
        # Without arguments TRL asks for a GPU.
        usual = functools.partial(grpo_trainer.GRPOConfig, use_cpu=True, bf16=False)
        monkeypatch.setattr(grpo_trainer, "GRPOConfig", usual)
    Path("script.py").write_text(code)
    runpy.run_path("script.py", run_name="__main__")
    assert Path(saved, "config.json").exists()


def test_two_rewards_as_one():
    """The page's function is 1 where both are, and None where a reference cannot be read."""
    for package in ("trl", "math_verify"):
        pytest.importorskip(package)
    found = {}
    exec(blocks()[2], found)
    texts = [r"<think>x</think>\boxed{4}", r"\boxed{4}", r"<think>x</think>\boxed{5}"]
    completions = [[{"role": "assistant", "content": text}] for text in [*texts, texts[0]]]
    rewards = found["right_and_formatted"](completions, solution=["$4$"] * 3 + [""])
    assert rewards == [1, 0, 0, None]


@pytest.mark.parametrize("rule", ["maxrl", "tailrl"])
def test_inside_trl(rule, tiny_chat, in_a_directory_of_its_own, monkeypatch):
    """With the lines of the page GRPOTrainer trains on the advantages of ADVANTAGES[rule], also
    has them in evaluations, with groups of another size, and logs the rewards."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    P = 4
    N = 4
    drawn = torch.rand(4, P, N, generator=torch.Generator().manual_seed(1))
    if rule == "maxrl":
        drawn = (drawn < 0.3).float()
    drawn[0, 0] = 0
    drawn[1, 2] = 1
    asked = drawn[2].view(P * 2, N // 2)
    batches = iter([*drawn, asked, asked[:, 0]])

    def reward(completions, **columns):
        return next(batches).flatten().tolist()

    space: dict = {}
    code = blocks("other_trainers")
    (common,) = (part for part in code if "RULE =" in part)
    (lines,) = (part for part in code if "GRPOTrainer" in part)
    exec(common.replace('RULE = "maxrl"', f'RULE = "{rule}"') + lines, space)
    assert space["RULE"] == rule
    args = trl.GRPOConfig(
        "out",
        **SHORT,
        save_strategy="no",
        report_to="none",
        reward_weights=[0, 1],
        scale_rewards="none",
        num_generations_eval=N // 2,
        per_device_eval_batch_size=P * N,
    )
    functions = [reward, space["advantage"]]
    data = Dataset.from_list(sums())
    held_out = data.select(range(P * 2))
    trainer = space["OfGroups"](tiny_chat, functions, args, data, held_out)
    found = []
    score = trainer._generate_and_score_completions

    def recorded(inputs):
        outputs = score(inputs)
        found.append(outputs["advantages"].clone())
        return outputs

    monkeypatch.setattr(trainer, "_generate_and_score_completions", recorded)
    trainer.train()
    logged = [row for row in trainer.state.log_history if "reward_std" in row]
    trainer.evaluate()
    evaluated = found.pop().view(asked.shape)
    torch.testing.assert_close(evaluated, ADVANTAGES[rule](asked), atol=2e-6, rtol=0)
    trainer.num_generations_eval = 1
    trainer.evaluate()
    assert found.pop().tolist() == [0] * len(asked)
    for rewards, advantages, row in zip(drawn, found, logged, strict=True):
        expected = ADVANTAGES[rule](rewards)
        # TRL subtracts their mean, which is 0 but for rounding.
        torch.testing.assert_close(advantages.view(P, N), expected, atol=2e-6, rtol=0)
        assert row["rewards/reward/mean"] == pytest.approx(float(rewards.mean()))
        unmoved = (expected == 0).all(dim=1).float().mean()
        assert row["frac_reward_zero_std"] == pytest.approx(float(unmoved))


CHATML = (
    "{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)


@pytest.mark.parametrize("given", [False, True])
def test_the_end_of_a_turn_is_that_of_trl(given, in_a_directory_of_its_own):
    """A model of chats whose configs kept its base's end token. That of its turns stands in the
    tokenizer alone, in its files or as TRL's users set it on the object."""
    for package in ("trl", "transformers"):
        pytest.importorskip(package)
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    words = ("<|endoftext|>", "<|im_end|>", "<|im_start|>", "<unk>", "user", "assistant", "4", "2")
    tokenizer = Tokenizer.from_vocabulary(words)
    end = {"eos_token": "<|endoftext|>" if given else "<|im_end|>", "pad_token": "<|endoftext|>"}
    tokenizer.config |= {"chat_template": CHATML} | end
    # It writes "4 2 <|im_end|>" again and again.
    model = tiny.chain({5: 6, 6: 7, 7: 1, 1: 6}, model_type="llama")
    checkpoint.save("model", Checkpoint(model, tokenizer, [0]))
    tokens = AutoTokenizer.from_pretrained("model")
    if given:
        tokens.eos_token = "<|im_end|>"
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in "2424"]
    found = []
    for trainer, config in ((GRPOTrainer, GRPOConfig), (MaxRLTrainer, MaxRLConfig)):
        args = config(config.__name__, **SHORT | {"max_steps": 1}, report_to="none")
        data = Dataset.from_list(rows)
        chosen = trainer("model", digit, args, data, processing_class=tokens if given else None)
        chosen.train()
        entry = next(e for e in chosen.state.log_history if "completions/clipped_ratio" in e)
        found.append((entry["completions/mean_length"], entry["completions/clipped_ratio"]))
    assert found == [(3, 0)] * 2
