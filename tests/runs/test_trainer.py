"""MaxRLTrainer: scripts for TRL's GRPOTrainer with another import."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from chats import SHORT, TEMPLATE, digit, entries, frozen, logits, sometimes, sums
from runs import die, timeless

import maxrl
from maxrl import MaxRLConfig, MaxRLTrainer, checkpoint
from maxrl.errors import UsageError
from maxrl.policy import SequencePolicy
from maxrl.trl.inputs import adapter


def test_a_conversation_with_two_rewards_and_an_adapter(tiny_chat, in_a_directory_of_its_own):
    """Chat prompts, a function without a verdict now and then, evaluation and PEFT; what
    save_model writes has our logits in transformers."""
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    args = MaxRLConfig("out", **SHORT, reward_weights=[1, 0], eval_strategy="steps", eval_steps=2)
    rows = sums()
    file = Path("mine.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:4]))
    trainer = MaxRLTrainer(
        tiny_chat, [digit, sometimes], args, rows, eval_dataset=file, peft_config=lora
    )
    result = trainer.train()
    assert result.global_step == trainer.state.global_step == 4
    assert len(entries(trainer, "rewards/digit/mean")) == 4 and entries(trainer, "learning_rate")
    assert all(value == 1 for value in entries(trainer, "rewards/sometimes/mean"))
    assert entries(trainer, "rewards/digit/mean") == pytest.approx(entries(trainer, "reward"))
    found = trainer.evaluate()
    assert found["eval_pass@1"] == pytest.approx(found["eval_reward"])
    assert found["eval_rewards/digit/mean"] == pytest.approx(found["eval_reward"])
    assert found["eval_rewards/sometimes/mean"] == 1
    assert len(entries(trainer, "eval_pass@1")) == 3
    trainer.save_model("saved")
    again = peft.AutoPeftModelForCausalLM.from_pretrained("saved")
    start = transformers.AutoModelForCausalLM.from_pretrained(tiny_chat)
    trained = logits(again)
    assert (trained - logits(start)).abs().max() > 1e-3, "nothing was learned"
    ours = checkpoint.load_model("saved")[0]
    tokens = torch.arange(3, 15)[None, None]
    with torch.no_grad():
        torch.testing.assert_close(ours.lm_head(ours(tokens))[0], trained, atol=1e-4, rtol=1e-4)
    assert transformers.AutoTokenizer.from_pretrained("saved").chat_template == TEMPLATE


def test_a_model_in_memory_has_the_trained_weights(tiny_chat, in_a_directory_of_its_own):
    """Like TRL's trainer; and save_model into the run directory itself can be loaded."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_chat)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_chat)
    before = logits(model)
    args = MaxRLConfig("out", **SHORT, beta=0.01)
    trainer = MaxRLTrainer(model, digit, args, sums(chat=False), processing_class=tokenizer)
    assert trainer.model is model and trainer.processing_class is tokenizer
    trainer.train()
    assert (logits(model) - before).abs().max() > 1e-3
    assert entries(trainer, "kl")[0] == 0 and entries(trainer, "kl")[-1] > 0
    trainer.save_model("out/saved")
    here = {path.name for path in Path("out").iterdir()}
    trainer.save_model("out")
    trainer.save_model("out")
    # Nothing else of the directory is touched, and nothing is left over.
    assert here <= {path.name for path in Path("out").iterdir()}
    assert Path("out/saved/config.json").exists() and not list(Path("out").glob("tmp*"))
    again = transformers.AutoModelForCausalLM.from_pretrained("out")
    torch.testing.assert_close(logits(again), logits(model), atol=0, rtol=0)
    # The run directory is still one.
    assert checkpoint.find("out").name == "step-000004"


