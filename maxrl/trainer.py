"""MaxRLTrainer: the run of train.py, started from Python with the names of TRL's GRPOTrainer.

    from maxrl import MaxRLConfig, MaxRLTrainer

    trainer = MaxRLTrainer(model, reward_funcs, MaxRLConfig("out"), train_dataset)
    trainer.train()
    trainer.save_model("trained")

There is no second loop: train() calls that of train.py, in the run directory `output_dir`.
"""

import atexit
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch.distributed as dist

from maxrl import build, checkpoint, evaluation
from maxrl.__main__ import script
from maxrl.config import Config
from maxrl.errors import UsageError
from maxrl.io import user_code
from maxrl.parallel import distributed
from maxrl.run import cli, setup
from maxrl.run.directory import STOPPED, Run
from maxrl.run.trackers import renamed
from maxrl.trl_inputs import adapter, address, name_of, several, start
from maxrl.trl_options import ABSENT, MaxRLConfig, in_trl_words
from maxrl.trl_recipe import plain, recipe


class TrainOutput(NamedTuple):
    """What train() returns, as transformers does."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class MaxRLTrainer:
    """Trains a language model on reward functions with MaxRL.

    model             a checkpoint directory, a run directory, a hub id or a model of transformers
    reward_funcs      functions f(prompts, completions, **columns), or names, one or several
    args              a MaxRLConfig
    train_dataset     rows with a `prompt`, text or messages: a list, a datasets.Dataset or a file
    eval_dataset      the same, for evaluations
    processing_class  the tokenizer, if it is not the checkpoint's
    peft_config       a peft.LoraConfig, or what has its attributes, to train an adapter

    state.log_history has the metrics, and `model` the trained model. UsageError for what is not
    here.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: MaxRLConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        peft_config: Any = None,
        **others: Any,
    ):
        for name, value in others.items():
            if value not in (None, (None, None)):
                raise UsageError(f"{name} is not here: {ABSENT.get(name, 'it is none of TRL')}")
        self.args = args or MaxRLConfig(f"{Path(name_of(model)).name or 'model'}-MaxRL")
        if not isinstance(self.args, MaxRLConfig):
            raise UsageError(f"args is a {type(args).__name__}: pass a MaxRLConfig")
        self.args.check()
        self.given = None if isinstance(model, str | Path) else model
        self.functions = several(reward_funcs)
        self.state = SimpleNamespace(log_history=[], global_step=0, epoch=0.0)
        self.policy: Any = None
        device = "cpu" if self.args.use_cpu else "auto"
        with in_trl_words():
            _, world, self.device = distributed.setup(device, self.args.full_determinism)
            atexit.register(leave_group)
            init = start(model, processing_class, Path(self.args.output_dir or "trainer_output"))
            self.load(init, world, train_dataset, eval_dataset, adapter(peft_config))

    def load(self, init: str, world: int, train: Any, validation: Any, lora: dict) -> None:
        """Read the data and resolve the options."""
        if train is None:
            raise UsageError("train_dataset is needed: rows with a prompt, or a file of them")
        if validation is None and plain(self.args.eval_strategy) != "no":
            raise UsageError("eval_strategy needs an eval_dataset")
        fixed: dict = {"task": "prompts", "init": init}
        basis = Config(**fixed, max_prompt=self.args.max_prompt_length or 0)
        self.task = setup.load(basis, "train", train=named(train))
        self.validation = None
        if validation is not None:
            self.validation = setup.load(basis, "validation", validation=named(validation))
        sizes = len(self.task), len(self.validation) if self.validation is not None else 0
        # eval.py and sample.py find files again.
        data = {"train": named(train), "validation": named(validation)}
        fixed["task_options"] = {k: v for k, v in data.items() if isinstance(v, str)}
        fixed["reward"] = tuple(map(address, self.functions))
        cfg = recipe(self.args, world, *sizes, fixed | lora)
        if self.args.run_name:
            os.environ.setdefault("WANDB_NAME", self.args.run_name)
        self.cfg = setup.check(cfg, self.task, world, self.validation)
        self.judge = setup.choose_rewards(cfg, self.task, self.validation, self.functions)
        # An adapter and a divided model are not the weights that were given.
        if cfg.lora_rank or cfg.shard:
            self.given = None

    @property
    def model(self) -> Any:
        """The model as it is now: the one of transformers that was given, if any, else ours."""
        return self.started().model if self.given is None else self.given

    def started(self) -> Any:
        """Return the policy; before any training it is that of the initial model."""
        if self.policy is None:
            self.policy = self.start_policy(None)
        return self.policy

    def start_policy(self, resumed: Path | None) -> Any:
        return setup.start_policy(self.cfg, self.task, self.validation, resumed, self.device)

    def train(self, resume_from_checkpoint: bool | str | None = None) -> TrainOutput:
        """Train, and return the number of updates, the mean loss and the last metrics.

        resume_from_checkpoint  True or the newest checkpoint, to resume from it

        A signal ends the process, after a checkpoint, with the exit code of train.py.
        """
        resume = resume_from_checkpoint or self.args.resume_from_checkpoint
        with in_trl_words():
            cfg = replace(self.cfg, resume="yes" if resume else "no")
            loop = user_code.executed(script("train"))
            with Run(cfg, "MaxRLTrainer", self.task, self.validation) as run:
                check_newest(resume, run.resumed)
                self.policy = self.start_policy(run.resumed)
                optimizer = build.make_optimizer(cfg, self.policy.model)
                loop.train(cfg, run, self.task, self.validation, self.judge, self.policy, optimizer)
                distributed.barrier()
        if run.stopped:
            cli.leave(STOPPED)
        self.give_back()
        return self.read_log(run)

    def give_back(self) -> None:
        """Copy the trained weights into the model of transformers that was given."""
        if self.given is None:
            return
        weights = self.policy.model.state_dict()
        for name, parameter in self.given.named_parameters():
            parameter.data.copy_(weights[name])

    def read_log(self, run: Run) -> TrainOutput:
        """Fill state.log_history: each entry is the mean of args.logging_steps steps."""
        lines = (run.path / "metrics.jsonl").read_text().splitlines() if run.main else []
        rows = [json.loads(line) for line in distributed.from_main(lines)]
        updates = self.cfg.minibatches * self.cfg.passes
        every = self.args.logging_steps
        if every < 1:
            every *= self.cfg.steps * updates
        every = max(1, round(every / updates))
        for first in range(0, len(rows), every):
            some = rows[first : first + every]
            last = some[-1]["step"] + 1
            entry = underscored(renamed(means(some)))
            entry |= {"step": last * updates, "epoch": last * self.cfg.prompts / len(self.task)}
            self.state.log_history.append(entry)
        final = self.state.log_history[-1] if rows else {"step": 0, "epoch": 0.0}
        self.state.global_step = final["step"]
        self.state.epoch = final["epoch"]
        return TrainOutput(int(final["step"]), means(rows).get("loss", 0.0), final)

    def evaluate(self) -> dict[str, float]:
        """Return eval_pass@k of the eval_dataset, which log_history gets too."""
        if self.validation is None:
            raise UsageError("evaluate() needs an eval_dataset")
        with in_trl_words():
            found = evaluation.evaluate(
                self.cfg, self.started(), self.validation, self.judge.validation
            )
        metrics = underscored(found)
        self.state.log_history.append(
            metrics | {"step": self.state.global_step, "epoch": self.state.epoch}
        )
        return metrics

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """Write the model and its tokenizer, or the adapter, for transformers and PEFT to load.

        Files of the same names are replaced.
        """
        folder = Path(output_dir or self.cfg.out)
        policy = self.started()
        model = policy.model
        if self.cfg.shard:
            model = policy.gathered.gather("cpu" if distributed.rank() == 0 else "meta")
        if distributed.rank() == 0:
            new = folder / "saved"
            shutil.rmtree(new, ignore_errors=True)
            stop_tokens = policy.stop_tokens
            merge = self.cfg.lora_merge
            checkpoint.save(new, model, policy.tokenizer, stop_tokens, merge=merge)
            # An adapter's directory has none by itself.
            policy.tokenizer.save(new)
            for file in new.iterdir():
                file.replace(folder / file.name)
            new.rmdir()
        distributed.barrier()

    def __getattr__(self, name: str) -> Any:
        if name in ABSENT:
            raise AttributeError(f"{name} is not here: {ABSENT[name]}")
        raise AttributeError(f"MaxRLTrainer has no {name}")


def check_newest(asked: bool | str | None, found: Path | None) -> None:
    """Raise UsageError if another checkpoint than the newest is asked for."""
    if isinstance(asked, str | Path) and found:
        here = found.resolve()
        if Path(asked).resolve() not in (here, *here.parents):
            raise UsageError(
                f"resume_from_checkpoint {asked} is not the newest checkpoint, {found}, from which "
                "a run resumes: start another run with it as model"
            )


def named(data: Any) -> Any:
    """Return a path as text; rows stay as they are."""
    return str(data) if isinstance(data, Path) else data


def means(rows: list[dict]) -> dict[str, float]:
    """Return the mean of each metric over the steps that have it."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None:
                found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def underscored(metrics: dict[str, float]) -> dict[str, float]:
    """Return the metrics with evaluations as transformers logs them: eval_NAME."""
    return {re.sub("^eval/", "eval_", name): value for name, value in metrics.items()}


def leave_group() -> None:
    """Close the process group, which would complain at the end of the interpreter."""
    if dist.is_initialized():
        dist.destroy_process_group()
