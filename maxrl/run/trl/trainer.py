"""MaxRLTrainer: the run of train.py, started from Python with the names of TRL's GRPOTrainer.

There is no second loop: train() calls that of train.py, in the run directory `output_dir`.
"""

import contextlib
import json
import multiprocessing
import threading
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from maxrl.__main__ import script
from maxrl.learning.config import Config
from maxrl.learning.optimizer import make_optimizer
from maxrl.learning.policy import SequencePolicy
from maxrl.models import checkpoint
from maxrl.run import build, cli, evaluation, setup
from maxrl.run.directory import STOPPED, checkpoints
from maxrl.run.trackers import renamed
from maxrl.run.trl.around import Around, ScriptRun
from maxrl.run.trl.inputs import (
    adapter,
    address,
    as_list,
    handed_back,
    initial_checkpoint,
    name_of,
    plain,
    versions,
)
from maxrl.run.trl.log import history, means, underscored
from maxrl.run.trl.options import ABSENT, MaxRLConfig
from maxrl.run.trl.recipe import recipe
from maxrl.system import distributed, user_code
from maxrl.system.arguments import asks, near
from maxrl.system.errors import UsageError, refusing

# What train() returns, as in transformers.
TrainOutput = namedtuple("TrainOutput", "global_step training_loss metrics")


