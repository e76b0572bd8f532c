"""What scripts for TRL do around train(): callbacks, and what they ask of arguments and trainer."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from maxrl import MaxRLConfig, MaxRLTrainer
from maxrl.models import checkpoint
from maxrl.system.errors import UsageError
from tests.helpers.chats import SHORT, digit, entries, logits, sums
from tests.helpers.runs import timeless

transformers = pytest.importorskip("transformers")


@pytest.fixture
def new(tiny_chat, in_a_directory_of_its_own):
    """new(callbacks, options) -> a trainer of a short run in ./out."""

    def trainer(callbacks=None, **options):
        args = MaxRLConfig(**({"output_dir": "out"} | SHORT | options))
        return MaxRLTrainer(tiny_chat, digit, args, sums(), sums()[:2], callbacks=callbacks)

    return trainer


class Recorder(transformers.TrainerCallback):
    """Records what it is called with, and stops or asks for more after some step."""

    def __init__(self, stop=0, flag="should_training_stop"):
        self.calls = []
        self.stop = stop
        self.flag = flag

    def on_train_begin(self, args, state, control, **named):
        self.calls.append(("begin", state.global_step))
        assert state.max_steps >= state.global_step

    def on_step_end(self, args, state, control, model, **named):
        assert model is not None
        self.calls.append(("step", state.global_step))
        if state.global_step == self.stop:
            setattr(control, self.flag, True)

    def on_log(self, args, state, control, logs, **named):
        assert state.log_history[-1] == logs
        if "reward" in logs:
            self.calls.append(("log", logs["step"], logs["reward"]))

    def on_evaluate(self, args, state, control, metrics, **named):
        self.calls.append(("evaluate", state.global_step, metrics["eval_pass@1"]))

    def on_train_end(self, args, state, control, **named):
        self.calls.append(("end", state.global_step))


def steps(recorder, what):
    return [call[1] for call in recorder.calls if call[0] == what]


def test_callbacks_are_called(new):
    """As often as transformers calls them, with the numbers of the log; in a resumed run too."""
    options = dict(logging_steps=2, eval_strategy="steps", eval_steps=3, max_steps=5, save_steps=3)
    whole = Recorder()
    trainer = new([whole], **options)
    trainer.train()
    assert steps(whole, "begin") == [0]
    assert steps(whole, "step") == [1, 2, 3, 4, 5]
    assert steps(whole, "log") == [2, 4, 5]
    assert steps(whole, "evaluate") == [3]
    assert steps(whole, "end") == [5]
    logged = [call[2] for call in whole.calls if call[0] == "log"]
    assert logged == pytest.approx(entries(trainer, "reward"))
    lines = timeless("out")
    assert logged[0] == pytest.approx(sum(row["reward"] for row in lines[:2]) / 2)
    trainer.evaluate()
    assert steps(whole, "evaluate") == [3, 5]
    os.rename("out/step-000005", "out/step-000005.other")
    again = Recorder()
    new([again], **options).train(resume_from_checkpoint=True)
    assert steps(again, "log") == [4, 5]
    assert timeless("out") == lines


def test_a_callback_that_ends_the_training(new):
    """With a checkpoint, from which it goes on as if nothing had ended it; train() returns."""
    new(output_dir="whole").train()
    recorder = Recorder(stop=2)
    trainer = new([recorder])
    assert trainer.train().global_step == 2
    assert steps(recorder, "end") == [2]
    assert checkpoint.find("out").name == "step-000002"
    recorder.stop = 0
    assert trainer.train(resume_from_checkpoint=True).global_step == 4
    assert timeless("out") == timeless("whole")


@pytest.mark.parametrize("flag", ["should_save", "should_evaluate", "should_epoch_stop"])
def test_what_a_callback_asks_in_vain_is_said(new, flag):
    with pytest.warns(UserWarning, match=flag):
        new([Recorder(2, flag)]).train()


def test_callbacks_that_are_never_called_are_said(new):
    class Epochs(transformers.TrainerCallback):
        def on_epoch_end(self, *given, **named):
            pass

    class Plain:
        def on_log(self, args, state, control, **named):
            self.last = named["logs"]

    class Inherited(Epochs):
        pass

    for callback in (Epochs, Inherited):
        with pytest.warns(UserWarning, match=f"{callback.__name__}.on_epoch_end"):
            new([callback], output_dir=callback.__name__)
    plain = Plain()
    trainer = new([plain], output_dir="two")
    trainer.add_callback(Recorder)
    trainer.pop_callback(Recorder)
    trainer.train()
    assert plain.last["step"] == 4
    trainer.log({"mine": 1.0})
    assert plain.last == trainer.state.log_history[-1]
    trainer.remove_callback(plain)
    assert trainer.callbacks == []
    for wrong in ([1], ["x"], [print]):
        with pytest.raises(UsageError, match="callbacks"):
            new(wrong, output_dir="three")


def test_a_control_that_is_returned(new):
    """It takes the place of the one given, as in transformers."""

    class Returning(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **named):
            return transformers.TrainerControl(should_training_stop=state.global_step == 2)

    trainer = new([Returning()], max_steps=4)
    trainer.train()
    assert trainer.state.global_step == 2


def test_early_stopping_of_transformers(new):
    """It ends after as many evaluations without a better one as its patience allows; "better" is
    that of transformers' rule for the metric."""
    values = iter([0.1, 0.3, 0.2, 0.25, 0.9])

    def judged(completions, **columns):
        return [next(values)] * len(completions)

    stop = transformers.EarlyStoppingCallback(early_stopping_patience=2)
    options = dict(eval_strategy="steps", eval_steps=1, max_steps=8)
    trainer = new([stop], metric_for_best_model="reward", **options)
    assert trainer.args.greater_is_better is True
    trainer.eval_judge = lambda examples, rollouts: rollouts.lengths.double() * 0 + next(values)
    trainer.eval_judge.means = dict
    trainer.train()
    # .3 is the best of four, and the two after it are worse.
    assert trainer.state.global_step == 4
    assert trainer.state.best_metric == pytest.approx(0.3)


