"""What scripts for TRL do around train(): it does here what it does there, or nothing at all."""

import contextlib
import logging
import warnings
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch

from maxrl.models.hf_config import TransformerConfig
from maxrl.run.cli import say
from maxrl.run.directory import Run
from maxrl.run.trackers import renamed
from maxrl.run.trl.log import history, per_entry, underscored
from maxrl.system import distributed
from maxrl.system.errors import UsageError

# What scripts call or ask of a trainer, and what has been done already, or is of no use here.
HARMLESS = (
    "end save_state save_metrics log_metrics store_flos push_to_hub create_model_card init_hf_repo "
    "optimizer lr_scheduler ref_model hub_model_id is_fsdp_enabled is_deepspeed_enabled deepspeed"
)
# Of these, what somebody may miss.
SAID = {
    "push_to_hub": "nothing is sent to the hub: use save_model(DIR), then `hf upload NAME DIR`",
    "create_model_card": "no model card is written: recipe.json has the options of the run",
}
# The methods of callbacks that are called, and what a callback may ask of the control.
CALLED = "on_train_begin, on_step_end, on_log, on_evaluate, on_train_end, should_training_stop"


class Nothing:
    """Stands for what is not here: it is false, has every attribute and does nothing."""

    def __call__(self, *given: object, **named: object) -> None: ...

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> "Nothing":
        return Nothing()


class Settable(TransformerConfig):
    """The config of a model for scripts, which set use_cache in it and save it."""

    __setattr__ = object.__setattr__
    save_pretrained = Nothing()


class Around:
    """What a trainer has beside train(), evaluate() and save_model()."""

    args: Any
    policy: Any

    def __init__(self) -> None:
        self.state = SimpleNamespace(log_history=[], global_step=0, epoch=0.0, best_metric=None)
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.state.best_model_checkpoint = None  # every checkpoint is kept
        self.state.total_flos = 0.0
        self.control = SimpleNamespace(should_training_stop=False)
        self.callbacks: list[Any] = []

    def __getattr__(self, name: str) -> Nothing:
        if name not in HARMLESS.split():
            raise AttributeError(f"MaxRLTrainer has no {name}")
        if name in SAID and self.is_world_process_zero():
            say(SAID[name])
        return Nothing()

    def is_world_process_zero(self) -> bool:
        return self.accelerator.is_main_process

    def is_local_process_zero(self) -> bool:
        return self.accelerator.is_local_main_process

    @property
    def accelerator(self) -> Any:
        """Stands for an accelerate.Accelerator."""
        result = Nothing()
        vars(result).update(of_process())
        return result

    def add_callback(self, one: Any) -> None:
        """Add a callback of transformers, or a class of them, that has some methods of CALLED."""
        one = one() if isinstance(one, type) else one
        if not [name for name in dir(one) if name.startswith("on_")]:
            raise UsageError(f"callbacks has {one!r:.40}, which has none of {CALLED}")
        self.warn(type(one).__name__, vars(type(one)))
        self.callbacks.append(one)

    def remove_callback(self, one: Any) -> None:
        """Remove a callback, or those of a class."""
        self.callbacks = [known for known in self.callbacks if one not in (known, type(known))]

    pop_callback = remove_callback

    def call(self, event: str, **named: object) -> None:
        """Call the callbacks as transformers does, with the model that is trained."""
        named["model"] = self.policy and self.policy.model
        for one in self.callbacks:
            getattr(one, event, Nothing())(self.args, self.state, self.control, **named)
        self.warn("control", (name for name, asked in vars(self.control).items() if asked))

    def warn(self, who: str, names: Iterable[str]) -> None:
        """Warn of what a callback has, or asks for, in vain."""
        for name in names:
            vain = name.startswith(("on_", "should_")) and name not in CALLED
            if vain and self.is_world_process_zero():
                warnings.warn(f"{who}.{name} does nothing: there are {CALLED}", stacklevel=3)

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
        if trainer.control.should_training_stop:
            self.signalled = 0.0
        return super().ends(step, metrics, *saved)


def of_process() -> dict[str, Any]:
    """Return what scripts ask of their arguments, or of an accelerator, about this process."""
    # By the launcher: scripts ask before the ranks have met.
    rank, local = (distributed.launched(name, 0) for name in ("RANK", "LOCAL_RANK"))
    world = distributed.launched("WORLD_SIZE", 1)
    return {
        "process_index": rank,
        "local_process_index": local,
        **dict.fromkeys(("world_size", "num_processes"), world),
        **dict.fromkeys(("is_main_process", "should_log", "should_save"), rank == 0),
        "is_local_main_process": local == 0,
        "device": torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu"),
        "n_gpu": torch.cuda.device_count(),
        "print": print if rank == 0 else Nothing(),
        "wait_for_everyone": distributed.barrier,
        "unwrap_model": lambda model, **options: model,
        "get_process_log_level": lambda: logging.WARNING,
        # Whatever the other processes wait for is made by each of them.
        "main_process_first": lambda *given, **named: contextlib.nullcontext(),
    }