def test_a_tokenizer_of_ones_own(tiny_chat, in_a_directory_of_its_own):
    """Another chat template is used, and no other weights."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_chat)
    same = MaxRLTrainer(tiny_chat, digit, MaxRLConfig("a", **SHORT), sums(), callbacks=[])
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    other = MaxRLTrainer(tiny_chat, digit, MaxRLConfig("b", **SHORT), sums(), None, tokenizer)
    assert Path(other.cfg.init).parent == Path("b")
    ids = [trainer.started().encode_prompts([trainer.task[0]])[0] for trainer in (same, other)]
    assert len(ids[0]) == len(ids[1]) + 2, "the other template has no roles"
    weights = [trainer.model.state_dict() for trainer in (same, other)]
    torch.testing.assert_close(*weights, atol=0, rtol=0)
    tokenizer.chat_template = None
    with pytest.raises(UsageError, match="chat template"):
        MaxRLTrainer(tiny_chat, digit, MaxRLConfig("c", **SHORT), sums(), None, tokenizer)


def test_a_resumed_run_is_the_same(tiny_chat, in_a_directory_of_its_own):
    def trainer(**more):
        args = MaxRLConfig("out", **(SHORT | more), save_steps=2)
        return MaxRLTrainer(tiny_chat, digit, args, sums())

    whole = trainer()
    with pytest.raises(UsageError, match="no checkpoint"):
        whole.train(resume_from_checkpoint=True)
    whole.train()
    lines = timeless("out")
    with pytest.raises(UsageError, match="already holds a run"):
        trainer().train()
    # The linear schedule, TRL's default, depends on the length of the run.
    with pytest.raises(UsageError, match="steps = 4, not 8"):
        trainer(max_steps=8).train(resume_from_checkpoint=True)
    before = whole.state.log_history
    whole.train(resume_from_checkpoint=True)
    assert whole.state.log_history == before, "no entry is there twice"
    shutil.rmtree("out/step-000004")
    with pytest.raises(UsageError, match="newest"):
        trainer().train(resume_from_checkpoint="out/step-000002")
    again = trainer()
    again.train(resume_from_checkpoint=True)
    assert timeless("out") == lines and entries(again, "loss") == entries(whole, "loss")
    with pytest.raises(UsageError, match="already holds a run"):
        again.train()
    shutil.rmtree("out")
    again.train()
    assert timeless("out") == lines, "a second training does not begin with the trained weights"


def test_a_run_that_failed_before_its_first_checkpoint(
    tiny_chat, in_a_directory_of_its_own, monkeypatch
):
    """It is not overwritten, and begins again as if it had not failed."""
    usual = (tiny_chat, digit)
    whole = MaxRLTrainer(*usual, MaxRLConfig("whole", **SHORT), sums())
    whole.train()
    failed = MaxRLTrainer(*usual, MaxRLConfig("failed", **SHORT), sums())
    with monkeypatch.context() as patch, pytest.raises(tiny.Killed):
        patch.setattr(SequencePolicy, "backward", die(3))
        failed.train()
    with pytest.raises(UsageError, match="already holds a run"):
        failed.train()
    failed.train(resume_from_checkpoint=True)
    assert timeless("failed") == timeless("whole")


@pytest.mark.parametrize("place", ["backward", "reward"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_workers_end_with_their_run(
    tiny_chat, in_a_directory_of_its_own, monkeypatch, place, error
):
    """Also while the exception is kept, and with it all frames of the run."""

    def failing(*arguments, **columns):
        raise error

    if place == "backward":
        monkeypatch.setattr(SequencePolicy, "backward", failing)
    args = MaxRLConfig("out", **SHORT, dataloader_num_workers=2)
    trainer = MaxRLTrainer(tiny_chat, digit if place == "backward" else failing, args, sums())
    before = multiprocessing.active_children()
    with pytest.raises((UsageError, error)) as kept:
        trainer.train()
    assert multiprocessing.active_children() == before and kept.value


def test_a_script_keeps_what_is_its_own(tiny_chat, in_a_directory_of_its_own):
    """Its directory, processes and settings, also where a signal stops the run; a second trainer
    does not get the directory of the first one."""

    def roaming(completions, **columns):
        with pytest.raises(UsageError, match="in use"):
            trainer().train(resume_from_checkpoint=True)
        Path("elsewhere").mkdir()
        os.chdir("elsewhere")
        os.kill(os.getpid(), signal.SIGTERM)
        return digit(completions)

    def trainer():
        args = MaxRLConfig("out", **SHORT, log_completions=True, run_name="mine")
        return MaxRLTrainer(tiny_chat, roaming, args, sums())

    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
    child.start()
    torch.use_deterministic_algorithms(True)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCHLD)]
    here = os.getcwd()
    try:
        with pytest.raises(SystemExit) as end:
            trainer().train()
        assert end.value.code == 75 and checkpoint.find("out").name == "step-000001"
        assert "WANDB_NAME" not in os.environ
        assert json.loads(Path("out/recipe.json").read_text())["name"] == "mine"
        assert child.is_alive() and torch.are_deterministic_algorithms_enabled()
        assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGCHLD)] == handlers
        assert os.getcwd() == here and not list(Path("elsewhere").iterdir())
        assert not Path("out/lock").exists() and Path("out/samples.jsonl").exists()
    finally:
        torch.use_deterministic_algorithms(False)
        child.kill()
        os.chdir(here)


def test_a_run_in_another_thread(tiny_chat, in_a_directory_of_its_own):
    trainer = MaxRLTrainer(tiny_chat, digit, MaxRLConfig("out", **SHORT), sums())
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join()
    assert trainer.state.global_step == 4


def test_a_run_without_steps(tiny_chat, in_a_directory_of_its_own):
    trainer = MaxRLTrainer(tiny_chat, digit, MaxRLConfig("out", **SHORT, steps=0), sums())
    assert trainer.train().global_step == 0 and trainer.state.log_history == []


OWN = """
from maxrl.registry import estimator

@estimator(takes="any", rounds=True)
def mine(rewards, mean_log_probs):
    assert mean_log_probs.shape == rewards.shape and mean_log_probs.isfinite().all()
    return rewards
