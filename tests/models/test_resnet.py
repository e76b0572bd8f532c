"""ResNet has torchvision's structure and computes what transformers' ResNet does."""

import json
from dataclasses import asdict

import pytest
import torch
import transformers
from torch import nn

from maxrl import checkpoint
from maxrl.models import from_config
from maxrl.models.resnet import MODEL_TYPE, ResNet, ResNetConfig

RESNET50 = {"num_labels": 1000}
TINY = {
    "bottleneck": {"num_labels": 7, "depths": (1, 2, 1), "width": 8},
    "basic": {"num_labels": 7, "block": "basic", "depths": (2, 1), "width": 8},
}


def randomise(model):
    """Make every parameter and running statistic random, as 0 and 1 would hide mistakes."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.dim() <= 1 and tensor.is_floating_point():
                scale = tensor.dim() == 1 and name.endswith("weight")  # of a norm: near 1
                tensor.copy_(torch.randn_like(tensor) * 0.3 + scale)
            elif tensor.dim() == 4:  # near the size at which activations neither grow nor vanish
                tensor.normal_(0, (2 / tensor[0].numel()) ** 0.5)
    return model.double()


def name_in_transformers(name):
    name = name.replace("downsample.0", "shortcut.convolution").replace(
        "downsample.1", "shortcut.normalization"
    )
    for i in (1, 2, 3):
        for ours, theirs in (("conv", "convolution"), ("bn", "normalization")):
            place = (
                f"layer.{i - 1}.{theirs}"
                if name.startswith("layer")
                else f"resnet.embedder.embedder.{theirs}"
            )
            name = name.replace(f"{ours}{i}", place)
    if name.startswith("layer"):
        stage, block, rest = name.removeprefix("layer").split(".", 2)
        return f"resnet.encoder.stages.{int(stage) - 1}.layers.{block}.{rest}"
    return name.replace("fc", "classifier.1")


def twins(config):
    """A model and transformers' with the same random weights."""
    torch.manual_seed(0)
    model = randomise(ResNet(ResNetConfig(**config)))
    c = model.config
    expansion = 4 if c.block == "bottleneck" else 1
    other = transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            layer_type=c.block,
            depths=list(c.depths),
            embedding_size=c.width,
            num_labels=c.num_labels,
            hidden_sizes=[c.width * 2**i * expansion for i in range(len(c.depths))],
            downsample_in_bottleneck=False,
        )
    )
    if c.stem == "small":
        embedder = other.resnet.embedder
        embedder.embedder.convolution, embedder.pooler = (
            nn.Conv2d(3, c.width, 3, padding=1, bias=False),
            nn.Identity(),
        )
    other = other.double()
    other.load_state_dict(
        {name_in_transformers(name): t for name, t in model.state_dict().items()}, strict=True
    )
    return model, other


def close(a, b):
    """The largest difference, relative to the largest number."""
    return float(((a - b).abs().max() / b.abs().max()).detach())


@pytest.mark.parametrize(
    "config", [RESNET50, TINY["basic"], TINY["bottleneck"], TINY["bottleneck"] | {"stem": "small"}]
)
def test_transformers_gives_the_same(config):
    """Logits in both modes, gradients and running statistics are the same."""
    model, other = twins(config)
    # Not square, as height and width must not be mixed up.
    images = torch.randn(3, 3, 64, 80, dtype=torch.float64)
    model.eval(), other.eval()
    with torch.no_grad():
        logits = model(images)
        assert logits.shape == (3, config["num_labels"]) and logits.std() > 1e-3
        assert close(logits, other(images).logits) < 1e-9
    # Training a network as deep as that takes seconds.
    if config is RESNET50:
        return
    labels = torch.tensor([0, 3, 6])
    for one in (model, other):
        one.train()
        scores = one(images)
        nn.functional.cross_entropy(scores if one is model else scores.logits, labels).backward()
    theirs = dict(other.named_parameters()) | dict(other.named_buffers())
    for name, parameter in model.named_parameters():
        assert close(parameter.grad, theirs[name_in_transformers(name)].grad) < 1e-7, name
    after = model.state_dict()
    assert all(
        close(after[n].double(), theirs[name_in_transformers(n)].double()) < 1e-9 for n in after
    )
    assert after["bn1.num_batches_tracked"] == 1
    with torch.no_grad():
        assert close(model(images), other(images).logits) < 1e-9 < close(model(images), logits)


def test_pixels_are_normalised_once():
    """uint8 is (x / 255 - mean) / std, and floats are taken as they are."""
    mean, std = (0.1, 0.5, 0.8), (0.2, 0.3, 0.7)
    model = randomise(ResNet(ResNetConfig(**TINY["basic"], mean=mean, std=std))).eval()
    pixels = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    by_hand = torch.stack([(pixels[:, c].double() / 255 - mean[c]) / std[c] for c in range(3)], 1)
    assert (
        close(model(pixels), model(by_hand)) < 1e-5 < close(model(pixels.double()), model(by_hand))
    )
    c = ResNetConfig(num_labels=2)
    assert c.mean == (0.485, 0.456, 0.406) and c.std == (0.229, 0.224, 0.225)


def test_small_stem():
    """Images of few pixels are not made smaller before the first stage."""
    for stem, size in (("small", 32), ("imagenet", 8)):
        seen = []
        model = ResNet(ResNetConfig(**TINY["basic"], stem=stem))
        model.layer1.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.extend(inputs))
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
        assert seen[0].shape == (2, 8, size, size)


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
            assert (module.weight == 1).all() and (module.bias == 0).all()
    assert 0.9 / 512**0.5 < model.fc.weight.abs().max() < 1 / 512**0.5


@pytest.mark.parametrize(
    "config", [RESNET50, TINY["basic"] | {"stem": "small", "mean": (0, 0.5, 1)}]
)
def test_config_round_trip(config):
    c = ResNetConfig(**config)
    written = json.loads(json.dumps(c.to_hf()))
    assert written["model_type"] == MODEL_TYPE and ResNetConfig.from_dict(written) == c
    assert hash(ResNetConfig.from_dict(written)) == hash(c), "tuples again, not lists"
    assert asdict(ResNetConfig.from_dict({"num_labels": 3})) == asdict(ResNetConfig(3))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"act": "gelu"}, "unexpected keyword argument 'act'"),
        ({"block": "wide"}, "'wide'"),
    ],
)
def test_configs_that_are_refused(changes, words):
    """A key that nobody reads would be a model other than the one asked for."""
    with pytest.raises((KeyError, TypeError), match=words):
        from_config(ResNetConfig(4).to_hf() | changes)


def test_checkpoint(tmp_path):
    """Parameters come back, and so do batch-norm's statistics and counters."""
    torch.manual_seed(1)
    model = randomise(ResNet(ResNetConfig(**TINY["bottleneck"]))).float()
    images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    for _ in range(3):
        model(images)
    model.eval()
    checkpoint.save(tmp_path / "a", model, recipe={})
    loaded, tokenizer, stop = checkpoint.load_model(tmp_path / "a")
    assert (tokenizer, stop, loaded.config) == (None, [], model.config)
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys() and all(
        torch.equal(before[name], after[name]) for name in before
    )
    assert after["layer2.1.bn3.num_batches_tracked"] == 3
    assert torch.equal(loaded.eval()(images), model(images))
