"""Networks with their KV cache, checkpoints, tokenizers and chat templates.

FAMILIES and MODEL_TYPE are the `model_type` of a config.json.
"""

from collections.abc import Callable

from torch.overrides import TorchFunctionMode

from maxrl.models.resnet import MODEL_TYPE, ResNet, ResNetConfig
from maxrl.models.transformer import Transformer, TransformerConfig


class Uninitialised(TorchFunctionMode):
    """Within this context torch.nn.init does nothing, as the numbers come from a checkpoint.

    On the meta device it would import torch's compiler to draw them.
    """

    def __torch_function__(
        self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def from_config(config: dict) -> Transformer | ResNet:
    """Return the model of a parsed config.json, with random weights.

    ValueError or TypeError if it asks for something not implemented here.
    """
    if config.get("model_type") == MODEL_TYPE:
        return ResNet(ResNetConfig.from_dict(config))
    return Transformer(TransformerConfig.from_hf(config))
