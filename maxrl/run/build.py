"""The policy of a recipe: a language model or a classifier, loaded or with random weights."""

from pathlib import Path

import torch

from maxrl.learning.classifier import ClassifierPolicy
from maxrl.learning.config import Config
from maxrl.learning.policy import SequencePolicy
from maxrl.models import checkpoint, from_config, hub_files
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.lora import add_lora, merge
from maxrl.models.resnet import ResNet
from maxrl.models.tokenizer import Tokenizer
from maxrl.run.cli import warn
from maxrl.run.recipes import RECIPES
from maxrl.sampling import cuda
from maxrl.sampling.prompts import check_prompts
from maxrl.system import distributed
from maxrl.system.errors import UsageError, refusing
from maxrl.tasks.base import FilteredTask, Task, example_of, prompt_lengths

Learner = SequencePolicy | ClassifierPolicy


def policy_from(
    cfg: Config, task: Task, validation: Task | None, intact: Path | None, device: torch.device
) -> Learner:
    """Return the policy from a checkpoint, from --init, or new.

    task        names the classes, or the tokens that end a response; its prompts must fit the model
    validation  prompts that must fit as well, or None
    intact      a checkpoint that has been compared with its checksums, as when a run is resumed
    device      where the model goes

    Raises UsageError for a checkpoint that is missing or wrong, and PromptError for a prompt that
    the model cannot answer.
    """
    torch.manual_seed(cfg.seed)
    # What sampling with a former model has kept would stay beside the new one.
    cuda.forget_graphs()
    try:
        with refusing(f"{cfg.init or 'the model'}: ", ValueError):
            start = initial(cfg, task, intact)
            check_fit(start, task)
            if task.classes:
                return ClassifierPolicy(
                    start.model.to(device).to(memory_format=torch.channels_last),
                    task.classes,
                    seed=cfg.seed,
                    autocast=distributed.use_bfloat16(cfg.precision, device),
                    workers=cfg.workers,
                )
            policy = language_model(cfg, start, task, intact, device)
            # Texts get no template, and a task may name its own stop tokens.
            templated = isinstance(example_of(task, 0).prompt, list) and not task.stop_tokens
            mark = policy.tokenizer.unstopped(policy.stop_tokens) if templated else None
            if mark:
                warn(
                    f"{cfg.init}: the chat template ends a turn with {mark}, which ends no "
                    "response: name its id in eos_token_id of generation_config.json if it should"
                )
            for split in (task, validation):
                if split is not None:
                    check_lengths(cfg, policy, split)
            return policy
    except FileNotFoundError as error:
        name = Path(cfg.init).name
        make = f", or make this one with the recipe {name}" if name in RECIPES else ""
        raise UsageError(f"{error}: name another with --init{make}") from None


def initial(cfg: Config, task: Task, intact: Path | None) -> Checkpoint:
    """Return what a run starts from, on the CPU; see policy_from."""
    if intact or cfg.init:
        start = checkpoint.load(intact or cfg.init, intact is not None)
        if not cfg.lora_rank:
            # The checkpoint may be an adapter.
            merge(start.model)
            start.needs = {}
        elif not intact:
            base = hub_files.base_name(cfg.init)
            add_lora(start.model, cfg.lora_rank, cfg.lora_alpha, cfg.lora_projections, base)
            start.needs = {"base": start.as_base}
        return start
    if task.classes:
        return Checkpoint(from_config(cfg.model | {"num_labels": len(task.classes)}))
    model = from_config(cfg.model)
    tokenizer = new_tokenizer(task)
    for i in range(1 if task.equally_long else len(task)):
        example = example_of(task, i)
        written = tokenizer.encode_prompt(example.prompt) + tokenizer.encode(example.answer)
        if "<unk>" in tokenizer.decode(written):
            raise ValueError(
                f"the task's vocabulary lacks words of {example!s:.200}: blanks separate words"
            )
    return Checkpoint(model, tokenizer, tokenizer.ends)


def new_tokenizer(task: Task) -> Tokenizer:
    """Return the tokenizer of a model from scratch; ValueError if the task has none."""
    if task.tokenizer:
        return Tokenizer.load(task.tokenizer)
    if not task.vocabulary:
        raise ValueError(
            "a model from scratch needs the task's vocabulary or tokenizer: give it one, or name a "
            "checkpoint or a hub id with --init"
        )
    return Tokenizer.from_vocabulary(task.vocabulary)


def check_fit(start: Checkpoint, task: Task) -> None:
    """Raise ValueError if model and task do not fit each other."""
    tokenizer = start.tokenizer
    if bool(task.classes) != (tokenizer is None):
        kind = "a classifier" if tokenizer is None else "a language model"
        raise ValueError(f"the model is {kind}, the task is not made for one")
    if isinstance(start.model, ResNet):
        classes = len(task.classes)
        if start.model.config.num_labels != classes:
            raise ValueError(
                f"the model has {start.model.config.num_labels} classes, the images have {classes}"
            )
    # A tokenizer may have fewer tokens than the model.
    elif tokenizer and tokenizer.size > start.model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has ids up to {tokenizer.size - 1}, "
            f"the model's vocab_size is {start.model.config.vocab_size}"
        )


def language_model(
    cfg: Config, start: Checkpoint, task: Task, intact: Path | None, device: torch.device
) -> SequencePolicy:
    """Return the policy of a language model on the device, with the reference of a KL penalty."""
    assert start.tokenizer is not None, "a language model has a tokenizer"
    if task.stop_tokens:
        try:
            start.stop_tokens = [start.tokenizer.id(token) for token in task.stop_tokens]
        except ValueError as error:
            # Countdown has two vocabularies.
            other = "; --task.words true asks a language model" if hasattr(task, "words") else ""
            raise ValueError(f"{error}{other}") from None
    reference = None
    if cfg.beta:
        # Without a checkpoint, the model itself has been read from --init, and checked.
        found = checkpoint.load(cfg.init, intact=intact is None)
        if intact:
            checkpoint.check_same(intact, "reference", found.digest, "the reference of --beta")
        start.needs["reference"] = found.digest
        reference = found.model.to(device)
    low, high = cfg.clip
    # Sharding takes the model to the device layer by layer.
    if not cfg.shard:
        start.model = start.model.to(device)
    return SequencePolicy(
        start,
        max_tokens=cfg.max_response,
        seed=cfg.seed,
        aggregation=cfg.aggregation,
        micro_batch_tokens=cfg.micro_batch_tokens,
        wave_rows=cfg.wave_rows,
        autocast=distributed.use_bfloat16(cfg.precision, device),
        clip=(low, high),
        entropy_bonus=cfg.entropy_bonus,
        beta=cfg.beta,
        kl=cfg.kl,
        reference=reference,
        kv_memory_gb=cfg.kv_memory_gb,
        cuda_graphs=cfg.cuda_graphs,
        gradient_checkpointing=cfg.gradient_checkpointing,
        shard=cfg.shard,
    )


def check_lengths(cfg: Config, policy: SequencePolicy, split: Task) -> None:
    """Raise PromptError if the model cannot answer a prompt of the split."""
    # Several checkpoints that are evaluated may have several tokenizers.
    if isinstance(split, FilteredTask) and split.init == cfg.init:
        lengths = split.lengths
    else:
        lengths = prompt_lengths(split, policy.tokenizer)
    check_prompts(policy.model, map(range, lengths), cfg.max_response)
