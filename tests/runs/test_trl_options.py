"""The options of TRL's GRPOConfig: turns is taken, with what it means here, or refused."""

import dataclasses
import inspect
import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maxrl import MaxRLConfig, MaxRLTrainer
from maxrl.learning.config import Config
from maxrl.learning.optimizer import make_optimizer
from maxrl.learning.updates import learning_rate
from maxrl.run.trl.log import history
from maxrl.run.trl.options import ABSENT, FIELDS, GONE, USUAL, WHY_NOT
from maxrl.run.trl.recipe import Arithmetic, recipe
from maxrl.system.arguments import dashed
from maxrl.system.errors import UsageError
from tests import ROOT
from tests.helpers.hostile import NUMBERS, TEXTS
from tests.helpers.tables import each
from tests.repository import pages

yaml = pytest.importorskip("yaml")
PAGE = (ROOT / "maxrl/run/coming_from_trl.md").read_text()


def defaults_of_trl():
    """Each field of GRPOConfig, and a default of its own for those that have a list."""
    fields = dataclasses.fields(pytest.importorskip("trl").GRPOConfig)
    empty = dataclasses.MISSING
    return {f.name: [] if f.default is empty else f.default for f in fields}


def test_every_option_of_trl_is_taken_or_refused():
    """Each field of GRPOConfig is in one list, with TRL's default where it is taken."""
    theirs = defaults_of_trl()
    ours = {f.name: f.default for f in dataclasses.fields(MaxRLConfig) if f.name in FIELDS}
    lists = [set(ours), set(USUAL), set(GONE)]
    assert sum(map(len, lists)) == len(set.union(*lists)), "a name is in two lists"
    assert WHY_NOT.keys() <= USUAL.keys()
    older = {"max_prompt_length", "warmup_ratio"}
    assert ours.keys() | USUAL.keys() == theirs.keys() | older
    for name, value in theirs.items():
        # Scripts read the options that are not taken, and those that say nothing are empty.
        known = ours[name] if name in ours else getattr(MaxRLConfig("x"), name)
        differs = name in ("scale_rewards", "use_bias_correction_kl")
        assert (known != value and bool(known or value)) == differs, name


def asked(name, value):
    """The recipe of an option, or why it is refused."""
    given = {"output_dir": "x"} | {name: value}
    try:
        return recipe(MaxRLConfig(**given), 1, 8, 8)
    except UsageError as error:
        said = str(error)
        assert "\n" not in said
        return said


def test_every_option_at_its_default_and_at_other_values():
    """TRL's default is taken where it is what is done here. Of an option that is not here all other
    values are refused with the reason, 0 and False as well, and None where it switches off."""
    usual = recipe(MaxRLConfig("x"), 1, 8, 8)
    for name, default in defaults_of_trl().items():
        found = asked(name, default)
        if name in ("output_dir", "scale_rewards", "use_bias_correction_kl"):
            assert found != usual
            continue
        assert found == usual, name
        if name not in WHY_NOT:
            # Any value of an option without effect, and one of the right kind of the others.
            assert name not in USUAL or asked(name, "something") == usual, name
            continue
        neutral = () if default is True else (None,)
        for value in (None, 0, False, True, 0.5, "something", ["a"], {"a": 1}):
            if value in neutral or value == default:
                assert asked(name, value) == usual, (name, value)
            else:
                said = asked(name, value)
                assert WHY_NOT[name] in said and name in said, (name, value)
                with pytest.raises(UsageError):
                    setattr(MaxRLConfig("x"), name, value)


def test_what_asks_for_nothing_is_taken():
    for given in (
        {"generation_kwargs": {}, "optim_args": "", "include_for_metrics": []},
        {
            "temperature": np.float32(1),
            "learning_rate": np.float64(1e-6),
            "use_bias_correction_kl": False,
        },
    ):
        assert recipe(MaxRLConfig("x", **given), 1, 8, 8) == recipe(MaxRLConfig("x"), 1, 8, 8)


@pytest.mark.parametrize("name", [*GONE, "learning_rat", "num_generation", "micro_batch_token"])
def test_names_that_are_gone_or_mistyped(name):
    """A name of the present is in the sentence, or "leave it out"."""
    with pytest.raises(UsageError) as error:
        MaxRLConfig("x", **{name: 1})
    said = str(error.value)
    known = [n for n in (*FIELDS, *Config.__dataclass_fields__) if n in said.replace(name, "", 1)]
    assert known or "leave it out" in said


def test_what_older_versions_of_trl_had():
    """Fields of transformers 4.40 to 4.57 and of TRL 0.15 to 0.25 that are in neither now."""
    older = "evaluation_strategy overwrite_output_dir logging_dir no_cuda save_safetensors"
    older += " group_by_length use_liger_loss vllm_guided_decoding_regex vllm_device"
    for name in older.split():
        with pytest.raises(UsageError, match=f"{name} is gone"):
            MaxRLConfig("x", **{name: None})


