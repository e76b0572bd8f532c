"""MaxRLTrainer: scripts for TRL's GRPOTrainer with another import."""

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from maxrl import MaxRLConfig, MaxRLTrainer
from maxrl.learning.policy import SequencePolicy
from maxrl.models import checkpoint
from maxrl.run import cli
from maxrl.run.trl.inputs import READ, adapter
from maxrl.system.errors import UsageError
from maxrl.system.files import read_json
from tests.helpers.chats import SHORT, TEMPLATE, digit, entries, logits, sometimes, sums
from tests.helpers.runs import killed, timeless
from tests.helpers.tables import each, put

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


@pytest.fixture
def new(tiny_chat, in_a_directory_of_its_own):
    """new(reward, options) -> a trainer of a short run in ./out."""

    def trainer(reward=digit, **options):
        args = MaxRLConfig(**({"output_dir": "out"} | SHORT | options))
        return MaxRLTrainer(tiny_chat, reward, args, sums())

    return trainer


def test_a_conversation_with_two_rewards_and_an_adapter(tiny_chat, in_a_directory_of_its_own):
    """Chat prompts, a function without a verdict now and then, evaluation and PEFT; what
    save_model writes has our logits in transformers."""
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    args = MaxRLConfig("out", **SHORT, reward_weights=[1, 0], eval_strategy="steps", eval_steps=2)
    file = put(Path("mine.jsonl"), sums()[:4])
    rewards = [digit, sometimes]
    trainer = MaxRLTrainer(tiny_chat, rewards, args, sums(), eval_dataset=file, peft_config=lora)
    result = trainer.train()
    assert result.global_step == trainer.state.global_step == 4
    assert entries(trainer, "learning_rate")
    assert entries(trainer, "rewards/sometimes/mean") == [1] * 4
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
    ours = checkpoint.load("saved").model
    tokens = torch.arange(3, 15)[None, None]
    with torch.no_grad():
        torch.testing.assert_close(ours.lm_head(ours(tokens))[0], trained, atol=1e-4, rtol=1e-4)
    assert transformers.AutoTokenizer.from_pretrained("saved").chat_template == TEMPLATE


@pytest.mark.parametrize("changed", ["weights", "stop tokens"])
def test_an_adapter_knows_its_base(changed, tiny_chat, in_a_directory_of_its_own):
    """Of a run, or saved: another model in the base's place gives other responses and is refused,
    also with a tokenizer of one's own."""
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    shutil.copytree(tiny_chat, "base")
    short = SHORT | {"max_steps": 1}
    trainer = MaxRLTrainer("base", digit, MaxRLConfig("out", **short), sums(), peft_config=lora)
    trainer.train()
    trainer.save_model("adapter")
    checkpoint.load("adapter")
    other = checkpoint.load("base")
    if changed == "weights":
        with torch.no_grad():
            other.model.lm_head.weight += 1
    else:
        other.stop_tokens = [1, 2]
    checkpoint.save_into(Path("base"), other)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_chat)
    for start in ("adapter", "out"):
        with pytest.raises(ValueError, match="has changed: put it back"):
            checkpoint.load(start)
        args = MaxRLConfig(f"again-{start}", **short)
        with pytest.raises(UsageError, match="has changed: put it back"):
            MaxRLTrainer(start, digit, args, sums(), processing_class=tokenizer).train()


def test_a_model_in_memory_has_the_trained_weights(tiny_chat, in_a_directory_of_its_own):
    """Like TRL's trainer; and save_model into the run directory itself can be loaded."""
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_chat)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_chat)
    before = logits(model)
    args = MaxRLConfig("out", **SHORT, beta=0.01)
    trainer = MaxRLTrainer(model, digit, args, sums(chat=False), processing_class=tokenizer)
    assert trainer.model is model
    assert trainer.processing_class is tokenizer
    trainer.train()
    assert (logits(model) - before).abs().max() > 1e-3
    first, *_, last = entries(trainer, "kl")
    assert first == 0
    assert last > 0
    trainer.save_model("out/saved")
    here = {path.name for path in Path("out").iterdir()}
    trainer.save_model("out")
    trainer.save_model("out")
    # Nothing else of the directory is touched, and nothing is left over.
    assert here <= {path.name for path in Path("out").iterdir()}
    assert Path("out/saved/config.json").exists()
    assert not list(Path("out").glob("tmp*"))
    again = transformers.AutoModelForCausalLM.from_pretrained("out")
    torch.testing.assert_close(logits(again), logits(model), atol=0, rtol=0)
    # The run directory is still one.
    assert checkpoint.find("out").name == "step-000004"


