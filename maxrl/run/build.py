"""The policy for a task, a language model or a classifier, and its optimizer."""

from collections.abc import Sequence
from typing import Any

import torch

from maxrl.learning.classifier import ClassifierPolicy
from maxrl.learning.config import Config
from maxrl.learning.policy import SequencePolicy
from maxrl.models.resnet import ResNet
from maxrl.models.tokenizer import Tokenizer
from maxrl.models.transformer import Transformer
from maxrl.tasks.base import Task

Learner = SequencePolicy | ClassifierPolicy


def make_policy(
    model: Transformer | ResNet,
    tokenizer: Tokenizer | None,
    stop_tokens: Sequence[int],
    task: Task,
    device: torch.device,
    *,
    seed: int = 0,
    autocast: bool = False,
    workers: int = 0,
    **options: Any,
) -> Learner:
    """Return the policy for a task: a ClassifierPolicy if it has classes, else a SequencePolicy.

    model        as from checkpoint.load_model, with the tokenizer and the stop tokens
    tokenizer    None of a classifier
    stop_tokens  ids, for a task that names no stop tokens of its own
    task         names the classes or stop tokens
    device       where the model goes
    seed         of the noise
    autocast     whether forwards are in bfloat16
    workers      processes that read images for an evaluation
    options      of a SequencePolicy

    ValueError if model and task do not fit each other.
    """
    if bool(task.classes) != (tokenizer is None):
        kind = "a classifier" if tokenizer is None else "a language model"
        raise ValueError(f"the model is {kind}, the task is not made for one")
    if isinstance(model, ResNet):
        # Exactly as many; a tokenizer may have fewer tokens than the model.
        classes = len(task.classes)
        if model.config.num_labels != classes:
            raise ValueError(
                f"the model has {model.config.num_labels} classes, the images have {classes}"
            )
        model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return ClassifierPolicy(model, task.classes, seed=seed, autocast=autocast, workers=workers)
    assert tokenizer is not None
    if tokenizer.size > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has ids up to {tokenizer.size - 1}, "
            f"the model's vocab_size is {model.config.vocab_size}"
        )
    stop = [tokenizer.id(token) for token in task.stop_tokens] or stop_tokens
    # Sharding takes the model to the device layer by layer.
    if not options.get("shard"):
        model = model.to(device)
    return SequencePolicy(model, tokenizer, stop, seed=seed, autocast=autocast, **options)


class MuonAdamW(torch.optim.Optimizer):
    """Muon and AdamW as one optimizer, with a group of parameters for each."""

    def __init__(self, *parts: torch.optim.Optimizer):
        self.parts = parts
        super().__init__([part.param_groups[0] for part in parts], {})

    def step(self) -> None:  # type: ignore[override]
        for part, group in zip(self.parts, self.param_groups):
            part.param_groups = [group]
            part.state = self.state
            part.step()


def hidden_matrices(model: Any) -> list[torch.nn.Parameter]:
    """Return the weights of a transformer's attention and MLPs, each projection a matrix."""
    return [p for p in model.layers.parameters() if p.ndim == 2]


def make_optimizer(cfg: Config, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer over the parameters that are trained."""
    trained = [p for p in model.parameters() if p.requires_grad]
    decay = cfg.weight_decay
    if cfg.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=cfg.lr, momentum=cfg.momentum, weight_decay=decay)
    first, second = cfg.betas
    matrices = hidden_matrices(model) if cfg.optimizer == "muon" else []
    others = [p for p in trained if p not in {*matrices}]
    # The fused step is one pass over the parameters without temporaries, on CPUs too.
    adamw = torch.optim.AdamW(
        others, lr=cfg.lr, betas=(first, second), weight_decay=decay, fused=True
    )
    if cfg.optimizer == "adamw":
        return adamw
    # Steps have Adam's usual size, .2 lr an entry, before muon_lr_scale.
    muon = torch.optim.Muon(
        [{"params": matrices, "lr_scale": cfg.muon_lr_scale}],
        lr=cfg.lr * cfg.muon_lr_scale,
        weight_decay=decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return MuonAdamW(muon, adamw)