def test_every_argument_of_the_trainer_is_taken_or_refused():
    theirs, ours = (
        inspect.signature(trainer).parameters.keys()
        for trainer in (pytest.importorskip("trl").GRPOTrainer, MaxRLTrainer)
    )
    assert theirs - ours <= ABSENT.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_the_page_has_every_option(name):
    """With what it is called here."""
    rows = [row for row in PAGE.splitlines() if row.startswith("| `")]
    (row,) = [row for row in rows if f"`{name}`" in row.split("|")[1]]
    said = FIELDS[name].replace("`", "")
    if said == f"--{dashed(name)}":
        said = "the same name"
    assert said in row.replace("`", "")


# As in a file of TRL's: options of GRPOConfig, and what of our Config comes of them.
VALUES = """
num_generations: 4.0 | rollouts: [4]
clip: [0.1, 0.3] | clip: [0.1, 0.3]
scale_rewards: group | estimator: grpo
scale_rewards: false | estimator: dr_grpo
loss_type: dr_grpo | aggregation: constant
epsilon: 0.1, epsilon_high: 0.3 | clip: [0.1, 0.3]
lr_scheduler_type: constant, warmup_steps: 5 | schedule: constant, warmup_steps: 0
max_steps: 40, warmup_steps: 0.1 | steps: 40, warmup_steps: 4
max_steps: 40, warmup_ratio: 1.0 | warmup_steps: 40
max_steps: 40, save_steps: 0.25 | save_every: 10
save_strategy: epoch | save_every: 64
eval_strategy: steps, eval_steps: 7 | eval_every: 7
num_generations_eval: 2 | eval_samples: 2, eval_k: [1, 2]
report_to: [tensorboard, none] | track: [tensorboard]
max_grad_norm: 0.0 | max_grad_norm: 1000000000.0
bf16: true | precision: bfloat16
optim: sgd | optimizer: sgd, momentum: 0.0
seed: 3, learning_rate: 0.1, weight_decay: 0.5 | seed: 3, lr: 0.1, weight_decay: 0.5
steps_per_generation: 4, num_iterations: 2, max_steps: 80 | steps: 10, minibatches: 4
num_generations: 32, per_device_train_batch_size: 32, rollouts: [8, 8, 16] | rollouts: [8, 8, 16]
eval_strategy: epoch, eval_delay: 2 | eval_every: 64, eval_from: 128
eval_strategy: epoch, eval_delay: 0.001 | eval_every: 64, eval_from: 1
eval_strategy: epoch, max_steps: 7 | eval_every: 7
loss_type: luspo | aggregation: sequence
"""
# What is not here: what would mean something else than in TRL, and what would leave batches and
# schedules counted by other numbers. The last three the trainer says.
REFUSED = """
scale_rewards: batch
loss_type: cispo
loss_type: grpo
loss_type: dr_grpo, entropy_coef: 0.1
prompts: 16
minibatches: 2
passes: 4
steps: 100
epochs: 1
rollouts: [8, 8, 16]
lr_scheduler_type: polynomial
optim: adafactor
report_to: mlflow
save_strategy: best
num_generations: 1
num_generations: 7
num_generations: "4"
max_steps: 2.7
logging_steps: -1
logging_steps: 0.5
temperature: 0.7
full_determinism: 1
seed: 1000000000000000000000000000000
per_device_train_batch_size: 0
num_iterations: 0
learning_rate: "1e-5"
num_train_epochs: 0
steps_per_generation: 3, gradient_accumulation_steps: 2
init: another
out: another
resume: auto
max_prompt: 5
deterministic: true
device: cpu
fsdp: no_shard
fsdp: offload
fsdp: full_shard offload
fsdp: hybrid_shard
fsdp: x
"""


def read(options: str) -> dict:
    return yaml.safe_load(f"{{{options}}}")


@each("given, expected", VALUES)
def test_values(given, expected):
    cfg = recipe(MaxRLConfig(**read(given)), 1, 64, 8).to_dict()
    assert read(expected).items() <= cfg.items()


def test_the_batch_of_the_page():
    """On two ranks 16 prompts of 32 rollouts; what TRL takes and this refuses is refused."""
    space: dict = {"MaxRLConfig": MaxRLConfig}
    exec(pages.blocks(PAGE)[1], space)
    args = space["args"]
    assert (Arithmetic.of(args, 2, 64).prompts, args.num_generations) == (16, 32)
    refused = MaxRLConfig("x", per_device_train_batch_size=8, num_generations=16)
    refused.gradient_accumulation_steps = 1
    with pytest.raises(UsageError, match="one rank"):
        Arithmetic.of(refused, 2, 64)


