"""ResNet against the published structure and against transformers' own implementation (maxrl/models/resnet.py)."""

import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

from maxrl import checkpoint
from maxrl.models import from_config
from maxrl.models.resnet import MODEL_TYPE, ResNet, ResNetConfig

RESNET50 = {"num_labels": 1000}
RESNET18 = {"num_labels": 1000, "block": "basic", "depths": (2, 2, 2, 2)}
TINY = {
    "bottleneck": {"num_labels": 7, "depths": (1, 2, 1), "width": 8},
    "basic": {"num_labels": 7, "block": "basic", "depths": (2, 1), "width": 8},
}


def published(depths, expansion):
    """{name: shape} of torchvision's resnet18/34 (expansion 1) and resnet50/101/152 (4), as their files have it."""
    table = {"conv1.weight": (64, 3, 7, 7)}

    def norm(name, channels):
        table.update(
            {
                f"{name}.{part}": (channels,)
                for part in ("weight", "bias", "running_mean", "running_var")
            }
        )
        table[f"{name}.num_batches_tracked"] = ()

    norm("bn1", 64)
    before = 64
    for stage, (depth, width) in enumerate(zip(depths, (64, 128, 256, 512), strict=True), 1):
        after = width * expansion
        for i in range(depth):
            block = f"layer{stage}.{i}"
            kernels = [(width, before, 1), (width, width, 3), (after, width, 1)] if expansion == 4 else [
                (width, before, 3), (width, width, 3)]  # fmt: skip
            for j, (outputs, inputs, size) in enumerate(kernels, 1):
                table[f"{block}.conv{j}.weight"] = (outputs, inputs, size, size)
                norm(f"{block}.bn{j}", outputs)
            if i == 0 and (stage > 1 or expansion == 4):
                table[f"{block}.downsample.0.weight"] = (after, before, 1, 1)
                norm(f"{block}.downsample.1", after)
            before = after
    return table | {"fc.weight": (1000, before), "fc.bias": (1000,)}


@pytest.mark.parametrize(
    "config, expansion, count",
    [
        (RESNET50, 4, 25_557_032),
        (RESNET18, 1, 11_689_512),
        (RESNET50 | {"depths": (3, 4, 23, 3)}, 4, 44_549_160),
        (RESNET18 | {"depths": (3, 4, 6, 3)}, 1, 21_797_672),
    ],
)
def test_the_published_names_and_shapes(config, expansion, count):
    """Exactly torchvision's state_dict, which strict=True asks for: `mean` and `std` must not be among the names."""
    with torch.device("meta"):
        model = ResNet(ResNetConfig(**config))
    assert sum(p.numel() for p in model.parameters()) == count
    names = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert names == published(model.config.depths, expansion)
    assert {"mean", "std"} <= dict(model.named_buffers()).keys()


def test_strides():
    """The 3x3 convolution of a bottleneck halves the image ("V1.5"). In the first paper its first 1x1 does: names,
    shapes and count are the same, published weights load without a word and give other logits."""
    with torch.device("meta"):
        model = ResNet(ResNetConfig(**RESNET50))
    layers = {
        name: m for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.MaxPool2d)
    }
    halving = {name for name, m in layers.items() if m.stride in (2, (2, 2))}
    of_stages = {f"layer{s}.0.{name}" for s in (2, 3, 4) for name in ("conv2", "downsample.0")}
    assert halving == {"conv1", "maxpool"} | of_stages
    assert all(
        m.padding == (m.kernel_size[0] // 2,) * 2
        for m in model.modules()
        if isinstance(m, nn.Conv2d)
    )


def randomise(model):
    """Every parameter and every running statistic random, in float64: what is 0 or 1 would hide mistakes."""
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
    transformers = pytest.importorskip("transformers")
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


@pytest.mark.parametrize("config", [
    RESNET50, TINY["bottleneck"], TINY["basic"], TINY["basic"] | {"stem": "small"},
    TINY["bottleneck"] | {"stem": "small"}])  # fmt: skip
def test_transformers_gives_the_same(config):
    """Logits with the running statistics and with the batch's, the gradients of a loss, the statistics after it."""
    model, other = twins(config)
    images = torch.randn(
        3, 3, 64, 80, dtype=torch.float64
    )  # not square: height and width are not mixed up
    model.eval(), other.eval()
    with torch.no_grad():
        logits = model(images)
        assert logits.shape == (3, config["num_labels"]) and logits.std() > 1e-3
        assert close(logits, other(images).logits) < 1e-9
    if config is RESNET50:
        return  # as deep a network as that takes seconds in training
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
    """uint8 is (x/255 - mean) / std; floats are taken as they are, whoever made them has normalised them."""
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
    """Images of few pixels are not made smaller before the first stage: 32x32 would be 1x1 after the last otherwise."""
    seen = {}
    for stem in ("small", "imagenet"):
        model = ResNet(ResNetConfig(**TINY["basic"], stem=stem))
        model.layer1.register_forward_pre_hook(
            lambda module, inputs, stem=stem: seen.update({stem: inputs[0].shape})
        )
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert seen == {"small": (2, 8, 32, 32), "imagenet": (2, 8, 8, 8)}
    assert (
        model.state_dict().keys()
        == ResNet(ResNetConfig(**TINY["basic"], stem="small")).state_dict().keys()
    )


def test_initial_weights():
    """torchvision's: He's normal distribution of fan_out for convolutions, norms 1 and 0, torch's uniform fc."""
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(num_labels=50, depths=(1, 1), width=64))
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            expected = (2 / (module.out_channels * module.kernel_size[0] ** 2)) ** 0.5
            spread = 5 * expected / (2 * module.weight.numel()) ** 0.5
            assert (
                abs(module.weight.std() - expected) < spread
                and abs(module.weight.mean()) < spread * 1.5
            ), name
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


@pytest.mark.parametrize("changes, words", [
    ({"hidden_sizes": [1], "act": "gelu"}, "unknown keys: act, hidden_sizes"), ({"block": "wide"}, "'wide'.*basic"),
    ({"stem": "tiny"}, "'tiny'.*small"), ({"num_labels": None}, "lacks num_labels")])  # fmt: skip
def test_configs_that_are_refused(changes, words):
    """A key that nobody reads would be a model other than the one that was asked for."""
    config = {k: v for k, v in (ResNetConfig(4).to_hf() | changes).items() if v is not None}
    with pytest.raises(ValueError, match=words):
        from_config(config)


def test_checkpoint(tmp_path):
    """Everything comes back, batch-norm's averages and counters too: without them eval mode is another model."""
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


@pytest.mark.parametrize("change", [
    {"num_labels": 8}, {"depths": [1, 2, 2]}, {"depths": [1, 1, 1]}, {"width": 16}, {"block": "basic"},
    {"stem": "small"}])  # fmt: skip
def test_weights_that_do_not_fit_are_refused(tmp_path, change):
    checkpoint.save(tmp_path / "a", ResNet(ResNetConfig(**TINY["bottleneck"])), recipe={})
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match="do not fit its config.json"):
        checkpoint.load_model(tmp_path / "a")