def test_a_tokenizer_of_ones_own(tiny_chat, in_a_directory_of_its_own):
    """Another chat template is used, and no other weights."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_chat)
    same = MaxRLTrainer(tiny_chat, digit, MaxRLConfig("a", **SHORT), sums(), callbacks=[])
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    other = MaxRLTrainer(tiny_chat, digit, MaxRLConfig("b", **SHORT), sums(), None, tokenizer)
    assert Path(other.cfg.init).parent == Path("b")
    ids = [trainer.started().encode_prompts([trainer.task[0]])[0] for trainer in (same, other)]
    assert len(ids[0]) == len(ids[1]) + 2, "the other template has no roles"
    weights = [trainer.model.state_dict() for trainer in (same, other)]
    torch.testing.assert_close(*weights, atol=0, rtol=0)
    # Shards that the index calls otherwise are found as well.
    shutil.copytree(tiny_chat, "sharded")
    Path("sharded/model.safetensors").rename("sharded/weights-1.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights[0], "weights-1.safetensors")}
    Path("sharded/model.safetensors.index.json").write_text(json.dumps(index))
    args = MaxRLConfig("d", **SHORT)
    sharded = MaxRLTrainer("sharded", digit, args, sums(), None, tokenizer)
    torch.testing.assert_close(sharded.model.state_dict(), weights[0], atol=0, rtol=0)
    tokenizer.chat_template = None
    with pytest.warns(UserWarning, match="no chat template"):
        MaxRLTrainer(tiny_chat, digit, MaxRLConfig("c", **SHORT), sums(), None, tokenizer)


def test_a_resumed_run_is_the_same(new):
    whole = new(save_steps=2)
    with pytest.raises(UsageError, match="no checkpoint"):
        whole.train(resume_from_checkpoint=True)
    whole.train()
    lines = timeless("out")
    with pytest.raises(UsageError, match="already holds a run.*resume_from_ch.*output_dir") as said:
        new(save_steps=2).train()
    assert "--" not in str(said.value), "an option of train.py, in a script"
    # The linear schedule, TRL's default, depends on the length of the run.
    with pytest.raises(UsageError, match="steps = 4, not 8"):
        new(save_steps=2, max_steps=8).train(resume_from_checkpoint=True)
    before = whole.state.log_history
    whole.train(resume_from_checkpoint=True)
    assert whole.state.log_history == before, "no entry is there twice"
    shutil.rmtree("out/step-000004")
    again = new(save_steps=2)
    again.train(resume_from_checkpoint="out/step-000002")
    assert timeless("out") == lines
    assert entries(again, "loss") == entries(whole, "loss")
    with pytest.raises(UsageError, match="already holds a run"):
        again.train()
    shutil.rmtree("out")
    again.train()
    assert timeless("out") == lines, "a second training does not begin with the trained weights"


def test_a_run_that_failed_before_its_first_checkpoint(new):
    """It is not overwritten, and begins again as if it had not failed."""
    new(output_dir="whole").train()
    failed = new()
    with killed(at=3):
        failed.train()
    with pytest.raises(UsageError, match="already holds a run"):
        failed.train()
    failed.train(resume_from_checkpoint=True)
    assert timeless("out") == timeless("whole")


def fail(*arguments, **columns):
    raise RuntimeError


def interrupt(*arguments, **columns):
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["backward", "reward"])
@pytest.mark.parametrize("failing", [fail, interrupt])
def test_workers_end_with_their_run(new, monkeypatch, place, failing):
    """Also while the exception is kept, and with it all frames of the run."""
    if place == "backward":
        monkeypatch.setattr(SequencePolicy, "backward", failing)
    trainer = new(digit if place == "backward" else failing, dataloader_num_workers=2)
    before = multiprocessing.active_children()
    with pytest.raises((UsageError, RuntimeError, KeyboardInterrupt)) as kept:
        trainer.train()
    assert multiprocessing.active_children() == before
    assert kept.value


def test_a_signal_ends_a_script_whose_rewards_have_a_thread(new, monkeypatch):
    """Python would wait for it."""
    monkeypatch.setattr(cli, "end", lambda code: sys.exit(f"{code} at once"))
    done = threading.Event()

    def busy(completions, **columns):
        threading.Thread(target=done.wait).start()
        os.kill(os.getpid(), signal.SIGTERM)
        return digit(completions)

    with pytest.raises(SystemExit, match="75 at once"):
        new(busy).train()
    done.set()


def test_a_script_keeps_what_is_its_own(new):
    """Its directory, processes and settings, also where a signal stops the run; a second trainer
    does not get the directory of the first one."""

    def roaming(completions, **columns):
        with pytest.raises(UsageError, match="in use"):
            new(roaming).train(resume_from_checkpoint=True)
        Path("elsewhere").mkdir()
        os.chdir("elsewhere")
        os.kill(os.getpid(), signal.SIGTERM)
        return digit(completions)

    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
    child.start()
    torch.use_deterministic_algorithms(True)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCHLD)]
    here = os.getcwd()
    try:
        with pytest.raises(SystemExit) as end:
            new(roaming, log_completions=True, run_name="mine").train()
        assert end.value.code == 75
        assert checkpoint.find("out").name == "step-000001"
        assert "WANDB_NAME" not in os.environ
        assert read_json("out/recipe.json")["name"] == "mine"
        assert child.is_alive()
        assert torch.are_deterministic_algorithms_enabled()
        assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGCHLD)] == handlers
        assert os.getcwd() == here
        assert not list(Path("elsewhere").iterdir())
        assert not Path("out/lock").exists()
        assert Path("out/samples.jsonl").exists()
    finally:
        torch.use_deterministic_algorithms(False)
        child.kill()
        os.chdir(here)


def test_a_run_in_another_thread(new):
    trainer = new()
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join()
    assert trainer.state.global_step == 4


@pytest.mark.parametrize("name", ["compute_loss", "_calculate_rewards", "create_optimizer"])
def test_a_method_of_trl_that_would_never_be_called_is_refused(name):
    with pytest.raises(UsageError, match=f"Mine.{name} would never be called"):
        type("Mine", (MaxRLTrainer,), {name: lambda self: None})
    mixin = type("Mixin", (), {name: lambda self: None})
    with pytest.raises(UsageError, match=f"Mine.{name} would never be called"):
        type("Mine", (mixin, MaxRLTrainer), {})
    type("Mine", (MaxRLTrainer,), {"my_own": lambda self: None})


def test_what_is_changed_afterwards_is_refused(new):
    """Options, data and frozen weights, which would be ignored; what is read later may change."""
    changes = {
        "reward_funcs": lambda trainer: trainer.reward_funcs.append(digit),
        "learning_rate": lambda trainer: setattr(trainer.args, "learning_rate", 0.0),
        "eval_dataset": lambda trainer: setattr(trainer, "eval_dataset", sums()),
        "train_dataset": lambda trainer: setattr(trainer, "train_dataset", sums()),
    }
    for name, change in changes.items():
        trainer = new(output_dir=name)
        change(trainer)
        for asked in (trainer.train, trainer.evaluate):
            with pytest.raises(UsageError, match=name if asked == trainer.train else None):
                asked()
        assert not Path(name, "metrics.jsonl").exists()
    trainer = new()
    trainer.args.logging_steps = 2
    assert len(trainer.train() and entries(trainer, "reward")) == 2


def test_a_given_model_that_does_not_get_the_weights_says_so(tiny_chat, in_a_directory_of_its_own):
    """With an adapter, and where they are rounded; frozen weights are refused then, too."""
    lora = peft.LoraConfig(r=2, target_modules="all-linear")
    args = MaxRLConfig("out", **SHORT)
    with pytest.warns(UserWarning, match="keeps its weights"):
        MaxRLTrainer(loaded(tiny_chat), digit, args, sums(), peft_config=lora)
    with pytest.warns(UserWarning, match="bfloat16"):
        rounded = loaded(tiny_chat).bfloat16()
        trainer = MaxRLTrainer(rounded, digit, args, sums())
    next(rounded.parameters()).requires_grad_(False)
    with pytest.raises(UsageError, match="frozen"):
        trainer.train()


def test_a_model_that_was_trained_meanwhile_is_refused(tiny_chat, in_a_directory_of_its_own):
    """A trainer has the weights and the template that there were when it was made."""
    model, tokenizer = loaded(tiny_chat), transformers.AutoTokenizer.from_pretrained(tiny_chat)
    first, second = (
        MaxRLTrainer(model, digit, MaxRLConfig(out, **SHORT), sums(), None, tokenizer)
        for out in ("first", "second")
    )
    model.eval().to(torch.float32)
    first.train()
    with pytest.raises(UsageError, match="model was changed"):
        second.train()
    first.train(resume_from_checkpoint=True)
    third = MaxRLTrainer(model, digit, MaxRLConfig("third", **SHORT), sums(), None, tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(UsageError, match="processing_class was changed"):
        third.train()


OWN = """
from maxrl.advantages.registry import estimator

