"""Models by the `model_type` of their config.json."""

from torch import nn

from maxrl.models import resnet
from maxrl.models.transformer import Transformer, TransformerConfig


def from_config(config: dict) -> nn.Module:
    """A model with random weights; ValueError for a config.json that asks for what is not implemented."""
    if config.get("model_type") == resnet.MODEL_TYPE:
        return resnet.ResNet(resnet.ResNetConfig.from_dict(config))
    return Transformer(TransformerConfig.from_hf(config))
