"""What scripts for TRL do around train(): it does here what it does there, or nothing at all."""

import warnings
from typing import Any

from maxrl.run.directory import Run
from maxrl.run.trackers import renamed
from maxrl.run.trl.log import history, per_entry, underscored
from maxrl.run.trl.options import ABSENT, WHY_NOT
from maxrl.run.trl.scripted import Nothing, Scripted, of_process
from maxrl.system.errors import UsageError

# The methods of callbacks that are called, and what a callback may ask of the control.
CALLED = "on_train_begin, on_step_end, on_log, on_evaluate, on_train_end, should_training_stop"
# Methods of TRL's trainer that scripts override, and that nothing here calls.
NEVER_CALLED = (
    "_calculate_rewards",
    "_compute_loss",
    "_generate",
    "_generate_and_score_completions",
    "_generate_single_turn",
    "_get_eval_sampler",
    "_get_per_token_logps_and_entropies",
    "_get_train_sampler",
    "_prepare_inputs",
    "_tokenize_prompts",
    "compute_loss",
    "create_optimizer",
    "create_optimizer_and_scheduler",
    "create_scheduler",
    "get_eval_dataloader",
    "get_train_dataloader",
    "prediction_step",
    "training_step",
)


class Control(Scripted):
    """What callbacks ask for, which may be in vain."""

    def __setattr__(self, name: str, value: object) -> None:
        getattr(self, name)
        super().__setattr__(name, value)


class Around(Scripted):
    """What a trainer has beside train(), evaluate() and save_model()."""

    args: Any
    policy: Any
    called = "the trainer"
    instead = WHY_NOT | ABSENT
    begun = False  # whether train() has begun to change the policy

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in NEVER_CALLED:
            if hasattr(cls, name):
                raise UsageError(
                    f"{cls.__name__}.{name} would never be called: pass a reward function or an "
                    "estimator of your own, or keep TRL's trainer and change its advantages alone"
                )

    def __init__(self) -> None:
        process = of_process()
        self.is_world_process_zero = lambda: process["is_main_process"]
        self.is_local_process_zero = lambda: process["is_local_main_process"]
        self.accelerator: Any = Scripted("trainer.accelerator", process)
        vars(self.accelerator)["state"] = self.accelerator
        # No checkpoint is called the best.
        begin = dict(global_step=0, epoch=0.0, best_metric=None, best_model_checkpoint=None)
        self.state: Any = Scripted("trainer.state", process | begin | {"log_history": []})
        self.control: Any = Control("control", {"should_training_stop": False})
        self.callbacks: list[Any] = []

    def add_callback(self, one: Any) -> None:
        """Add a callback of transformers, or a class of them, that has some methods of CALLED."""
        one = one() if isinstance(one, type) else one
        if not [name for name in dir(one) if name.startswith("on_")]:
            raise UsageError(f"callbacks has {one!r:.40}, which has none of {CALLED}")
        # Of transformers' own class every method is there, and does nothing.
        nothing = next((c for c in type(one).__mro__ if c.__name__ == "TrainerCallback"), object)
        for name in dir(type(one)):
            own = getattr(type(one), name) is not getattr(nothing, name, None)
            if name.startswith("on_") and name not in CALLED and own:
                said = f"{type(one).__name__}.{name} is not called: there are {CALLED}"
                warnings.warn(said, stacklevel=2)
        self.callbacks.append(one)

    def remove_callback(self, one: Any) -> None:
        """Remove a callback, or those of a class."""
        self.callbacks = [known for known in self.callbacks if one not in (known, type(known))]

    pop_callback = remove_callback

    def call(self, event: str, **named: object) -> None:
        """Call the callbacks as transformers does, with the model that is trained."""
        named["model"] = self.policy and self.policy.model
        for one in self.callbacks:
            method: Any = getattr(one, event, Nothing())
            answer = method(self.args, self.state, self.control, **named)
            # A control that is returned takes the place of the one given.
            if getattr(answer, "should_training_stop", False):
                self.control.should_training_stop = True

    def log(self, logs: dict[str, float], *given: object) -> None:
        """Add an entry to state.log_history."""
        entry = logs | {"step": self.state.global_step, "epoch": self.state.epoch}
        self.state.log_history.append(entry)
        self.call("on_log", logs=entry)

    def evaluated(self, metrics: dict[str, float]) -> None:
        """Call the callbacks, and keep the best value of metric_for_best_model."""
        self.call("on_evaluate", metrics=metrics)
        name = self.args.metric_for_best_model
        # transformers' EarlyStoppingCallback says so itself if there is no such metric.
        value = metrics.get(f"eval_{str(name).removeprefix('eval_')}")
        best = self.state.best_metric
        better = best is None or value is not None and (value > best) == self.args.greater_is_better
        self.state.best_metric = value if better else best


class ScriptRun(Run):
    """The run of a script, which after each step updates the trainer's state and calls back."""

    scripted = True
    resume = "train(resume_from_checkpoint=True)"
    begin = "train()"
    another = "a trainer whose output_dir is another one"

    def __init__(self, trainer: Any):
        super().__init__(trainer.cfg, "MaxRLTrainer", trainer.task, trainer.validation)
        self.trainer = trainer
        self.rows: list[dict] = []  # of the steps since the last entry of the log

    def ends(self, step: int, metrics: dict[str, float], *saved: Any) -> bool:
        """Call back, save if that is due, and return whether the run ends here."""
        trainer = self.trainer
        each = trainer.args.logging_steps
        self.rows.append(renamed({"step": step} | metrics))
        [*_, entry] = history(self.rows, self.cfg, each, self.examples)
        vars(trainer.state).update(global_step=entry["step"], epoch=entry["epoch"])
        trainer.call("on_step_end")
        if (step + 1) % per_entry(self.cfg, each) == 0 or step + 1 == self.cfg.steps:
            self.rows = []
            trainer.log(entry)
        if evaluated := {name: metrics[name] for name in metrics if name.startswith("eval/")}:
            trainer.evaluated(underscored(evaluated))
        # As a signal does; the other ranks follow.
        self.asked = bool(trainer.control.should_training_stop)
        return super().ends(step, metrics, *saved)