@estimator(takes="any", rounds=True)
def mine(rewards, mean_log_probs):
    assert mean_log_probs.shape == rewards.shape and mean_log_probs.isfinite().all()
    return rewards
"""


def test_an_estimator_that_was_edited_is_read_again(new):
    """As in a notebook, where one process sees both."""
    for factor in (1, 0):
        text = f"def rule(rewards):\n    return {factor} * (rewards - rewards.mean())\n"
        Path("mine.py").write_text(text)
        trainer = new(estimator="mine.py:rule", output_dir=f"out{factor}", max_steps=1)
        trainer.train()
        assert bool(entries(trainer, "grad_norm")[0]) == bool(factor)


def test_an_estimator_of_ones_own_in_rounds(new):
    """It gets what was sampled in the round that is trained."""
    Path("mine.py").write_text(OWN)
    assert new(estimator="mine.py:mine", rollouts=[1, 1, 2]).train().global_step == 4


def frozen():
    model = torch.nn.Linear(1, 1).requires_grad_(False)
    model.config = model.save_pretrained = None
    return model


def loaded(path, change=None):
    """A model of transformers; change(model) may return another one."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    changed = change and change(model)
    return model if changed is None else changed


class Louder(transformers.Qwen2ForCausalLM):
    def forward(self, *given, **options):
        result = super().forward(*given, **options)
        result.logits = result.logits * 2
        return result


