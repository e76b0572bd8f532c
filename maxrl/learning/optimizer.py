"""The optimizer of a recipe: AdamW, SGD, or Muon for the matrices of the layers."""

from typing import Any

import torch

from maxrl.learning.config import Config


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


def set_rates(optimizer: torch.optim.Optimizer, lr: float, signal: float) -> None:
    """Set the learning rates of an update's parameters.

    signal  0 if no rollout of the update has an advantage, as after a collapse
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1)
        # Muon's steps have the same size whatever the gradient's size. If only a KL penalty or an
        # entropy bonus has a gradient, old momentum would move the matrices for hundreds of steps.
        if "lr_scale" in group and not signal:
            group["lr"] = 0.0