class MaxRLTrainer(Around):
    """Trains a language model on reward functions with MaxRL.

    model             a checkpoint directory, a run directory, a hub id or a model of transformers
    reward_funcs      functions f(prompts, completions, **columns), or names, one or several
    args              a MaxRLConfig
    train_dataset     rows with a `prompt`, text or messages: a list, a datasets.Dataset, a file, or
                      a folder whose names tell train and validation apart
    eval_dataset      the same, for evaluations
    processing_class  the tokenizer, if it is not the checkpoint's
    peft_config       a peft.LoraConfig, or what has its attributes, to train an adapter
    callbacks         of transformers, some of whose methods are called (see around.py)

    state.log_history has the metrics, and `model` the trained model. UsageError for what is not
    here.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: object = None,
        args: MaxRLConfig | None = None,
        train_dataset: object = None,
        eval_dataset: object = None,
        processing_class: Any = None,
        peft_config: object = None,
        callbacks: Any = (),
        **others: object,
    ):
        for name, value in others.items():
            if name not in ABSENT or value != (None, None) and asks(value, None):
                hint = near(name, [*ABSENT, *MaxRLTrainer.__init__.__annotations__])
                raise UsageError(f"{name} is not here: {ABSENT.get(name) or hint}")
        model = plain(model)
        self.args = args or MaxRLConfig(f"{Path(name_of(model)).name or 'model'}-MaxRL")
        if not isinstance(self.args, MaxRLConfig):
            raise UsageError(f"args is a {type(args).__name__}: pass a MaxRLConfig")
        super().__init__()
        self.initial = model, processing_class
        self.policy: SequencePolicy | None = None
        self.given_tokenizer = processing_class
        self.reward_funcs = functions = as_list(reward_funcs)
        device = "cpu" if self.args.use_cpu else "auto"
        self.device = distributed.setup(device, self.args.full_determinism)
        world = distributed.world_size()
        init = initial_checkpoint(model, processing_class, Path(self.args.output_dir), peft_config)
        for one in callbacks or ():
            self.add_callback(one)
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        files = self.load(init, train_dataset, eval_dataset)
        cfg = recipe(
            self.args,
            world,
            len(self.task),
            len(self.validation or ()),
            task="prompts",
            task_options=files,
            init=init,
            reward=tuple(map(address, functions)),
            **adapter(peft_config),
        )
        self.cfg = setup.resolved(cfg, self.task, world)
        self.state.max_steps = self.cfg.steps * self.cfg.minibatches * self.cfg.passes
        splits = self.task, self.validation
        self.judge, self.eval_judge = setup.choose_judges(cfg, *splits, functions)
        self.given = handed_back(model, cfg)
        self.made = self.settings()

    def settings(self) -> dict[str, Any]:
        """What the trainer was made of, but for what is read later."""
        later = ("logging_steps", "metric_for_best_model", "resume_from_checkpoint", "run_name")
        options = {k: value for k, value in self.args.to_dict().items() if k not in later}
        # Of data only which they are.
        data = {"train_dataset": [self.train_dataset], "eval_dataset": [self.eval_dataset]}
        model, tokenizer = self.initial
        written = {"model": versions(model), "reward_funcs": [*self.reward_funcs]}
        template = {"processing_class": getattr(tokenizer, "chat_template", None)}
        return options | data | written | template

    def check_unchanged(self) -> None:
        """UsageError if options, data or the model have changed since the trainer was made, which
        would be ignored."""
        now = self.settings()
        for name, made in self.made.items():
            same = now[name][0] is made[0] if name.endswith("dataset") else now[name] == made
            if not same:
                raise UsageError(f"{name} was changed after the trainer was made: make another one")
        if self.given is not None and not all(p.requires_grad for p in self.given.parameters()):
            raise UsageError(
                "weights were frozen after the trainer was made, which trains all of them: pass "
                "peft_config to train an adapter"
            )

    def load(self, init: str, train: object, validation: object) -> dict[str, str]:
        """Load the splits; return the files among them, where eval.py and sample.py find them."""
        if train is None:
            raise UsageError("train_dataset is needed: rows with a prompt, or a file of them")
        data = {"train": train, "validation": validation}
        data |= {split: str(rows) for split, rows in data.items() if isinstance(rows, Path)}
        limit = self.args.max_prompt_length or 0
        rewards = tuple(map(address, self.reward_funcs))
        # evaluate() may be called, whatever the options say of evaluations.
        every = int(validation is not None)
        cfg = Config("prompts", data, init=init, max_prompt=limit, reward=rewards, eval_every=every)
        self.task, self.validation = setup.load_splits(cfg)
        return {split: rows for split, rows in data.items() if isinstance(rows, str)}

    @property
    def model(self) -> Any:
        """The model: the one of transformers that was given, or else what transformers makes of the
        newest checkpoint, which train() ends with."""
        if self.given is not None:
            return self.given
        with refusing("trainer.model needs transformers: ", ImportError):
            from transformers import AutoModelForCausalLM
        return AutoModelForCausalLM.from_pretrained(self.newest() or checkpoint.find(self.cfg.init))

    def newest(self) -> Path | None:
        """Return the newest checkpoint of the run, if there is one."""
        return [None, *checkpoints(Path(self.cfg.out))][-1]

    @property
    def processing_class(self) -> Any:
        """The tokenizer: the one that was given, or else what transformers makes of the newest
        checkpoint's; ours if it makes nothing of it."""
        if self.given_tokenizer is not None:
            return self.given_tokenizer
        with contextlib.suppress(ImportError, OSError, ValueError):
            from transformers import AutoTokenizer

            # Kept, as a script may set its pad_token.
            start = self.newest() or checkpoint.find(self.cfg.init)
            self.given_tokenizer = AutoTokenizer.from_pretrained(start)
            return self.given_tokenizer
        return self.started().tokenizer

    def started(self, resumed: Path | None = None) -> SequencePolicy:
        """Return the policy; before any training it is that of the initial model."""
        if self.policy is None or resumed:
            # An evaluation without gradients may make it, which trains later.
            with torch.enable_grad():
                policy = build.policy_from(
                    self.cfg, self.task, self.validation, resumed, self.device
                )
            assert isinstance(policy, SequencePolicy), "prompts are for language models"
            self.policy = policy
        return self.policy

    def train(self, resume_from_checkpoint: bool | str | Path | None = None) -> TrainOutput:
        """Train, and return the number of updates, the mean loss and the last metrics.

        resume_from_checkpoint  True, or its path, to resume from the newest checkpoint

        A signal ends the process, after a checkpoint, with the exit code of train.py.
        """
        self.check_unchanged()
        resume = resume_from_checkpoint or self.args.resume_from_checkpoint
        newest = self.newest()
        wanted = newest and newest.resolve()
        if isinstance(resume, str | Path) and Path(resume).resolve() != wanted:
            said = f"resume_from_checkpoint = {resume}: a run resumes from its newest checkpoint"
            raise UsageError(f"{said}, which is {newest}")
        cfg = self.cfg = replace(self.cfg, resume="yes" if resume else "no")
        loop = user_code.execute(script("train"))
        before = [*multiprocessing.active_children(), *threading.enumerate()]
        self.control.should_training_stop = False
        self.call("on_train_begin")
        with ScriptRun(self) as run:
            run.name = str(self.args.run_name or "")
            # An earlier call may have trained the policy, and failed within a step.
            if self.begun:
                self.policy = None
                self.judge.counted()
            self.begun = vars(self.args)["begun"] = True
            policy = self.started(run.resumed)
            optimizer = make_optimizer(cfg, policy.model)
            judges = self.judge, self.eval_judge
            loop.train(cfg, run, self.task, self.validation, *judges, policy, optimizer)
            distributed.barrier()
        if run.stopped and not run.asked:
            cli.leave(STOPPED, spared=before)
        if self.given is not None:
            self.given.load_state_dict(policy.model.state_dict())
            self.made |= {"model": versions(self.given)}
        lines = (run.path / "metrics.jsonl").read_text().splitlines() if run.main else []
        rows = [renamed(json.loads(line)) for line in distributed.from_main(lines)]
        entries = history(rows, cfg, self.args.logging_steps, len(self.task))
        final = entries[-1] if entries else {"step": 0, "epoch": 0.0}
        # The earlier steps of a resumed run are in `rows` again.
        evaluations = [e for e in self.state.log_history if "learning_rate" not in e]
        self.state.log_history = sorted([*entries, *evaluations], key=lambda entry: entry["step"])
        self.state.global_step = final["step"]
        self.state.epoch = final["epoch"]
        self.call("on_train_end")
        return TrainOutput(int(final["step"]), means(rows).get("loss", 0.0), final)

    def evaluate(self, eval_dataset: object = None) -> dict[str, float]:
        """Return eval_pass@k and mean rewards of the eval_dataset, which log_history gets too."""
        if self.validation is None or eval_dataset not in (None, self.eval_dataset):
            raise UsageError("evaluate() needs an eval_dataset, which is given to the trainer")
        # After hours of training nothing is worth the end of a script.
        if not self.begun:
            self.check_unchanged()
        found = evaluation.evaluate(self.cfg, self.started(), self.validation, self.eval_judge)
        metrics = underscored(found)
        self.log(metrics)
        self.evaluated(metrics)
        return metrics

    def save_model(self, output_dir: str | Path | None = None) -> None:
        """Write the model and its tokenizer, or the adapter, for transformers and PEFT to load.

        They take the place of a model that is there; other files stay.
        """
        folder = Path(output_dir or self.cfg.out)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"save_model needs another directory: {error}") from None
        policy = self.started()
        main = distributed.rank() == 0
        whole = policy.checkpoint
        if policy.gathered is not None:
            model = policy.gathered.gather("cpu" if main else "meta")
            whole = replace(whole, model=model)
        if main:
            checkpoint.save_into(folder, whole)
        # Of a whole model, one process may ask alone.
        if policy.gathered is not None:
            distributed.barrier()