def louder(model):
    model.__class__ = Louder


def louder_mlp(model):
    class MLP(type(model.model.layers[0].mlp)):
        def forward(self, x):
            return 2 * super().forward(x)

    model.model.layers[1].mlp.__class__ = MLP


def patched(model):
    forward = model.model.norm.forward
    model.model.norm.forward = lambda x: 2 * forward(x)


# A model that would be trained as another one, or could not be handed back.
CHANGED = {
    "a wrapper": torch.nn.DataParallel,
    "a subclass": louder,
    "a layer's subclass": louder_mlp,
    "another forward": patched,
    "a hook": lambda model: [model.lm_head.register_forward_hook(lambda *_: None), model][1],
    "a hook before": lambda model: [model.model.register_forward_pre_hook(print), model][1],
    "a compiled subclass": lambda model: [louder(model), torch.compile(model)][1],
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_model_with_a_forward_of_its_own_is_refused(tiny_chat, in_a_directory_of_its_own, change):
    """Before any training: its weights alone would be trained, by a forward that is ours."""
    model = loaded(tiny_chat, CHANGED[change])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_chat)
    with pytest.raises(UsageError, match="of transformers|transformers model"):
        MaxRLTrainer(model, digit, MaxRLConfig("x", **SHORT), sums(), None, tokenizer)
    assert not Path("x").exists()


HARMLESS = {
    "torch.compile(model)": torch.compile,
    "model.compile()": lambda model: model.compile(),
    "what gradient checkpointing needs": lambda model: model.enable_input_require_grads(),
}


@pytest.mark.parametrize("change", HARMLESS)
def test_a_compiled_model_is_trained_and_handed_back(tiny_chat, in_a_directory_of_its_own, change):
    plain = loaded(tiny_chat)
    model = loaded(tiny_chat, HARMLESS[change])
    args = MaxRLConfig("x", **SHORT)
    trainer = MaxRLTrainer(model, digit, args, sums())
    trainer.train()
    trainer.save_model("saved")
    assert trainer.model is getattr(model, "_orig_mod", model)
    own = trainer.model.state_dict()
    torch.testing.assert_close(own, loaded("saved").state_dict(), atol=0, rtol=0)
    assert not torch.equal(own["model.norm.weight"], plain.model.norm.weight)


