"""LoRA (Hu et al., arXiv 2106.09685): W x becomes W x + (alpha / rank) B A x.

Only A (rank, in) and B (out, rank) are trained. They carry PEFT's names, `q_proj.lora_A.weight` and
`q_proj.lora_B.weight`. B starts at 0, so that the model is at first the one without the adapter.
checkpoint.py reads and writes PEFT's directories.
"""

import math
from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The layers that can have an adapter.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PEFT_PREFIX = "base_model.model."  # of every name in a PEFT file
# Keys of an adapter_config.json that need no attention: the tensors' names tell which modules have
# an adapter, and dropout is for training with PEFT. Any other key must be empty or have a value in
# IMPLEMENTED.
READ = {
    "r",
    "lora_alpha",
    "base_model_name_or_path",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "lora_dropout",
    "inference_mode",
    "auto_mapping",
    "peft_version",
    "megatron_core",
    "qalora_group_size",
}
IMPLEMENTED = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM",),
    "bias": ("none",),
    "revision": ("main",),
    "init_lora_weights": (True, "gaussian"),
}


class Frozen(nn.Linear):
    """A Linear that is not trained and keeps a copy of its weight in autocast's precision.

    Autocast itself only caches weights that need a gradient, and would cast this one per token.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight = linear.weight
        self.bias = linear.bias
        self.copy: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(x)
        if self.copy is None:
            self.copy = self.weight.detach().to(torch.get_autocast_dtype(device))
        return F.linear(x, self.copy, self.bias)


class LoRALinear(Frozen):
    """W x + (alpha / rank) B A x, in which only A and B are trained.

    device  of A and B, if not that of the weight
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float, device: str | None = None):
        super().__init__(linear)
        like: dict = {"device": device or self.weight.device, "dtype": self.weight.dtype}
        self.lora_A = nn.Linear(self.in_features, rank, bias=False, **like)
        self.lora_B = nn.Linear(rank, self.out_features, bias=False, **like)
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.scale * self.lora_B(self.lora_A(x))


def add_lora(
    model: Any,
    rank: int,
    alpha: float,
    projections: Collection[str] = PROJECTIONS,
    base: str = "",
    device: str | None = None,
) -> Any:
    """Add an adapter to the projections of a model, in place, and freeze everything else.

    projections  names as in PROJECTIONS, for every layer, or full names of modules
    base         the checkpoint of the model, for adapter_config.json
    device       of the adapter, if not the model's

    ValueError for a model that has an adapter, and for other layers or none.
    """
    if has_lora(model):
        raise ValueError(
            "it is a LoRA adapter already: another one needs a model into which this one is merged"
        )
    linears = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    chosen = {name for name in linears if name in projections or last(name) in projections}
    if not chosen or {last(name) for name in chosen} - set(PROJECTIONS):
        raise ValueError(f"the projections that can have an adapter are {', '.join(PROJECTIONS)}")
    model.requires_grad_(False)
    for name, linear in linears.items():
        adapted = name in chosen
        layer = LoRALinear(linear, rank, alpha, device) if adapted else Frozen(linear)
        model.set_submodule(name, layer)
    model.adapter_config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(projections),
    }
    return model


def last(name: str) -> str:
    """Return "q_proj" of "model.layers.0.self_attn.q_proj"."""
    return name.split(".")[-1]


def drop_casts(model: nn.Module) -> None:
    """Drop the low-precision copies of frozen weights; the next forward makes them again."""
    for module in model.modules():
        if isinstance(module, Frozen):
            module.copy = None


def has_lora(model: nn.Module) -> bool:
    """Tell whether the model has adapters."""
    return any(isinstance(module, LoRALinear) for module in model.modules())


def lora_state(model: nn.Module) -> dict[str, Tensor]:
    """Return A and B of every adapter by PEFT's names; the tensors are the model's own."""
    return {
        PEFT_PREFIX + name: tensor
        for name, tensor in model.state_dict().items()
        if ".lora_" in name
    }


def from_adapter(model: Any, config: dict, tensors: dict[str, Tensor]) -> None:
    """Add an adapter of PEFT's to `model`, in place.

    config   its parsed adapter_config.json
    tensors  of its file, by their names there

    ValueError if it is not a plain LoRA of projections of this model, KeyError for one without r or
    lora_alpha; a RuntimeError of torch for tensors of the wrong shape.
    """
    for key, value in config.items():
        if key not in READ and value and value not in IMPLEMENTED.get(key, ()):
            raise ValueError(
                f"adapter_config.json asks for {key} = {value!r:.40}, which is not implemented"
            )
    given = {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in tensors.items()}
    A = ".lora_A.weight"
    projections = [name.removesuffix(A) for name in given if name.endswith(A)]
    # On the meta device no memory is taken for a rank that the tensors do not have.
    add_lora(model, config["r"], config["lora_alpha"], projections, device="meta")
    weight = model.lm_head.weight
    state = {name: tensor.to(weight, copy=True) for name, tensor in given.items()}
    # Whole matrices would be lost on saving, and untie a head.
    wrong = [name for name in given if ".lora_" not in name]
    if not wrong:
        keys = model.load_state_dict(state, strict=False, assign=True)
        wrong = [*keys.unexpected_keys, *(n for n in keys.missing_keys if ".lora_" in n)]
    if wrong:
        raise ValueError(f"the adapter's tensors do not fit the model: {wrong[0]}")
    model.adapter_config = dict(config)


@torch.no_grad()
def merge(model: nn.Module) -> nn.Module:
    """Add the adapters to the weights, in place: the plain model again, and all of it trainable."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoRALinear):
            module.weight += module.scale * (module.lora_B.weight @ module.lora_A.weight)
        if isinstance(module, Frozen):
            plain = nn.Linear(module.in_features, module.out_features, device="meta")
            plain.weight = module.weight
            plain.bias = module.bias
            model.set_submodule(name, plain)
    return model.requires_grad_(True)