"""


def test_an_estimator_of_ones_own_in_rounds(tiny_chat, in_a_directory_of_its_own):
    """It gets what was sampled in the round that is trained."""
    Path("mine.py").write_text(OWN)
    args = MaxRLConfig("out", **SHORT, estimator="mine.py:mine", rollouts=[1, 1, 2])
    assert MaxRLTrainer(tiny_chat, digit, args, sums()).train().global_step == 4


@pytest.mark.parametrize(
    "given, word",
    [
        (dict(callbacks=[1]), "callbacks"),
        (dict(optimizers=(1, 2)), "optimizers"),
        (dict(processing_class="somewhere"), "processing_class"),
        (dict(peft_config=dict(r=4)), "peft_config"),
        (dict(peft_config=SimpleNamespace(r=0, lora_alpha=8)), "r = 0"),
        (dict(eval_dataset=[]), "validation"),
        (dict(reward_funcs=[]), "reward_funcs"),
        (dict(reward_funcs=5), "5"),
        (dict(reward_funcs=[[digit]]), "digit"),
        (dict(reward_funcs=torch.nn.Linear(1, 1)), "reward model"),
        (dict(reward_funcs="Qwen/reward"), "Qwen/reward"),
        (dict(train_dataset=None), "train_dataset"),
        (dict(train_dataset={"train": []}), "pass a list"),
        (dict(train_dataset=iter([])), "pass a list"),
        (dict(train_dataset=[{"text": "a"}]), "prompt"),
        (dict(train_dataset=["a"]), "pass a list of dicts"),
        (dict(model=torch.nn.Linear(1, 1)), "transformers model"),
        (dict(model=SimpleNamespace(config=None, save_pretrained=1, peft_config=1)), "adapter"),
        (dict(model=SimpleNamespace(config=None, save_pretrained=1)), "processing_class"),
        (dict(model=frozen()), "frozen"),
        (dict(args=SimpleNamespace(output_dir="x")), "MaxRLConfig"),
        (dict(args=MaxRLConfig("x", eval_strategy="steps")), "eval_dataset"),
        (dict(args=MaxRLConfig("x", learning_rate=-1.0)), "--lr"),
    ],
)
def test_one_sentence(tiny_chat, in_a_directory_of_its_own, given, word):
    usual = dict(model=tiny_chat, reward_funcs=digit, args=MaxRLConfig("x"), train_dataset=sums())
    with pytest.raises(UsageError) as error:
        MaxRLTrainer(**(usual | given))
    assert word in str(error.value) and "\n" not in str(error.value)


def test_what_the_trainer_of_trl_has_besides(tiny_chat, in_a_directory_of_its_own):
    """A public method or argument of it is here, or has a sentence."""
    trl = pytest.importorskip("trl")
    trainer = MaxRLTrainer(tiny_chat, digit, MaxRLConfig("x"), sums())
    # What only repeats what train() has written does nothing.
    assert trainer.log_metrics("train", {}) is trainer.save_state() is None
    for name in ("push_to_hub", "add_callback", "predict"):
        assert hasattr(trl.GRPOTrainer, name)
        with pytest.raises(AttributeError, match=f"{name} is not here: .*[;,:] "):
            getattr(trainer, name)
    with pytest.raises(AttributeError, match="'MaxRLTrainer' object has no attribute 'nothing'"):
        trainer.nothing()
    assert not hasattr(trainer, "accelerator")


@pytest.mark.parametrize(
    "given",
    [
        dict(lora_dropout=0.1),
        dict(use_dora=True),
        dict(modules_to_save=["lm_head"]),
        dict(rank_pattern={"q_proj": 4}),
        dict(init_lora_weights="gaussian"),
        dict(bias="all"),
    ],
)
def test_an_adapter_that_is_not_here(given):
    peft = pytest.importorskip("peft")
    with pytest.raises(UsageError, match=next(iter(given))):
        adapter(peft.LoraConfig(target_modules=["q_proj"], **given))


def test_the_adapter_of_peft_by_default():
    peft = pytest.importorskip("peft")
    usual = dict(lora_rank=8, lora_alpha=8.0, lora_projections=("q_proj", "v_proj"))
    assert adapter(peft.LoraConfig()) == usual
    assert adapter(SimpleNamespace(r=8, lora_alpha=8)) == usual


def test_the_package_is_light():
    """`import maxrl` takes no torch."""
    code = "import sys, maxrl; print(maxrl.__version__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [maxrl.__version__, "False"]


def test_the_date_of_a_run_beside_another_trainer(dice, in_a_directory_of_its_own):
    """A resumed run keeps its own, whichever trainer was made last."""

    def trainer(out):
        return MaxRLTrainer(str(dice), digit, MaxRLConfig(out, **SHORT), [{"prompt": "UP"}] * 4)

    trainer("one").train()
    shutil.rmtree("one/step-000004")
    began = json.loads(Path("one/recipe.json").read_text())["date"]
    again, _ = trainer("one"), trainer("two")
    again.train(resume_from_checkpoint=True)
    assert json.loads(Path("one/recipe.json").read_text())["date"] == began