def test_a_signal_after_a_callback_has_ended_the_training(new, monkeypatch):
    """It is the first one, and waits for the checkpoint."""
    monkeypatch.setattr(os, "_exit", sys.exit)
    saved = []

    def save(path, *given, save=checkpoint.save, **named):
        os.kill(os.getpid(), signal.SIGINT)
        saved.append(path.name)
        save(path, *given, **named)

    monkeypatch.setattr(checkpoint, "save", save)
    trainer = new([Recorder(stop=2)])
    trainer.train()
    assert saved == [path.name for path in Path("out").glob("step-*")] == ["step-000002"]


def test_what_scripts_do_after_the_training(new, tiny_chat):
    """The ends of TRL's own scripts and of others: nothing raises an AttributeError, and what is
    saved has the trained weights."""
    trainer = new()
    args = trainer.args
    assert not hasattr(args, "nonsense")
    assert trainer.model.config.vocab_size
    trainer.train()
    trainer.accelerator.print("trained")
    tokens = trainer.processing_class("1", return_tensors="pt")["input_ids"]
    assert trainer.processing_class.decode(tokens[0], skip_special_tokens=True) == "1"
    trainer.accelerator.wait_for_everyone()
    trainer.end()
    trainer.model.generation_config.eos_token_id = 1
    trainer.save_model("saved")
    if trainer.accelerator.is_main_process and trainer.is_world_process_zero():
        trainer.create_model_card(dataset_name="mine", tags=["x"])
        trainer.model.config.use_cache = True
        trainer.model.config.save_pretrained("saved")
        trainer.processing_class.save_pretrained("saved")
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained("again")
    if args.do_eval or args.push_to_hub or args.hub_model_id:
        raise AssertionError
    trainer.push_to_hub(dataset_name="mine")
    assert not trainer.log_metrics("train", {}) and not trainer.save_state()
    assert (args.temperature, args.world_size, args.n_gpu, args.device.type) == (1, 1, 0, "cpu")
    assert args.to_dict()["num_generations"] == 4
    assert args.per_device_eval_batch_size == 8
    assert trainer.accelerator.state.num_processes == 1
    assert not trainer.is_fsdp_enabled
    assert trainer.model.config.to_dict()["hidden_size"] and trainer.model.num_parameters()
    assert trainer.model.generate(torch.tensor([[1, 2]]), max_new_tokens=2).shape[1] > 2
    assert trainer.train_dataset == sums()
    model = transformers.AutoModelForCausalLM.from_pretrained("saved")
    again = transformers.AutoModelForCausalLM.from_pretrained("again")
    first = transformers.AutoModelForCausalLM.from_pretrained(tiny_chat)
    assert (logits(model) - logits(first)).abs().max() > 1e-3
    assert (logits(model) == logits(again)).all()
    with pytest.raises(UsageError, match="eval_dataset"):
        trainer.evaluate(eval_dataset=sums())
    # Nothing of this changes what an evaluation says any more.
    trainer.train_dataset = None
    args.learning_rate = 0.0
    assert trainer.evaluate()


