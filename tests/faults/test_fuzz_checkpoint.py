"""Whatever stands in a checkpoint's files, loading it ends in a model that works or in one sentence, and memory is asked for
only after the files were found to hold as much."""

import copy
import json
import os
import random
import shutil
import struct
from pathlib import Path

import pytest
import tiny
import torch
from hostile import NUMBERS, TEXTS, TIMES, VALUES, Clock, many, nested
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from maxrl import checkpoint
from maxrl.config import Config
from maxrl.errors import UsageError
from maxrl.io.files import DEEPEST, parse, read_json
from maxrl.io.tokenizer import Tokenizer
from maxrl.models import from_config, lora
from maxrl.models.lora import add_lora
from maxrl.tasks.maze import VOCABULARY

SENTENCES = (FileNotFoundError, ValueError, UsageError)
USER = [{"role": "user", "content": "WALL UP"}]
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}  # fmt: skip
KEYS = ["model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "head_dim",
        "attention_bias", "initializer_range", "rope_scaling", "rope_parameters", "layer_types", "hidden_act", "eos_token_id",
        "architectures", "quantization_config", "torch_dtype", "sliding_window"]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Checkpoints with every file that we read: of a language model, of its adapter and of a classifier."""
    root = tmp_path_factory.mktemp("whole")
    tokenizer = Tokenizer.from_vocabulary(VOCABULARY)
    tokenizer.config["chat_template"] = "{% for m in messages %}{{ m.content }} {% endfor %}"
    recipe = {"config": Config().to_dict()}
    model = tiny.model(torch.float32, rope_scaling=ROPE)
    optimizer = trained(model, torch.optim.AdamW(model.parameters()))
    checkpoint.save(
        root / "model",
        model,
        tokenizer,
        [2, 7],
        recipe=recipe,
        optimizer=optimizer,
        state={"step": 1},
    )
    adapted = add_lora(checkpoint.load_model(root / "model")[0], 2, 4.0, base=str(root / "model"))
    checkpoint.save(root / "adapter", adapted, tokenizer, [2, 7], recipe=recipe)
    resnet = {"model_type": "torchvision_resnet", "num_labels": 3, "block": "basic", "depths": [1, 1], "width": 4,
              "stem": "small"}  # fmt: skip
    checkpoint.save(root / "resnet", from_config(resnet), recipe=recipe)
    return root


def trained(model, optimizer):
    """The optimizer after one step."""
    sum(p.sum() for p in model.parameters()).backward()
    optimizer.step()
    return optimizer


@pytest.fixture(scope="module")
def asked():
    """Sizes of the models that loading asked memory for; on the meta device there is none."""
    sizes, real = [], checkpoint.from_config

    def counted(config):
        model = real(config)
        sizes.extend(
            sum(p.numel() for p in model.parameters())
            for p in [next(model.parameters())]
            if not p.is_meta
        )
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "from_config", counted)
        yield sizes


def load(folder, asked):
    """Loads and uses a checkpoint."""
    asked.clear()
    model, tokenizer, _ = checkpoint.load_model(folder)
    base = folder if (folder / "config.json").exists() else folder.parent / "model"
    held = sum(os.stat(f).st_size for f in checkpoint.weight_files(base))
    assert all(2 * numbers <= held for numbers in asked), "memory for more than the files hold"
    with torch.no_grad():
        if tokenizer is None:
            model.eval()(torch.zeros(1, 3, 8, 8))
        else:
            hidden = model(torch.tensor([[[1, 2, 0]]]))
            assert hidden.shape[:3] == (1, 1, 3)
            tokenizer.decode(tokenizer.encode("WALL UP"), skip_special=True)
            tokenizer.encode_prompt(USER)


def altered(whole, name: str) -> Path:
    """A fresh copy of one of the checkpoints, beside the others."""
    copied = whole / "altered"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(whole / name, copied)
    return copied


def put(file: Path, value):
    file.write_text(json.dumps(value))


def test_the_whole_ones_load(whole, asked):
    for name in ("model", "adapter", "resnet"):
        load(altered(whole, name), asked)
        assert asked
    checkpoint.recorded(whole / "model")


def test_config_json(whole, asked):
    """Every field replaced by values of every kind: it is taken where the model stays the one in the files."""
    clock = Clock("config.json")
    configs = {
        name: json.loads((whole / name / "config.json").read_text()) for name in ("model", "resnet")
    }
    inside = {"model": list(ROPE) + ["type", "beta_fast", "truncate"], "resnet": []}

    @many(120)
    @given(st.sampled_from(["model", "resnet"]), st.data())
    def fuzz(name, data):
        config = copy.deepcopy(configs[name])
        for _ in range(data.draw(st.integers(1, 2))):
            key = data.draw(
                st.sampled_from(sorted({*KEYS, *config}) if name == "model" else sorted(config))
            )
            value = data.draw(VALUES)
            if (
                inside[name]
                and data.draw(st.integers(0, 3)) == 0
                and isinstance(config.get("rope_scaling"), dict)
            ):
                config["rope_scaling"][data.draw(st.sampled_from(inside[name]))] = value
            elif data.draw(st.integers(0, 9)) == 0:
                config.pop(key, None)
            else:
                config[key] = value
        folder = altered(whole, name)
        put(folder / "config.json", config)
        clock.run(config, lambda: load(folder, asked), *SENTENCES)

    fuzz()
    values = [0, -1, 10**9, 10**400, 1.5, float("nan"), True, None, [], "8"] + (
        NUMBERS + [{}, [1], [[1]]]
    ) * (TIMES > 1)
    for name, keys in (("model", KEYS), ("resnet", [*configs["resnet"], "mean", "std"])):
        for key in keys:
            for value in values:
                folder = altered(whole, name)
                put(folder / "config.json", configs[name] | {key: value})
                clock.run((key, value), lambda folder=folder: load(folder, asked), *SENTENCES)
    clock.report()


@pytest.mark.parametrize("change", [
    {"vocab_size": 10**9, "hidden_size": 10**9}, {"hidden_size": 2**31 - 1, "intermediate_size": 2**31 - 1, "head_dim": 2**30},
    {"num_hidden_layers": 300}, {"num_hidden_layers": 10**9}, {"head_dim": 2**30}, {"vocab_size": 33},
    {"tie_word_embeddings": False},
])  # fmt: skip
def test_a_model_larger_than_its_files_gets_no_memory(change, whole, asked):
    """10^9 x 10^9 weights, or one row more than there is: a sentence, and no model was made but on the meta device."""
    folder = altered(whole, "model")
    put(folder / "config.json", json.loads((folder / "config.json").read_text()) | change)
    asked.clear()
    with pytest.raises(ValueError, match=r"config\.json") as caught:
        checkpoint.load_model(folder)
    assert not asked and "\n" not in str(caught.value)


def test_a_classifier_larger_than_its_files_gets_no_memory(whole, asked):
    for change in ({"num_labels": 2**24}, {"width": 2**16}, {"depths": [100] * 3}):
        folder = altered(whole, "resnet")
        put(folder / "config.json", json.loads((folder / "config.json").read_text()) | change)
        asked.clear()
        with pytest.raises(ValueError, match="do not fit its config.json"):
            checkpoint.load_model(folder)
        assert not asked


def test_an_adapter_larger_than_its_file_gets_no_memory(whole, monkeypatch):
    """A tensor of shape (10^9, 0) has no bytes: a rank that agrees with it must not make one of (10^9, 32)."""
    folder = altered(whole, "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    monkeypatch.setattr(lora, "LoRALinear", lambda *_: pytest.fail("memory for the adapter"))
    tensors = {
        name: torch.zeros((10**9, 0) if "lora_A" in name else (0, 10**9))
        for name in checkpoint.load_file(folder / "adapter_model.safetensors")
    }
    for held, rank in ((None, 10**9), (None, 3), (tensors, 10**9)):
        if held:
            save_file(held, folder / "adapter_model.safetensors")
        put(folder / "adapter_config.json", config | {"r": rank})
        with pytest.raises(ValueError, match="does not fit the model and its rank"):
            checkpoint.load_model(folder)


@pytest.mark.parametrize("file", ["generation_config.json", "tokenizer_config.json", "tokenizer.json", "adapter_config.json",
                                  "recipe.json", "model.safetensors.index.json"])  # fmt: skip
def test_json_files(file, whole, asked):
    """One value anywhere in the file replaced, or one byte: also by what is no JSON, no UTF-8 and no object."""
    clock = Clock(file)
    name = "adapter" if file == "adapter_config.json" else "model"
    good = json.loads((whole / name / file).read_text())
    if file.endswith("index.json"):
        good["weight_map"] = dict.fromkeys(good["weight_map"], "a.safetensors")
    if file == "generation_config.json":
        good |= {"eos_token_id": [2, 7]}
    if file == "tokenizer.json":
        good |= {"truncation": {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0},
                 "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                             "pad_type_id": 0, "pad_token": "<pad>"}}  # fmt: skip
    places = list(paths(good))

    def use(folder):
        if file.endswith("index.json"):
            (folder / "model.safetensors").rename(folder / "a.safetensors")
        checkpoint.recorded(folder) if file == "recipe.json" else load(folder, asked)

    @many(50)
    @given(st.data())
    def fuzz(data):
        value = copy.deepcopy(good)
        for _ in range(data.draw(st.integers(1, 2))):
            value = replaced(value, data.draw(st.sampled_from(places)), data.draw(VALUES))
        text = json.dumps(value).encode(errors="surrogatepass")
        if data.draw(st.integers(0, 4)) == 0:
            here, cut = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 3))
            text = text[:here] + data.draw(st.binary(max_size=3)) + text[here + cut :]
        folder = altered(whole, name)
        (folder / file).write_bytes(text)
        clock.run(value, lambda: use(folder), *SENTENCES)

    fuzz()
    bomb = b"[" * 100_000
    for text in (b"", b"\xff\xfe", b"null", b"[]", b"3", b'"x"', bomb, b'{"a":' * 100_000, b"\0", b"NaN", b"9" * 5000,
                 json.dumps({"a": nested(DEEPEST)}).encode(), b'{"config": {}}', b'{"weight_map": {}}'):  # fmt: skip
        folder = altered(whole, name)
        (folder / file).write_bytes(text)
        clock.run(text[:20], lambda folder=folder: use(folder), *SENTENCES)
    clock.report()


def paths(value, here=()):
    """The place of every value within a JSON value."""
    yield here
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from paths(inner, (*here, key))


def replaced(value, place, new):
    """The value with `new` at a place, which may be gone by now."""
    if not place:
        return new
    try:
        inner = replaced(value[place[0]], place[1:], new)
    except (KeyError, IndexError, TypeError):
        return value
    if isinstance(value, str):
        return value
    value[place[0]] = inner
    return value


def test_padding_and_truncation_are_not_ours(whole):
    """A tokenizer.json that pads to 10^9 tokens, or cuts after 5, would do so with every prompt."""
    folder = altered(whole, "model")
    config = json.loads((folder / "tokenizer.json").read_text())
    padding = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
               "pad_token": "<pad>"}  # fmt: skip
    put(folder / "tokenizer.json", config | {"padding": padding, "truncation": {
        "direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}})  # fmt: skip
    assert len(Tokenizer.load(folder).encode("WALL " * 9)) == 9


def test_weights(whole, asked):
    """Headers with any value anywhere, bytes changed anywhere, files cut anywhere."""
    clock = Clock("model.safetensors")
    data = {
        name: (whole / name / file).read_bytes()
        for name, file in (
            ("model", "model.safetensors"),
            ("adapter", "adapter_model.safetensors"),
            ("resnet", "model.safetensors"),
        )
    }

    @many(150)
    @given(st.sampled_from(sorted(data)), st.data())
    def fuzz(name, draw):
        content = data[name]
        length = struct.unpack("<Q", content[:8])[0]
        kind = draw.draw(st.sampled_from(["header", "bytes", "cut", "longer", "length"]))
        if kind == "header":
            header = json.loads(content[8 : 8 + length])
            place = draw.draw(st.sampled_from(list(paths(header))))
            value = draw.draw(
                st.one_of(
                    VALUES,
                    st.sampled_from(["F64", "I32", "BOOL", "F8_E4M3", [2**62, 4], [0], [-1]]),
                )
            )
            text = json.dumps(replaced(header, place, value)).encode(errors="surrogatepass")
            content = struct.pack("<Q", len(text)) + text + content[8 + length :]
        elif kind == "bytes":
            here = draw.draw(st.integers(0, min(len(content) - 1, 8 + length)))
            content = content[:here] + bytes([draw.draw(st.integers(0, 255))]) + content[here + 1 :]
        elif kind == "cut":
            content = content[: draw.draw(st.integers(0, len(content)))]
        elif kind == "longer":
            content += draw.draw(st.binary(min_size=1, max_size=9))
        else:
            content = struct.pack("<Q", draw.draw(st.integers(0, 2**64 - 1))) + content[8:]
        folder = altered(whole, name)
        file = next(
            f
            for f in folder.iterdir()
            if f.name in ("model.safetensors", "adapter_model.safetensors")
        )
        file.write_bytes(content)
        clock.run(kind, lambda: load(folder, asked), *SENTENCES)

    fuzz()
    twice = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    for header in (twice, b"[" * 100_000, b'{"__metadata__":' + b'{"a":' * 100_000, b"", b"{}"):
        folder = altered(whole, "model")
        (folder / "model.safetensors").write_bytes(
            struct.pack("<Q", len(header)) + header + b"1234"
        )
        clock.run(header[:20], lambda folder=folder: load(folder, asked), *SENTENCES)
    clock.report()


def test_optimizer_state(whole):
    """What is not Adam's of this very model is refused; nothing of another shape is broadcast into place."""
    clock, model = Clock("optimizer.safetensors"), tiny.model(torch.float32, rope_scaling=ROPE)
    tensors = checkpoint.load_file(whole / "model" / "optimizer.safetensors")
    names, norm = sorted(tensors), "model.norm.weight.exp_avg"
    content, folder = (
        (whole / "model" / "optimizer.safetensors").read_bytes(),
        altered(whole, "model"),
    )

    def use(optimizer=None):
        checkpoint.load_optimizer(folder, model, optimizer or torch.optim.AdamW(model.parameters()))
        return True

    assert clock.run("whole", use)
    for change, words in (
        ({norm: torch.ones(1)}, r"exp_avg \(1,\) F32 is not \(32,\)"),
        ({norm: torch.ones(32).int()}, "I32"),
        ({norm: None}, "model.norm.weight.exp_avg is in one of them only"),
        ({"x": torch.ones(1)}, "x is in one of them only"),
        ({"model.nothing.exp_avg": torch.ones(1)}, "in one of them only"),
        ({"model.norm.weight.step": torch.ones(2)}, "step"),
    ):  # fmt: skip
        save_file(
            {n: t for n, t in (tensors | change).items() if t is not None},
            folder / "optimizer.safetensors",
        )
        with pytest.raises(ValueError, match=words):
            use()
    save_file(tensors, folder / "optimizer.safetensors")
    with pytest.raises(ValueError, match="not of this model and optimizer"):
        use(torch.optim.SGD(model.parameters(), momentum=0.9))
    rng = random.Random(0)
    for _ in range(100):
        here = rng.randrange(len(content))
        bad = rng.choice([content[:here], content[:here] + rng.randbytes(1) + content[here + 1 :]])
        (folder / "optimizer.safetensors").write_bytes(bad)
        clock.run(here, use, *SENTENCES)
    (folder / "optimizer.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="no checkpoint to resume from"):
        use()
    assert names
    clock.report()


def test_latest_and_index_stay_within(whole, tmp_path, asked):
    """RUN/latest and the index name files beside them, whatever is written there."""
    clock, run = Clock("latest, index"), tmp_path / "run"
    shutil.copytree(whole / "model", run / "step-1")
    (tmp_path / "x").symlink_to(whole / "model")

    @many(100)
    @given(
        st.one_of(
            st.sampled_from(TEXTS).map(lambda t: t.encode(errors="replace")),
            st.binary(max_size=30),
            st.sampled_from(
                [b"../x", b"..", b".", b"./step-1", b"step-1/../step-1", b"step-1\n", b"/", b"x\0"]
            ),
        )
    )
    def fuzz(text):
        (run / "latest").write_bytes(text)
        found = clock.run(text, lambda: checkpoint.find(run), FileNotFoundError)
        assert found is None or found == run / "step-1" and text.strip() == b"step-1"
        name = text.decode(errors="replace")
        folder = altered(whole, "model")
        (folder / "model.safetensors").rename(folder / "step-1.safetensors")
        for named in (name, name + ".safetensors"):
            put(folder / "model.safetensors.index.json", {"weight_map": {"a": named}})
            files = clock.run(text, lambda: checkpoint.weight_files(folder), *SENTENCES)
            assert not files or [f.resolve().parent for f in files] == [folder.resolve()]

    fuzz()
    for path in ("a" * 5000, "\0", "a\0b", "", "x" * 300 + "/y"):
        clock.run(path, lambda path=path: checkpoint.find(path), FileNotFoundError)
    clock.report()


def test_what_is_no_file(whole, asked):
    """In the place of every file: a directory, a device without end, a pipe that nobody writes to, a link to itself."""
    clock = Clock("no files")
    for name in ("model", "adapter"):
        for file in sorted(f.name for f in (whole / name).iterdir()):
            for make in (Path.mkdir, lambda p: p.symlink_to("/dev/zero"), os.mkfifo, lambda p: p.symlink_to(p),
                         lambda p: p.symlink_to("/nowhere"), lambda p: p.write_bytes(b"")):  # fmt: skip
                folder = altered(whole, name)
                (folder / file).unlink()
                make(folder / file)
                clock.run((name, file), lambda folder=folder: load(folder, asked), *SENTENCES)
    clock.report()


def test_a_file_that_is_too_large(tmp_path):
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate(1 << 40)  # a sparse file: it takes no room on the disk
    with pytest.raises(ValueError, match="is larger than"):
        read_json(tmp_path / "config.json")


def test_depth(whole):
    """Python's own limit depends on the caller: what was read at one depth could not be written at another."""
    assert parse(json.dumps(nested(DEEPEST - 1)).encode(), "x") == nested(DEEPEST - 1)
    with pytest.raises(ValueError, match="x is not JSON for us: it is nested"):
        parse(json.dumps(nested(DEEPEST)).encode(), "x")


@pytest.mark.parametrize("token", [32, -1, "2", 2.0, True, [[2]], [2, 32]])
def test_end_tokens_are_of_the_vocabulary(token, whole):
    folder = altered(whole, "model")
    put(folder / "generation_config.json", {"eos_token_id": token})
    with pytest.raises(ValueError, match="eos_token_id .*, which are not tokens of its 32"):
        checkpoint.load_model(folder)


def test_a_panic_of_the_tokenizers_library_is_a_sentence(whole, monkeypatch):
    """Its panics are no Exception; Ctrl-C still is Ctrl-C."""

    class Panic(BaseException):
        pass

    class Stub:
        def from_buffer(content):
            raise raised

    monkeypatch.setattr("maxrl.io.tokenizer.tokenizers.Tokenizer", Stub)
    for raised, expected in ((Panic("boom"), ValueError), (KeyboardInterrupt(), KeyboardInterrupt)):  # noqa: B007
        with pytest.raises(expected):
            Tokenizer.load(whole / "model")


def test_adapters_of_adapters(whole):
    """A base model that is the adapter itself was followed for ever."""
    folder = altered(whole, "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    for base in (str(folder), str(whole / "adapter")):
        put(folder / "adapter_config.json", config | {"base_model_name_or_path": base})
        with pytest.raises(ValueError, match="which is an adapter too"):
            checkpoint.load_model(folder)