# An argument, an expression for it, and a word of the sentence.
WRONG = """
callbacks | [1] | callbacks
processing_class | "somewhere" | processing_class
peft_config | {"r": 4} | peft_config
peft_config | SimpleNamespace(r=0, lora_alpha=8) | r = 0
eval_dataset | [] | validation
reward_funcs | [] | reward_funcs
reward_funcs | 5 | 5
reward_funcs | torch.nn.Linear(1, 1) | reward model
reward_funcs | "Qwen/reward" | Qwen/reward
train_dataset | None | train_dataset
train_dataset | {"train": []} | pass a list
train_dataset | iter([]) | pass a list
train_dataset | [{"text": "a"}] | prompt
train_dataset | ["a"] | pass a list of dicts
model | torch.nn.Linear(1, 1) | transformers model
model | SimpleNamespace(config=None, save_pretrained=1, peft_config=1) | adapter
model | SimpleNamespace(config=None, save_pretrained=1) | processing_class
model | frozen() | frozen
args | SimpleNamespace(output_dir="x") | MaxRLConfig
args | MaxRLConfig("x", eval_strategy="steps") | eval_dataset
args | MaxRLConfig("x", eval_every=5) | eval_dataset
args | MaxRLConfig("x", learning_rate=-1.0) | --lr
"""


@each("name, value, word", WRONG)
def test_one_sentence(tiny_chat, in_a_directory_of_its_own, name, value, word):
    usual = dict(model=tiny_chat, reward_funcs=digit, args=MaxRLConfig("x"), train_dataset=sums())
    with pytest.raises(UsageError) as error:
        MaxRLTrainer(**(usual | {name: eval(value)}))
    assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_every_option_of_an_adapter():
    """Each field of LoraConfig: its default is taken, and any other value is read, says nothing
    about what is trained, or is refused by its name, 0 and False as well."""
    usual = peft.LoraConfig()
    plain = adapter(usual)
    assert adapter(SimpleNamespace(**vars(usual))) == plain, "what has its attributes"
    for f in dataclasses.fields(peft.LoraConfig):
        default = getattr(usual, f.name)
        for value in (default, None, 0, False, True, 0.5, "all", [0], {"a": 1}):
            config = peft.LoraConfig()
            setattr(config, f.name, value)
            neutral = value is None and default is not True and f.name not in ("r", "lora_alpha")
            if value == default or neutral:
                assert adapter(config) == plain, (f.name, value)
            elif f.name in ("r", "lora_alpha", "target_modules"):
                continue
            elif f.name not in READ:
                # Also of an object that is no LoraConfig.
                for given in (config, SimpleNamespace(r=8, lora_alpha=8, **{f.name: value})):
                    with pytest.raises(UsageError, match=f"peft_config (is|has {f.name} = )"):
                        adapter(given)


def test_adapters_of_other_kinds():
    """Those of PEFT that have the attributes of a LoraConfig as well."""
    with pytest.raises(UsageError, match="AdaLoraConfig"):
        adapter(peft.AdaLoraConfig(total_step=5))


def test_adapters_that_train_nothing(new, tiny_chat):
    """No projection, no rank, no scale: one sentence, before anything is trained."""
    for given in ({"target_modules": []}, {"lora_alpha": 0}, {"r": None}, {"lora_alpha": None}):
        config = peft.LoraConfig()
        for name, value in given.items():
            setattr(config, name, value)
        with pytest.raises(UsageError):
            args = MaxRLConfig("out", **SHORT)
            MaxRLTrainer(tiny_chat, digit, args, sums(), peft_config=config).train()


def test_the_adapter_of_peft_by_default():
    usual = dict(lora_rank=8, lora_alpha=8.0, lora_projections=("q_proj", "v_proj"))
    assert adapter(peft.LoraConfig()) == usual
    assert adapter(SimpleNamespace(r=8, lora_alpha=8)) == usual
    one = peft.LoraConfig(target_modules="q_proj")
    assert adapter(one)["lora_projections"] == ("q_proj",)
