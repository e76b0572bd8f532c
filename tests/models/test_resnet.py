"""ResNet has torchvision's structure and computes what transformers' ResNet does."""

import pytest
import torch
import transformers
from torch import nn

from maxrl.models import checkpoint, from_config
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.resnet import ResNet, ResNetConfig
from tests.helpers.tensors import close, normal

RESNET50 = {"num_labels": 1000}
BASIC = {"num_labels": 7, "block": "basic", "depths": (2, 1), "width": 8}
BOTTLENECK = {"num_labels": 7, "depths": (1, 2, 1), "width": 8}
SMALL = BOTTLENECK | {"stem": "small"}


def random_model(config):
    """Every parameter and running statistic is random, as 0 and 1 would hide mistakes."""
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(**config))
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.dim() == 1:
                tensor.normal_(float(name.endswith("weight")), 0.3)  # near 1 if of a norm
            elif tensor.dim() == 4:  # near the size at which activations neither grow nor vanish
                tensor.normal_(0, (2 / tensor[0].numel()) ** 0.5)
    return model.double()


def weighted(*modules):
    return [m for module in modules for m in module.modules() if hasattr(m, "weight")]


def pairs(model, other):
    """The layers with weights of ours and of transformers' model, side by side."""
    blocks = [module for module in other.modules() if hasattr(module, "shortcut")]
    parts = [part for block in blocks for part in (block.layer, block.shortcut)]
    theirs = weighted(other.resnet.embedder, *parts, other.classifier)
    return zip(weighted(model), theirs, strict=True)


def twins(config):
    """A model and transformers' with the same random weights."""
    model = random_model(config)
    c = model.config
    expansion = 4 if c.block == "bottleneck" else 1
    theirs = transformers.ResNetConfig(
        layer_type=c.block,
        depths=list(c.depths),
        embedding_size=c.width,
        num_labels=c.num_labels,
        hidden_sizes=[c.width * 2**i * expansion for i in range(len(c.depths))],
    )
    other = transformers.ResNetForImageClassification(theirs)
    if c.stem == "small":
        embedder = other.resnet.embedder
        embedder.embedder.convolution = nn.Conv2d(3, c.width, 3, padding=1, bias=False)
        embedder.pooler = nn.Identity()
    other.double()
    for ours, theirs in pairs(model, other):
        theirs.load_state_dict(ours.state_dict())
    return model, other


def distance(a, b):
    """The largest difference, relative to the largest number."""
    return float(((a - b).abs().max() / b.abs().max()).detach())


@pytest.mark.parametrize("config", [RESNET50, BASIC, BOTTLENECK, SMALL])
def test_transformers_gives_the_same(config):
    """Logits in both modes, gradients and running statistics are the same."""
    model, other = twins(config)
    # Not square, as height and width must not be mixed up.
    images = normal(3, 3, 64, 80)
    with torch.no_grad():
        logits = model.eval()(images)
        assert logits.shape == (3, config["num_labels"])
        assert logits.std() > 1e-3
        assert distance(logits, other.eval()(images).logits) < 1e-9
    # Training a network as deep as that takes seconds.
    if config is RESNET50:
        return
    labels = torch.tensor([0, 3, 6])
    ours = model.train()(images)
    theirs = other.train()(images).logits
    assert distance(ours, theirs) < 1e-9
    assert distance(ours, logits) > 1e-9
    nn.functional.cross_entropy(ours, labels).backward()
    nn.functional.cross_entropy(theirs, labels).backward()
    for a, b in pairs(model, other):
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            assert distance(p.grad, q.grad) < 1e-7
        close(a.state_dict(), b.state_dict(), 1e-9)


def test_pixels_are_normalised_once():
    """uint8 is (x / 255 - mean) / std, and floats are taken as they are."""
    mean = (0.1, 0.5, 0.8)
    std = (0.2, 0.3, 0.7)
    model = random_model(BASIC | {"mean": mean, "std": std}).eval()
    pixels = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    columns = [torch.tensor(values)[:, None, None] for values in (mean, std)]
    by_hand = (pixels.double() / 255 - columns[0]) / columns[1]
    assert distance(model(pixels), model(by_hand)) < 1e-5
    assert distance(model(pixels.double()), model(by_hand)) > 1e-5
    c = ResNetConfig(num_labels=2)
    assert c.mean == (0.485, 0.456, 0.406)
    assert c.std == (0.229, 0.224, 0.225)


def test_initial_weights():
    """As in torchvision: He's for convolutions (fan_out), 1 and 0 for norms, torch's for fc."""
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(num_labels=50, depths=(1, 1), width=64))
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            expected = (2 / (module.out_channels * module.kernel_size[0] ** 2)) ** 0.5
            spread = 5 * expected / (2 * module.weight.numel()) ** 0.5
            assert abs(module.weight.std() - expected) < spread, name
            assert abs(module.weight.mean()) < spread * 1.5, name
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
    assert 0.9 / 512**0.5 < model.fc.weight.abs().max() < 1 / 512**0.5


@pytest.mark.parametrize(
    "changes, words",
    [({"act": "gelu"}, "unexpected keyword argument 'act'"), ({"block": "wide"}, "'wide'")],
)
def test_configs_that_are_refused(changes, words):
    """A key that nobody reads would be a model other than the one asked for."""
    with pytest.raises((KeyError, TypeError), match=words):
        from_config(ResNetConfig(4).to_hf() | changes)


@pytest.mark.parametrize("config", [BOTTLENECK, BASIC | {"stem": "small", "mean": (0, 0.5, 1)}])
def test_checkpoint(config, tmp_path):
    """Parameters come back, and so do batch-norm's statistics and counters, which are whole."""
    model = random_model(config).float()
    model(torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8))
    checkpoint.save(tmp_path / "a", Checkpoint(model))
    loaded = checkpoint.load(tmp_path / "a").model
    assert loaded.config == model.config
    close(loaded.state_dict(), model.state_dict(), 0)
