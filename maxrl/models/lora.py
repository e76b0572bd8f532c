"""LoRA (Hu et al., arXiv 2106.09685): W x becomes W x + (alpha / rank) B A x, and only A and B are trained.

A (rank, in) and B (out, rank) carry PEFT's names, `q_proj.lora_A.weight` and `q_proj.lora_B.weight`; the adapter is not
there at first, because B starts at 0. checkpoint.py reads and writes PEFT's directories.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from maxrl.models.cpu import Linear

PROJECTIONS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)  # what can have an adapter
PREFIX = "base_model.model."  # of every name in a PEFT file
# Keys of an adapter_config.json that change nothing here: which modules have an adapter is read off the tensors' names,
# and dropout is for training with PEFT. Every other key must be empty or have one of the values in IMPLEMENTED.
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


class Frozen(Linear):
    """A Linear that is not trained and keeps its weight in autocast's precision from one forward to the next.

    Autocast itself keeps such a copy only of a weight that needs a gradient, and would cast this one for every token.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight = linear.weight
        self.bias = linear.bias
        self.copy = self.copy_of = None

    def forward(self, x):
        device = x.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(x)
        weight = self.weight
        dtype = torch.get_autocast_dtype(device)
        now = (dtype, weight.device, weight._version)
        if self.copy_of != now:
            self.copy = weight.detach().to(dtype)
            self.copy_of = now
        return F.linear(x, self.copy, self.bias)


class LoRALinear(Frozen):
    """W x + (alpha / rank) B A x, in which only A and B are trained."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        super().__init__(linear)
        like = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.lora_A = nn.Linear(self.in_features, rank, bias=False, **like)
        self.lora_B = nn.Linear(rank, self.out_features, bias=False, **like)
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return super().forward(x) + self.scale * self.lora_B(self.lora_A(x))

    @torch.no_grad()
    def merged(self) -> torch.Tensor:
        """Return the weight (out, in) of a plain Linear that computes the same."""
        return self.weight + self.scale * (self.lora_B.weight @ self.lora_A.weight)


def add_lora(
    model: nn.Module, rank: int, alpha: float, projections=PROJECTIONS, base: str = ""
) -> nn.Module:
    """Give the projections an adapter, in place, and freeze everything that was there.

    projections are named as in PROJECTIONS, for every layer, or in full; base is the checkpoint that the model came from,
    for the adapter's config. ValueError for a model that has one already, an unknown projection, a rank below 1.
    """
    if has_lora(model):
        raise ValueError(
            "it is a LoRA adapter already: another one needs a model into which this one is merged"
        )
    linears = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    known = {alias for name in linears if last(name) in PROJECTIONS for alias in (name, last(name))}
    unknown = [projection for projection in projections if projection not in known]
    if unknown or not projections or rank < 1:
        raise ValueError(
            f"LoRA of rank {rank} on {', '.join(unknown or projections) or 'no projection'} is not possible: "
            f"the rank is at least 1, the projections are {', '.join(PROJECTIONS)}"
        )
    model.requires_grad_(False)
    for name, linear in linears.items():
        chosen = name in projections or last(name) in projections
        model.set_submodule(name, LoRALinear(linear, rank, alpha) if chosen else Frozen(linear))
    model.adapter_config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "target_modules": list(projections),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    return model


def last(name: str) -> str:
    """Return "q_proj" of "model.layers.0.self_attn.q_proj"."""
    return name.split(".")[-1]


def drop_casts(model: nn.Module):
    """Drop the low-precision copies of frozen weights; the next forward makes them again."""
    for module in model.modules():
        if isinstance(module, Frozen):
            module.copy = module.copy_of = None


def has_lora(model: nn.Module) -> bool:
    """Tell whether the model has adapters."""
    return any(isinstance(module, LoRALinear) for module in model.modules())


def lora_state(model: nn.Module) -> dict:
    """Return A and B of every adapter by PEFT's names; the tensors are the model's own."""
    return {
        PREFIX + name: tensor for name, tensor in model.state_dict().items() if ".lora_" in name
    }


def from_adapter(model: nn.Module, config: dict, tensors: dict) -> nn.Module:
    """Add an adapter of PEFT's to `model`, from its parsed adapter_config.json and its tensors.

    ValueError if it is not a plain LoRA of these projections.
    """
    for key, value in config.items():
        if key not in READ and value and value not in IMPLEMENTED.get(key, ()):
            raise ValueError(
                f"adapter_config.json asks for {key[:40]} = {repr(value)[:40]}, which is not implemented"
            )
    lacking = [key for key in ("peft_type", "r", "lora_alpha") if not config.get(key)]
    if lacking:
        raise ValueError(f"adapter_config.json lacks {', '.join(lacking)}")
    rank = config["r"]
    alpha = config["lora_alpha"]
    if type(rank) is not int or type(alpha) not in (int, float) or not 0 < alpha < 1e9:
        raise ValueError(
            f"adapter_config.json has r = {repr(rank)[:40]} and lora_alpha = {repr(alpha)[:40]}: no "
            "rank and scale"
        )
    A = ".lora_A.weight"
    names = {
        name.removeprefix(PREFIX).removesuffix(A): 0 for name in tensors if name.endswith(A)
    }  # in their order
    shapes = {}
    for name, linear in model.named_modules():
        if name in names and last(name) in PROJECTIONS:
            shapes[PREFIX + name + A] = (rank, linear.in_features)
            shapes[f"{PREFIX}{name}.lora_B.weight"] = (linear.out_features, rank)
    wrong = [
        name
        for name in shapes | tensors
        if name not in tensors or tensors[name].shape != shapes.get(name)
    ]
    if (
        wrong and len(shapes) == 2 * len(names) > 0
    ):  # before there is memory for them; add_lora refuses other names
        raise ValueError(
            f"the adapter does not fit the model and its rank {rank}: {wrong[0]}"
            + f", the first of {len(wrong)} tensors that do not" * (len(wrong) > 1)
        )
    for name, own in lora_state(add_lora(model, rank, alpha, list(names))).items():
        own.copy_(tensors[name])
    model.adapter_config = dict(config)
    return model


def merged_state(model: nn.Module) -> dict:
    """Return the state_dict of the plain model that computes the same; without LoRA the model's own."""
    state = {name: tensor for name, tensor in model.state_dict().items() if ".lora_" not in name}
    for name, module in model.named_modules():
        if isinstance(module, LoRALinear):
            state[f"{name}.weight"] = module.merged()
    return state


def merge(model: nn.Module) -> nn.Module:
    """Add the adapters to the weights, in place: the plain model again, and all of it can be trained."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoRALinear):
            module.weight.data.copy_(module.merged())
        if isinstance(module, Frozen):
            plain = Linear(module.in_features, module.out_features, device="meta")
            plain.weight = module.weight
            plain.bias = module.bias
            model.set_submodule(name, plain)
    return model.requires_grad_(True)