def test_the_directory():
    args = MaxRLConfig(output_dir=Path("~/x"))
    assert recipe(args, 1, 64, 8).out == str(Path("~/x").expanduser())


@each("line", REFUSED)
def test_values_that_are_not_here(line):
    with pytest.raises(UsageError):
        recipe(MaxRLConfig("x", **read(line)), 1, 64, 0, init="model")


ODD = [
    *NUMBERS,
    *TEXTS,
    *(None, True, b"x", [], [1], [[1]], (0.2, 0.3), {}, {"a": 1}, Path("x"), Path, print),
    *(np.array([1.0, 2.0]), np.float32(0.5), torch.tensor([1, 2])),
]


def test_every_option_with_odd_values():
    """Each is taken as far as the optimizer and the log, or refused by one sentence."""
    for name in [*FIELDS, *USUAL, *Config.__dataclass_fields__]:
        for value in ODD:
            try:
                args = MaxRLConfig(**{name: value})
                cfg = recipe(args, 1, 64, 8, init="model")
            except UsageError as error:
                assert "\n" not in str(error), (name, value)
                continue
            make_optimizer(cfg, torch.nn.Linear(1, 1))
            history([{"step": 0}], cfg, args.logging_steps, 64)


# What is left out here is refused: groups that would be divided among updates or ranks.
GRID = [
    (N, rows, turns, parts, passes, world)
    for N, rows, turns, parts, passes, world in itertools.product(
        (2, 4, 8), (4, 8, 16), (1, 2), (None, 1, 2, 4), (1, 2), (1, 2)
    )
    if rows * turns % N == 0 and rows * (parts or turns) % N == 0
    if (parts or turns) >= turns or passes == 1
]


def updates_of_transformers(args, turns: int) -> int:
    """The updates of its Trainer, which counts turns of the loader."""
    transformers = pytest.importorskip("transformers")
    trainer = SimpleNamespace(
        get_total_train_batch_size=lambda args: 1,
        get_sp_size=lambda: 1,
        num_examples=lambda loader: 1,
    )
    counted = transformers.Trainer.set_initial_training_values(trainer, args, range(turns))
    updates = math.ceil(2 * max(1, math.ceil(turns / args.gradient_accumulation_steps)))
    assert updates in counted
    return updates


def test_the_batch_is_trls(monkeypatch):
    """Prompts, updates and steps are those that TRL's sampler and transformers' counter give."""
    trl = pytest.importorskip("trl")
    transformers = pytest.importorskip("transformers")
    from trl.trainer.utils import RepeatSampler

    assert len(GRID) >= 50
    for N, rows, turns, parts, passes, world in GRID:
        ranks = property(lambda self, world=world: world)
        monkeypatch.setattr(transformers.TrainingArguments, "world_size", ranks)
        given = dict(
            num_generations=N,
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=turns,
            steps_per_generation=parts,
            num_iterations=passes,
            num_train_epochs=2,
        )
        theirs = trl.GRPOConfig("x", bf16=False, use_cpu=True, report_to="none", **given)
        parts = theirs.steps_per_generation
        batch = theirs.generation_batch_size
        seen = list(RepeatSampler(range(101), N, batch // N, passes * parts))
        # One turn of the loader is one micro-step on every rank.
        updates = updates_of_transformers(theirs, len(seen) // (rows * parts * world))
        ours = Arithmetic.of(MaxRLConfig("x", **given), world, 101)
        several = max(1, parts * passes // turns)
        assert ours.prompts == len(set(seen[:batch])) * max(1, turns // parts), given
        assert ours.updates == updates, given
        assert ours.minibatches * ours.passes == several, given
        assert ours.after(ours.updates) == math.ceil(updates / several), given
        cfg = recipe(MaxRLConfig("x", **given), world, 101, 0)
        assert cfg.prompts * cfg.rollouts[0] // cfg.minibatches == rows * world * turns, given


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup"])
def test_learning_rates_are_those_of_transformers(schedule):
    """After the warm-up; in it ours is one step ahead, as transformers begins with 0."""
    transformers = pytest.importorskip("transformers")
    args = MaxRLConfig("x", max_steps=20, warmup_steps=4, lr_scheduler_type=schedule)
    cfg = recipe(args, 1, 64, 0)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=cfg.lr)
    scheduler = transformers.get_scheduler(schedule, optimizer, 4, 20)
    theirs = []
    for _ in range(20):
        theirs += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    ours = [learning_rate(cfg, step) for step in range(20)]
    assert ours[4:] == pytest.approx(theirs[4:])
    assert ours[:4] == pytest.approx(theirs[1:5])
