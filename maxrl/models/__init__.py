"""Models by the `model_type` of their config.json."""

from maxrl.models.resnet import MODEL_TYPE, ResNet, ResNetConfig
from maxrl.models.transformer import Transformer, TransformerConfig


def from_config(config: dict) -> Transformer | ResNet:
    """Return the model of a parsed config.json, with random weights.

    ValueError or TypeError if it asks for something not implemented here.
    """
    if config.get("model_type") == MODEL_TYPE:
        return ResNet(ResNetConfig.from_dict(config))
    return Transformer(TransformerConfig.from_hf(config))