def test_the_method_is_said(new, capfd):
    """An option of a script that asks for another method than MaxRL is named."""
    for value, method in (
        (True, "grpo"),
        (False, "dr_grpo"),
        ("group", "grpo"),
        ("none", "dr_grpo"),
    ):
        with pytest.warns(UserWarning, match=f"scale_rewards = .* {method}, not MaxRL"):
            new(scale_rewards=value)


@pytest.mark.filterwarnings("ignore:.* are training prompts")
@pytest.mark.filterwarnings("error")
def test_maxrl_is_not_said(new):
    new()
    new(estimator="grpo")


# What is here in neither, in words of TRL's trainer and of a few that nobody has.
MEMBERS = """
predict get_train_dataloader tokenizer create_optimizer hub_model_id store_flos trian
state.save_to_json state.best_global_step accelerator.gather accelerator.free_memory
accelerator.state.fsdp_plugin args.to_json_string args.train_batch_size args.parallel_mode args.lr
control.should_log model_wrapped callback_handler data_collator
"""


def asked(trainer, path):
    for name in path.split("."):
        trainer = getattr(trainer, name)
    return trainer


def test_what_is_not_here_is_said(new):
    """Before the training as a mistake, in one sentence, of trainer and arguments; after it nothing
    ends a script, whatever it does with what it gets."""
    trainer = new()
    for path in MEMBERS.split():
        last = path.split(".")[-1]
        if path.startswith(("state.", "control.", "accelerator.")):
            with pytest.warns(UserWarning, match=f"has no {last}"):
                asked(trainer, path)
            continue
        with pytest.raises(AttributeError, match=f"has no {last}"):
            asked(trainer, path)
        assert getattr(trainer if "." not in path else trainer.args, last, 7) == 7
    with pytest.raises(AttributeError, match="did you mean train"):
        trainer.trian()
    with pytest.raises(AttributeError, match="processing_class"):
        trainer.tokenizer  # noqa: B018
    trainer.train()
    for path in MEMBERS.split():
        with pytest.warns(UserWarning, match=f"has no {path.split('.')[-1]}"):
            found = asked(trainer, path)
        assert not found and not [*found(1, name=2).metrics["loss"]]
        assert f"{found:.2f} {float(found) + 1}" and not found > 3
        assert os.path.join(found, "x") == "x"
        found.padding_side = "left"
    assert trainer.reward_funcs == [digit]


@pytest.mark.parametrize("name", ["reward_func", "modle", "peft_conf", "trainset", "tokenizer"])
def test_arguments_that_are_mistyped(tiny_chat, in_a_directory_of_its_own, name):
    for value in (None, 1):
        if (name, value) == ("tokenizer", None):
            continue
        with pytest.raises(UsageError) as error:
            MaxRLTrainer(tiny_chat, digit, MaxRLConfig("x"), sums(), **{name: value})
        assert name in str(error.value)


def test_the_newest_checkpoint_by_its_path(new):
    """What is not the newest is refused with the newest, before the directory is touched."""
    trainer = new(save_steps=2)
    for wrong in ("out", "out/step-000002", "elsewhere", Path("out/checkpoint-2")):
        with pytest.raises(UsageError, match="which is None"):
            trainer.train(resume_from_checkpoint=wrong)
    trainer.train()
    for path in ("out/step-000004", Path("out/step-000004").resolve(), "./out/step-000004/"):
        assert new(save_steps=2).train(resume_from_checkpoint=path).global_step == 4
    args = new(save_steps=2, resume_from_checkpoint="out/step-000004")
    assert args.train().global_step == 4
    for wrong in ("out", "out/step-000002", "out/step-4", "elsewhere"):
        with pytest.raises(UsageError, match="newest checkpoint, which is out/step-000004"):
            new(save_steps=2).train(resume_from_checkpoint=wrong)
